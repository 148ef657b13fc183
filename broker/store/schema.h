/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/schema.h (PURE): which release wrote a registry.  A constant; any thread. */
#ifndef BROKER_SCHEMA_H
#define BROKER_SCHEMA_H

#define STORE_SCHEMA 9 /* SQLite: user_version; etcd: in the key meta; raised with every change of a row */

#endif

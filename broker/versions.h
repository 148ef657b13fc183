/* SPDX-License-Identifier: Apache-2.0 */
/* broker/versions.h: the messages of a version's path: PUBLISH, and what workers say of it.  A publication is
 * decided (registry/), recorded (txn.h), and announced by apply; the others change the rollout at once. */
#ifndef BROKER_VERSIONS_H
#define BROKER_VERSIONS_H

#include "broker/call.h"

void on_publish(const call_t *c);
void on_staged(const call_t *c);
void on_active(const call_t *c);
void on_nack(const call_t *c);
void on_need_sources(const call_t *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* client/admin.h: what an admin handle is made of, for the calls of it that other rooms make. */
#ifndef CLIENT_ADMIN_H
#define CLIENT_ADMIN_H

#include "client/query.h"
#include <heddle/admin.h>

struct heddle_admin {
    query_t *query;
    char *broker, *broker_key, *key;   /* as they were given; NULL: not */
};

#endif

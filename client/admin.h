/* SPDX-License-Identifier: Apache-2.0 */
/* client/admin.h: an admin handle, for the calls of it that other rooms make: its questions and the texts
 * it was opened with. One thread at a time; the application owns it. Its states are those of
 * client/query.h. */
#ifndef CLIENT_ADMIN_H
#define CLIENT_ADMIN_H

#include "client/query.h"
#include <heddle/admin.h>

/* Of the HI that this process says to sources.  No epoch of a broker comes that far, so it is no member's. */
#define ADMIN_TOKEN_BIT (1ull << 63)

struct heddle_admin {
    query_t *query;
    char *broker, *broker_key, *key; /* as they were given; NULL: not */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/absent.h (PURE): sources that restored lists name, and that have not come back after a start
 * of the broker.  Each is known by the token that it had, with the rows that fetch and name it, so that one
 * that comes back is found in them without a look at all lists.
 *
 * The plan owns it, and puts and takes rows as their lists become load and are none any more.  One thread,
 * nothing blocks. */
#ifndef BROKER_PLAN_ABSENT_H
#define BROKER_PLAN_ABSENT_H

#include <stddef.h>
#include <stdint.h>

struct plan_row;

typedef struct {
    uint64_t token;
    struct plan_row *row;
} absent_naming_t;

typedef struct {
    absent_naming_t *namings; /* ascending by token, and by the address of the row; each once */
    size_t count, capacity;
} absent_t;

void absent_fini(absent_t *a);
/* The row names this one.  Without memory that is forgotten: the list then goes on with the token of before,
 * and counts as one whose source has gone. */
void absent_put(absent_t *a, uint64_t token, struct plan_row *row);
/* It does so no more, or has not. */
void absent_take(absent_t *a, uint64_t token, const struct plan_row *row);
/* Takes one of the rows that name it; NULL: there is none. */
struct plan_row *absent_next(absent_t *a, uint64_t token);

#endif

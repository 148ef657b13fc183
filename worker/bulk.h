/* SPDX-License-Identifier: Apache-2.0 */
/* worker/bulk.h: the bulk plane of a process: its transfer, the memory of its versions, and what it shares
 * with other processes of the host.  Every intake (worker/intake.h) of the process uses it.
 *
 * Loop thread only; the node (the admin handle, for its pull) owns it and what it points to. */
#ifndef WORKER_BULK_H
#define WORKER_BULK_H

#include "core/repeat.h"
#include "worker/hashing.h"
#include "worker/slots.h"

#define BULK_ASKED_MAX (2u * LIMIT_ADAPTERS_PER_WORKER) /* each half of a version has a fetch */
/* A source, and how many fetches of this process ask it now: they share its window. */
typedef struct {
    uint64_t token;
    uint32_t count;
} asked_t;

typedef struct {
    const node_io_t *io;
    slots_t *slots;
    bool is_limited;         /* its own rate is: another source would be no faster */
    struct sharing *sharing; /* NULL: nothing is held, and nothing offered */
    char unheld[160];        /* why the last version that another process of this host had was not held; why
                              * there is no `sharing`; "" */
    repeat_t unheld_reports; /* in the log */
    bool is_digested_here;   /* what is held, whatever others have found */
    int (*check)(heddle_error_t *error); /* as worker_opts_t.check */
    uint64_t chunks_bad, retries;        /* of all downloads */
    uint64_t fetch_rate;                 /* of the last one, in bytes a second; 0: there was none */
    asked_t asked[BULK_ASKED_MAX];       /* by the fetches of all downloads */
    uint32_t asked_count;
    hashing_t *hashing; /* borrowed; NULL: without a helper */
} bulk_t;

#endif

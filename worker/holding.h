/* SPDX-License-Identifier: Apache-2.0 */
/* worker/holding.h: a version that another process of this host has in a region: it is held there, in place
 * of a copy (memory/mappings.h).
 *
 *   state    | event                                                  -> next
 *   ---------+------------------------------------------------------------------------------
 *   asking   | a source's region is held, with the announced manifest -> checking
 *            | no source is left                                      -> asking, of those that come later
 *   checking | all bytes are the announced ones                       -> ended: the region is the caller's
 *            | they differ                                            -> asking, of the next source
 *   any      | holding_end                                            -> ended
 *
 * It is checking exactly as long as it has a region.
 *
 * The sources are asked in the order of the announcement, each once. One that did not answer, or had too many
 * connections or descriptors, or no memory, is asked once more when all others have been, and again while the
 * version is fetched and nothing comes (holding_may_answer): as long as it is listed, it stood still for a
 * moment only. Those that have no region are left out. A list that comes later may have others
 * (holding_has_news), also while the version is fetched.
 *
 * One process of the host digests a content for all that hold it (memory/rounds.h): the source says which. A
 * source is watched from the first hold on; a worker has verified what it hands on, and says so. This one
 * digests, a slice a call, when it is asked, when the source is away or silent, or cannot be watched, and
 * after another source's bytes differed: the next one may hand on the same memory. The manifest is compared
 * and decoded by each.
 *
 * Loop thread only. An intake (worker/intake.h) owns it, and the region until that is the caller's. */
#ifndef WORKER_HOLDING_H
#define WORKER_HOLDING_H

#include "memory/rounds.h"
#include "worker/announced.h"
#include "worker/bulk.h"

#define HOLDING_SOCKET 33u          /* SHARING_NAME_BYTES */
#define HOLDING_AGAIN_US 50000ull   /* until a source that was silent or full is asked once more */
#define HOLDING_PAUSE_US 5000000ull /* and after that, while the version is fetched */

/* What a process was asked for. */
typedef struct {
    key16_t life;
    msg_region_t region;
} holding_row_t;
/* And was not given. */
typedef struct {
    holding_row_t row;
    uint32_t tries;
    uint64_t again_us; /* it is not asked again before; CLOCK_NEVER: nor later */
} holding_asked_t;
typedef struct {
    holding_row_t row;    /* asking: what is asked for; checking: what is held */
    served_t from;        /* its source, whatever is announced meanwhile; no bytes of it are copied */
    uint32_t asked_count; /* in vain */
    holding_asked_t asked[LIMIT_SOURCES]; /* the last ones of these, in any order */
    uint64_t again_us;                    /* asking: nothing is asked before; 0: it waits for an answer */
    region_t *region;                     /* checking: held, with a reference */
    manifest_t manifest;                  /* checking: of that region */
    claim_t claim;                        /* checking: which process digests it, and what came of that */
    char socket[HOLDING_SOCKET];          /* of its source */
    bool has_found_bad;                   /* one that differs: each later one is digested here */
    bool is_digested;                     /* by this process, and not by another one for all */
    hashing_job_t job;                    /* checking: of `region`; its `at`: bytes that were digested here */
    uint64_t begun_us, took_us;           /* asking began; until the last byte was checked */
    uint64_t check_us;
    int why_code;  /* of `why`, and the same whichever source it names; OK: it cannot be reached at all */
    char why[160]; /* a source has a region that cannot be held; "": none has, or not any more */
} holding_t;

/* Asking, of each source of the version. */
void holding_begin(holding_t *h, uint64_t now_us);
/* OK: a region with the announced bytes, and one reference, and its manifest: both are the caller's. AGAIN:
 * a part of the work was done; call again, where it waits (holding_waits) after a turn of `sharing` or at the
 * deadline. NOT_FOUND: no process of this host has it, so that it has to be fetched; so it is until there are
 * news. */
int holding_take(holding_t *h, bulk_t *bulk, const announced_t *w, uint64_t now_us, region_t **ret_region,
                 manifest_t *ret_manifest);
/* Between two calls that it asks for. */
bool holding_waits(const holding_t *h);
/* Likewise; CLOCK_NEVER: a turn of `sharing` comes first. */
uint64_t holding_deadline(const holding_t *h);
/* A note of a source, as mappings_received_t. */
void holding_receive(holding_t *h, const char *source, note_t note, const content_id_t *id);
/* Of a begun one: a source is listed that was not asked. */
bool holding_has_news(const holding_t *h, const announced_t *w);
/* Or one that may hand it over by now, though it did not when it was asked. */
bool holding_may_answer(const holding_t *h, const announced_t *w, uint64_t now_us);
/* The version is not wanted any more. */
void holding_end(holding_t *h);

#endif

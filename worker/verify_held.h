/* SPDX-License-Identifier: Apache-2.0 */
/* worker/verify_held.h: the answer to a VERIFY: a slot is hashed again, slice by slice, and the application
 * is asked for the digest of its own copy.  Bytes that arrive are compared in worker/verify_fetched.h.
 *
 *   FREE -> HASHING (one slice a check_work) -> ASKING (up to CHECK_ANSWER_US) -> FREE, answered
 *
 * The checks of checks_t hold their slot like a reader, and the node owns them.  One that compares another
 * version's slot (intake_t.equal) is its intake's, and holds nothing.  Loop thread only. */
#ifndef WORKER_VERIFY_HELD_H
#define WORKER_VERIFY_HELD_H

#include "core/clock.h"
#include "proto/msg.h"
#include "worker/announced.h"
#include "worker/hashing.h"
#include "worker/slots.h"

#define CHECKS_MAX 8u
#define CHECK_ANSWER_US 30000000u

typedef enum { CHECK_FREE, CHECK_HASHING, CHECK_ASKING } check_state_t;

typedef struct {
    check_state_t state;
    uint32_t adapter;
    uint64_t req, version, hash_us, deadline_us;
    slot_t *slot; /* held */
    announced_part_t part;
    hashing_job_t job;
    /* when all is hashed; the digest is that of the tensors: the manifest has one of its own */
    digest_t found;
    bool has_bad_tensors, has_bad_manifest;
} check_t;

typedef struct {
    check_t rows[CHECKS_MAX];
    uint32_t turn;
} checks_t;

/* `what`: of the version; NULL: there is no such.  OK; NOT_FOUND: the version is not here; LIMIT: too many at
 * once. */
int checks_start(checks_t *c, slots_t *slots, uint32_t adapter, const announced_t *what,
                 const msg_verify_t *m);
/* A check that has a slice to hash; NULL. */
check_t *checks_hashing(checks_t *c);
/* Hashes one slice (worker/hashing.h), and the manifest after the last one; true: that was it, and
 * check->found is there.  What is bad withdraws the slot's region (client/regions.h). */
bool check_work(check_t *check, hashing_t *hashing, const clock_ops_t *clock);
/* The check that waits for the application's answer about a version; NULL. */
check_t *checks_asking(checks_t *c, uint32_t adapter, uint64_t version);
/* A check that has waited too long for the application; NULL. */
check_t *checks_overdue(checks_t *c, uint64_t now_us);
uint64_t checks_deadline(const checks_t *c);
void check_end(check_t *check);
void checks_fini(checks_t *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/verify_held.h"

/* A check holds its slot, so that the version cannot be freed while it is hashed. */
int checks_start(checks_t *c, slots_t *slots, uint32_t adapter, const announced_t *what,
                 const msg_verify_t *m)
{
    for (check_t *check = c->rows; check < c->rows + CHECKS_MAX; check++) {
        if (check->state != CHECK_FREE) continue;
        slot_t *slot = NULL;
        if (!what || slots_acquire(slots, adapter, m->version, &slot)) return HEDDLE_ERR_NOT_FOUND;
        *check = (check_t){.state = CHECK_HASHING,
                           .adapter = adapter,
                           .req = m->req,
                           .version = m->version,
                           .part = what->parts[0],
                           .slot = slot};
        hashing_begin(&check->job, &slot->parts[0].manifest, slot->parts[0].region->view);
        return HEDDLE_OK;
    }
    return HEDDLE_ERR_LIMIT;
}

/* In turn, so that a large adapter does not keep a small one waiting. */
check_t *checks_hashing(checks_t *c)
{
    for (uint32_t i = 0; i < CHECKS_MAX; i++) {
        check_t *check = &c->rows[++c->turn % CHECKS_MAX];
        if (check->state == CHECK_HASHING) return check;
    }
    return NULL;
}

/* Memory that went bad is withdrawn: no other version and no other process takes it any more. */
bool check_work(check_t *check, hashing_t *hashing, const clock_ops_t *clock)
{
    uint64_t before_us = clock_now(clock);
    bool done = hashing_work(hashing, &check->job, &check->found);
    if (done) {
        bytes_t encoded = announced_manifest(&check->part, check->slot->parts[0].region->view);
        digest_t manifest = digest_blake2b(encoded.data, encoded.bytes);
        check->has_bad_tensors = !digest_equal(&check->found, &check->slot->h1);
        check->has_bad_manifest = !digest_equal(&manifest, &check->part.manifest_digest);
        if (check->has_bad_tensors || check->has_bad_manifest) regions_withdraw(check->slot->parts[0].region);
    }
    check->hash_us += clock_now(clock) - before_us;
    return done;
}

/* The application answers by version, and not by request: the first check of that version gets the answer. */
check_t *checks_asking(checks_t *c, uint32_t adapter, uint64_t version)
{
    for (check_t *check = c->rows; check < c->rows + CHECKS_MAX; check++)
        if (check->state == CHECK_ASKING && check->adapter == adapter && check->version == version)
            return check;
    return NULL;
}

/* Such a check is answered without the application's copy: the broker must not wait for it. */
check_t *checks_overdue(checks_t *c, uint64_t now_us)
{
    for (check_t *check = c->rows; check < c->rows + CHECKS_MAX; check++)
        if (check->state == CHECK_ASKING && now_us >= check->deadline_us) return check;
    return NULL;
}

/* Only an application can be late; hashing goes on by itself. */
uint64_t checks_deadline(const checks_t *c)
{
    uint64_t next = CLOCK_NEVER;
    for (const check_t *check = c->rows; check < c->rows + CHECKS_MAX; check++)
        if (check->state == CHECK_ASKING && check->deadline_us < next) next = check->deadline_us;
    return next;
}

/* The hold goes with the check: the version may leave from now on. */
void check_end(check_t *check)
{
    slot_release(&check->slot);
    check->state = CHECK_FREE;
}

/* Nothing is answered any more: the session ends with the node. */
void checks_fini(checks_t *c)
{
    for (check_t *check = c->rows; check < c->rows + CHECKS_MAX; check++)
        if (check->state != CHECK_FREE) check_end(check);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

/* A code stands for the reason why there is no digest, but beside EXPORTED_DIFFERS: that is of the directory.
 * digest_mismatch: the tensors have theirs, and the manifest behind them has not. */
static bool is_bad(const msg_verified_t *m, const digest_t *expected)
{
    bool has_digest = !*m->code || m->exported == EXPORTED_DIFFERS;
    return has_digest ? !digest_equal(&m->digest, expected)
                      : heddle_err_from_name(m->code) == HEDDLE_ERR_DIGEST_MISMATCH;
}

void on_verified(step_t *s, const member_t *member, const msg_verified_t *m)
{
    track_t *t = track_find(s->ro, m->adapter, m->version);
    copy_row_t *c = copy_of(t, member);
    if (c && t->row && is_bad(m, &t->row->digest)) copy_found_bad(t, c, s->v.now);
}

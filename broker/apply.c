/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/apply.h"

#include "broker/keys.h"
#include "broker/sessions.h"
#include "broker/state.h"
#include "core/failpoint.h"

int broker_apply_row(broker_t *b, const record_t *record)
{
    bool is_of_a_key = record->kind == RECORD_KEY || record->kind == RECORD_KEY_DROP;
    return is_of_a_key ? auth_apply(&b->auth, record) : registry_apply(&b->registry, record);
}

/* The records are on disk now.  A record that cannot be applied leaves memory behind the disk, so the
 * process ends: a restart reads all of it. */
int broker_apply(broker_t *b, instant_t now, heddle_error_t *error)
{
    for (int i = 0; i < b->out.record_count; i++) {
        const record_t *rec = &b->out.records[i];
        const adapter_row_t *a = registry_adapter(&b->registry, rec->adapter);
        bool was_held = a && a->held;
        if (rec->kind == RECORD_WRITER && !rec->token && a) broker_note_closed(b, a, now);
        int rc = FAILPOINT("broker.apply") ? HEDDLE_ERR_NO_MEMORY : broker_apply_row(b, rec);
        if (rc) {
            broker_end_broken(b, rc, "a record that is on disk could not be taken into memory", error);
            return rc;
        }
        switch (rec->kind) {
        case RECORD_EPOCH:
            membership_raise_epoch(&b->members, b->registry.epoch);
            b->events.epoch = b->registry.epoch;
            break;
        case RECORD_VERSION:
        case RECORD_DECISION:
        case RECORD_STATE:
        case RECORD_FLOOR:
        case RECORD_FORGET: /* the registry has freed the version's row: its track must not keep it */
            rollout_apply(&b->rollout, broker_view(b, now), rec, was_held, &b->events, &b->out);
            break;
        case RECORD_WRITER:
            if (rec->token) broker_begin_writer(b, rec->token, now);
            break;
        case RECORD_KEY: broker_apply_key(b, rec, now); break;
        case RECORD_ADAPTER:
        case RECORD_KEY_DROP: break;
        }
    }
    b->out.record_count = 0;
    return HEDDLE_OK;
}

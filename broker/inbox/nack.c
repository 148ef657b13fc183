/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/report.h"

#include "broker/rollout/messages.h"
#include "core/errors.h"

static const char *text_or(const char *text, const char *otherwise) { return *text ? text : otherwise; }

/* What a worker says of a failure is kept as one line: tables, events and errors show it as it is. */
static void add_part(char *text, size_t size, const char *name, const char *value)
{
    size_t used = strlen(text);
    if (*value) text_printf(text + used, size - used, "; %s %s", name, value);
}

int on_nack(step_t *s, member_t *member, const msg_nack_t *m, heddle_error_t *error)
{
    about_t x = {.member = member, .adapter = m->adapter, .version = m->version};
    int code = heddle_err_from_name(m->code), rc = report_find(s, &x, error);
    if (rc || !x.c) return rc;
    if (code == HEDDLE_OK) code = HEDDLE_ERR_INTERNAL;
    /* All that the worker says, in one line: it is shown in tables, events and errors as it is. */
    char message[COPY_MESSAGE_BYTES];
    error_text(message, sizeof message, text_or(m->message, heddle_err_text(code)));
    add_part(message, sizeof message, "expected", m->expected);
    add_part(message, sizeof message, "found", m->found);
    add_part(message, sizeof message, "hint:", m->hint);
    if (!m->decision) {
        member_clear_fetch(member, m->adapter, m->version);
        copies_go_on(x.a, member, m->version, s->v.now.us);
        copy_tried(x.t, x.c, m, s->v.now);
        /* Its sources sent bad bytes, all that it tried: it tries again, when those have looked. */
        bool has_got_bad =
            !copy_holds(x.c) && code == HEDDLE_ERR_DIGEST_MISMATCH && !strcmp(m->phase, "verify");
        if (has_got_bad) messages_verify(s, x.t);
        report_stage_failed(s, x.t, x.c, (copy_why_t){code, text_or(m->phase, "stage"), message});
        messages_wake_worker(s, x.a, member);
        return HEDDLE_OK;
    }
    member_sub_t *sub = member_sub(member, m->adapter);
    /* It reported that it serves this, and its application does not. */
    if (serving_is(&sub->serving, m->decision, m->version)) serving_refused(&sub->serving, s->v.now.wall_ms);
    copy_refused(x.t, x.c, (copy_why_t){code, text_or(m->phase, "activate"), message}, s->v.now);
    copies_follow_switch(x.a, member, s->v.now);
    event_row_t *e = events_add(s->ev, EVENT_ACTIVATE_FAILED, m->adapter, m->version, member->name, s->v.now);
    events_message(e, code, "%s", message);
    e->decision = m->decision;
    return HEDDLE_OK;
}

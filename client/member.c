/* SPDX-License-Identifier: Apache-2.0 */
#include "client/member.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"

void member_init(client_member_t *m, const session_opts_t *opts, const node_io_t *io)
{
    *m = (client_member_t){.io = io};
    session_init(&m->session, opts);
}

void member_fini(client_member_t *m) { buf_fini(&m->frame); }

static bool is_worker(const client_member_t *m) { return m->session.opts.role == ROLE_WORKER; }

/* The buffer is kept between messages, so that a heartbeat takes no memory. */
int member_send(client_member_t *m, const msg_t *msg)
{
    const char *name = msg_name((int)msg->type);
    bool fails = is_worker(m) ? FAILPOINT_OF("worker.send", name) : FAILPOINT_OF("publisher.send", name);
    buf_clear(&m->frame);
    int rc = fails ? HEDDLE_ERR_NO_MEMORY : msg_encode(msg, &m->frame);
    if (!rc) return m->io->send(m->io->self, buf_view(&m->frame));
    uint64_t times = is_worker(m) && !member_may_resend(rc)
                         ? repeat_note(&m->unsendable, (uint32_t)msg->type, clock_now(m->io->clock))
                         : 0;
    char scratch[REPEAT_TEXT];
    if (times)
        log_emit(LOG_ERROR, "worker.unsendable", "a %s breaks a rule of the protocol (%s), and is not sent%s",
                 name, heddle_err_name(rc), repeat_text(times, scratch));
    return rc;
}

/* Each event carries the session that it belongs to, so that events of an older one can be recognized. */
void member_tell(client_member_t *m, heddle_event_t *event)
{
    event->size = sizeof *event;
    event->at_ms = clock_wall(m->io->clock);
    event->epoch = m->session.epoch;
    event->token = m->session.token;
    error_text(event->cluster, sizeof event->cluster, m->session.cluster);
    m->io->event(m->io->self, event);
}

/* What is sent here may be lost: the session says HELLO again when no answer comes, and the lease ends a
 * session whose LEAVE did not arrive. */
unsigned member_step(client_member_t *m, const node_event_t *event, uint64_t now_us, msg_t *ret_msg)
{
    session_t *s = &m->session;
    heddle_error_t error;
    char scratch[REPEAT_TEXT];
    *ret_msg = (msg_t){0};
    int rc = event->kind == SE_FRAME ? msg_decode(event->frame, ret_msg, &error) : HEDDLE_OK;
    if (event->kind == SE_FRAME && !rc) {
        const char *name = msg_name((int)ret_msg->type);
        (void)name;
        if (is_worker(m) ? FAILPOINT_OF("worker.frame", name) : FAILPOINT_OF("publisher.frame", name)) {
            msg_fini(ret_msg);
            rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for it");
        }
    }
    if (rc) {
        /* A publisher logs nothing of this: its next call reports what is wrong. */
        uint64_t times = is_worker(m) ? repeat_note(&m->bad_frames, 0, now_us) : 0;
        if (times)
            log_emit(LOG_WARN, "worker.frame", "a frame from the broker was dropped: %s%s", error.message,
                     repeat_text(times, scratch));
        /* A frame that was lost for lack of memory may have been a COMMIT. The connection is made anew,
         * because WELCOME repeats all that counts. */
        if (rc == HEDDLE_ERR_NO_MEMORY) m->io->redial(m->io->self, "", "");
        return 0;
    }
    unsigned out = session_step(s, &(session_event_t){event->kind, ret_msg}, now_us);
    if (out & SO_ELSEWHERE) {
        /* Versions and decisions of another registry mean nothing here: old ones would look new, and new
         * ones old. */
        error_fail(&m->refusal, HEDDLE_ERR_REQUEST_CONFLICT,
                   "the broker has the registry of another cluster (%s) than this %s joined before (%s)",
                   s->cluster, is_worker(m) ? "worker" : "publisher", s->joined);
        error_contrast(&m->refusal, s->joined, s->cluster);
    }
    if (out & SO_REFUSED) msg_to_error(&ret_msg->error, &m->refusal);
    if (out & SO_JOINED) m->refusal = (heddle_error_t){0};
    if (out & SO_JOINED && s->token) m->io->tr->set_token(m->io->t, s->token);
    if (out & SO_HELLO) {
        msg_t hello;
        session_hello(s, &hello);
        (void)member_send(m, &hello);
    }
    if (out & SO_LEAVE) (void)member_send(m, &(msg_t){.type = MSG_LEAVE, .leave = {s->token, s->req}});
    if (out & SO_REDIAL) m->io->redial(m->io->self, s->leader, s->leader_key);
    if (out & SO_TOLD && m->io->told) m->io->told(m->io->self, ret_msg);
    return out & ~(unsigned)(SO_HELLO | SO_LEAVE | SO_REDIAL | SO_TOLD);
}

/* A broker that is started with other data has another table of keys.  Its cluster is in HELLO_OK, which does
 * not come then, and more keys alone would not bring the versions back. */
void member_connection_refused(client_member_t *m, const heddle_error_t *why)
{
    m->refusal = *why;
    size_t used = strlen(why->message);
    if (why->code == HEDDLE_ERR_DENIED && m->session.joined[0])
        text_printf(
            m->refusal.message + used, sizeof m->refusal.message - used,
            "; this %s was in its cluster %.64s before: the key was revoked, or the broker was started "
            "with other data (`heddle status` there shows the cluster)",
            is_worker(m) ? "worker" : "publisher", m->session.joined);
}

/* The list is short and comes from this process; words beyond `cap` are left out. */
uint32_t member_split(char *list, const char **ret_words, uint32_t cap)
{
    uint32_t count = 0;
    char *save = NULL;
    for (char *word = strtok_r(list, ",", &save); word && count < cap; word = strtok_r(NULL, ",", &save))
        ret_words[count++] = word;
    return count;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/entering.h"

#include "core/digest.h"
#include "core/errors.h"

#include <string.h>

void entering_init(entering_t *e, const char *own_public_key, uint64_t pid, uint64_t seed)
{
    *e = (entering_t){.state = ENTERING_GREETING};
    name_host(e->host);
    error_text(e->own, sizeof e->own, own_public_key);
    session_opts_t opts = {.role = ROLE_ADMIN, .host = e->host, .pid = pid, .seed = seed};
    random_bytes(&opts.life, sizeof opts.life);
    session_init(&e->session, &opts);
}

static unsigned ask(entering_t *e, uint64_t now_us, msg_t *ret_msg)
{
    e->state = ENTERING_ASKED;
    e->due_us = now_us + ENTERING_ANSWER_US;
    *ret_msg = (msg_t){.type = MSG_QUERY, .query = {.req = ++e->req, .op = "enter", .key = e->own}};
    return EN_SEND;
}

unsigned entering_step(entering_t *e, session_event_kind_t kind, const msg_t *msg, uint64_t now_us,
                       msg_t *ret_msg, heddle_error_t *ret_why)
{
    if (entering_is_over(e)) return 0;
    if (kind == SE_CONNECTED || kind == SE_DISCONNECTED) e->state = ENTERING_GREETING;
    unsigned said = session_step(&e->session, &(session_event_t){kind, msg}, now_us);
    if (said & SO_REFUSED) {
        msg_to_error(&msg->error, ret_why);
        /* The session repeats HELLO where that may help. */
        return EN_REFUSED | EN_AGAIN | (said & SO_REDIAL ? EN_REDIAL : 0u);
    }
    if (said & SO_HELLO) {
        session_hello(&e->session, ret_msg);
        return EN_SEND;
    }
    if (said & SO_REDIAL) return EN_REDIAL;
    if (said & SO_JOINED) return ask(e, now_us, ret_msg);
    bool is_asked = e->state == ENTERING_ASKED;
    if (kind == SE_FRAME && is_asked && msg->type == MSG_REPORT && msg->report.req == e->req) {
        e->state = ENTERING_OVER;
        return EN_ENTERED;
    }
    /* An ERROR without a number is about a frame that the broker could not read: of a broker that is older
     * than the question. */
    if (kind == SE_FRAME && is_asked && msg->type == MSG_ERROR &&
        (!msg->error.req || msg->error.req == e->req)) {
        msg_to_error(&msg->error, ret_why);
        e->state = msg->error.retriable ? ENTERING_WAITING : ENTERING_OVER;
        e->due_us = now_us + (msg->error.retry_ms ? msg->error.retry_ms * 1000 : ENTERING_RETRY_US);
        return EN_REFUSED | (msg->error.retriable ? EN_AGAIN : 0u);
    }
    if (kind != SE_TICK || e->state == ENTERING_GREETING || now_us < e->due_us) return 0;
    if (e->state == ENTERING_WAITING) return ask(e, now_us, ret_msg);
    e->state = ENTERING_GREETING;
    return EN_REDIAL;
}

uint64_t entering_deadline(const entering_t *e)
{
    if (entering_is_over(e)) return CLOCK_NEVER;
    uint64_t session_us = session_deadline(&e->session);
    return e->state == ENTERING_GREETING ? session_us : clock_earlier(session_us, e->due_us);
}

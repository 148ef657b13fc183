/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session.h"

#include "core/errors.h"
#include "core/limits.h"

#define BEAT_MIN_US 10000u /* whatever lease a broker names */

/* A restarted broker must not get the HELLOs of a whole cluster in the same millisecond. */
static uint64_t jitter(session_t *s, uint64_t us)
{
    s->rng ^= s->rng << 13;
    s->rng ^= s->rng >> 7;
    s->rng ^= s->rng << 17;
    return us - us / 4 + s->rng % (us / 2 + 1);
}

void session_init(session_t *s, const session_opts_t *opts)
{
    *s = (session_t){.opts = *opts, .state = SESSION_DOWN, .next_us = CLOCK_NEVER};
    s->rng = opts->seed * 0x9e3779b97f4a7c15ull | 1; /* xorshift stands still at 0 */
}

/* -- transitions ------------------------------------------------------------------------------ */

/* HELLO may be lost, so that an answer is awaited for a limited time. */
static unsigned greet(session_t *s, uint64_t now_us)
{
    s->state = SESSION_GREETING;
    s->leader[0] = s->leader_key[0] = 0;
    s->hello_count++;
    s->next_us = now_us + jitter(s, SESSION_HELLO_US);
    return SO_HELLO;
}

static unsigned go_down(session_t *s)
{
    s->state = SESSION_DOWN;
    s->next_us = CLOCK_NEVER;
    return 0;
}

/* Without a connection there is nothing to greet; the next CONNECTED begins. */
static unsigned begin_anew(session_t *s, uint64_t now_us)
{
    s->hello_count = 0;
    return s->is_connected ? greet(s, now_us) : go_down(s);
}

static unsigned leave_for_good(session_t *s)
{
    s->state = SESSION_LEFT;
    s->next_us = CLOCK_NEVER;
    s->lease_end_us = 0;
    return SO_LEFT;
}

/* The token is void, by the clock or by an error of the broker. */
static unsigned lapse(session_t *s, uint64_t now_us)
{
    s->lease_end_us = 0;
    /* This process has stood still, or its loop was blocked: what was due, in READY the next heartbeat,
     * was not sent.  A broker that stands still does not answer heartbeats either, and has ended no
     * session when it goes on.  A session that was refused, or whose HELLO has no answer yet, sends no
     * heartbeats. */
    s->has_lapsed = s->is_connected && now_us > s->next_us && now_us - s->next_us > s->lease_us / 4;
    return SO_LAPSED | (s->state == SESSION_READY ? begin_anew(s, now_us) : 0);
}

/* Four heartbeats a lease: three may be lost. */
static uint64_t beat_every(const session_t *s)
{
    return s->lease_us / 4 > BEAT_MIN_US ? s->lease_us / 4 : BEAT_MIN_US;
}

static unsigned refuse(session_t *s, const msg_error_t *m, uint64_t now_us)
{
    uint64_t ms = m->retry_ms < LIMIT_DURATION_MS ? m->retry_ms : LIMIT_DURATION_MS;
    /* A worker that was admitted once serves something: it goes on when what bars it is mended. */
    bool tries_again = m->retriable || (s->opts.role == ROLE_WORKER && s->joined[0]);
    s->state = SESSION_REFUSED;
    s->next_us = tries_again ? now_us + jitter(s, ms ? ms * 1000 : SESSION_RETRY_US) : CLOCK_NEVER;
    return SO_REFUSED;
}

/* To the broker that a standby has named; but where each one names another, in a circle, after a pause. */
static bool may_follow(session_t *s)
{
    s->follows = s->leader[0] && s->follow_count < SESSION_FOLLOWS;
    if (!s->follows) s->follow_count = 0;
    return s->follows;
}

/* A broker that asks to be tried again, and has named no leader for so long, may have lost its etcd, and the
 * next one not. */
static bool is_unled(session_t *s, uint64_t now_us)
{
    bool waits = !s->leader[0] && s->next_us != CLOCK_NEVER;
    if (!waits || !s->unled_us) s->unled_us = waits ? now_us : 0;
    return waits && now_us - s->unled_us >= SESSION_UNLED_US;
}

/* By a broker that does not lead, which may name the one that does.  An address that would be cut is none. */
static unsigned turn_away(session_t *s, const msg_error_t *m, uint64_t now_us)
{
    const char *leader = m->leader ? m->leader : "", *key = m->leader_key ? m->leader_key : "";
    s->leader[0] = s->leader_key[0] = 0;
    if (strlen(leader) < sizeof s->leader) memcpy(s->leader, leader, strlen(leader) + 1);
    if (strlen(key) < sizeof s->leader_key) memcpy(s->leader_key, key, strlen(key) + 1);
    return refuse(s, m, now_us) | (may_follow(s) || is_unled(s, now_us) ? SO_REDIAL : 0u);
}

/* -- frames ----------------------------------------------------------------------------------- */

/* Before it is admitted, and while it leaves, each state takes only the answer that it waits for, and ignores
 * all others. */
static unsigned on_answer(session_t *s, const msg_t *m, uint64_t now_us)
{
    if (s->state == SESSION_LEAVING)
        return m->type == MSG_BYE && m->bye.token == s->token ? leave_for_good(s) : 0;
    if (s->state == SESSION_GREETING && m->type == MSG_HELLO_OK) {
        const msg_hello_ok_t *ok = &m->hello_ok;
        /* A broker of another wire version is not answered: it would not understand a JOIN. */
        if (ok->wire < WIRE_VERSION_MIN || ok->wire > WIRE_VERSION_MAX) return 0;
        s->wire = ok->wire;
        if (s->opts.role != ROLE_ADMIN) s->follow_count = 0; /* an admin may be sent on by its question */
        s->unled_us = 0;
        s->keep = ok->keep;
        error_text(s->cluster, sizeof s->cluster, ok->cluster ? ok->cluster : "");
        if (s->opts.role == ROLE_ADMIN) {
            s->epoch = ok->epoch;
            s->state = SESSION_READY;
            s->next_us = CLOCK_NEVER;
            return SO_JOINED | SO_TOLD;
        }
        s->state = SESSION_JOINING;
        s->req++;
        s->asked_us = now_us;
        s->next_us = now_us + jitter(s, SESSION_HELLO_US);
        return s->joined[0] && strcmp(s->joined, s->cluster) != 0 ? SO_ELSEWHERE : SO_JOIN | SO_TOLD;
    }
    if (s->state == SESSION_GREETING)
        return m->type == MSG_ERROR && m->error.of == MSG_HELLO ? turn_away(s, &m->error, now_us) : 0;
    if (s->state == SESSION_JOINING && m->type == MSG_WELCOME) {
        const msg_welcome_t *w = &m->welcome;
        if (w->req != s->req || !w->token || !w->lease_ms) return 0;
        /* A broker that was started again has fenced no session: it knew none. */
        s->fenced_count += s->has_lapsed && w->token >> 32 == s->token >> 32;
        s->has_lapsed = false;
        /* Of one start of the broker the last token counts: it named that one to all that fetch from this
         * process. */
        if (s->token && s->token >> 32 != w->token >> 32) {
            if (s->former_count < LIMIT_FORMER_TOKENS) s->former_count++;
            memmove(s->former_tokens + 1, s->former_tokens, (s->former_count - 1) * sizeof *s->former_tokens);
            s->former_tokens[0] = s->token;
        }
        s->token = w->token;
        s->epoch = w->epoch;
        /* The lease counts from when the JOIN was sent, and not from now: the broker's clock started in
         * between, so that the lease ends here first. */
        s->lease_us = (w->lease_ms < LIMIT_DURATION_MS ? w->lease_ms : LIMIT_DURATION_MS) * 1000;
        s->lease_end_us = s->asked_us + s->lease_us;
        memset(s->beats, 0, sizeof s->beats);
        s->heartbeat_seq = 0;
        s->drain = DRAIN_NONE;
        s->stays = false;
        s->hello_count = 0;
        s->join_count++;
        memcpy(s->joined, s->cluster, sizeof s->joined);
        s->state = SESSION_READY;
        s->next_us = now_us + beat_every(s);
        return SO_JOINED;
    }
    bool is_refusal = s->state == SESSION_JOINING && m->type == MSG_ERROR && m->error.req == s->req &&
                      (m->error.of == MSG_JOIN || m->error.of == MSG_OPEN);
    return is_refusal ? refuse(s, &m->error, now_us) : 0;
}

/* In READY a frame is delivered only if it carries the token of this session: one that was queued for the
 * session before could undo what this one has done. */
static unsigned on_message(session_t *s, const msg_t *m, uint64_t now_us)
{
    uint64_t token = 0;
    switch (m->type) {
    case MSG_PUBLISHED:
    case MSG_REPORT: s->follow_count = 0; return SO_DELIVER; /* told apart by the request's number */
    case MSG_ANNOUNCE: token = m->announce.token; break;
    case MSG_SOURCES: token = m->sources.token; break;
    case MSG_COMMIT: token = m->commit.token; break;
    case MSG_ABORT: token = m->abort.token; break;
    case MSG_RETIRE: token = m->retire.token; break;
    case MSG_RELEASE: token = m->release.token; break;
    case MSG_ROLLOUT: token = m->rollout.token; break;
    case MSG_VERIFY: token = m->verify.token; break;
    case MSG_PEERS: token = m->peers.token; break;
    case MSG_HEARTBEAT_OK: {
        /* The lease counts from when the heartbeat was sent, which is before the broker extended it. */
        uint64_t seq = m->heartbeat_ok.seq, sent_us = s->beats[seq % SESSION_BEATS].sent_us;
        bool is_ours = m->heartbeat_ok.token == s->token && seq && s->beats[seq % SESSION_BEATS].seq == seq;
        if (is_ours && s->lease_end_us < sent_us + s->lease_us) s->lease_end_us = sent_us + s->lease_us;
        if (is_ours) s->drain = (drain_t)m->heartbeat_ok.drain;
        if (is_ours) s->stays = m->heartbeat_ok.stays;
        return is_ours && m->heartbeat_ok.broker_count ? SO_TOLD : 0;
    }
    case MSG_ERROR: {
        /* Only an error about the token itself ends the session; one about a version does not. */
        int code = heddle_err_from_name(m->error.code);
        bool is_fenced = code == HEDDLE_ERR_FENCED;
        bool is_void = is_fenced || code == HEDDLE_ERR_DENIED || code == HEDDLE_ERR_NOT_FOUND;
        bool is_ours = m->error.token == s->token, names_leader = m->error.leader && m->error.leader[0];
        if (s->opts.role == ROLE_ADMIN && m->error.of == MSG_QUERY && names_leader)
            return turn_away(s, &m->error, now_us);
        if (!m->error.token || !is_ours || m->error.version || !is_void)
            return is_ours || !m->error.token ? SO_DELIVER : 0;
        if (is_fenced && s->opts.role == ROLE_PUBLISHER) return SO_FENCED | leave_for_good(s);
        unsigned out = lapse(s, now_us);
        s->has_lapsed = is_fenced;
        return out;
    }
    default: return 0; /* not for a client */
    }
    return token == s->token ? SO_DELIVER : 0;
}

/* -- connection, time, leave ------------------------------------------------------------------- */

/* A broker that does not answer several HELLOs may have moved: another connection is tried, to the next
 * endpoint. */
static unsigned on_tick(session_t *s, uint64_t now_us)
{
    if (now_us < s->next_us) return 0;
    switch (s->state) {
    case SESSION_GREETING:
    case SESSION_JOINING:
        if (s->hello_count < SESSION_HELLOS) return greet(s, now_us);
        /* The connection is up and nothing answers: another broker, or the same one anew, may. */
        go_down(s);
        s->is_connected = false;
        s->hello_count = 0;
        s->next_us = now_us + jitter(s, SESSION_RETRY_US);
        return SO_REDIAL;
    case SESSION_REFUSED: return begin_anew(s, now_us);
    case SESSION_READY:
        if (!s->is_connected || !s->lease_end_us) return 0;
        /* Each heartbeat's time is kept: its answer renews the lease from that time. */
        s->heartbeat_seq++;
        s->beats[s->heartbeat_seq % SESSION_BEATS].seq = s->heartbeat_seq;
        s->beats[s->heartbeat_seq % SESSION_BEATS].sent_us = now_us;
        s->next_us = now_us + beat_every(s);
        return SO_HEARTBEAT;
    case SESSION_LEAVING: return leave_for_good(s);
    case SESSION_DOWN: /* without a descriptor for another connection it is still the old one */
        s->is_connected = true;
        return greet(s, now_us);
    case SESSION_LEFT: break;
    }
    return 0;
}

/* The end of a lease comes before the event: a frame that was queued behind it must not be delivered. */
unsigned session_step(session_t *s, const session_event_t *event, uint64_t now_us)
{
    if (event->kind == SE_CONNECTED || event->kind == SE_DISCONNECTED)
        s->is_connected = event->kind == SE_CONNECTED;
    if (event->kind == SE_CONNECTED) {
        s->follow_count += s->follows;
        s->follows = false;
        s->unled_us = 0;
    }
    unsigned out = 0;
    if (s->lease_end_us && now_us >= s->lease_end_us && s->state != SESSION_LEAVING) {
        bool was_ready = s->state == SESSION_READY;
        out = lapse(s, now_us);
        if (was_ready && event->kind != SE_LEAVE) return out;
        out &= ~(unsigned)SO_HELLO; /* a client that leaves says no HELLO */
    }
    switch (event->kind) {
    case SE_CONNECTED:
    case SE_DISCONNECTED:
        if (s->state == SESSION_LEFT) return out;
        if (s->state == SESSION_LEAVING) return out | leave_for_good(s);
        if (!s->is_connected && s->state == SESSION_READY) return out;
        return out | begin_anew(s, now_us);
    case SE_FRAME:
        return out | (s->state == SESSION_READY ? on_message(s, event->msg, now_us)
                                                : on_answer(s, event->msg, now_us));
    case SE_TICK: return out | on_tick(s, now_us);
    case SE_LEAVE:
        if (s->state == SESSION_LEAVING || s->state == SESSION_LEFT) return out;
        /* A session without a lease has nothing to give up, and ends at once. */
        if (s->state != SESSION_READY || !s->is_connected || !s->lease_end_us) return out | leave_for_good(s);
        s->state = SESSION_LEAVING;
        s->req++;
        s->next_us = now_us + SESSION_LEAVE_US;
        return out | SO_LEAVE;
    }
    return out;
}

void session_beat_soon(session_t *s, uint64_t now_us)
{
    if (s->state == SESSION_READY && s->next_us > now_us) s->next_us = now_us;
}

/* -- questions about the state ---------------------------------------------------------------- */

uint64_t session_deadline(const session_t *s)
{
    uint64_t next_us = s->state == SESSION_READY && !s->is_connected ? CLOCK_NEVER : s->next_us;
    bool leased = s->lease_end_us && s->state != SESSION_LEAVING;
    return leased && s->lease_end_us < next_us ? s->lease_end_us : next_us;
}

void session_hello(const session_t *s, msg_t *ret_msg)
{
    *ret_msg = (msg_t){.type = MSG_HELLO};
    ret_msg->hello = (msg_hello_t){.wire_min = WIRE_VERSION_MIN,
                                   .wire_max = WIRE_VERSION_MAX,
                                   .role = s->opts.role,
                                   .pid = s->opts.pid,
                                   .life = s->opts.life,
                                   .heddle = heddle_version(),
                                   .host = s->opts.host,
                                   .cluster = s->joined};
}

bool session_is_barred(const session_t *s)
{
    return s->state == SESSION_REFUSED && s->next_us == CLOCK_NEVER;
}

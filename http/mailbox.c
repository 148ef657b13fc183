/* SPDX-License-Identifier: Apache-2.0 */
#include "http/mailbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A ring, to which one thread adds, and from which the other one takes.  It cannot overflow (mailbox.h).  A
 * place is used again only after its taker has asked, or replied, once more. */
typedef struct {
    atomic_size_t added;
    size_t taken; /* its taker's alone */
} ring_t;

struct mailbox {
    int question_fd, reply_fd;
    atomic_uint_least64_t last_seq, seen; /* events: how far they are, and how far the other side knows */
    atomic_bool listens;
    ring_t probes_asked, asked, answered;
    question_t probes[MAILBOX_PLACES], questions[MAILBOX_PLACES];
    reply_t replies[MAILBOX_PLACES];
    size_t places;  /* of the HTTP thread: how many are asked, and not taken */
    bool was_probe; /* of the loop's: the question that was taken last */
};

static size_t ring_end(const ring_t *r)
{
    return atomic_load_explicit(&r->added, memory_order_relaxed) % MAILBOX_PLACES;
}

/* What was put at its end is there for the other thread. */
static void ring_add(ring_t *r) { atomic_fetch_add_explicit(&r->added, 1, memory_order_release); }

static bool ring_has(const ring_t *r)
{
    return atomic_load_explicit(&r->added, memory_order_acquire) != r->taken;
}

static size_t ring_take(ring_t *r) { return r->taken++ % MAILBOX_PLACES; }

int mailbox_new(mailbox_t **ret_mailbox)
{
    mailbox_t *m = calloc(1, sizeof *m);
    if (!m) return HEDDLE_ERR_NO_MEMORY;
    m->question_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    m->reply_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->question_fd >= 0 && m->reply_fd >= 0) {
        *ret_mailbox = m;
        return HEDDLE_OK;
    }
    mailbox_destroy(&m);
    return HEDDLE_ERR_NO_MEMORY;
}

void mailbox_destroy(mailbox_t **mailbox)
{
    mailbox_t *m = mailbox ? *mailbox : NULL;
    if (!m) return;
    *mailbox = NULL;
    while (ring_has(&m->answered)) reply_fini(&m->replies[ring_take(&m->answered)]);
    if (m->question_fd >= 0) close(m->question_fd);
    if (m->reply_fd >= 0) close(m->reply_fd);
    free(m);
}

const buf_t *reply_events(reply_t *r)
{
    if (r->rows) r->add_rows(r->rows, &r->events);
    free(r->rows);
    r->rows = NULL;
    return &r->events;
}

void reply_fini(reply_t *r)
{
    json_decref(r->body);
    r->body = NULL;
    free(r->samples);
    r->samples = NULL;
    free(r->rows);
    r->rows = NULL;
    buf_fini(&r->events);
}

int mailbox_question_fd(const mailbox_t *m) { return m->question_fd; }
int mailbox_reply_fd(const mailbox_t *m) { return m->reply_fd; }

static void raise_fd(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void lower_fd(int fd)
{
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {}
}

bool mailbox_ask(mailbox_t *m, const question_t *question)
{
    bool is_probe = request_is_probe(&question->request);
    if (m->places >= (is_probe ? MAILBOX_PLACES : MAILBOX_PLACES - MAILBOX_FOR_PROBES)) return false;
    ring_t *ring = is_probe ? &m->probes_asked : &m->asked;
    (is_probe ? m->probes : m->questions)[ring_end(ring)] = *question;
    m->places++;
    ring_add(ring);
    raise_fd(m->question_fd);
    return true;
}

/* Probes come first, but not twice before a question that waits. */
static bool next(mailbox_t *m, question_t *ret_question)
{
    lower_fd(m->question_fd);
    bool has_asked = ring_has(&m->asked),
         is_probe = ring_has(&m->probes_asked) && !(m->was_probe && has_asked),
         is_there = is_probe || has_asked;
    m->was_probe = is_probe;
    if (is_probe) *ret_question = m->probes[ring_take(&m->probes_asked)];
    else if (is_there) *ret_question = m->questions[ring_take(&m->asked)];
    return is_there;
}

bool mailbox_next(mailbox_t *m, uint64_t now_us, question_t *ret_question)
{
    while (next(m, ret_question)) {
        if (now_us < ret_question->due_us) return true;
        mailbox_reply(m, &(reply_t){.ticket = ret_question->ticket, .is_late = true});
    }
    return false;
}

void mailbox_reply(mailbox_t *m, const reply_t *reply)
{
    m->replies[ring_end(&m->answered)] = *reply;
    ring_add(&m->answered);
    raise_fd(m->reply_fd);
}

/* Each side says what it has before it looks at what the other one has, so that one of them sees both.  There
 * is news that is waited for: then no further ones are. */
static void wake_for_news(mailbox_t *m)
{
    bool is_news = atomic_load(&m->last_seq) != atomic_load(&m->seen);
    if (is_news && atomic_exchange(&m->listens, false)) raise_fd(m->reply_fd);
}

void mailbox_note(mailbox_t *m, uint64_t last_seq)
{
    atomic_store(&m->last_seq, last_seq);
    wake_for_news(m);
}

void mailbox_listen(mailbox_t *m, uint64_t seen)
{
    atomic_store(&m->seen, seen);
    atomic_store(&m->listens, true);
    wake_for_news(m);
}

uint64_t mailbox_noted(mailbox_t *m) { return atomic_load(&m->last_seq); }

bool mailbox_take(mailbox_t *m, reply_t *ret_reply)
{
    lower_fd(m->reply_fd);
    if (!ring_has(&m->answered)) return false;
    *ret_reply = m->replies[ring_take(&m->answered)];
    m->places--;
    return true;
}

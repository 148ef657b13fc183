/* SPDX-License-Identifier: Apache-2.0 */
#include "http/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Places of a ring. */
typedef struct {
    size_t first, count;
} ring_t;

struct mailbox {
    pthread_mutex_t lock; /* of all below but the descriptors */
    int question_fd, reply_fd;
    size_t taken;            /* places: asked, and not taken */
    uint64_t last_seq, seen; /* events: how far they are, and how far the other side knows */
    bool listens, was_probe; /* the question that was taken last */
    ring_t probes_asked, asked, answered;
    question_t probes[MAILBOX_PLACES], questions[MAILBOX_PLACES];
    reply_t replies[MAILBOX_PLACES];
};

static size_t ring_add(ring_t *r) { return (r->first + r->count++) % MAILBOX_PLACES; }

static size_t ring_take(ring_t *r)
{
    size_t at = r->first;
    r->first = (r->first + 1) % MAILBOX_PLACES;
    r->count--;
    return at;
}

int mailbox_new(mailbox_t **ret_mailbox)
{
    mailbox_t *m = calloc(1, sizeof *m);
    if (!m) return HEDDLE_ERR_NO_MEMORY;
    pthread_mutex_init(&m->lock, NULL);
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
    while (m->answered.count) reply_fini(&m->replies[ring_take(&m->answered)]);
    if (m->question_fd >= 0) close(m->question_fd);
    if (m->reply_fd >= 0) close(m->reply_fd);
    pthread_mutex_destroy(&m->lock);
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
    pthread_mutex_lock(&m->lock);
    bool is_free = m->taken < (is_probe ? MAILBOX_PLACES : MAILBOX_PLACES - MAILBOX_FOR_PROBES);
    if (is_free) {
        if (is_probe) m->probes[ring_add(&m->probes_asked)] = *question;
        else m->questions[ring_add(&m->asked)] = *question;
        m->taken++;
    }
    pthread_mutex_unlock(&m->lock);
    if (is_free) raise_fd(m->question_fd);
    return is_free;
}

/* Probes come first, but not twice before a question that waits. */
static bool next(mailbox_t *m, question_t *ret_question)
{
    lower_fd(m->question_fd);
    pthread_mutex_lock(&m->lock);
    bool is_probe = m->probes_asked.count > 0 && !(m->was_probe && m->asked.count > 0),
         is_there = is_probe || m->asked.count > 0;
    m->was_probe = is_probe;
    if (is_probe) *ret_question = m->probes[ring_take(&m->probes_asked)];
    else if (is_there) *ret_question = m->questions[ring_take(&m->asked)];
    pthread_mutex_unlock(&m->lock);
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
    pthread_mutex_lock(&m->lock);
    m->replies[ring_add(&m->answered)] = *reply;
    pthread_mutex_unlock(&m->lock);
    raise_fd(m->reply_fd);
}

/* Under the lock: the other side has news that it waits for, and waits for no further ones. */
static bool takes_notice(mailbox_t *m)
{
    bool is_news = m->listens && m->last_seq != m->seen;
    m->listens &= !is_news;
    return is_news;
}

void mailbox_note(mailbox_t *m, uint64_t last_seq)
{
    pthread_mutex_lock(&m->lock);
    m->last_seq = last_seq;
    bool is_news = takes_notice(m);
    pthread_mutex_unlock(&m->lock);
    if (is_news) raise_fd(m->reply_fd);
}

void mailbox_listen(mailbox_t *m, uint64_t seen)
{
    pthread_mutex_lock(&m->lock);
    m->listens = true;
    m->seen = seen;
    bool is_news = takes_notice(m);
    pthread_mutex_unlock(&m->lock);
    if (is_news) raise_fd(m->reply_fd);
}

uint64_t mailbox_noted(mailbox_t *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t last_seq = m->last_seq;
    pthread_mutex_unlock(&m->lock);
    return last_seq;
}

bool mailbox_take(mailbox_t *m, reply_t *ret_reply)
{
    lower_fd(m->reply_fd);
    pthread_mutex_lock(&m->lock);
    bool is_there = m->answered.count > 0;
    if (is_there) {
        *ret_reply = m->replies[ring_take(&m->answered)];
        m->taken--;
    }
    pthread_mutex_unlock(&m->lock);
    return is_there;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* http/mailbox.h: questions from the HTTP thread to a loop, and answers back.  Everything in it is a copy or
 * changes its owner, so that the two threads share nothing else.
 *
 *   ask --> [ at most MAILBOX_PLACES ] --next--> the loop makes the answer --reply--> take
 *
 * A question has its place until its answer is taken, so neither way can overflow; and MAILBOX_FOR_PROBES of
 * the places are for /livez and /readyz.  These go before all others, but a question that waits has its turn
 * after each of them: probes without end hold up nothing else.  A question that nothing waits for any longer
 * is not answered: under more load than the loop can bear it would answer late ones alone.  Each way has a
 * descriptor that is readable while there is something.
 *
 * Threads: ask and take on the HTTP thread, next and reply on the loop's.  Nothing blocks, and there is no
 * lock: the HTTP thread may wait long for a processor (server.c, NICE), and would hold it meanwhile.  What is
 * left of that is the allocator's: what the loop has made is freed on the HTTP thread. */
#ifndef HTTP_MAILBOX_H
#define HTTP_MAILBOX_H

#include "http/metrics.h"
#include "http/request.h"
#include <jansson.h>

#define MAILBOX_PLACES 64u
#define MAILBOX_FOR_PROBES 8u

typedef struct mailbox mailbox_t;

typedef struct {
    uint64_t ticket; /* never 0, and never used again */
    request_t request;
    bool is_stream;  /* of events: the answer is text */
    uint64_t due_us; /* after which the answer is not wanted; CLOCK_NEVER */
    uint64_t after;  /* page cursors, as the last page gave them */
    char after_name[HEDDLE_NAME_MAX + 1];
} question_t;

typedef struct {
    uint64_t ticket;
    bool is_late;         /* the time of the question was over; there is nothing else */
    heddle_error_t error; /* code 0: there is a body, samples, or events */
    json_t *body;         /* owned; NULL: a failure, samples, or events */
    samples_t *samples;   /* of /metrics, owned; NULL */
    buf_t events;         /* for streams, owned: as they send it */
    void *rows;           /* of which `add_rows` makes it, on the HTTP thread; freed by free(); NULL */
    void (*add_rows)(const void *rows, buf_t *events);
    uint64_t epoch; /* of the events */
    bool more;      /* another page follows */
    uint64_t next;
    char next_name[HEDDLE_NAME_MAX + 1];
} reply_t;

int mailbox_new(mailbox_t **ret_mailbox); /* NO_MEMORY, also without a descriptor */
/* After both threads are done with it.  Accepts NULL and pointers to NULL. */
void mailbox_destroy(mailbox_t **mailbox);

bool mailbox_ask(mailbox_t *m, const question_t *question); /* false: all places are taken */
bool mailbox_take(mailbox_t *m, reply_t *ret_reply); /* false: there is none; else the caller owns it */
int mailbox_reply_fd(const mailbox_t *m);            /* mailbox_take resets it */

/* One at a time, and at most one for each time that the descriptor is readable.  Those that are late go back
 * as such. */
bool mailbox_next(mailbox_t *m, uint64_t now_us, question_t *ret_question);
void mailbox_reply(mailbox_t *m, const reply_t *reply); /* takes all that is owned */
int mailbox_question_fd(const mailbox_t *m);

/* [the loop's thread] How far events have come.  The other side wakes once where it listens, and not else. */
void mailbox_note(mailbox_t *m, uint64_t last_seq);
uint64_t mailbox_noted(mailbox_t *m); /* [the HTTP thread] The same. */
/* [the HTTP thread] It wakes when events have come further than `seen`, which may be so already. */
void mailbox_listen(mailbox_t *m, uint64_t seen);

const buf_t *reply_events(reply_t *r); /* made with the first call */
void reply_fini(reply_t *r);

#endif

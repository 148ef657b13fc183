/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of transfer/transfer.h where bytes may be read in place (transfer/near.h): what is lent, who
 * may take it, and what happens when it cannot be read.  The same for every backend, lending or not. */
#include "tests/contract/region_new.h"
#include "core/limits.h"
#include "tests/contract/rig.h"
#include "transfer/exchange.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE 65536u
#define LONG_US 20000000u /* a limit, never waited out */

static const share_key_t KEY = {{1, 2, 3, 4}}, OTHER = {{5, 6, 7, 8}};

TestSuite(near, .timeout = 60);

/* One turn of the source; what it sent is on its way and, by itself, it does nothing more. */
Test(near, what_a_turn_sends_last_is_on_its_way_before_the_sleep)
{
    if (rig_is_rendezvous()) cr_skip_test("an answer takes more than one turn");
    rig_t *r = rig_open(2, 1u << 18, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    rig_share_all(r, 1, OTHER);
    rig_connect(r, KEY);
    rig_pass(r, 20000);
    source->still = true;
    uint64_t own = rig_ask(r, 0, 1, OTHER, PIECE, PIECE); /* its event fills the turn below */
    tr_event_t e;
    cr_assert_eq(r->ops->events(source->t, clock_now(clock_system()), &e, 1), 0);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 20000); /* both the answer and the ask lie there */
    for (int turns = 0; r->ops->events(source->t, clock_now(clock_system()), &e, 1) == 0; turns++)
        cr_assert_lt(turns, 1000);
    cr_assert(e.kind == TR_ARRIVED && e.ask == own);
    (void)r->ops->arm(source->t);
    cr_assert(r->is_mem || rig_until(r, rig_has_arrived, 1, 1, 2000000), "it sleeps on what it owes");
    source->still = false;
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert_eq(receiver->events[0].kind, TR_ARRIVED);
    rig_close(r);
}

/* Loans of one LENT are of one region. */
Test(near, two_regions_asked_for_in_turns)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0];
    heddle_error_t error;
    region_t *other = NULL;
    rig_connect(r, KEY);
    cr_assert_eq(region_new(1u << 20, &other, &error), HEDDLE_OK);
    memset(other->base, 0xa5, other->bytes);
    cr_assert_eq(r->ops->map(source->t, other), HEDDLE_OK);
    cr_assert_eq(r->ops->share(source->t, other, OTHER), HEDDLE_OK);
    cr_assert_eq(r->ops->extend(source->t, OTHER, 0, other->bytes), HEDDLE_OK);
    source->still = true; /* answers them all in one turn */
    for (uint64_t i = 0; i < 16; i++) rig_ask(r, 1, 0, i % 2 ? OTHER : KEY, i * PIECE, PIECE);
    rig_pass(r, 20000);
    source->still = false;
    cr_assert(rig_until(r, rig_has_arrived, 1, 16, LONG_US));
    for (uint64_t i = 0; i < 16; i++)
        cr_assert(i % 2 ? rig_is_all(r, 1, 0xa5, i * PIECE, PIECE) : rig_is_pattern(r, 1, i * PIECE, PIECE),
                  "piece %llu", (unsigned long long)i);
    r->ops->unshare(source->t, OTHER);
    cr_assert(rig_until(r, rig_has_unshared, 0, 0, LONG_US));
    r->ops->unmap(source->t, other);
    region_unref(&other);
    rig_close(r);
}

#ifdef HEDDLE_TEST_BUILD
/* Failpoints are read when the plugin is loaded. */
static void fail_at(const char *point, unsigned nth)
{
    char text[64];
    snprintf(text, sizeof text, "%s=error:%u", point, nth);
    setenv("HEDDLE_FAILPOINTS", text, 1);
}

/* A source whose memory cannot be read after all (a limit of descriptors, of mappings) is not lost: its
 * bytes travel from there on, and who asked hears of nothing else. */
Test(near, what_cannot_be_read_in_place_travels)
{
    fail_at("transfer.near", 5);
    rig_t *r = rig_open(2, 1u << 20, NULL);
    int own = rig_mappings("heddle-region");
    rig_share_all(r, 0, KEY);
    uint64_t dropped = 0;
    for (uint64_t i = 0; i < 16; i++) {
        uint64_t ask = rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
        if (i == 10) dropped = ask;
    }
    cr_assert(rig_until(r, rig_has_arrived, 1, 4, LONG_US));
    r->ops->drop_ask(r->nodes[1].t, dropped);
    cr_assert(rig_until(r, rig_has_arrived, 1, 15, LONG_US));
    for (uint64_t i = 0; i < 16; i++)
        cr_assert(i == 10 || rig_is_pattern(r, 1, i * PIECE, PIECE), "piece %llu", (unsigned long long)i);
    cr_assert_eq(rig_events(r, 1, TR_REFUSED) + rig_events(r, 1, TR_PEER_GONE), 0);
    cr_assert_eq(rig_mappings("heddle-region"), own, "nothing of the source is mapped any more");
    for (uint64_t i = 0; i < 16; i++) rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
    int arrived = rig_events(r, 1, TR_ARRIVED);
    cr_assert(rig_until(r, rig_has_arrived, 1, arrived + 16, LONG_US));
    cr_assert_eq(rig_mappings("heddle-region"), own);
    r->ops->unshare(r->nodes[0].t, KEY);
    cr_assert(rig_until(r, rig_has_unshared, 0, 0, LONG_US));
    rig_close(r);
}

/* The network has no room for one of NEAR, LENT and TAKEN: it is said later, not lost. */
Test(near, a_frame_without_room_is_said_later)
{
    for (unsigned nth = 1; nth <= 8; nth++) {
        pid_t child = fork();
        if (child == 0) {
            rig_in_child = true;
            fail_at("transfer.room", nth);
            rig_t *r = rig_open(2, 1u << 20, NULL);
            rig_share_all(r, 0, KEY);
            for (int round = 1; round <= 2; round++) {
                for (uint64_t i = 0; i < 8; i++) rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
                RIG_CHECK(rig_until(r, rig_has_arrived, 1, 8 * round, 3000000), "frame %u is lost", nth);
            }
            RIG_CHECK(rig_is_pattern(r, 1, 0, 8 * PIECE), "frame %u", nth);
            r->ops->unshare(r->nodes[0].t, KEY);
            RIG_CHECK(rig_until(r, rig_has_unshared, 0, 0, 3000000), "what frame %u took is not free", nth);
            RIG_CHECK(rig_events(r, 0, TR_PEER_GONE) + rig_events(r, 1, TR_PEER_GONE) == 0, "gone");
            rig_close(r);
            _exit(0);
        }
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "frame %u", nth);
    }
}
#endif

/* Says any frame to a peer, as a process would that means harm, or has another idea of the protocol. */
static void say_anyway(rig_t *r, int node, int to, frame_t *f)
{
    conn_t *p = r->nodes[node].t->x->conns;
    while (p && p->end.token != r->nodes[to].ref.token) p = p->next;
    cr_assert(p && p->free_control);
    send_t *s = p->free_control;
    p->free_control = s->next;
    if (!f->line) f->line = p->end.line;
    s->frame_bytes = (uint32_t)frame_encode(f, s->frame);
    p->in_flight++;
    cr_assert(r->nodes[node].t->carrier->send(r->nodes[node].t, &p->end, s));
}

static frame_t taken_all(uint64_t line)
{
    return (frame_t){.kind = FRAME_TAKEN, .line = line, .taken = {~0u}};
}

static frame_t lent_of(uint64_t ask, int fd, uint64_t file)
{
    frame_t f = {.kind = FRAME_LENT, .count = 1, .lent = {.file = file, .fd = (uint32_t)fd, .pin = 1}};
    f.lent.rows[0] = (frame_loan_t){.ask = ask, .bytes = PIECE, .slot = 31};
    return f;
}

/* Node takes what comes and does nothing about it: it stays as it is in the middle of a turn. */
static bool hears_of_a_peer(rig_t *r, int node, int unused)
{
    (void)unused;
    r->nodes[node].t->carrier->progress(r->nodes[node].t);
    return r->nodes[node].t->x->conns != NULL;
}

static bool is_linked(rig_t *r, int node, int unused)
{
    return hears_of_a_peer(r, node, unused) && r->nodes[node].t->x->conns->end.link;
}

/* Of connections that are half made, and of such as there are not. */
Test(near, loans_of_a_line_without_a_link_are_nothing)
{
    rig_t *r = rig_open(2, 1u << 18, NULL);
    rig_share_all(r, 0, KEY);
    r->nodes[0].still = true;
    cr_assert_eq(r->ops->greet(r->nodes[1].t, &r->nodes[0].ref), HEDDLE_OK);
    cr_assert(rig_until(r, hears_of_a_peer, 0, 0, LONG_US));
    cr_assert(r->nodes[0].t->x->conns->state == CONN_ACCEPTED && !r->nodes[0].t->x->conns->end.link);
    for (uint64_t line = 0; line < 2; line++) {
        say_anyway(r, 1, 0, &(frame_t){.kind = FRAME_NEAR, .count = 1, .line = line});
        frame_t taken = taken_all(line), lent = lent_of(7, 0, 1);
        lent.line = line;
        say_anyway(r, 1, 0, &taken);
        say_anyway(r, 1, 0, &lent);
    }
    cr_assert_not(rig_until(r, is_linked, 0, 0, 50000), "it hears them before it answers");
    r->nodes[0].still = false;
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert(rig_is_pattern(r, 1, 0, PIECE));
    rig_close(r);
}

/* A source does not believe that its bytes were taken before it said where they lie. */
Test(near, what_was_not_lent_cannot_be_taken)
{
    rig_t *r = rig_open(2, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    rig_share_all(r, 0, OTHER);
    rig_ask(r, 1, 0, OTHER, 0, 1);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US) && rig_until(r, rig_has_sent, 0, 1, LONG_US));
    frame_t taken = taken_all(0);
    say_anyway(r, 1, 0, &taken); /* slots that were never lent */
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    for (uint64_t i = 0; i < 8; i++) rig_ask(r, 1, 0, KEY, i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_was_asked, 0, 9, LONG_US));
    rig_pass(r, 20000);
    source->still = true;
    taken = taken_all(0);
    say_anyway(r, 1, 0, &taken); /* is there when it lends, before LENT goes */
    rig_pass(r, 20000);
    receiver->still = true, source->still = false;
    cr_assert_eq(r->ops->extend(source->t, KEY, 0, 1u << 20), HEDDLE_OK);
    rig_turn(r);
    r->ops->unshare(source->t, KEY);
    rig_pass(r, 20000);
    if (rig_is_near()) cr_assert_not(rig_has_unshared(r, 0, 0), "nobody has read them");
    receiver->still = false;
    cr_assert(rig_until(r, rig_has_events, 1, 1 + 8, LONG_US));
    cr_assert(rig_until(r, rig_has_unshared, 0, 0, LONG_US));
    rig_close(r);
}

/* LENT of what is none of ours, or of nothing: the bytes come another way, or from nobody. */
Test(near, a_loan_of_something_else_is_not_read)
{
    rig_t *r = rig_open(3, 1u << 20, NULL);
    node_t *source = &r->nodes[0], *receiver = &r->nodes[1];
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct stat s;
    cr_assert_eq(fstat(null, &s), 0);
    rig_connect(r, KEY);
    rig_share_all(r, 2, OTHER);
    rig_ask(r, 1, 2, OTHER, 0, 1);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    r->ops->unshare(source->t, KEY);
    cr_assert(rig_until(r, rig_has_unshared, 0, 0, LONG_US));
    cr_assert_eq(r->ops->share(source->t, source->region, KEY), HEDDLE_OK);
    memset(receiver->region->base, 0, receiver->region->bytes);
    receiver->count = 0;
    uint64_t ask = rig_ask(r, 1, 0, KEY, 0, PIECE);
    rig_pass(r, 20000);
    frame_t lent = lent_of(ask, r->nodes[2].region->own->file.fd, 1);
    say_anyway(r, 2, 1, &lent); /* another peer's ask */
    rig_pass(r, 20000);
    const struct {
        int fd;
        uint64_t file;
    } foreign[] = {{null, s.st_ino}, {receiver->region->own->file.fd, 1}, {4000000, 1}, {0, 1}};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        lent = lent_of(ask, foreign[i].fd, foreign[i].file);
        say_anyway(r, 0, 1, &lent);
        rig_pass(r, 20000);
    }
    cr_assert(rig_is_all(r, 1, 0, 0, 1u << 20));
    cr_assert_eq(receiver->count - rig_events(r, 1, TR_BEAT), 0, "the source is neither lost nor believed");
    cr_assert_eq(r->ops->extend(source->t, KEY, 0, 1u << 20), HEDDLE_OK);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    cr_assert(rig_is_pattern(r, 1, 0, PIECE));
    close(null);
    rig_close(r);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Brokers at one etcd: who leads, what a lost answer means, and that a former leader changes nothing. */
#include "broker/outbox.h"
#include "broker/store/rows_value.h"
#include "core/clock.h"
#include "tests/lib/fake_etcd.h"

#include <criterion/criterion.h>

enum { RUNS = 4, TTL_S = 5, MEMBER_LEASE_MS = 4000 };

/* A request that was sent and is not answered: it may be done later, or never, or its answer may be lost. */
typedef struct {
    bool is_there, is_done;
    etcd_call_t call;
    buf_t body;
    uint64_t streamed; /* of a watch: up to this revision; 0: it has not begun */
} sent_t;

static struct {
    fake_etcd_t etcd;
    etcd_leader_t runs[RUNS];
    bool is_open[RUNS];
    char names[RUNS][16];
    sent_t sent[RUNS][ETCD_LANES];
    uint64_t now_us;
} T;

static void stop(void)
{
    for (int i = 0; i < RUNS; i++) {
        if (T.is_open[i]) etcd_leader_fini(&T.runs[i]);
        for (int k = 0; k < ETCD_LANES; k++) buf_fini(&T.sent[i][k].body);
    }
    fake_etcd_fini(&T.etcd);
}
TestSuite(etcd_leader, .fini = stop);

static int generation;

static void open_run_with(int i, int endpoints, const char *cluster)
{
    if (T.is_open[i]) etcd_leader_fini(&T.runs[i]);
    snprintf(T.names[i], sizeof T.names[i], "run%d", ++generation);
    etcd_leader_opts_t opts = {.prefix = "heddle/test",
                               .run = T.names[i],
                               .holder = i ? "tcp://b:1" : "tcp://a:1",
                               .cluster = cluster,
                               .fresh = i ? "bbbbbbbbbbbbbbbb" : "aaaaaaaaaaaaaaaa",
                               .endpoints = endpoints,
                               .ttl_s = TTL_S,
                               .member_lease_ms = MEMBER_LEASE_MS};
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
    T.is_open[i] = true;
    for (int k = 0; k < ETCD_LANES; k++) T.sent[i][k].is_there = false;
}
static void open_run(int i) { open_run_with(i, 3, NULL); }
static void kill_run(int i)
{
    etcd_leader_fini(&T.runs[i]);
    T.is_open[i] = false;
}

static void pass(uint64_t ms)
{
    T.now_us += ms * 1000;
    fake_etcd_pass(&T.etcd, T.now_us);
}

static void open_user(int i)
{
    pass(1);
    open_run(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.user = "heddle";
    opts.password = "se\"cret";
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

#define CLUSTER "0123456789abcdef"

static void open_for(int i, etcd_purpose_t purpose)
{
    open_run(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.purpose = purpose;
    opts.fresh = CLUSTER;
    opts.epoch = 7;
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

/* One lane's request goes out, if one is due. */
static bool send_one(int i, int lane)
{
    etcd_request_t r;
    sent_t *s = &T.sent[i][lane];
    if (!etcd_leader_next(&T.runs[i], (etcd_lane_t)lane, T.now_us, &r)) return false;
    buf_clear(&s->body);
    buf_add(&s->body, r.body.data, r.body.bytes);
    s->call = r.call;
    s->is_there = true;
    s->is_done = false;
    s->streamed = 0;
    return true;
}

static bool has_piece(int i)
{
    const sent_t *s = &T.sent[i][ETCD_FOLLOW];
    return s->is_there && s->call == ETCD_STREAM && s->streamed < T.etcd.revision &&
           T.runs[i].lanes[ETCD_FOLLOW].is_wanted && T.runs[i].lanes[ETCD_FOLLOW].is_sent;
}

/* The stream goes on. */
static void hand_piece(int i)
{
    sent_t *s = &T.sent[i][ETCD_FOLLOW];
    bytes_t piece = fake_etcd_go_on(&T.etcd, buf_view(&s->body), s->streamed ? s->streamed + 1 : 0);
    s->streamed = T.etcd.revision;
    etcd_leader_answer(&T.runs[i], ETCD_FOLLOW, ETCD_PIECE, piece, T.now_us);
}

static void answer_one(int i, int lane, etcd_outcome_t outcome)
{
    sent_t *s = &T.sent[i][lane];
    bytes_t answer = bytes_of("", 0);
    if (outcome == ETCD_ANSWERED && s->call == ETCD_STREAM) {
        if (has_piece(i)) hand_piece(i);
        return;
    }
    s->is_there = false;
    if (outcome == ETCD_ANSWERED) answer = fake_etcd_do(&T.etcd, s->call, buf_view(&s->body));
    etcd_leader_answer(&T.runs[i], (etcd_lane_t)lane, outcome, answer, T.now_us);
}

static void answer_text(int i, int lane, const char *text)
{
    T.sent[i][lane].is_there = false;
    etcd_leader_answer(&T.runs[i], (etcd_lane_t)lane, ETCD_ANSWERED, bytes_of(text, strlen(text)), T.now_us);
}

/* All that is due is sent and answered, until nothing is due. */
static void turn(int i)
{
    for (int left = 100, more = 1; more && left; left--) {
        more = 0;
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(i, lane)) {
                answer_one(i, lane, ETCD_ANSWERED);
                more = 1;
            }
        for (; has_piece(i); more = 1) hand_piece(i);
    }
}

static void leads(int i)
{
    turn(i);
    cr_assert_eq(T.runs[i].state, ETCD_LEADING, "%d: %s", T.runs[i].state, T.runs[i].why.message);
}

static const record_t FLOOR = {.kind = RECORD_FLOOR, .adapter = "a", .version = 1, .decision = 1};

static int begin_floor(int i, uint64_t version)
{
    record_t r = FLOOR;
    r.version = version;
    return etcd_leader_commit(&T.runs[i], &r, 1, T.now_us, NULL);
}

static int take_floor(void *self, const record_t *r)
{
    if (r->kind == RECORD_FLOOR) *(uint64_t *)self = r->version;
    return HEDDLE_OK;
}

/* Of the rows of a run. */
static uint64_t floor_of(int i)
{
    uint64_t found = 0;
    rows_walk(T.runs[i].rows, take_floor, &found, NULL);
    return found;
}

static int outcome(int i)
{
    int rc = HEDDLE_ERR_AGAIN;
    heddle_error_t e;
    etcd_leader_take_outcome(&T.runs[i], &rc, &e);
    return rc;
}

/* ---- leading ---- */

Test(etcd_leader, the_first_one_makes_the_cluster_and_the_next_one_waits)
{
    open_run(0);
    leads(0);
    cr_assert_str_eq(rows_cluster(T.runs[0].rows), "aaaaaaaaaaaaaaaa");
    cr_assert_eq(rows_epoch(T.runs[0].rows), 1);
    open_run(1);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    cr_assert_str_eq(T.runs[1].other, "tcp://a:1");
    cr_assert_eq(etcd_leader_due(&T.runs[1]), T.now_us + ETCD_POLL_MS * 1000);
}

static uint32_t time_of_next(int i)
{
    etcd_request_t r;
    cr_assert(etcd_leader_next(&T.runs[i], ETCD_WORK, T.now_us, &r));
    T.runs[i].lanes[ETCD_WORK].is_sent = false;
    return r.timeout_ms;
}

Test(etcd_leader, the_first_request_has_the_time_of_the_start_and_later_ones_a_third_of_the_lease)
{
    open_run_with(0, 1, NULL);
    cr_assert_eq(time_of_next(0), ETCD_START_MS);
    leads(0);
    cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
    cr_assert_eq(time_of_next(0), TTL_S * 1000 / 3);
    open_run_with(1, 3, NULL);
    cr_assert_eq(time_of_next(1), 2000, "so that the next endpoint is asked before the start has failed");
}

Test(etcd_leader, a_lease_that_is_renewed_is_kept)
{
    open_run(0);
    open_run(1);
    leads(0);
    for (int i = 0; i < 100; i++) {
        pass(500);
        turn(0);
        turn(1);
    }
    cr_assert_eq(T.runs[0].state, ETCD_LEADING);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
}

Test(etcd_leader, when_the_lease_has_ended_the_standby_leads_in_the_next_epoch_with_all_that_was_recorded)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    cr_assert_eq(begin_floor(0, 7), HEDDLE_ERR_AGAIN);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    kill_run(0);
    pass(TTL_S * 1000 - 1);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    pass(ETCD_POLL_MS);
    leads(1);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 2);
    cr_assert_str_eq(rows_cluster(T.runs[1].rows), "aaaaaaaaaaaaaaaa");
    cr_assert_eq(floor_of(1), 7);
}

Test(etcd_leader, a_clean_end_gives_the_lead_away_at_once)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    cr_assert_eq(T.runs[0].state, ETCD_ENDED);
    pass(ETCD_POLL_MS);
    leads(1);
}

Test(etcd_leader, a_clean_end_does_not_wait_for_an_etcd_that_is_gone)
{
    open_run(0);
    leads(0);
    etcd_leader_end(&T.runs[0], T.now_us);
    cr_assert(send_one(0, ETCD_LEASE));
    pass(ETCD_END_MS);
    cr_assert(!send_one(0, ETCD_LEASE));
    cr_assert_eq(T.runs[0].state, ETCD_ENDED);
}

Test(etcd_leader, one_without_a_lease_ends_at_once)
{
    open_run(0);
    etcd_leader_end(&T.runs[0], T.now_us);
    cr_assert_eq(T.runs[0].state, ETCD_ENDED);
}

/* It has seen that none leads, and has a lease. */
static void begins_to_take(int i)
{
    for (int left = 10; left && T.runs[i].state != ETCD_TAKING; left--) {
        if (send_one(i, ETCD_WORK)) answer_one(i, ETCD_WORK, ETCD_ANSWERED);
        if (send_one(i, ETCD_FOLLOW)) answer_one(i, ETCD_FOLLOW, ETCD_ANSWERED);
    }
    cr_assert(send_one(i, ETCD_LEASE));
    answer_one(i, ETCD_LEASE, ETCD_ANSWERED);
    cr_assert_eq(T.runs[i].state, ETCD_TAKING);
}

Test(etcd_leader, of_two_that_take_it_at_once_one_leads)
{
    open_run(0);
    open_run(1);
    begins_to_take(0);
    begins_to_take(1);
    leads(1);
    turn(0);
    cr_assert_eq(T.runs[0].state, ETCD_STANDBY);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 1);
}

/* It has seen no registry, and then what the other one made. */
Test(etcd_leader, of_two_that_begin_at_once_one_stands_by)
{
    open_run(0);
    open_run(1);
    cr_assert(send_one(1, ETCD_WORK));
    answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    leads(0);
    cr_assert_eq(begin_floor(0, 5), HEDDLE_ERR_AGAIN);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "%s", T.runs[1].why.message);
}

Test(etcd_leader, one_whose_answer_was_lost_finds_that_it_leads)
{
    open_run(0);
    while (T.runs[0].state != ETCD_TAKING || !T.runs[0].lanes[ETCD_WORK].is_wanted)
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(0, lane)) answer_one(0, lane, ETCD_ANSWERED);
    cr_assert(send_one(0, ETCD_WORK));
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[0][ETCD_WORK].body));
    answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
    cr_assert_eq(T.runs[0].state, ETCD_LOOKING);
    leads(0);
    cr_assert_eq(rows_epoch(T.runs[0].rows), 1);
}

/* ---- following ---- */

static void record_floor(int i, uint64_t version)
{
    cr_assert_eq(begin_floor(i, version), HEDDLE_ERR_AGAIN);
    turn(i);
    cr_assert_eq(outcome(i), HEDDLE_OK);
}

/* Of run 1: it leads, and asks for no row. */
static void leads_without_a_read(void)
{
    cr_assert_eq(T.runs[1].follow.state, ETCD_FOLLOWING);
    for (int left = 100; left && T.runs[1].state != ETCD_LEADING; left--)
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(1, lane)) {
                cr_assert_neq(T.sent[1][lane].call, ETCD_RANGE);
                answer_one(1, lane, ETCD_ANSWERED);
            }
    cr_assert_eq(T.runs[1].state, ETCD_LEADING, "%s", T.runs[1].why.message);
}

Test(etcd_leader, a_standby_that_followed_leads_without_reading)
{
    record_t w = {.kind = RECORD_WRITER, .adapter = "a", .token = 5};
    open_run(0);
    open_run(1);
    leads(0);
    record_floor(0, 3);
    turn(1);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    record_floor(0, 4);
    for (int i = 0; i < 2; i++, w.token = 0) { /* a row that comes and goes */
        cr_assert_eq(etcd_leader_commit(&T.runs[0], &w, 1, T.now_us, NULL), HEDDLE_ERR_AGAIN);
        turn(0);
        turn(1);
    }
    uint64_t bytes = rows_bytes(T.runs[0].rows);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    hand_piece(1); /* the leader's key is gone: it looks at once */
    leads_without_a_read();
    cr_assert_eq(floor_of(1), 4);
    cr_assert_eq(rows_bytes(T.runs[1].rows), bytes);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 2);
    cr_assert_eq(T.runs[1].follow.rows, NULL);
    record_floor(1, 5);
}

Test(etcd_leader, a_standby_that_etcd_does_not_answer_could_not_take_over)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    for (int i = 0; i < 3; i++) { /* each endpoint in its turn */
        cr_assert(etcd_leader_is_answered(&T.runs[1]));
        cr_assert(etcd_leader_is_following(&T.runs[1]));
        pass(ETCD_POLL_MS);
        cr_assert(send_one(1, ETCD_WORK));
        answer_one(1, ETCD_WORK, ETCD_UNSENT);
    }
    cr_assert(!etcd_leader_is_answered(&T.runs[1]));
    cr_assert(!etcd_leader_is_following(&T.runs[1]));
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
}

/* The watch said so while the answer of a look from before was on its way. */
Test(etcd_leader, a_leader_that_goes_during_a_look_is_succeeded_at_once)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    cr_assert_str_eq(T.runs[1].other, "tcp://a:1");
    pass(ETCD_POLL_MS);
    cr_assert(send_one(1, ETCD_WORK));
    bytes_t looked = fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[1][ETCD_WORK].body));
    buf_t before = {0};
    buf_add(&before, looked.data, looked.bytes);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    hand_piece(1);
    etcd_leader_answer(&T.runs[1], ETCD_WORK, ETCD_ANSWERED, buf_view(&before), T.now_us);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    leads(1);
    cr_assert_str_eq(T.runs[1].other, "", "none leads before it");
    buf_fini(&before);
}

Test(etcd_leader, what_a_standby_has_not_followed_is_read_after_a_moment)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    record_floor(0, 7);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    T.sent[1][ETCD_FOLLOW].is_there = false; /* and the stream says nothing */
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "it may come yet");
    pass(ETCD_CATCH_UP_MS);
    leads(1);
    cr_assert_eq(floor_of(1), 7);
}

/* `last` has another marker, of the same revision. */
static void mark_by_another_hand(void)
{
    fake_key_t *last = NULL;
    for (int i = 0; i < T.etcd.count; i++) {
        char key[512];
        fake_decode(T.etcd.keys[i].key, key);
        if (!strcmp(key, "heddle/test/last")) last = &T.etcd.keys[i];
    }
    cr_assert_not_null(last);
    free(last->value);
    last->value = strdup("bm9uZQ==");
}

/* An etcd that was restored between the look and the lead gives its revisions a second time. */
Test(etcd_leader, the_lead_is_taken_behind_the_marker_that_was_seen)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    pass(ETCD_POLL_MS);
    begins_to_take(1);
    mark_by_another_hand();
    cr_assert(send_one(1, ETCD_WORK));
    answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(T.runs[1].state, ETCD_LOOKING);
}

/* It has looked, and has all; then another hand records, with `meta` as it was. */
Test(etcd_leader, what_is_written_between_the_look_and_the_lead_is_not_passed_over)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    pass(ETCD_POLL_MS);
    begins_to_take(1);
    cr_assert_neq(T.runs[1].took_revision, 0);
    etcd_txn_t t;
    buf_t body = {0}, value = {0};
    record_t floor = FLOOR;
    floor.version = 9;
    rows_value_put(&value, &floor);
    etcd_txn_begin(&t, &body, "heddle/test");
    etcd_txn_put(&t, "f/a", buf_view(&value), 0);
    etcd_txn_put(&t, "last", bytes_of("other.7", 7), 0);
    etcd_txn_end(&t);
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&body));
    buf_fini(&body);
    buf_fini(&value);
    cr_assert(send_one(1, ETCD_WORK));
    answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(T.runs[1].state, ETCD_LOOKING);
    turn(1);
    pass(ETCD_CATCH_UP_MS);
    leads(1);
    cr_assert_eq(floor_of(1), 9);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 2);
}

/* What was compacted, and a transaction that the stream left out, are noticed; then all is read again. */
Test(etcd_leader, a_standby_that_missed_something_reads_again)
{
    for (int is_gap = 0; is_gap < 2; is_gap++) {
        open_run(0);
        open_run(1);
        leads(0);
        turn(1);
        record_floor(0, 1);
        if (is_gap) {
            T.sent[1][ETCD_FOLLOW].streamed = T.etcd.revision;
            record_floor(0, 2);
            hand_piece(1);
        } else {
            T.etcd.compacted = T.etcd.revision;
            answer_one(1, ETCD_FOLLOW, ETCD_UNKNOWN);
            pass(200);
            cr_assert(send_one(1, ETCD_FOLLOW));
            hand_piece(1);
        }
        cr_assert_eq(T.runs[1].follow.state, ETCD_UNREAD);
        T.etcd.compacted = 0;
        pass(1000);
        turn(1);
        cr_assert(etcd_leader_is_following(&T.runs[1]));
        record_floor(0, 9);
        turn(1);
        etcd_leader_end(&T.runs[0], T.now_us);
        turn(0);
        hand_piece(1);
        leads_without_a_read();
        cr_assert_eq(floor_of(1), 9);
        etcd_leader_end(&T.runs[1], T.now_us);
        turn(1);
        kill_run(0);
        kill_run(1);
    }
}

/* It has followed to `followed` in the registry whose snapshot, with the floor 3, is restored then: the leader
 * of before is gone, and the watch says nothing. */
static void follows_and_is_restored(uint64_t followed)
{
    fake_keys_t snapshot;
    open_run(0);
    open_run(1);
    leads(0);
    record_floor(0, 3);
    fake_etcd_save(&T.etcd, &snapshot);
    for (uint64_t version = 4; version <= followed; version++) record_floor(0, version);
    turn(1);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    fake_etcd_restore(&T.etcd, &snapshot);
    fake_etcd_forget(&snapshot);
    kill_run(0);
}

Test(etcd_leader, a_standby_follows_a_registry_that_was_restored_from_its_beginning)
{
    follows_and_is_restored(6);
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert_eq(T.runs[1].follow.anew_count, 1);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    pass(TTL_S * 1000);
    leads_without_a_read();
    cr_assert_eq(floor_of(1), 3);
}

/* Meanwhile another broker has led, and has written as often as the one before: the revisions are the same. */
Test(etcd_leader, rows_of_before_a_restore_are_not_led_with_at_the_same_revision)
{
    follows_and_is_restored(9);
    uint64_t followed = T.runs[1].follow.last_revision;
    pass(TTL_S * 1000 + 1000);
    open_run(2);
    leads(2);
    for (uint64_t version = 20; T.etcd.revision < followed; version++) record_floor(2, version);
    uint64_t floor = floor_of(2);
    cr_assert_eq(T.etcd.revision, followed);
    turn(1);
    etcd_leader_end(&T.runs[2], T.now_us);
    turn(2);
    pass(ETCD_POLL_MS);
    leads(1);
    cr_assert_eq(floor_of(1), floor);
    cr_assert_eq(T.runs[1].follow.anew_count, 1);
}

/* The standby stood still meanwhile, and other keys of that etcd have moved its revision on: its watch goes on
 * with the transaction that took the lead. */
Test(etcd_leader, rows_of_before_a_restore_are_not_led_with_behind_another_lead)
{
    follows_and_is_restored(9);
    pass(TTL_S * 1000 + 1000);
    T.etcd.revision = T.runs[1].follow.last_revision;
    T.etcd.compacted = 0;
    open_run(2);
    leads(2);
    uint64_t floor = floor_of(2);
    cr_assert_gt(T.etcd.revision, T.runs[1].follow.last_revision);
    turn(1);
    etcd_leader_end(&T.runs[2], T.now_us);
    turn(2);
    pass(ETCD_POLL_MS);
    leads(1);
    cr_assert_eq(floor_of(1), floor);
    cr_assert_eq(T.runs[1].follow.anew_count, 1);
}

/* A node that does not answer any more, and a connection that says nothing. */
Test(etcd_leader, a_watch_that_says_nothing_is_begun_again_where_it_was)
{
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    T.sent[1][ETCD_FOLLOW].is_there = false;
    cr_assert_eq(etcd_leader_behind(&T.runs[1]), 0);
    record_floor(0, 3);
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert_eq(etcd_leader_behind(&T.runs[1]), 1);
    for (int i = 0; i < 4; i++) {
        pass(ETCD_POLL_MS);
        turn(0);
        turn(1);
    }
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    cr_assert_eq(etcd_leader_behind(&T.runs[1]), 0);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    hand_piece(1);
    leads_without_a_read();
    cr_assert_eq(floor_of(1), 3);
}

Test(etcd_leader, what_comes_over_a_watch_and_is_none_of_it_is_no_news)
{
    static const char *const TEXTS[] = {"", "<html>",
                                        "{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}"};
    open_run(0);
    open_run(1);
    leads(0);
    turn(1);
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        uint64_t revision = T.runs[1].follow.revision;
        etcd_leader_answer(&T.runs[1], ETCD_FOLLOW, i % 2 ? ETCD_PIECE : ETCD_ANSWERED,
                           bytes_of(TEXTS[i], strlen(TEXTS[i])), T.now_us);
        cr_assert_eq(T.runs[1].follow.state, ETCD_FOLLOWING);
        cr_assert_eq(T.runs[1].follow.revision, revision);
        cr_assert(!send_one(1, ETCD_FOLLOW), "there is a pause");
        pass(200);
        turn(0);
        turn(1);
        cr_assert(T.sent[1][ETCD_FOLLOW].is_there);
    }
}

/* ---- the rows of brokers ---- */

static const brokers_row_t ROWS[RUNS] = {{.endpoint = "tcp://a:1", .release = "1.0", .pid = 1},
                                         {.endpoint = "tcp://c:1", .release = "1.1", .pid = 2},
                                         {.endpoint = "tcp://b:1", .release = "1.2", .pid = 3}};

static void open_listed(int i)
{
    open_run(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.own = &ROWS[i];
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

/* All of them, for so long. */
static void pass_turns(uint64_t ms)
{
    for (; ms; ms -= ms < ETCD_POLL_MS ? ms : ETCD_POLL_MS) {
        pass(ms < ETCD_POLL_MS ? ms : ETCD_POLL_MS);
        for (int i = 0; i < RUNS; i++)
            if (T.is_open[i]) turn(i);
    }
}

static const brokers_t *list_of(int i) { return &T.runs[i].brokers; }

static void two_standbys(void)
{
    for (int i = 0; i < 3; i++) {
        open_listed(i);
        turn(i);
    }
    pass_turns(3000);
}

Test(etcd_leader, the_leader_lists_its_standbys_and_what_each_has)
{
    two_standbys();
    const brokers_t *list = list_of(0);
    cr_assert_eq(list->count, 2);
    cr_assert_str_eq(list->rows[0].endpoint, "tcp://b:1");
    cr_assert_str_eq(list->rows[1].endpoint, "tcp://c:1");
    cr_assert_str_eq(list->rows[1].release, "1.1");
    cr_assert_eq(list->rows[1].pid, 2);
    for (int i = 0; i < 2; i++) cr_assert(list->rows[i].is_following && !list->rows[i].behind);
    cr_assert_eq(list->revision, T.etcd.revision);
    cr_assert(T.now_us - list->seen_us <= 1000000);
    cr_assert_eq(list_of(1)->count, 0, "a standby reads no list");
}

Test(etcd_leader, a_standby_that_does_not_get_what_is_new_says_how_much)
{
    two_standbys();
    T.sent[1][ETCD_FOLLOW].is_there = false; /* its watch says nothing */
    record_floor(0, 1);
    record_floor(0, 2);
    for (int i = 0; i < 12; i++) {
        pass(ETCD_POLL_MS);
        turn(0);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (lane != ETCD_FOLLOW && send_one(1, lane)) answer_one(1, lane, ETCD_ANSWERED);
    }
    cr_assert_str_eq(list_of(0)->rows[1].endpoint, "tcp://c:1");
    cr_assert(list_of(0)->rows[1].behind >= 2, "%llu", (unsigned long long)list_of(0)->rows[1].behind);
}

Test(etcd_leader, a_standby_writes_its_row_when_it_has_changed_and_once_a_second_at_most)
{
    two_standbys();
    uint64_t revision = T.etcd.revision;
    pass_turns(20000);
    cr_assert_eq(T.etcd.revision, revision, "nothing has changed, and the leases are kept");
    for (int i = 1; i <= 20; i++) {
        record_floor(0, (uint64_t)i);
        pass_turns(ETCD_POLL_MS);
    }
    cr_assert_leq(T.etcd.revision, revision + 20 + 2 * 6);
}

Test(etcd_leader, a_standby_that_was_killed_is_listed_until_its_lease_ends)
{
    two_standbys();
    kill_run(1);
    pass_turns(TTL_S * 1000 + 2000);
    cr_assert_eq(list_of(0)->count, 1);
    cr_assert_str_eq(list_of(0)->rows[0].endpoint, "tcp://b:1");
    etcd_leader_end(&T.runs[2], T.now_us);
    pass_turns(1000);
    cr_assert_eq(list_of(0)->count, 0, "one that ends is not listed from then on");
}

Test(etcd_leader, a_standby_that_takes_the_lead_is_in_its_own_list_no_more)
{
    two_standbys();
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    kill_run(0);
    for (int i = 0; i < 2 && T.runs[1].state != ETCD_LEADING; i++) {
        pass(ETCD_POLL_MS);
        turn(1);
    }
    cr_assert_eq(T.runs[1].state, ETCD_LEADING);
    pass_turns(2000);
    cr_assert_eq(list_of(1)->count, 1);
    cr_assert_str_eq(list_of(1)->rows[0].endpoint, "tcp://b:1");
    cr_assert_eq(floor_of(1), 0);
}

/* To the moment of its lead: nothing else was read since. */
static void leads_just_now(int i)
{
    for (int left = 100; left && T.runs[i].state != ETCD_LEADING; left--)
        for (int lane = 0; lane < ETCD_LANES && T.runs[i].state != ETCD_LEADING; lane++)
            if (send_one(i, lane)) answer_one(i, lane, ETCD_ANSWERED);
    cr_assert_eq(T.runs[i].state, ETCD_LEADING, "%s", T.runs[i].why.message);
}

Test(etcd_leader, one_that_takes_the_lead_lists_the_other_standbys_at_once)
{
    two_standbys();
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    kill_run(0);
    pass(ETCD_POLL_MS);
    leads_just_now(1);
    cr_assert_eq(list_of(1)->seen_us, T.now_us);
    cr_assert_eq(list_of(1)->count, 1);
    cr_assert_str_eq(list_of(1)->rows[0].endpoint, "tcp://b:1");
}

/* An etcd without room grants no lease, and takes no row. */
Test(etcd_leader, a_standby_that_can_write_no_row_stands_by_all_the_same)
{
    static const char FULL[] = "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"message\":"
                               "\"etcdserver: mvcc: database space exceeded\",\"code\":8}";
    open_listed(0);
    open_listed(1);
    leads(0);
    cr_assert(send_one(1, ETCD_WORK));
    answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    cr_assert(send_one(1, ETCD_LEASE));
    T.sent[1][ETCD_LEASE].is_there = false;
    etcd_leader_answer(&T.runs[1], ETCD_LEASE, ETCD_ANSWERED, bytes_of(FULL, strlen(FULL)), T.now_us);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    pass_turns(1000);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    cr_assert_neq(T.runs[1].lease, 0, "it is asked for again");
    pass(1000);
    turn(0);
    T.runs[1].shown.lease = 0; /* its row is gone */
    while (!send_one(1, ETCD_BROKERS)) {
        pass(ETCD_POLL_MS);
        for (int lane = 0; lane < ETCD_BROKERS; lane++)
            if (send_one(1, lane)) answer_one(1, lane, ETCD_ANSWERED);
    }
    T.sent[1][ETCD_BROKERS].is_there = false;
    etcd_leader_answer(&T.runs[1], ETCD_BROKERS, ETCD_ANSWERED, bytes_of(FULL, strlen(FULL)), T.now_us);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    pass_turns(3000);
    cr_assert_eq(list_of(0)->count, 1);
}

Test(etcd_leader, the_list_is_as_it_was_while_etcd_does_not_answer_and_that_is_noticed)
{
    two_standbys();
    T.runs[0].opts.endpoints = 1;
    uint64_t seen_us = list_of(0)->seen_us;
    static const char ALONE[] = "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\","
                                "\"code\":14}";
    pass(1000);
    cr_assert(send_one(0, ETCD_BROKERS));
    T.sent[0][ETCD_BROKERS].is_there = false;
    etcd_leader_answer(&T.runs[0], ETCD_BROKERS, ETCD_ANSWERED, bytes_of(ALONE, strlen(ALONE)), T.now_us);
    cr_assert(!etcd_leader_is_answered(&T.runs[0]), "it has no majority");
    cr_assert_eq(list_of(0)->seen_us, seen_us);
    pass(1000);
    turn(0);
    cr_assert(etcd_leader_is_answered(&T.runs[0]));
    seen_us = list_of(0)->seen_us;
    pass(1000);
    cr_assert(send_one(0, ETCD_BROKERS));
    answer_one(0, ETCD_BROKERS, ETCD_UNKNOWN);
    cr_assert(!etcd_leader_is_answered(&T.runs[0]));
    cr_assert_eq(list_of(0)->count, 2);
    cr_assert_eq(list_of(0)->seen_us, seen_us);
    pass(1000);
    turn(0);
    cr_assert(etcd_leader_is_answered(&T.runs[0]));
    cr_assert_eq(list_of(0)->seen_us, T.now_us);
}

/* ---- one that yields ---- */

/* Its way to etcd is cut, or only the way back: what it asks for is done, and no answer comes. */
static void go_unanswered(int i, uint64_t ms, bool is_done)
{
    for (; ms; ms -= ms < ETCD_POLL_MS ? ms : ETCD_POLL_MS) {
        pass(ms < ETCD_POLL_MS ? ms : ETCD_POLL_MS);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(i, lane)) {
                sent_t *s = &T.sent[i][lane];
                if (is_done) (void)fake_etcd_do(&T.etcd, s->call, buf_view(&s->body));
                answer_one(i, lane, ETCD_UNKNOWN);
            }
        for (int k = 0; k < RUNS; k++)
            if (k != i && T.is_open[k]) turn(k);
    }
}
static void cut_off(int i, uint64_t ms) { go_unanswered(i, ms, false); }

/* When the lease that it leads by ends at etcd. */
static uint64_t lease_end_of(int i) { return T.etcd.lease_ends_us[T.runs[i].lease]; }

Test(etcd_leader, one_that_etcd_does_not_answer_yields_when_another_one_leads)
{
    two_standbys();
    etcd_leader_t *l = &T.runs[0];
    uint64_t yields_us = lease_end_of(0) + MEMBER_LEASE_MS * 1000 / 4;
    cut_off(0, (yields_us - T.now_us) / 1000 - 1);
    cr_assert(T.runs[1].state == ETCD_LEADING || T.runs[2].state == ETCD_LEADING);
    cr_assert(!etcd_leader_has_yielded(l), "it may be answered yet");
    cut_off(0, 1);
    cr_assert(etcd_leader_has_yielded(l));
    cr_assert_eq(l->state, ETCD_LEADING, "it answers questions");
    cut_off(0, 10000);
    cr_assert_eq(l->state, ETCD_LEADING);
    pass(1000);
    turn(0);
    cr_assert_eq(l->state, ETCD_LOST);
}

/* Its keepalives would hold the lead for it as long as that lasts. */
Test(etcd_leader, one_whose_answers_are_lost_gives_its_lease_up_when_it_yields)
{
    two_standbys();
    etcd_leader_t *l = &T.runs[0];
    go_unanswered(0, TTL_S * 1000 / 2, true);
    cr_assert_not(etcd_leader_has_yielded(l));
    pass(1);
    leads(0);
    uint64_t yields_us = l->lease_us + TTL_S * 100000 + MEMBER_LEASE_MS * 1000 / 4;
    go_unanswered(0, (yields_us - T.now_us) / 1000 + 1000, true);
    cr_assert(etcd_leader_has_yielded(l));
    cr_assert(T.runs[1].state == ETCD_LEADING || T.runs[2].state == ETCD_LEADING, "none leads");
    cr_assert_eq(l->state, ETCD_LEADING, "it answers questions");
    turn(0);
    pass_turns(1000);
    cr_assert_eq(l->state, ETCD_LOST);
    cr_assert_eq(l->lease, 0);
}

/* Each request fails when its time is over, and the next one goes out when it is due: nothing else wakes it. */
static uint64_t yields_us(int i)
{
    etcd_request_t r;
    etcd_leader_t *l = &T.runs[i];
    uint64_t ends_us[ETCD_LANES] = {0}, until_us = T.now_us + 4000000000ull;
    while (!etcd_leader_has_yielded(l) && T.now_us < until_us) {
        uint64_t next_us = etcd_leader_due(l);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (ends_us[lane]) next_us = clock_earlier(next_us, ends_us[lane]);
        if (next_us > T.now_us) T.now_us = next_us;
        for (int lane = 0; lane < ETCD_LANES; lane++) {
            bool is_over = ends_us[lane] && T.now_us >= ends_us[lane];
            if (is_over) ends_us[lane] = 0;
            if (is_over) etcd_leader_answer(l, (etcd_lane_t)lane, ETCD_UNKNOWN, bytes_of("", 0), T.now_us);
            if (etcd_leader_next(l, (etcd_lane_t)lane, T.now_us, &r))
                ends_us[lane] = T.now_us + r.timeout_ms * 1000ull;
        }
    }
    return T.now_us;
}

static void open_with_leases(int i, int endpoints, uint32_t ttl_s, uint32_t member_lease_ms)
{
    open_listed(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.endpoints = endpoints;
    opts.ttl_s = ttl_s;
    opts.member_lease_ms = member_lease_ms;
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

/* The next one calls members lost that are not there a lease of theirs after it took the lead.  They learn with
 * their next heartbeat, after a quarter of it at most, that this one has yielded: it leaves them the half. */
Test(etcd_leader, one_that_is_cut_off_yields_in_time_for_its_members)
{
    static const uint32_t TTLS_S[] = {2, 5, 60, 600}, LEASES_MS[] = {100, 1000, 4000, 60000, 3600000};
    static const int ENDPOINTS[] = {1, 3, ETCD_ENDPOINTS};
    for (size_t i = 0; i < 4 * 5 * 3; i++) {
        uint32_t ttl_s = TTLS_S[i % 4], lease_ms = LEASES_MS[i / 4 % 5];
        stop();
        memset(&T, 0, sizeof T);
        for (int k = 0; k < 2; k++) {
            open_with_leases(k, ENDPOINTS[i / 20], ttl_s, lease_ms);
            turn(k);
        }
        pass_turns(3000);
        cr_assert_eq(list_of(0)->count, 1);
        uint64_t ends_us = lease_end_of(0), yielded_us = yields_us(0);
        cr_assert_geq(yielded_us, ends_us, "lease %u s of members %u ms: none leads yet", ttl_s, lease_ms);
        cr_assert_leq(yielded_us - ends_us, lease_ms * 1000ull / 4,
                      "lease %u s of members %u ms: %llu us late", ttl_s, lease_ms,
                      (unsigned long long)(yielded_us - ends_us));
        cr_assert_leq(yielded_us - ends_us, ttl_s * 1000000ull, "members wait for longer than they need to");
    }
}

/* With etcd away from all of them its lease may outlive that. */
Test(etcd_leader, one_that_yielded_leads_no_more_though_its_lease_is_there)
{
    two_standbys();
    etcd_leader_t *l = &T.runs[0];
    kill_run(1);
    kill_run(2);
    l->lease_us = T.now_us - TTL_S * 1000000 / 2;
    cut_off(0, 2 * ETCD_POLL_MS);
    for (int i = 0; i < 20 && !etcd_leader_has_yielded(l); i++) cut_off(0, ETCD_POLL_MS);
    cr_assert(etcd_leader_has_yielded(l));
    cr_assert_lt(T.now_us, lease_end_of(0));
    for (int i = 0; i < 20 && l->state == ETCD_LEADING; i++) {
        pass(ETCD_POLL_MS);
        turn(0);
    }
    cr_assert_eq(l->state, ETCD_LOST);
    cr_assert(strstr(l->why.message, "members were sent"), "%s", l->why.message);
    etcd_leader_end(l, T.now_us);
    turn(0);
    cr_assert_eq(l->state, ETCD_ENDED, "and gives its lease up");
}

Test(etcd_leader, one_without_standbys_keeps_its_members)
{
    open_listed(0);
    turn(0);
    pass_turns(2000);
    cut_off(0, 4 * TTL_S * 1000);
    cr_assert_not(etcd_leader_has_yielded(&T.runs[0]));
}

#define MAY_NOT "{\"error\":\"etcdserver: permission denied\",\"code\":7}"

/* Else only the next commit would say it, and that may be the version that a trainer waits for. */
Test(etcd_leader, a_leader_whose_rights_were_taken_away_says_so_without_a_commit)
{
    open_listed(0);
    leads(0);
    pass(1000);
    cr_assert_null(etcd_leader_refusal(&T.runs[0]));
    cr_assert(send_one(0, ETCD_BROKERS));
    answer_text(0, ETCD_BROKERS, MAY_NOT);
    const heddle_error_t *why = etcd_leader_refusal(&T.runs[0]);
    cr_assert(why && why->code == HEDDLE_ERR_DENIED && *why->hint);
    cr_assert(strstr(why->message, "permission denied"), "%s", why->message);
    cr_assert_eq(T.runs[0].state, ETCD_LEADING);
    pass_turns(1000);
    cr_assert_null(etcd_leader_refusal(&T.runs[0]), "they were given back");
}

/* It is answered, and its lease ends all the same. */
Test(etcd_leader, a_leader_whose_lease_etcd_refuses_to_renew_yields)
{
    two_standbys();
    uint64_t yields_us = lease_end_of(0) + MEMBER_LEASE_MS * 1000 / 4;
    while (T.now_us < yields_us) {
        cr_assert_not(etcd_leader_has_yielded(&T.runs[0]));
        pass(ETCD_POLL_MS);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(0, lane)) answer_text(0, lane, MAY_NOT);
    }
    cr_assert(etcd_leader_has_yielded(&T.runs[0]));
}

Test(etcd_leader, a_standby_that_may_not_write_could_not_take_over)
{
    two_standbys();
    etcd_leader_t *l = &T.runs[1];
    cr_assert(etcd_leader_is_following(l));
    l->shown.lease = 0; /* its row is to be written again */
    for (int i = 0; i < 20 && !l->lanes[ETCD_BROKERS].is_wanted; i++) {
        pass(ETCD_POLL_MS);
        if (send_one(1, ETCD_WORK)) answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    }
    cr_assert(send_one(1, ETCD_BROKERS));
    answer_text(1, ETCD_BROKERS, MAY_NOT);
    cr_assert_not(etcd_leader_is_following(l));
    const heddle_error_t *why = etcd_leader_refusal(l);
    cr_assert(why && strstr(why->message, "permission denied"));
    pass_turns(3000);
    cr_assert(etcd_leader_is_following(l) && !etcd_leader_refusal(l), "it may again");
    cr_assert(list_of(0)->rows[0].is_following, "and says so");
}

/* Its user may read the keys beside the rows, and not the rows. */
static void deny_rows(int i)
{
    for (int left = 20; left && !T.sent[i][ETCD_FOLLOW].is_there; left--) {
        pass(ETCD_POLL_MS);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(i, lane) && lane != ETCD_FOLLOW) answer_one(i, lane, ETCD_ANSWERED);
    }
    answer_text(i, ETCD_FOLLOW, MAY_NOT);
}

Test(etcd_leader, a_standby_that_may_not_read_the_rows_says_so)
{
    open_listed(0);
    leads(0);
    open_listed(1);
    etcd_leader_t *l = &T.runs[1];
    cr_assert(send_one(1, ETCD_WORK));
    answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(l->state, ETCD_STANDBY);
    for (int i = 0; i < 3; i++) {
        deny_rows(1);
        const heddle_error_t *why = etcd_leader_refusal(l);
        cr_assert(why && why->code == HEDDLE_ERR_DENIED && strstr(why->message, "permission denied"));
        cr_assert(!send_one(1, ETCD_FOLLOW), "it is asked for once a second");
    }
    l->shown.lease = 0; /* its row is to be written again */
    for (int i = 0; i < 20 && !l->shown.lease; i++) {
        pass(ETCD_POLL_MS);
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (lane != ETCD_FOLLOW && send_one(1, lane)) answer_one(1, lane, ETCD_ANSWERED);
    }
    cr_assert(l->shown.lease && etcd_leader_refusal(l), "its row is taken, and that says nothing of others");
    pass_turns(3000);
    cr_assert(etcd_leader_is_following(l) && !etcd_leader_refusal(l), "it may again");
    cr_assert(list_of(0)->rows[0].is_following, "and says so");
}

Test(etcd_leader, one_that_may_not_read_the_rows_does_not_start)
{
    open_run(0);
    leads(0);
    record_floor(0, 1);
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    kill_run(0);
    open_run(1);
    deny_rows(1);
    cr_assert_eq(T.runs[1].state, ETCD_REFUSED);
    cr_assert_eq(T.runs[1].why.code, HEDDLE_ERR_DENIED);
    cr_assert(strstr(T.runs[1].why.message, "permission denied"), "%s", T.runs[1].why.message);
}

Test(etcd_leader, one_that_stood_still_asks_first)
{
    two_standbys();
    pass(4 * TTL_S * 1000);
    cr_assert(send_one(0, ETCD_LEASE));
    cr_assert_not(etcd_leader_has_yielded(&T.runs[0]));
}

/* It is another request than that of a commit which is under way. */
Test(etcd_leader, a_list_that_is_not_answered_ends_no_commit)
{
    open_listed(0);
    leads(0);
    cr_assert_eq(begin_floor(0, 4), HEDDLE_ERR_AGAIN);
    cr_assert(send_one(0, ETCD_WORK));
    pass(TTL_S * 1000);
    cr_assert(send_one(0, ETCD_BROKERS));
    answer_one(0, ETCD_BROKERS, ETCD_UNKNOWN);
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
}

/* ---- commits ---- */

Test(etcd_leader, a_commit_whose_answer_was_lost_happens_once)
{
    open_run(0);
    leads(0);
    for (uint64_t n = 1; n <= 2; n++) { /* it happened; it did not */
        cr_assert_eq(begin_floor(0, n), HEDDLE_ERR_AGAIN);
        cr_assert(send_one(0, ETCD_WORK));
        int endpoint = T.runs[0].endpoint;
        if (n == 1) fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[0][ETCD_WORK].body));
        answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
        cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN, "it is not known");
        cr_assert_neq(T.runs[0].endpoint, endpoint);
        turn(0);
        cr_assert_eq(outcome(0), HEDDLE_OK);
        cr_assert_eq(floor_of(0), n);
    }
}

/* The first try arrives after the second one has succeeded. */
Test(etcd_leader, a_commit_that_arrives_late_changes_nothing)
{
    buf_t late = {0};
    open_run(0);
    leads(0);
    begin_floor(0, 1);
    cr_assert(send_one(0, ETCD_WORK));
    buf_add(&late, T.sent[0][ETCD_WORK].body.data, T.sent[0][ETCD_WORK].body.bytes);
    answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    begin_floor(0, 2);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    uint64_t revision = T.etcd.revision;
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&late));
    cr_assert_eq(T.etcd.revision, revision);
    buf_fini(&late);
}

Test(etcd_leader, a_leader_that_was_stopped_past_its_lease_changes_nothing_and_says_so)
{
    open_run(0);
    open_run(1);
    leads(0);
    cr_assert_eq(begin_floor(0, 9), HEDDLE_ERR_AGAIN); /* in hand, and not sent */
    pass(TTL_S * 1000 + ETCD_POLL_MS);
    leads(1);
    uint64_t revision = T.etcd.revision;
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(T.etcd.revision, revision);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
    cr_assert_eq(T.runs[0].why.code, HEDDLE_ERR_FENCED);
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN, "what was under way has no outcome");
    cr_assert_eq(floor_of(1), 0);
    cr_assert_eq(begin_floor(0, 10), HEDDLE_ERR_UNAVAILABLE);
}

/* The key is gone with its lease, and the marker is still that of the last transaction. */
Test(etcd_leader, a_leader_whose_lease_has_ended_changes_nothing_though_none_has_followed)
{
    open_run(0);
    leads(0);
    cr_assert_eq(begin_floor(0, 9), HEDDLE_ERR_AGAIN);
    pass(TTL_S * 1000);
    uint64_t revision = T.etcd.revision;
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(T.etcd.revision, revision);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
}

Test(etcd_leader, one_that_cannot_renew_stops_before_its_lease_can_have_ended)
{
    open_run(0);
    leads(0);
    pass(TTL_S * 1000 * 9 / 10 - 1);
    cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    open_run(1);
    T.runs[0].lanes[ETCD_LEASE].is_sent = true; /* no answer comes */
    T.runs[0].lease_us = T.now_us;
    cr_assert_eq(begin_floor(0, 2), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_eq(floor_of(0), 1);
}

Test(etcd_leader, a_lease_that_has_ended_is_noticed_without_a_commit)
{
    open_run(0);
    leads(0);
    pass(TTL_S * 1000);
    turn(0);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
}

Test(etcd_leader, what_never_reached_an_etcd_is_refused_when_the_lease_may_have_ended)
{
    open_run(0);
    leads(0);
    begin_floor(0, 1);
    for (int i = 0; i < 20 && T.runs[0].is_committing; i++) {
        for (int lane = 0; lane < ETCD_LANES; lane++)
            if (send_one(0, lane)) answer_one(0, lane, ETCD_UNSENT);
        pass(300);
    }
    cr_assert_eq(outcome(0), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_eq(floor_of(0), 0);
    cr_assert_eq(T.runs[0].state, ETCD_LEADING, "its lease may be there yet");
}

Test(etcd_leader, another_hand_at_the_registry_ends_it)
{
    open_run(0);
    leads(0);
    mark_by_another_hand();
    begin_floor(0, 1);
    turn(0);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
}

Test(etcd_leader, an_epoch_that_members_raised_is_recorded)
{
    open_run(0);
    leads(0);
    record_t r = {.kind = RECORD_EPOCH, .epoch = 40};
    cr_assert_eq(etcd_leader_commit(&T.runs[0], &r, 1, T.now_us, NULL), HEDDLE_ERR_AGAIN);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    kill_run(0);
    pass(TTL_S * 1000);
    open_run(1);
    leads(1);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 41);
}

/* ---- what etcd refuses ---- */

Test(etcd_leader, a_full_etcd_refuses_a_commit_and_takes_the_next_one)
{
    open_run(0);
    leads(0);
    T.etcd.error = "etcdserver: mvcc: database space exceeded";
    T.etcd.error_code = 8;
    begin_floor(0, 1);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_ERR_NO_SPACE);
    cr_assert_eq(floor_of(0), 0);
    T.etcd.error = NULL;
    begin_floor(0, 2);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    cr_assert_eq(floor_of(0), 2);
}

/* The transaction that fills an etcd is done, and its answer is that there is no room. */
Test(etcd_leader, one_that_fills_etcd_has_happened)
{
    open_run(0);
    leads(0);
    T.etcd.fills = true;
    begin_floor(0, 1);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    begin_floor(0, 2);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_ERR_NO_SPACE);
    cr_assert_eq(floor_of(0), 1);
    T.etcd.error = NULL;
    record_floor(0, 3);
}

/* Whether it happened is not known while nothing answers, however long. */
Test(etcd_leader, a_full_etcd_that_goes_silent_is_waited_for)
{
    open_run(0);
    leads(0);
    T.etcd.fills = true;
    begin_floor(0, 1);
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    for (int i = 0; i < 10; i++) {
        cr_assert(send_one(0, ETCD_WORK));
        answer_one(0, ETCD_WORK, ETCD_UNSENT);
        pass(1000);
        cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
    }
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
}

#define HEADER "\"header\":{\"revision\":\"9\"}"

/* Where one that was refused has happened all the same, the next one is not taken for it. */
Test(etcd_leader, a_marker_is_used_once)
{
    open_run(0);
    leads(0);
    begin_floor(0, 1);
    cr_assert(send_one(0, ETCD_WORK));
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[0][ETCD_WORK].body));
    answer_text(0, ETCD_WORK, "{\"error\":\"etcdserver: request is too large\",\"code\":3}");
    cr_assert_eq(outcome(0), HEDDLE_ERR_LIMIT);
    begin_floor(0, 2);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
    cr_assert_not_null(strstr(T.runs[0].why.message, "another process wrote"), "%s", T.runs[0].why.message);
}

/* Else the outcome would be assumed: the first try may have happened. */
Test(etcd_leader, a_refusal_of_the_second_try_says_nothing_of_the_first)
{
    open_run(0);
    leads(0);
    begin_floor(0, 1);
    cr_assert(send_one(0, ETCD_WORK));
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[0][ETCD_WORK].body));
    answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
    T.etcd.error = "etcdserver: permission denied";
    T.etcd.error_code = 7;
    cr_assert(send_one(0, ETCD_WORK));
    cr_assert_null(etcd_leader_refusal(&T.runs[0]));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
    const heddle_error_t *why = etcd_leader_refusal(&T.runs[0]);
    cr_assert(why && why->code == HEDDLE_ERR_DENIED && strstr(why->message, "permission denied"));
    T.etcd.error = NULL;
    pass(1000);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    cr_assert_null(etcd_leader_refusal(&T.runs[0]));
    cr_assert_eq(floor_of(0), 1);
}

Test(etcd_leader, an_etcd_that_may_answer_later_is_asked_again)
{
    open_run(0);
    leads(0);
    T.etcd.error = "etcdserver: request timed out";
    T.etcd.error_code = 14;
    begin_floor(0, 1);
    for (int i = 0; i < 3; i++)
        if (send_one(0, ETCD_WORK)) answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert(!send_one(0, ETCD_WORK), "there is a pause when each endpoint has failed");
    T.etcd.error = NULL;
    pass(200);
    turn(0);
    cr_assert_eq(outcome(0), HEDDLE_OK);
}

static void refused(int i, int code, const char *text)
{
    turn(i);
    cr_assert_eq(T.runs[i].state, ETCD_REFUSED, "%d", T.runs[i].state);
    cr_assert_eq(T.runs[i].why.code, code, "%s", T.runs[i].why.message);
    cr_assert_not_null(strstr(T.runs[i].why.message, text), "%s", T.runs[i].why.message);
    cr_assert(*T.runs[i].why.hint);
}

Test(etcd_leader, without_users_rights_it_says_so)
{
    T.etcd.error = "etcdserver: permission denied";
    T.etcd.error_code = 7;
    open_run(0);
    refused(0, HEDDLE_ERR_DENIED, "permission denied");
}

Test(etcd_leader, no_etcd_is_said_after_some_seconds)
{
    open_run(0);
    for (int i = 0; i < 40 && T.runs[0].state == ETCD_LOOKING; i++) {
        if (send_one(0, ETCD_WORK)) answer_one(0, ETCD_WORK, i % 2 ? ETCD_UNSENT : ETCD_UNKNOWN);
        pass(200);
    }
    refused(0, HEDDLE_ERR_UNAVAILABLE, "no endpoint answers");
}

/* What it waits for, and for how long, is said by the one that runs it (--timeout). */
Test(etcd_leader, a_command_waits_for_an_etcd_but_not_for_one_that_it_cannot_trust)
{
    open_for(0, ETCD_EXPORT);
    for (int i = 0; i < 60; i++) {
        if (send_one(0, ETCD_WORK)) answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
        pass(200);
    }
    cr_assert_eq(T.runs[0].state, ETCD_LOOKING);
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_UNTRUSTED);
    refused(0, HEDDLE_ERR_DENIED, "no endpoint can be trusted");
}

static void put_text(const char *key, const char *value)
{
    buf_t body = {0};
    etcd_txn_t t;
    etcd_txn_begin(&t, &body, "heddle/test");
    etcd_txn_put(&t, key, bytes_of(value, strlen(value)), 0);
    etcd_txn_end(&t);
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&body));
    buf_fini(&body);
}

Test(etcd_leader, what_is_not_ours_is_left_alone)
{
    put_text("pods/x", "y");
    uint64_t revision = T.etcd.revision;
    open_run(0);
    refused(0, HEDDLE_ERR_DATA_DIR, "keys of something else");
    cr_assert_str_eq(T.runs[0].why.found, "the key heddle/test/pods/x");
    put_text("meta", "something else");
    open_run(1);
    refused(1, HEDDLE_ERR_DATA_DIR, "did not write");
    cr_assert_eq(T.etcd.revision, revision + 1);
}

static void open_at(int i, const char *prefix)
{
    open_run(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.prefix = prefix;
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

static void refused_beside(int i, const char *prefix, const char *text, const char *key)
{
    uint64_t revision = T.etcd.revision;
    open_at(i, prefix);
    refused(i, HEDDLE_ERR_DATA_DIR, text);
    cr_assert_not_null(strstr(T.runs[i].why.message, prefix), "%s", T.runs[i].why.message);
    cr_assert_not_null(strstr(T.runs[i].why.found, key), "%s", T.runs[i].why.found);
    cr_assert_not_null(strstr(T.runs[i].why.hint, key), "%s", T.runs[i].why.hint);
    cr_assert_eq(T.etcd.revision, revision, "it wrote something");
}

Test(etcd_leader, a_registry_is_made_neither_below_nor_above_another_one)
{
    open_run(0);
    leads(0);
    refused_beside(1, "heddle/test/x", "lies above", "heddle/test/meta");
    refused_beside(1, "heddle/test/x/b/z", "lies above", "heddle/test/meta");
    refused_beside(1, "heddle", "keys of something else", "heddle/test/");
    open_at(1, "heddle/tes");
    leads(1);
    open_at(1, "heddle/test2/test");
    leads(1);
    record_floor(0, 5);
    cr_assert_eq(floor_of(0), 5);
}

/* The rows of brokers lie there, too: one that has the lease of a broker that has ended goes with it. */
Test(etcd_leader, a_registry_is_made_above_no_other_one_that_lies_where_brokers_have_their_rows)
{
    open_at(0, "p/b");
    leads(0);
    refused_beside(1, "p", "keys of something else", "p/b/");
    open_at(0, "q/b/a0");
    leads(0);
    refused_beside(1, "q", "keys of something else", "q/b/a0/");
    put_text("b/run7", "{}");
    open_run(1);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "%d: %s", T.runs[1].state, T.runs[1].why.message);
    for (int i = T.etcd.count - 1; i >= 0; i--) fake_drop(&T.etcd, i);
    open_run(2);
    leads(2);
}

Test(etcd_leader, above_a_prefix_only_what_the_user_may_read_counts)
{
    open_run(0);
    leads(0);
    T.etcd.denied = "heddle/test/x/meta";
    refused_beside(1, "heddle/test/x/y", "lies above", "heddle/test/meta");
    T.etcd.denied = "heddle/test/meta";
    open_at(1, "heddle/test/x/y");
    leads(1);
    T.etcd.denied = "heddle/test/";
    open_run(2);
    for (int i = T.etcd.count - 1; i >= 0; i--) fake_drop(&T.etcd, i);
    refused(2, HEDDLE_ERR_DENIED, "permission denied");
}

/* Another program's key of that name is none. */
Test(etcd_leader, a_key_above_a_prefix_is_a_registry_by_what_it_says)
{
    put_text("meta", "something else");
    open_at(1, "heddle/test/x");
    leads(1);
}

Test(etcd_leader, rows_of_a_newer_release_are_refused_with_both_numbers)
{
    put_text("meta", "heddle registry 999 0123456789abcdef 4");
    open_run(0);
    refused(0, HEDDLE_ERR_DATA_NEWER, "schema 999");
}

Test(etcd_leader, epochs_that_are_used_up_are_refused)
{
    put_text("meta", "heddle registry 8 0123456789abcdef 4294967295");
    open_run(0);
    refused(0, HEDDLE_ERR_DATA_DIR, "used up");
}

/* ---- etcd has no room while the lead is to be taken ---- */

static void fill_etcd(void)
{
    T.etcd.error = "etcdserver: mvcc: database space exceeded";
    T.etcd.error_code = 8;
}

Test(etcd_leader, a_standby_that_finds_no_room_stands_by_until_there_is_some)
{
    open_run(0);
    open_run(1);
    leads(0);
    record_floor(0, 7);
    turn(1);
    kill_run(0);
    pass(TTL_S * 1000);
    fill_etcd();
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "%s", T.runs[1].why.message);
    cr_assert(T.runs[1].is_full && etcd_leader_is_following(&T.runs[1]));
    for (int i = 0; i < 5; i++) {
        uint64_t due_us = etcd_leader_due(&T.runs[1]);
        cr_assert(!send_one(1, ETCD_WORK), "it asks without a pause");
        cr_assert_gt(due_us, T.now_us);
        pass(1000);
        turn(1);
        cr_assert(T.runs[1].state == ETCD_STANDBY && T.runs[1].is_full);
    }
    T.etcd.error = NULL;
    pass(1000);
    leads_without_a_read();
    cr_assert(!T.runs[1].is_full);
    cr_assert_eq(floor_of(1), 7);
}

Test(etcd_leader, one_that_begins_without_room_stands_by_and_names_the_one_that_leads_then)
{
    static const char FULL[] = "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}";
    open_run(1);
    for (int left = 10; left && T.runs[1].state != ETCD_TAKING; left--)
        if (send_one(1, ETCD_WORK)) answer_one(1, ETCD_WORK, ETCD_ANSWERED);
    cr_assert(send_one(1, ETCD_LEASE));
    T.sent[1][ETCD_LEASE].is_there = false;
    etcd_leader_answer(&T.runs[1], ETCD_LEASE, ETCD_ANSWERED, bytes_of(FULL, strlen(FULL)), T.now_us);
    cr_assert(T.runs[1].state == ETCD_STANDBY && T.runs[1].is_full, "%s", T.runs[1].why.message);
    open_run(0);
    leads(0);
    pass(1000);
    turn(1);
    cr_assert(T.runs[1].state == ETCD_STANDBY && !T.runs[1].is_full);
    cr_assert_str_eq(T.runs[1].other, "tcp://a:1");
}

/* ---- an import, and an export ---- */

Test(etcd_leader, a_command_that_finds_no_room_ends)
{
    fill_etcd();
    open_for(0, ETCD_IMPORT);
    refused(0, HEDDLE_ERR_NO_SPACE, "space exceeded");
}

static void import_floor(int i, uint64_t version)
{
    open_for(i, ETCD_IMPORT);
    leads(i);
    cr_assert_eq(begin_floor(i, version), HEDDLE_ERR_AGAIN);
    turn(i);
    cr_assert_eq(outcome(i), HEDDLE_OK);
}

static void finish_command(int i)
{
    cr_assert_eq(etcd_leader_finish(&T.runs[i], T.now_us, NULL), HEDDLE_ERR_AGAIN);
    turn(i);
    cr_assert_eq(outcome(i), HEDDLE_OK);
    etcd_leader_end(&T.runs[i], T.now_us);
    turn(i);
}

Test(etcd_leader, what_was_imported_is_a_registry_with_its_cluster_and_the_next_epoch)
{
    import_floor(0, 5);
    finish_command(0);
    open_run(1);
    leads(1);
    cr_assert_str_eq(rows_cluster(T.runs[1].rows), CLUSTER);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 8);
    cr_assert_eq(floor_of(1), 5);
}

/* By another program. */
static void delete_floor(void)
{
    buf_t body = {0};
    etcd_txn_t t;
    etcd_txn_begin(&t, &body, "heddle/test");
    etcd_txn_delete(&t, "f/a");
    etcd_txn_end(&t);
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&body));
    buf_fini(&body);
}

Test(etcd_leader, what_was_imported_is_read_again_as_it_is_there)
{
    import_floor(0, 5);
    delete_floor();
    cr_assert_eq(floor_of(0), 5);
    uint64_t steps = T.runs[0].steps;
    etcd_leader_read_again(&T.runs[0], T.now_us);
    cr_assert_eq(T.runs[0].state, ETCD_READING);
    leads(0);
    cr_assert_eq(floor_of(0), 0);
    cr_assert_eq(T.runs[0].steps, steps + 1);
    cr_assert_eq(rows_epoch(T.runs[0].rows), 7);
    finish_command(0);
    open_run(1);
    leads(1);
    etcd_leader_end(&T.runs[1], T.now_us);
    etcd_leader_read_again(&T.runs[1], T.now_us);
    cr_assert_eq(T.runs[1].state, ETCD_ENDING, "it has nothing to read any more");
}

Test(etcd_leader, over_an_import_that_was_not_finished_no_broker_starts_and_the_next_import_begins_anew)
{
    import_floor(0, 5);
    open_run(1);
    refused(1, HEDDLE_ERR_DATA_DIR, "not finished"); /* it is under way */
    kill_run(0);
    pass(TTL_S * 1000 + 1);
    open_run(1);
    refused(1, HEDDLE_ERR_DATA_DIR, "not finished");
    open_for(2, ETCD_EXPORT);
    refused(2, HEDDLE_ERR_DATA_DIR, "not finished");
    open_for(0, ETCD_IMPORT);
    leads(0);
    cr_assert_eq(floor_of(0), 0);
    finish_command(0);
    open_run(1);
    leads(1);
    cr_assert_eq(floor_of(1), 0);
}

static void move_away(int i)
{
    open_for(i, ETCD_EXPORT);
    leads(i);
    finish_command(i);
}

Test(etcd_leader, a_registry_that_was_moved_is_not_served_and_may_be_exported_again)
{
    import_floor(0, 5);
    finish_command(0);
    move_away(2);
    open_run(1);
    refused(1, HEDDLE_ERR_DATA_DIR, "moved to another store");
    cr_assert(strstr(T.runs[1].why.hint, "heddle/test/import"), "%s", T.runs[1].why.hint);
    open_for(0, ETCD_IMPORT);
    refused(0, HEDDLE_ERR_DATA_DIR, "has data");
    move_away(3);
    cr_assert_eq(floor_of(3), 5);
}

/* It has looked, and has a lease, before the registry is moved. */
Test(etcd_leader, a_broker_that_saw_it_before_does_not_take_the_lead_of_a_registry_that_was_moved)
{
    import_floor(0, 5);
    finish_command(0);
    open_run(1);
    begins_to_take(1);
    move_away(2);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_REFUSED);
    cr_assert(strstr(T.runs[1].why.message, "moved to another store"), "%s", T.runs[1].why.message);
}

Test(etcd_leader, an_import_begins_only_where_no_data_are)
{
    open_run(0);
    leads(0);
    open_for(1, ETCD_IMPORT);
    refused(1, HEDDLE_ERR_DATA_DIR, "the prefix has data");
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    open_for(1, ETCD_IMPORT);
    refused(1, HEDDLE_ERR_DATA_DIR, "the prefix has data");
}

/* It has seen an empty prefix, and has a lease, before the import begins. */
Test(etcd_leader, a_broker_that_saw_nothing_there_does_not_take_the_lead_of_an_import)
{
    open_run(1);
    begins_to_take(1);
    import_floor(0, 5);
    kill_run(0);
    pass(TTL_S * 1000 / 2); /* the import's lease has ended, not the broker's */
    for (int i = T.etcd.count - 1; i >= 0; i--)
        if (T.etcd.keys[i].lease) fake_drop(&T.etcd, i);
    refused(1, HEDDLE_ERR_DATA_DIR, "not finished");
}

Test(etcd_leader, an_export_takes_the_lead_of_a_registry_that_is_there)
{
    open_for(1, ETCD_EXPORT);
    refused(1, HEDDLE_ERR_NOT_FOUND, "no registry");
    open_run(0);
    leads(0);
    cr_assert_eq(begin_floor(0, 5), HEDDLE_ERR_AGAIN);
    turn(0);
    open_for(1, ETCD_EXPORT);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "a broker leads: the caller ends");
    etcd_leader_end(&T.runs[0], T.now_us);
    turn(0);
    pass(ETCD_POLL_MS);
    leads(1);
    cr_assert_eq(floor_of(1), 5);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 2);
}

/* It stood still for longer than its lease, with a decision in hand, and the export did not see it. */
Test(etcd_leader, a_leader_that_an_export_did_not_see_changes_nothing_afterwards)
{
    open_run(0);
    leads(0);
    cr_assert_eq(begin_floor(0, 9), HEDDLE_ERR_AGAIN);
    pass(TTL_S * 1000 + 1);
    open_for(1, ETCD_EXPORT);
    leads(1);
    etcd_leader_end(&T.runs[1], T.now_us);
    turn(1);
    turn(0);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
    open_run(2);
    leads(2);
    cr_assert_eq(floor_of(2), 0);
    cr_assert_eq(rows_epoch(T.runs[2].rows), 3);
}

Test(etcd_leader, another_cluster_is_refused)
{
    open_run_with(0, 1, "0123456789abcdef");
    refused(0, HEDDLE_ERR_DATA_DIR, "another cluster");
    put_text("meta", "heddle registry 8 fedcba9876543210 4");
    open_run_with(1, 1, "0123456789abcdef");
    refused(1, HEDDLE_ERR_DATA_DIR, "another cluster");
    cr_assert_str_eq(T.runs[1].why.found, "fedcba9876543210");
    open_run_with(2, 1, "fedcba9876543210");
    leads(2);
    cr_assert_eq(rows_epoch(T.runs[2].rows), 5);
}

/* Run i waits for the registry that it knew: what is there is `found`. */
static void waits_for_its_registry(int i, const char *found)
{
    const heddle_error_t *why = etcd_leader_refusal(&T.runs[i]);
    cr_assert_eq(T.runs[i].state, ETCD_STANDBY, "%d: %s", T.runs[i].state, T.runs[i].why.message);
    cr_assert_not(etcd_leader_is_following(&T.runs[i]));
    cr_assert(why && why->code == HEDDLE_ERR_DATA_DIR && *why->hint);
    cr_assert_str_eq(why->found, found);
}

/* As where the disks of etcd are new. */
Test(etcd_leader, a_standby_makes_no_registry_where_the_one_that_it_followed_is_gone)
{
    fake_keys_t nothing, snapshot;
    fake_etcd_save(&T.etcd, &nothing);
    open_run(0);
    open_run(1);
    leads(0);
    record_floor(0, 3);
    turn(1);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    char cluster[HEDDLE_NAME_MAX + 1];
    snprintf(cluster, sizeof cluster, "%s", rows_cluster(T.runs[0].rows));
    fake_etcd_save(&T.etcd, &snapshot);
    fake_etcd_restore(&T.etcd, &nothing);
    kill_run(0);
    pass_turns(3 * TTL_S * 1000);
    waits_for_its_registry(1, "none: the prefix is empty");
    cr_assert_str_eq(etcd_leader_refusal(&T.runs[1])->expected, cluster);
    fake_etcd_restore(&T.etcd, &snapshot);
    pass_turns(3 * TTL_S * 1000);
    leads(1);
    cr_assert_eq(floor_of(1), 3);
    cr_assert_null(etcd_leader_refusal(&T.runs[1]));
    fake_etcd_forget(&snapshot);
    fake_etcd_forget(&nothing);
}

/* A process that led that cluster before. */
static void open_that_led(int i, const char *cluster)
{
    open_listed(i);
    etcd_leader_opts_t opts = T.runs[i].opts;
    opts.led = cluster;
    etcd_leader_fini(&T.runs[i]);
    cr_assert_eq(etcd_leader_init(&T.runs[i], &opts, T.now_us, NULL), HEDDLE_OK);
}

/* Run 1 followed it, and waits; run 0, which led, has ended. */
static void lose_registry(fake_keys_t *ret_nothing)
{
    fake_etcd_save(&T.etcd, ret_nothing);
    open_listed(0);
    open_listed(1);
    leads(0);
    pass_turns(3000);
    fake_etcd_restore(&T.etcd, ret_nothing);
    kill_run(0);
    pass_turns(3 * TTL_S * 1000);
}

/* As a person does first, or what supervises it: another process, which knows nothing. */
Test(etcd_leader, one_that_is_started_waits_where_another_one_waits_for_its_registry)
{
    fake_keys_t nothing;
    lose_registry(&nothing);
    waits_for_its_registry(1, "none: the prefix is empty");
    open_listed(0);
    pass_turns(3 * TTL_S * 1000);
    waits_for_its_registry(0, "the row of a broker");
    kill_run(1);
    pass_turns(3 * TTL_S * 1000);
    waits_for_its_registry(0, "the row of a broker");
    open_listed(1);
    pass_turns(3 * TTL_S * 1000);
    waits_for_its_registry(1, "the row of a broker");
    kill_run(0);
    fake_etcd_restore(&T.etcd, &nothing); /* and with it the row of run 1 */
    pass_turns(3 * TTL_S * 1000);
    waits_for_its_registry(1, "the row of a broker");
    open_for(2, ETCD_IMPORT);
    leads(2);
    etcd_leader_end(&T.runs[2], T.now_us);
    turn(2);
    kill_run(2);
    fake_etcd_restore(&T.etcd, &nothing);
    pass_turns(3000);
    etcd_leader_end(&T.runs[1], T.now_us);
    turn(1);
    kill_run(1);
    open_listed(0);
    pass_turns(3 * TTL_S * 1000);
    leads(0);
    fake_etcd_forget(&nothing);
}

/* It takes as long as it likes; a broker that knew nothing of a registry is refused meanwhile. */
Test(etcd_leader, those_that_wait_for_a_registry_wait_while_one_is_imported)
{
    fake_keys_t nothing;
    lose_registry(&nothing);
    open_listed(0);
    pass_turns(3 * TTL_S * 1000);
    import_floor(2, 5);
    pass_turns(3000);
    waits_for_its_registry(1, "none: the prefix is empty");
    waits_for_its_registry(0, "the row of a broker");
    finish_command(2);
    kill_run(2);
    pass_turns(3 * TTL_S * 1000);
    cr_assert(T.runs[0].state == ETCD_LEADING || T.runs[1].state == ETCD_LEADING, "none leads");
    fake_etcd_forget(&nothing);
}

/* Those that know the registry find etcd, and that it is gone, a moment later than the one that is started. */
Test(etcd_leader, one_that_is_started_without_an_etcd_looks_for_others_before_it_makes_a_registry)
{
    fake_keys_t nothing;
    fake_etcd_save(&T.etcd, &nothing);
    open_listed(0);
    leads(0);
    pass_turns(1000);
    open_listed(1);
    for (int i = 0; i < 3; i++) {
        cr_assert(send_one(1, ETCD_WORK));
        answer_one(1, ETCD_WORK, ETCD_UNSENT);
    }
    fake_etcd_restore(&T.etcd, &nothing);
    pass(500);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY, "%d: %s", T.runs[1].state, T.runs[1].why.message);
    cr_assert(etcd_leader_is_answered(&T.runs[1]), "as is said of a standby alone");
    open_that_led(0, "aaaaaaaaaaaaaaaa");
    pass_turns(2 * TTL_S * 1000);
    waits_for_its_registry(0, "none: the prefix is empty");
    waits_for_its_registry(1, "the row of a broker");
    fake_etcd_forget(&nothing);
}

Test(etcd_leader, one_that_is_started_without_an_etcd_makes_a_registry_a_lease_later)
{
    open_listed(0);
    for (int i = 0; i < 3; i++) {
        cr_assert(send_one(0, ETCD_WORK));
        answer_one(0, ETCD_WORK, ETCD_UNSENT);
    }
    pass(500);
    turn(0);
    pass_turns(TTL_S * 1000);
    cr_assert_eq(T.runs[0].state, ETCD_STANDBY);
    pass_turns(1000);
    leads(0);
    open_at(1, "other");
    for (int i = 0; i < 2; i++) {
        cr_assert(send_one(1, ETCD_WORK));
        answer_one(1, ETCD_WORK, ETCD_UNSENT);
    }
    leads(1);
}

/* Begun anew it would wait for an etcd that is away, too, and not end. */
Test(etcd_leader, a_process_that_led_makes_no_other_registry)
{
    open_that_led(0, CLUSTER);
    cut_off(0, 2 * ETCD_START_MS);
    pass_turns(3000);
    waits_for_its_registry(0, "none: the prefix is empty");
    put_text("meta", "heddle registry 8 fedcba9876543210 4");
    pass_turns(3000);
    waits_for_its_registry(0, "fedcba9876543210");
    put_text("meta", "heddle registry 8 " CLUSTER " 4");
    pass_turns(3000);
    leads(0);
    cr_assert_eq(rows_epoch(T.runs[0].rows), 5);
}

Test(etcd_leader, a_damaged_row_is_refused_by_name)
{
    put_text("meta", "heddle registry 8 0123456789abcdef 4");
    put_text("f/policy", "cut off");
    open_run(0);
    refused(0, HEDDLE_ERR_DATA_DIR, "f/policy");
}

/* ---- pages ---- */

/* Run 0 makes a registry of some 600 rows, and ends.  -> its bytes */
static uint64_t make_many_rows(void)
{
    record_t rows[OUTBOX_RECORDS];
    char names[OUTBOX_RECORDS][16];
    open_run(0);
    leads(0);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < OUTBOX_RECORDS; i++) {
            snprintf(names[i], sizeof names[i], "a%d", round * OUTBOX_RECORDS + i);
            rows[i] = FLOOR;
            rows[i].adapter = names[i];
        }
        cr_assert_eq(etcd_leader_commit(&T.runs[0], rows, OUTBOX_RECORDS, T.now_us, NULL), HEDDLE_ERR_AGAIN);
        turn(0);
        cr_assert_eq(outcome(0), HEDDLE_OK);
    }
    etcd_page_init(&T.runs[0].follow.page);
    return rows_bytes(T.runs[0].rows);
}

static void end_run(int i)
{
    etcd_leader_end(&T.runs[i], T.now_us);
    turn(i);
    kill_run(i);
}

static uint32_t rows_asked(int i, int lane)
{
    const sent_t *s = &T.sent[i][lane];
    cr_assert_eq(s->call, ETCD_RANGE);
    json_t *request = json_loadb((const char *)s->body.data, s->body.bytes, 0, NULL);
    uint32_t rows = (uint32_t)fake_number(request, "limit");
    json_decref(request);
    return rows;
}

/* Each request takes 0.5 s, and a page of more than `most` rows its whole time, or it is over the limit: there
 * is no answer.  -> so many had none, until it leads, or follows */
static int answer_pages(int i, uint32_t most, etcd_outcome_t without)
{
    int failed = 0;
    for (int left = 1000; left && T.runs[i].state != ETCD_LEADING && !etcd_leader_is_following(&T.runs[i]);
         left--)
        for (int lane = 0; lane < ETCD_BROKERS; lane++) {
            if (T.is_open[0]) turn(0);
            if (!send_one(i, lane)) continue;
            pass(T.sent[i][lane].call == ETCD_STREAM ? 0 : 500);
            bool is_late = T.sent[i][lane].call == ETCD_RANGE && rows_asked(i, lane) > most;
            failed += is_late;
            answer_one(i, lane, is_late ? without : ETCD_ANSWERED);
            pass(200);
        }
    return failed;
}

/* Of some 600 rows, where 60 come: 400, 200 and 100, then 100 after the first 50 that came, and once more after
 * eight more. */
enum { FAILED_PAGES = 5 };

/* Where etcd's gateway does not let these through. */
Test(etcd_leader, many_rows_come_in_smaller_pages)
{
    uint64_t bytes = make_many_rows();
    T.etcd.page_rows_max = 60;
    end_run(0);
    open_run(1);
    cr_assert_eq(answer_pages(1, ETCD_PAGE_MOST, ETCD_UNKNOWN), 0);
    leads(1);
    cr_assert_eq(rows_bytes(T.runs[1].rows), bytes);
}

Test(etcd_leader, pages_that_do_not_come_are_asked_for_in_halves)
{
    uint64_t bytes = make_many_rows();
    end_run(0);
    open_for(1, ETCD_EXPORT);
    cr_assert_eq(answer_pages(1, 60, ETCD_UNKNOWN), FAILED_PAGES);
    cr_assert_eq(T.runs[1].state, ETCD_LEADING, "%s", T.runs[1].why.message);
    cr_assert_eq(rows_bytes(T.runs[1].rows), bytes);
}

Test(etcd_leader, a_standby_follows_in_smaller_pages_too)
{
    (void)make_many_rows();
    open_run(1);
    cr_assert_eq(answer_pages(1, 60, ETCD_UNKNOWN), FAILED_PAGES);
    cr_assert(etcd_leader_is_following(&T.runs[1]));
}

/* A page of 60 rows at a time, and whatever else it asks.  -> so many pages came, until it leads; before each
 * next one `ms` pass */
static int read_slowly(int i, int pages, uint64_t ms)
{
    int came = 0;
    for (int left = 1000; left && came < pages && T.runs[i].state != ETCD_LEADING; left--, pass(10))
        for (int lane = 0; lane < ETCD_LANES; lane++) {
            if (!send_one(i, lane)) continue;
            bool is_page = T.sent[i][lane].call == ETCD_RANGE;
            came += is_page;
            answer_one(i, lane, ETCD_ANSWERED);
            if (is_page) pass(ms);
            cr_assert_neq(T.runs[i].state, ETCD_READING, "it holds the lead for what it only reads");
            cr_assert_neq(T.runs[i].state, ETCD_LOST);
        }
    return came;
}

/* It has a lease only while it takes the lead: the end of one would be that of what it has read. */
Test(etcd_leader, rows_are_read_however_short_a_lease_is)
{
    uint64_t bytes = make_many_rows();
    T.etcd.page_rows_max = 60;
    end_run(0);
    open_run(1);
    int pages = read_slowly(1, 1000, 0);
    leads(1);
    end_run(1);
    open_run(2);
    cr_assert_eq(read_slowly(2, 1000, TTL_S * 1000), pages, "each one once");
    leads(2);
    cr_assert_eq(rows_bytes(T.runs[2].rows), bytes);
    cr_assert_eq(rows_epoch(T.runs[2].rows), 3);
}

Test(etcd_leader, a_standby_that_has_followed_in_part_reads_on_when_none_leads)
{
    uint64_t bytes = make_many_rows();
    T.etcd.page_rows_max = 60;
    open_run(1);
    cr_assert_eq(read_slowly(1, 5, 0), 5);
    end_run(0);
    pass(ETCD_POLL_MS);
    int pages = 5 + read_slowly(1, 1000, TTL_S * 1000);
    leads(1);
    cr_assert_eq(rows_bytes(T.runs[1].rows), bytes);
    end_run(1);
    open_run(2);
    cr_assert_eq(read_slowly(2, 1000, 0), pages, "it read each page once");
}

/* The answer that it leads is lost: it finds its own key, and has the rows. */
Test(etcd_leader, a_lead_that_was_taken_unheard_needs_no_read)
{
    open_run(0);
    leads(0);
    record_floor(0, 7);
    end_run(0);
    open_run(1);
    begins_to_take(1);
    cr_assert(send_one(1, ETCD_WORK));
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[1][ETCD_WORK].body));
    answer_one(1, ETCD_WORK, ETCD_UNKNOWN);
    cr_assert_eq(read_slowly(1, 1, 1), 0, "no page");
    cr_assert_eq(T.runs[1].state, ETCD_LEADING);
    cr_assert_eq(floor_of(1), 7);
    cr_assert_eq(rows_epoch(T.runs[1].rows), 2);
    cr_assert_eq(begin_floor(1, 8), HEDDLE_ERR_AGAIN);
    turn(1);
    cr_assert_eq(outcome(1), HEDDLE_OK);
}

/* By a release that is newer, or another program: of a leader it is the matter, else of the one that starts. */
Test(etcd_leader, a_row_that_is_none_of_ours_is_said_when_none_leads)
{
    open_run(0);
    leads(0);
    etcd_txn_t t;
    buf_t body = {0};
    etcd_txn_begin(&t, &body, "heddle/test");
    etcd_txn_put(&t, "z/what", bytes_of("x", 1), 0);
    etcd_txn_end(&t);
    fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&body));
    buf_fini(&body);
    open_run(1);
    turn(1);
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_STANDBY);
    end_run(0);
    pass(ETCD_POLL_MS);
    turn(1);
    cr_assert_eq(T.runs[1].state, ETCD_REFUSED);
    cr_assert_eq(T.runs[1].why.code, HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(T.runs[1].why.message, "did not write: z/what"), "%s", T.runs[1].why.message);
}

/* What is refused at a connection says nothing of the page. */
Test(etcd_leader, a_page_that_was_not_asked_for_stays_as_large)
{
    (void)make_many_rows();
    etcd_leader_read_again(&T.runs[0], T.now_us);
    for (int i = 0; i < 6; i++) {
        cr_assert(send_one(0, ETCD_WORK));
        cr_assert_eq(rows_asked(0, ETCD_WORK), ETCD_PAGE_ROWS);
        answer_one(0, ETCD_WORK, ETCD_UNSENT);
        pass(200);
    }
}

/* etcd counts all rows that follow for each page: of a large registry that takes longer than the page itself, and one
 * that stayed small would be read for hours. */
Test(etcd_leader, pages_grow_again_though_they_are_slow)
{
    (void)make_many_rows();
    etcd_leader_read_again(&T.runs[0], T.now_us);
    for (int i = 0; i < 3; i++) {
        cr_assert(send_one(0, ETCD_WORK));
        answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
        if (i == 2) pass(200);
    }
    for (uint32_t rows = 50; rows <= 200; rows *= 2) {
        cr_assert(send_one(0, ETCD_WORK));
        cr_assert_eq(rows_asked(0, ETCD_WORK), rows);
        pass(500);
        answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    }
    leads(0);
}

static void is_stuck(int i, const char *text)
{
    heddle_error_t why;
    cr_assert(etcd_leader_is_stuck(&T.runs[i], &why));
    cr_assert_not_null(strstr(why.message, text), "%s", why.message);
    cr_assert_not_null(strstr(why.message, "none is reached"), "%s", why.message);
    cr_assert_not_null(strstr(why.hint, "10 s"), "%s", why.hint);
}

/* It has more time, and what stands in the way is said. */
Test(etcd_leader, a_page_of_one_row_that_does_not_come_is_said)
{
    heddle_error_t why;
    (void)make_many_rows();
    etcd_leader_read_again(&T.runs[0], T.now_us);
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    for (int i = 0; i < 10; i++) {
        cr_assert(!etcd_leader_is_stuck(&T.runs[0], &why));
        cr_assert_eq(time_of_next(0), i < 9 ? 5000 : 10000);
        cr_assert(send_one(0, ETCD_WORK));
        cr_assert_eq(rows_asked(0, ETCD_WORK), 2 * ETCD_PAGE_ROWS >> i);
        answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
        pass(200);
    }
    is_stuck(0, "behind the key heddle/test/f/a");
    cr_assert_eq(T.runs[0].state, ETCD_READING);
    turn(0);
    cr_assert(!etcd_leader_is_stuck(&T.runs[0], &why));
    leads(0);
}

/* As etcd's gateway refuses it. */
Test(etcd_leader, a_standby_says_that_a_row_does_not_come_and_asks_once_a_while)
{
    static const char TOO_LARGE[] = "{\"error\":\"none is reached\",\"code\":8}";
    heddle_error_t why;
    (void)make_many_rows();
    open_run(1);
    for (int i = 0; i < 12; i++) {
        turn(0);
        if (send_one(1, ETCD_WORK)) answer_one(1, ETCD_WORK, ETCD_ANSWERED);
        cr_assert(send_one(1, ETCD_FOLLOW));
        if (i % 2) answer_one(1, ETCD_FOLLOW, ETCD_UNKNOWN);
        else answer_text(1, ETCD_FOLLOW, TOO_LARGE);
        cr_assert(!send_one(1, ETCD_FOLLOW), "there is a pause");
        cr_assert_eq(etcd_leader_is_stuck(&T.runs[1], &why), i >= 8);
        pass(200);
    }
    is_stuck(1, "the first one of heddle/test");
    cr_assert_eq(T.runs[1].follow.anew_count, 0);
    for (int i = 0; i < 3; i++) {
        turn(0);
        turn(1);
        pass(200);
    }
    cr_assert(etcd_leader_is_following(&T.runs[1]));
    cr_assert(!etcd_leader_is_stuck(&T.runs[1], &why));
}

Test(etcd_leader, answers_that_are_none_are_no_answers)
{
    static const char *const TEXTS[] = {"",           "<html>", "[]", "{}", "{\"kvs\":[{\"key\":\"*\"}]}",
                                        "{\"error\":"};
    open_run(0);
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        cr_assert(send_one(0, ETCD_WORK), "%zu", i);
        etcd_leader_answer(&T.runs[0], ETCD_WORK, ETCD_ANSWERED, bytes_of(TEXTS[i], strlen(TEXTS[i])),
                           T.now_us);
        cr_assert_eq(T.runs[0].state, ETCD_LOOKING);
        pass(200);
    }
    pass_turns((TTL_S + 2) * 1000);
    leads(0);
    etcd_leader_answer(&T.runs[0], ETCD_WORK, ETCD_ANSWERED, bytes_of("{}", 2), T.now_us); /* to no request */
    cr_assert_eq(T.runs[0].state, ETCD_LEADING);
}

/* ---- a snapshot is restored under a broker that leads ---- */

static void notices_restore(int i, const fake_keys_t *snapshot, const char *why)
{
    fake_etcd_restore(&T.etcd, snapshot);
    pass(1000);
    turn(i);
    cr_assert_eq(T.runs[i].state, ETCD_LOST);
    cr_assert_not_null(strstr(T.runs[i].why.message, why), "%s", T.runs[i].why.message);
}

/* It has the lease, of its time as a standby: keepalives succeed. */
Test(etcd_leader, a_leader_whose_key_is_restored_away_leads_no_more)
{
    fake_keys_t snapshot;
    open_listed(0);
    open_listed(1);
    leads(0);
    turn(1);
    fake_etcd_save(&T.etcd, &snapshot);
    uint64_t lease = T.runs[1].lease;
    end_run(0);
    leads(1);
    cr_assert(lease && T.runs[1].lease == lease);
    notices_restore(1, &snapshot, "its key in etcd is gone");
    fake_etcd_forget(&snapshot);
}

Test(etcd_leader, a_leader_whose_last_commit_is_restored_away_leads_no_more)
{
    fake_keys_t snapshot;
    open_listed(0);
    leads(0);
    fake_etcd_save(&T.etcd, &snapshot);
    record_floor(0, 1);
    pass(1000);
    leads(0);
    notices_restore(0, &snapshot, "does not have what it recorded");
    fake_etcd_forget(&snapshot);
}

/* What etcd had when it was asked is older, and no reason to end. */
Test(etcd_leader, a_commit_that_overtakes_the_look_for_the_key_changes_nothing)
{
    buf_t before = {0};
    open_listed(0);
    leads(0);
    record_floor(0, 1);
    pass(1000);
    cr_assert(send_one(0, ETCD_BROKERS));
    bytes_t found = fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&T.sent[0][ETCD_BROKERS].body));
    buf_add(&before, found.data, found.bytes);
    record_floor(0, 2);
    etcd_leader_answer(&T.runs[0], ETCD_BROKERS, ETCD_ANSWERED, buf_view(&before), T.now_us);
    cr_assert_eq(T.runs[0].state, ETCD_LEADING, "%s", T.runs[0].why.message);
    buf_fini(&before);
}

/* ---- answers at odd moments ---- */

static void refuses_to_start(int i, int code, const char *what, const char *why)
{
    cr_assert_eq(T.runs[i].state, ETCD_REFUSED);
    cr_assert_eq(T.runs[i].why.code, code);
    cr_assert(strstr(T.runs[i].why.message, what) && strstr(T.runs[i].why.message, why), "%s",
              T.runs[i].why.message);
}

static void takes_token(int i, const char *token)
{
    etcd_request_t r;
    cr_assert(etcd_leader_next(&T.runs[i], ETCD_WORK, T.now_us, &r));
    cr_assert_str_eq(r.token ? r.token : "none", token);
    T.runs[i].lanes[ETCD_WORK].is_sent = false;
}

Test(etcd_leader, a_user_logs_in_before_all_else)
{
    open_user(0);
    cr_assert(!send_one(0, ETCD_WORK));
    cr_assert(send_one(0, ETCD_LOGIN));
    cr_assert_eq(T.sent[0][ETCD_LOGIN].call, ETCD_AUTHENTICATE);
    bytes_t body = buf_view(&T.sent[0][ETCD_LOGIN].body);
    static const char ASKED[] = "{\"name\":\"heddle\",\"password\":\"se\\\"cret\"}";
    cr_assert_eq(body.bytes, strlen(ASKED));
    cr_assert_eq(memcmp(body.data, ASKED, body.bytes), 0);
    cr_assert_eq(etcd_leader_due(&T.runs[0]), CLOCK_NEVER, "all else waits for the answer");
    answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"abc.1\"}");
    takes_token(0, "abc.1");
    leads(0);
}

Test(etcd_leader, an_etcd_without_users_asks_for_no_token)
{
    open_user(0);
    cr_assert(send_one(0, ETCD_LOGIN));
    answer_text(0, ETCD_LOGIN, "{\"error\":\"etcdserver: authentication is not enabled\",\"code\":9}");
    takes_token(0, "none");
    leads(0);
}

Test(etcd_leader, a_user_that_etcd_does_not_let_in_is_refused)
{
    static const char *const OF[] = {
        "{\"error\":\"authentication failed, invalid user ID or password\",\"code\":3}", "{" HEADER "}"};
    for (int i = 0; i < 2; i++) {
        open_user(i);
        cr_assert(send_one(i, ETCD_LOGIN));
        answer_text(i, ETCD_LOGIN, OF[i]);
        refuses_to_start(i, HEDDLE_ERR_DENIED, "does not let this user in",
                         i ? "it gives no token" : "invalid user ID or password");
    }
}

/* A node of etcd that was started again does not have the tokens of before. */
Test(etcd_leader, a_token_that_is_none_any_more_is_asked_for_again_and_the_commit_happens)
{
    static const char *const OF[] = {"{\"error\":\"etcdserver: invalid auth token\",\"code\":16}",
                                     "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}",
                                     "{\"error\":\"etcdserver: user name is empty\",\"code\":3}"};
    open_user(0);
    cr_assert(send_one(0, ETCD_LOGIN));
    answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"one\"}");
    leads(0);
    for (uint64_t n = 1; n <= 3; n++) {
        cr_assert_eq(begin_floor(0, n), HEDDLE_ERR_AGAIN);
        cr_assert(send_one(0, ETCD_WORK));
        answer_text(0, ETCD_WORK, OF[n - 1]);
        cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
        cr_assert(!send_one(0, ETCD_WORK));
        cr_assert(!send_one(0, ETCD_LOGIN), "once a second at most");
        pass(1000);
        cr_assert(send_one(0, ETCD_LOGIN));
        answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"two\"}");
        takes_token(0, "two");
        turn(0);
        cr_assert_eq(outcome(0), HEDDLE_OK);
        cr_assert_eq(floor_of(0), n);
    }
}

/* The first try may have happened: only a comparison says so. */
Test(etcd_leader, a_leader_whose_user_is_refused_refuses_what_was_not_sent_before)
{
    for (int is_unknown = 0; is_unknown < 2; is_unknown++) {
        open_user(0);
        cr_assert(send_one(0, ETCD_LOGIN));
        answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"one\"}");
        leads(0);
        cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
        cr_assert(send_one(0, ETCD_WORK));
        if (is_unknown) {
            answer_one(0, ETCD_WORK, ETCD_UNKNOWN);
            cr_assert(send_one(0, ETCD_WORK));
        }
        answer_text(0, ETCD_WORK, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}");
        pass(1000);
        cr_assert(send_one(0, ETCD_LOGIN));
        answer_text(0, ETCD_LOGIN, "{\"error\":\"authentication failed\",\"code\":3}");
        cr_assert_eq(outcome(0), is_unknown ? HEDDLE_ERR_AGAIN : HEDDLE_ERR_DENIED);
        cr_assert_eq(T.runs[0].state, ETCD_LEADING);
        const heddle_error_t *why = etcd_leader_refusal(&T.runs[0]);
        cr_assert(why && strstr(why->message, "does not let this user in: authentication failed"));
        if (!is_unknown) {
            T.now_us = T.runs[0].lease_us;
            cr_assert_eq(begin_floor(0, 2), HEDDLE_ERR_DENIED, "and not that etcd is silent");
        }
        pass(1000);
        cr_assert(send_one(0, ETCD_LOGIN), "it tries again");
        answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"two\"}");
        cr_assert_null(etcd_leader_refusal(&T.runs[0]));
        etcd_leader_end(&T.runs[0], T.now_us);
        turn(0);
        kill_run(0);
    }
}

Test(etcd_leader, a_start_without_an_answer_says_what_came_instead)
{
    static const struct {
        etcd_outcome_t outcome;
        int code;
        const char *text, *what, *why;
    } OF[] = {
        {ETCD_UNTRUSTED, HEDDLE_ERR_DENIED, "unable to get local issuer certificate", "can be trusted",
         "local issuer"},
        {ETCD_UNKNOWN, HEDDLE_ERR_UNAVAILABLE, "Empty reply from server", "no endpoint", "Empty reply"},
        {ETCD_ANSWERED, HEDDLE_ERR_UNAVAILABLE, "404 page not found\n", "no endpoint", "version 3.4"},
        {ETCD_ANSWERED, HEDDLE_ERR_UNAVAILABLE, "{\"error\":\"no leader\",\"code\":14}", "no endpoint", ""}};
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        open_run(0);
        for (int left = 100; left && T.runs[0].state == ETCD_LOOKING; left--) {
            if (send_one(0, ETCD_WORK))
                etcd_leader_answer(&T.runs[0], ETCD_WORK, OF[i].outcome,
                                   bytes_of(OF[i].text, strlen(OF[i].text)), T.now_us);
            pass(100);
            if (i == 3) break;
        }
        if (i < 3) refuses_to_start(0, OF[i].code, OF[i].what, OF[i].why);
        else cr_assert_str_eq(T.runs[0].trouble, "no leader");
        kill_run(0);
    }
}

/* What it asks for until its state is `state`, answered. */
static void until(int i, etcd_state_t state)
{
    for (int left = 100; left && T.runs[i].state != state; left--)
        for (int lane = 0; lane < ETCD_LANES && T.runs[i].state != state; lane++)
            if (send_one(i, lane)) answer_one(i, lane, ETCD_ANSWERED);
    cr_assert_eq(T.runs[i].state, state, "%d", T.runs[i].state);
}

Test(etcd_leader, what_was_compacted_while_it_was_read_is_read_again)
{
    open_run(0);
    until(0, ETCD_READING);
    cr_assert(send_one(0, ETCD_WORK));
    answer_text(0, ETCD_WORK, "{\"error\":\"mvcc: required revision has been compacted\",\"code\":11}");
    cr_assert_eq(T.runs[0].state, ETCD_READING);
    leads(0);
}

/* `text` comes in place of the second page, and is no page: it is asked for again. */
static void is_no_second_page(const char *text, const char *trouble)
{
    uint64_t bytes = make_many_rows();
    etcd_leader_read_again(&T.runs[0], T.now_us);
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert(send_one(0, ETCD_WORK));
    answer_text(0, ETCD_WORK, text);
    cr_assert_eq(T.runs[0].state, ETCD_READING);
    cr_assert_not_null(strstr(T.runs[0].trouble, trouble), "%s", T.runs[0].trouble);
    pass(200);
    leads(0);
    cr_assert_eq(rows_bytes(T.runs[0].rows), bytes);
}

/* By a gateway in front of etcd. */
Test(etcd_leader, an_object_that_is_not_of_etcd_does_not_end_the_registry)
{
    is_no_second_page("{\"message\":\"no healthy upstream\"}", "not an etcd");
}

Test(etcd_leader, a_page_without_rows_is_not_the_last_one)
{
    is_no_second_page("{" HEADER "}", "sends none");
}

Test(etcd_leader, rows_without_what_it_wrote_itself_are_not_led_with)
{
    open_run(0);
    until(0, ETCD_READING);
    cr_assert(send_one(0, ETCD_WORK));
    answer_text(0, ETCD_WORK, "{" HEADER "}");
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
    cr_assert_not_null(strstr(T.runs[0].why.message, "what it wrote"), "%s", T.runs[0].why.message);
}

Test(etcd_leader, a_lease_that_ends_while_rows_are_read_loses_the_lead)
{
    open_run(0);
    until(0, ETCD_READING);
    pass(TTL_S * 1000);
    cr_assert(send_one(0, ETCD_LEASE));
    answer_one(0, ETCD_LEASE, ETCD_ANSWERED);
    cr_assert_eq(T.runs[0].state, ETCD_LOST);
    cr_assert_eq(etcd_leader_due(&T.runs[0]), CLOCK_NEVER);
}

Test(etcd_leader, a_lease_that_ended_before_the_lead_was_taken_is_granted_anew)
{
    open_run(0);
    until(0, ETCD_TAKING);
    cr_assert(send_one(0, ETCD_LEASE));
    answer_one(0, ETCD_LEASE, ETCD_ANSWERED);
    pass(TTL_S * 1000);
    cr_assert(send_one(0, ETCD_WORK));
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(T.runs[0].state, ETCD_LOOKING);
    cr_assert_eq(T.runs[0].lease, 0);
    leads(0);
    cr_assert_eq(rows_epoch(T.runs[0].rows), 1);
}

Test(etcd_leader, a_grant_without_a_lease_is_asked_for_again)
{
    static const char *const NONE[] = {"{" HEADER ",\"TTL\":\"5\"}", "{" HEADER ",\"ID\":\"7\"}",
                                       "{\"error\":\"x\",\"code\":5}"};
    open_run(0);
    until(0, ETCD_TAKING);
    for (size_t i = 0; i < sizeof NONE / sizeof *NONE; i++) {
        cr_assert(send_one(0, ETCD_LEASE));
        answer_text(0, ETCD_LEASE, NONE[i]);
        cr_assert_eq(T.runs[0].state, ETCD_TAKING);
        cr_assert(!send_one(0, ETCD_LEASE), "there is a pause");
        pass(200);
    }
    leads(0);
}

Test(etcd_leader, a_keepalive_that_is_refused_is_sent_again_in_a_second)
{
    open_run(0);
    leads(0);
    pass(TTL_S * 1000 / 3 + 1);
    cr_assert(send_one(0, ETCD_LEASE));
    answer_text(0, ETCD_LEASE, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}");
    cr_assert_eq(T.runs[0].state, ETCD_LEADING);
    cr_assert(!send_one(0, ETCD_LEASE));
    cr_assert_eq(etcd_leader_due(&T.runs[0]), T.now_us + 1000000);
    pass(1000);
    leads(0);
    cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
}

Test(etcd_leader, an_end_that_etcd_refuses_is_an_end_after_a_second)
{
    open_run(0);
    leads(0);
    etcd_leader_end(&T.runs[0], T.now_us);
    cr_assert_eq(etcd_leader_due(&T.runs[0]), T.now_us);
    cr_assert(send_one(0, ETCD_LEASE));
    cr_assert_eq(etcd_leader_due(&T.runs[0]), T.now_us + ETCD_END_MS * 1000);
    answer_text(0, ETCD_LEASE, "{\"error\":\"etcdserver: permission denied\",\"code\":7}");
    cr_assert_eq(T.runs[0].state, ETCD_ENDING);
    pass(ETCD_END_MS);
    cr_assert(!send_one(0, ETCD_LEASE));
    cr_assert_eq(T.runs[0].state, ETCD_ENDED);
    open_run(1);
    etcd_leader_end(&T.runs[1], T.now_us);
    cr_assert_eq(T.runs[1].state, ETCD_ENDED, "it had no lease");
}

/* Another lane asks for the login. */
Test(etcd_leader, a_login_that_is_refused_ends_no_commit_that_is_under_way)
{
    open_user(0);
    cr_assert(send_one(0, ETCD_LOGIN));
    answer_text(0, ETCD_LOGIN, "{" HEADER ",\"token\":\"one\"}");
    leads(0);
    pass(2000);
    begin_floor(0, 1);
    cr_assert(send_one(0, ETCD_WORK));
    cr_assert(send_one(0, ETCD_LEASE));
    answer_text(0, ETCD_LEASE, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}");
    pass(100);
    cr_assert(send_one(0, ETCD_LOGIN));
    answer_text(0, ETCD_LOGIN,
                "{\"error\":\"authentication failed, invalid user ID or password\",\"code\":3}");
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN);
    pass(1000);
    cr_assert(send_one(0, ETCD_LOGIN));
    T.now_us += TTL_S * 1000000ull; /* by this broker's clock alone */
    answer_one(0, ETCD_LOGIN, ETCD_UNSENT);
    cr_assert_eq(outcome(0), HEDDLE_ERR_AGAIN, "nor one that is not answered");
    answer_one(0, ETCD_WORK, ETCD_ANSWERED);
    cr_assert_eq(outcome(0), HEDDLE_OK);
    cr_assert_eq(floor_of(0), 1);
}

/* ---- commits that etcd never sees, and those that it refuses ---- */

Test(etcd_leader, a_writer_that_closes_and_records_that_contradict_the_rows)
{
    record_t w = {.kind = RECORD_WRITER, .adapter = "a", .token = 5}, closed = w;
    closed.token = 0;
    open_run(0);
    leads(0);
    uint64_t bytes = rows_bytes(T.runs[0].rows);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(etcd_leader_commit(&T.runs[0], i ? &closed : &w, 1, T.now_us, NULL), HEDDLE_ERR_AGAIN);
        turn(0);
        cr_assert_eq(outcome(0), HEDDLE_OK);
    }
    cr_assert_eq(rows_bytes(T.runs[0].rows), bytes);
    record_t decision = {.kind = RECORD_DECISION, .adapter = "a", .decision = 1, .version = 1};
    uint64_t revision = T.etcd.revision;
    cr_assert_eq(etcd_leader_commit(&T.runs[0], &decision, 1, T.now_us, NULL), HEDDLE_ERR_INTERNAL);
    turn(0);
    cr_assert_eq(T.etcd.revision, revision);
    cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
}

Test(etcd_leader, what_is_too_large_for_etcd_is_refused_before_it_is_sent)
{
    record_t rows[] = {{.kind = RECORD_ADAPTER, .adapter = "a"},
                       {.kind = RECORD_VERSION, .adapter = "a", .version = 1}};
    open_run(0);
    leads(0);
    rows[1].config = bytes_of(calloc(1, ETCD_REQUEST_BYTES), ETCD_REQUEST_BYTES);
    uint64_t bytes = rows_bytes(T.runs[0].rows);
    cr_assert_eq(etcd_leader_commit(&T.runs[0], rows, 2, T.now_us, NULL), HEDDLE_ERR_LIMIT);
    free((void *)rows[1].config.data);
    cr_assert_eq(rows_bytes(T.runs[0].rows), bytes);
    cr_assert(!send_one(0, ETCD_WORK));
    cr_assert_eq(begin_floor(0, 1), HEDDLE_ERR_AGAIN);
}

Test(etcd_leader, without_memory_for_a_transaction_nothing_happens)
{
    open_run(0);
    T.runs[0].lanes[ETCD_WORK].body.failed = true;
    cr_assert(!send_one(0, ETCD_WORK));
    cr_assert_eq(etcd_leader_due(&T.runs[0]), T.now_us + 1000000);
}

Test(etcd_leader, each_refusal_of_a_commit_has_its_own_code)
{
    static const struct {
        int grpc, code;
        const char *text;
    } OF[] = {{ETCD_INVALID, HEDDLE_ERR_LIMIT, "etcdserver: request is too large"},
              {ETCD_INVALID, HEDDLE_ERR_DENIED, "etcdserver: user name is empty"},
              {ETCD_INVALID, HEDDLE_ERR_INTERNAL, "etcdserver: duplicate key given in txn request"},
              {ETCD_UNIMPLEMENTED, HEDDLE_ERR_INTERNAL, "unknown service"},
              {ETCD_UNAUTHENTICATED, HEDDLE_ERR_DENIED, "etcdserver: invalid auth token"},
              {ETCD_EXHAUSTED, HEDDLE_ERR_NO_SPACE, "etcdserver: mvcc: database space exceeded"}};
    open_run(0);
    leads(0);
    for (size_t i = 0; i < sizeof OF / sizeof *OF; i++) {
        T.etcd.error = OF[i].text;
        T.etcd.error_code = OF[i].grpc;
        cr_assert_eq(begin_floor(0, i + 1), HEDDLE_ERR_AGAIN);
        turn(0);
        cr_assert_eq(outcome(0), OF[i].code, "%s", OF[i].text);
        cr_assert_not_null(strstr(T.runs[0].why.message, OF[i].text), "%s", T.runs[0].why.message);
        cr_assert(*T.runs[0].why.hint);
        cr_assert_eq(floor_of(0), 0);
        cr_assert_eq(T.runs[0].state, ETCD_LEADING);
    }
}

/* ---- any order of events ---- */

/* Two or three brokers, and whatever may happen to their requests: done and answered, done and the answer lost,
 * lost, done when nothing waits for it any more; brokers that stand still past their lease, and that are
 * killed.  Whatever was confirmed is there; each number is given once; of two that lead by their own word one
 * changes nothing. */
enum { WALKS = 300, STEPS = 600, LATE = 8 };

static uint64_t rng;
static uint64_t roll(uint64_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % below;
}

typedef struct {
    buf_t body[LATE];
    int count;
    uint64_t confirmed, given[RUNS]; /* the greatest floor; and what each one tries */
    bool is_listed;                  /* they write and read the rows of brokers */
} walk_t;

static void finish(walk_t *w, int i)
{
    int rc;
    heddle_error_t e;
    if (!etcd_leader_take_outcome(&T.runs[i], &rc, &e)) return;
    if (rc == HEDDLE_OK) {
        cr_assert_gt(w->given[i], w->confirmed, "%llu was given twice", (unsigned long long)w->given[i]);
        w->confirmed = w->given[i];
    }
}

static void open_next(const walk_t *w, int i)
{
    if (w->is_listed) open_listed(i);
    else open_run(i);
}

static void step(walk_t *w, int i)
{
    etcd_leader_t *l = &T.runs[i];
    int lane = (int)roll(w->is_listed ? ETCD_LANES : ETCD_BROKERS);
    sent_t *s = &T.sent[i][lane];
    switch (roll(12)) {
    case 0:
        if (l->state != ETCD_LEADING || l->is_committing || l->has_outcome) break;
        w->given[i] = floor_of(i) + 1;
        begin_floor(i, w->given[i]);
        break;
    case 1: pass(roll(400)); break;
    case 2:
        if (roll(40) == 0) pass(TTL_S * 1000); /* for all of them */
        break;
    case 3:
        if (!s->is_there) break;
        if (s->call == ETCD_TXN && w->count < LATE && roll(2)) {
            buf_clear(&w->body[w->count]);
            buf_add(&w->body[w->count], s->body.data, s->body.bytes);
            w->count++;
        } else if (roll(2)) {
            fake_etcd_do(&T.etcd, s->call, buf_view(&s->body));
        }
        answer_one(i, lane, ETCD_UNKNOWN);
        break;
    case 4:
        if (s->is_there) answer_one(i, lane, ETCD_UNSENT);
        break;
    case 5:
        if (w->count) fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&w->body[--w->count]));
        break;
    case 6:
        if (roll(20) && l->state != ETCD_LOST) break;
        open_next(w, i);
        break;
    default:
        if (s->is_there) answer_one(i, lane, ETCD_ANSWERED);
        else send_one(i, lane);
        break;
    }
    cr_assert(l->state != ETCD_REFUSED || l->why.code == HEDDLE_ERR_UNAVAILABLE, "%s", l->why.message);
    if (l->state == ETCD_REFUSED) open_next(w, i);
    finish(w, i);
}

static uint64_t first_seed(void)
{
    return getenv("HEDDLE_SEED") ? strtoull(getenv("HEDDLE_SEED"), NULL, 10) : 1;
}

/* -> how many were confirmed. */
static uint64_t walk(bool is_listed)
{
    uint64_t begin = first_seed(), leads_count = 0;
    for (uint64_t seed = begin; seed < begin + WALKS; seed++) {
        walk_t w = {.is_listed = is_listed};
        rng = seed * 0x9e3779b97f4a7c15ull | 1;
        int runs = 2 + (int)(seed % 2);
        for (int i = 0; i < runs; i++) open_next(&w, i);
        for (int n = 0; n < STEPS && T.etcd.leases < FAKE_LEASES - 4; n++)
            step(&w, (int)roll((uint64_t)runs));
        /* Then all is well again, and one leads with all that was confirmed. */
        for (int i = 0; i < runs; i++) kill_run(i);
        while (w.count) fake_etcd_do(&T.etcd, ETCD_TXN, buf_view(&w.body[--w.count]));
        pass(TTL_S * 1000 + 1);
        open_run(0);
        leads(0);
        cr_assert_geq(floor_of(0), w.confirmed, "seed %llu", (unsigned long long)seed);
        leads_count += w.confirmed;
        kill_run(0);
        for (int k = 0; k < LATE; k++) buf_fini(&w.body[k]);
        fake_etcd_fini(&T.etcd);
        T.now_us = 0;
    }
    return leads_count;
}

Test(etcd_leader, whatever_happens_to_requests_and_brokers_what_was_confirmed_stays, .timeout = 120)
{
    cr_assert_gt(walk(false), WALKS, "from seed %llu on: hardly anything was confirmed",
                 (unsigned long long)first_seed());
}

/* The rows of brokers take turns of their own, and change nothing of it. */
Test(etcd_leader, what_was_confirmed_stays_while_brokers_write_their_rows, .timeout = 120)
{
    uint64_t count = walk(true);
    cr_assert_gt(count, WALKS / 4, "from seed %llu on: hardly anything was confirmed",
                 (unsigned long long)first_seed());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* scenario/world.h: a broker, publishers and workers in one process, under a virtual clock.
 *
 * Each actor is one process: the node that the daemons and the library run, with an inbox instead of a
 * socket and transfer_mem for the bytes.  Frames are encoded and decoded for real.  The world picks whose
 * turn is due first, and runs it:
 *
 *   client turn   tick -> frames that arrived -> transfer events -> one piece of work   (client/shell.c)
 *   broker turn   tick -> frames that arrived -> flush                           (broker/main_daemon.c)
 *
 * After every one of these steps what it may have changed is looked at (check.c): after one of a client that
 * client, after one of the broker everything, and again at each record that the broker makes durable.  A
 * failure ends the test with the seed, the time and a picture of the world.
 *
 * The broker's store confirms at once, or late by HEDDLE_TEST_STORE=late: each scenario runs with both.  By
 * HEDDLE_TEST_STORE=never some of its confirmations never come, and the broker is started again a second
 * after such a commit: a scenario without bounds in time runs with it, too (tests.cmake).  A broker that is
 * killed before the confirmation finds its records in the store, or does not.
 *
 * Faults: an actor is killed (memory gone), stopped (not scheduled; what is sent to it waits) and
 * resumed, cut off from the broker (its connection breaks and cannot be made again until healed), started
 * again.  The broker can be made to die at any of its own steps: before and after each commit, before
 * each send.
 *
 * Actors of one host (worker_conf_t.host) share memory as processes do, over sockets and memory files of the
 * kernel; what one sends is there at once.  Actors without a host have neither.
 *
 * Deterministic: the same seed gives the same run.  No thread and no sleep. */
#ifndef SCENARIO_WORLD_H
#define SCENARIO_WORLD_H

#include "broker/state.h"
#include "tests/scenario/content.h"
#include "tests/lib/mem.h"
#include "worker/adapter.h"

#include <criterion/criterion.h>
#include <jansson.h>

#define MS 1000ull
#define SECOND 1000000ull
#define ADAPTER "policy"

enum {
    ACTORS_MAX = 140,
    HOSTS_MAX = 20,
    EVENTS_KEPT = 64,
    ELIGIBLE_KEPT = 8,
    HOLDS_MAX = 8,
    WORLD_PID = 100, /* of a worker, and its incarnation */
    RECENT_MAX = 400
};

typedef struct world world_t;
typedef struct actor actor_t;
typedef enum { ACTOR_BROKER, ACTOR_WORKER, ACTOR_TRAINER, ACTOR_ADMIN } actor_kind_t;

/* What the application of a worker answers when it is asked to switch. */
typedef enum {
    APP_NONE /* apply=auto */,
    APP_ACCEPTS,
    APP_REJECTS_STAGE,
    APP_REJECTS_COMMIT,
    APP_SILENT
} app_t;

typedef struct {
    uint32_t slots;
    app_t app;
    uint64_t max_rate_bytes;
    const char *adapter;
    const char *group;
    uint32_t rank, ranks;
    mem_link_t link;  /* of its bytes; frames of the control plane take none of it */
    const char *host; /* it shares memory with the other actors of this host; NULL: with none */
    bool no_relay;
    const char *const *kinds; /* that it takes; NULL: lora */
    uint64_t piece_us;        /* a piece of memory takes so long; 0: no time */
} worker_conf_t;
typedef struct {
    const char *adapter;
    bool takeover;
    bool is_of_weights; /* by its OPEN; what it publishes says so itself */
    uint64_t max_rate_bytes;
    mem_link_t link;
    const char *host; /* as in worker_conf_t */
} trainer_conf_t;

typedef struct mail mail_t;

/* What a publisher came to know of its last publication. */
typedef struct {
    bool is_answered, created;
    int code; /* heddle_err_t; 0: PUBLISHED */
    uint64_t version;
    char reason[16], message[256];
    const content_t *content;
} published_t;
typedef struct {
    uint64_t version, decision, eligible, staged, active;
    char state[16], code[32], message[256], missing[HEDDLE_NAME_MAX + 1], missing_code[32];
} rolled_t;

struct actor {
    world_t *w;
    actor_kind_t kind;
    char name[HEDDLE_NAME_MAX + 1];
    uint32_t incarnation;
    bool alive, stopped, cut;
    uint64_t due_us; /* when its node wants its next turn */
    mail_t *inbox;
    uint32_t inbox_count;
    /* clients */
    const node_ops_t *ops;
    void *node;
    transfer_t *t;
    uint64_t peer;          /* of its connection; 0: none */
    bool is_up;             /* as it knows itself */
    uint64_t dial_us;       /* when it tries to connect again */
    uint64_t in_us, out_us; /* when the last frame on the way arrives: order is kept */
    bool is_readable;       /* a descriptor of what it shares with its host is */
    heddle_event_t events[EVENTS_KEPT];
    uint64_t event_count, event_done, events_by_type[32];
    /* workers */
    worker_conf_t conf;
    uint64_t making_us; /* until then it makes a piece of memory, and does no other work */
    node_io_t io;       /* its worker's */
    worker_node_t *worker;
    const char *adapters[2];
    slot_t *holds[HOLDS_MAX];
    uint64_t seen_decision, seen_version; /* by the checker */
    struct {
        uint64_t version, epoch;
        uint32_t incarnation;
    } eligible[ELIGIBLE_KEPT]; /* the last versions that it counts for, by their numbers */
    /* trainers */
    trainer_conf_t trainer;
    void *trainer_state;
    published_t published;
    rolled_t rolled;
    /* admins */
    msg_query_t query;
    bool is_asked, is_replied;
    uint64_t reply_req;
    int reply_code;
    json_t *reply; /* body of the last report */
};

/* Where the broker can die. */
typedef enum { POINT_BEFORE_COMMIT, POINT_AFTER_COMMIT, POINT_BEFORE_SEND } point_t;

typedef struct world_opts {
    uint64_t seed, lease_ms, keep;
    plan_shape_t shape;
    tr_mode_t mode; /* how bytes are sent */
} world_opts_t;     /* 0: 1, 4000, 1 (keep: as given) */

struct world {
    world_opts_t opts;
    uint64_t now_us, rng, steps, same_instant, peers;
    clock_ops_t clock;
    actor_t *actors[ACTORS_MAX];
    uint32_t actor_count;
    uint32_t turn; /* who goes first among equals */
    /* hosts: their members meet in the directory of each */
    char directory[64]; /* of all; "": no actor has a host */
    char hosts[HOSTS_MAX][128];
    uint32_t host_count;
    int poll_fd; /* what actors share with their hosts */
    /* the broker */
    actor_t *host;
    broker_t *broker;
    uint64_t epoch, started_us;
    bool had_records;        /* at its start */
    bool is_dying;           /* it died in the middle of a step */
    uint64_t points, die_at; /* steps of the broker so far; dies at that one (0: never) */
    int die_kind;            /* only steps of this kind count; -1: all */
    int commit_code;         /* what the next commits answer */
    /* The store of a mode: HEDDLE_TEST_STORE=late confirms each commit some turns later, in a turn of its
     * own; =never the same, but for one in SILENT_ONE_IN, at random. store_never: from now on it does
     * not confirm any, in each mode. */
    bool store_is_late, store_never, store_fails_to_confirm;
    bool is_silent;             /* the commit that is under way is never confirmed */
    uint64_t silent_count;      /* of these so far */
    uint64_t store_takes_us;    /* so long each time; 0: a few milliseconds */
    const record_t *committing; /* of the broker; NULL: nothing is under way */
    int committing_count;
    uint64_t commit_due_us; /* when it is confirmed; silent: when the broker is started again */
    /* A disk below the records, which may refuse; NULL: none. */
    int (*commit)(void *self, const record_t *records, int count, heddle_error_t *error);
    actor_t *slow; /* the next frame of this type to it finds its queue full; NULL: none */
    msg_type_t slow_type;
    uint64_t by_hand; /* versions 1..64 that somebody asked to activate: one bit each */
    char *fatal;
    struct stored *records;
    const char *cluster;
    uint64_t warnings;                           /* that the broker wanted in its log */
    uint64_t lost_from, lost_to, lost_decisions; /* what a restored backup does not know; 0: nothing */
    registry_t shadow; /* of all records: what must be in memory after any restart */
    /* counted at the sender */
    uint64_t sent_total, sent[32];
    uint64_t stale_frames;
    /* for the picture of a failure */
    char recent[RECENT_MAX][160];
    uint64_t recent_count;
};

/* ---- life ---- */
world_t *world_new(world_opts_t opts);
world_t *world_new_down(world_opts_t opts); /* the broker is not started yet */
void world_destroy(world_t **w);
uint64_t world_random(world_t *w, uint64_t below);
void world_note(world_t *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the picture and ends the test. */
void world_fail(world_t *w, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

/* ---- whose code runs ----
 * True while it is the nodes' own, false while it is the world's: tests/torture takes memory away from the
 * former only.  Sets it, and returns what it was. */
bool world_product(bool is_product);
bool world_is_product(void);
#define PRODUCT(call)                                                                                        \
    do {                                                                                                     \
        bool was_ = world_product(true);                                                                     \
        call;                                                                                                \
        world_product(was_);                                                                                 \
    } while (0)

/* ---- time ---- */
/* The next turn that is due before `end_us`; false: there is none, and it is end_us now. */
bool world_step(world_t *w, uint64_t end_us);
void world_run(world_t *w, uint64_t for_us);
/* Goes on until it holds; fails the test when it does not within limit_us of virtual time. */
#define UNTIL(w, limit_us, condition)                                                                        \
    do {                                                                                                     \
        uint64_t end_ = (w)->now_us + (limit_us);                                                            \
        while (!(condition) && world_step((w), end_)) continue;                                              \
        if (!(condition))                                                                                    \
            world_fail((w), "%s:%d: not within %.3f s: %s", __FILE__, __LINE__, (double)(limit_us) / 1e6,    \
                       #condition);                                                                          \
    } while (0)
#define MUST(w, condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) world_fail((w), "%s:%d: %s", __FILE__, __LINE__, #condition);                      \
    } while (0)

/* ---- actors ---- */
void world_broker_start(world_t *w);
void world_broker_kill(world_t *w);
actor_t *world_worker(world_t *w, const char *name, worker_conf_t conf);
/* "w1", "w2", ... */
void world_workers(world_t *w, uint32_t count, worker_conf_t conf, actor_t *ret_workers[]);
actor_t *world_trainer(world_t *w, const char *name, trainer_conf_t conf);
actor_t *world_admin(world_t *w);
actor_t *world_find(world_t *w, const char *name);
void actor_kill(actor_t *a);
void actor_start(actor_t *a); /* a killed one, as a new process */
void actor_stop(actor_t *a, bool stopped);
void actor_cut(actor_t *a, bool cut);
void actor_break(actor_t *a); /* its connection breaks, and is made again */
void actor_leave(actor_t *a); /* SIGTERM: says LEAVE */

/* ---- workers ---- */
uint64_t worker_active(const actor_t *a);              /* version; 0: none */
bool worker_holds(const actor_t *a, uint64_t version); /* sealed or more */
bool worker_is_ready(const actor_t *a);                /* admitted */
uint64_t worker_slots_used(const actor_t *a);
tr_counters_t actor_counters(const actor_t *a);
slot_t *worker_hold(actor_t *a, uint64_t version); /* a reader; 0: of the active one */
void worker_unhold(actor_t *a, slot_t *slot);
uint64_t worker_fenced(const actor_t *a);
void worker_answers_late(actor_t *a);              /* an application that was silent speaks */
void worker_answers(actor_t *a, uint64_t version); /* of that version, if there is something to say */
/* What an application that does one thing at a time would do next: switch, else load; 0: nothing. */
int worker_staged(actor_t *a, uint64_t version); /* its application says so */
uint64_t worker_takes_up(const actor_t *a);
/* Every worker that is alive and ready serves the version. */
bool world_all_active(const world_t *w, uint64_t version);
bool world_all_ready(const world_t *w, uint32_t count);

/* ---- publishers ---- */
typedef struct {
    content_shape_t shape;  /* 0: 8 tensors of 64 KiB; seed must be given */
    const char *request_id; /* NULL: one of its own */
    int activation, if_unchanged;
    uint32_t deadline_ms; /* 0: 60000 */
} publish_t;
void trainer_publish(actor_t *a, publish_t what);
/* The same, and waits for the answer; returns the version. */
uint64_t trainer_publishes(actor_t *a, publish_t what);
/* The deadline of the call: nobody waits for the answer any more. */
void trainer_gives_up(actor_t *a);
bool trainer_is_ready(const actor_t *a);
int trainer_standing(const actor_t *a); /* OK, AGAIN, WRITER_HELD, FENCED, ... */
bool trainer_is_busy(const actor_t *a); /* a publication is not answered yet */
void trainer_leave(actor_t *a);
bool trainer_has_left(const actor_t *a);

/* ---- questions ---- */
void admin_ask(actor_t *a, msg_query_t query);
/* activate ADAPTER@version, and the answer; returns its code. */
int admin_activates(actor_t *a, uint64_t version);
int admin_waits_for(actor_t *a, uint64_t version, uint64_t min, uint32_t deadline_ms);
int64_t admin_integer(const actor_t *a, const char *key); /* of the last reply; -1: none */

/* ---- the registry, as it is on disk ---- */
adapter_row_t *world_adapter(const world_t *w); /* NULL: nothing was published */
version_row_t *world_version(const world_t *w, uint64_t version);
const char *world_state(const world_t *w,
                        uint64_t version); /* as people see it: "active", "lost", ...; broker alive */
track_t *world_track(const world_t *w, uint64_t version);

/* The records as they are now, and what an operator does with such a copy later: the broker is down, and
 * has the old records.  Takes the copy. */
struct stored *world_backup(const world_t *w);
void world_restore(world_t *w, struct stored *backup);

/* Records from elsewhere, as copies; the broker is down, and starts with them. */
void world_records_add(struct stored **list, const record_t *record);
void world_records_forget(struct stored **list);
void world_load(world_t *w, struct stored *records);

/* ---- check.c ---- */
void check_all(world_t *w);                       /* after a step of the broker */
void check_actor(world_t *w, actor_t *a);         /* after one of a client: no other has changed */
void check_record(world_t *w, const record_t *r); /* before it is taken */
void check_restart(world_t *w);                   /* memory of the broker equals what is stored */
/* Around a frame that the broker gets, and one that a worker gets: a stale token changes nothing. */
uint64_t check_signature(const broker_t *b);
uint64_t msg_token(const msg_t *m); /* 0: it carries none */
/* All is well at the end: everybody serves the latest decision, with the bytes of its digest, and nothing
 * is left over. */
void check_settled(world_t *w);

/* ---- between the files of the world ---- */
actor_t *actor_new(world_t *w, actor_kind_t kind, const char *name);
void actor_forget_mail(actor_t *a);
int actor_send(void *self, bytes_t frame); /* node_io_t.send of a client */
void actor_redial(void *self, const char *to, const char *key);
void actor_event(void *self, const heddle_event_t *event);
/* The directory of its host; NULL: it has none. */
const char *world_directory(world_t *w, const char *host);
void actor_poll(actor_t *a, const int *fds, uint32_t count); /* it shares memory over these; -1: none */
void actor_open_transfer(actor_t *a, uint64_t max_rate_bytes, mem_link_t link);
void actor_deliver(actor_t *to, uint64_t peer, bytes_t frame, uint64_t *last_us);
void line_break(actor_t *a);
void broker_turn(world_t *w);
void store_confirm(world_t *w);           /* what is under way and due */
bool store_is_given_up(const world_t *w); /* what is under way is due, and is never confirmed */
void worker_boot(actor_t *a);
void worker_app(actor_t *a); /* answers what it was asked */
void trainer_boot(actor_t *a);
void trainer_turn(actor_t *a);
void trainer_end(actor_t *a);
void admin_boot(actor_t *a);
void store_forget(world_t *w);
bool store_has_decision(const world_t *w, const char *adapter, uint64_t decision, uint64_t version);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_leader.h (PURE): one run of a broker at an etcd: from the first question to the end of
 * its leadership.  No socket, no clock: requests come out, answers go in.
 *
 *   state     event                                   -> next       what is sent
 *   LOOKING   meta and the leader's key were read:
 *               another one leads                     -> STANDBY    the same again, in ETCD_POLL_MS; what
 *                                                                   etcd_follow.h asks for; a lease, and
 *                                                                   its row
 *               none leads, and rows are missing      -> the same   what etcd_follow.h asks for, and the
 *                                                                   look again
 *               none leads                            -> TAKING     a lease is granted, and then TAKE
 *               it is our own (an answer was lost)    -> LEADING    as when none leads: first all rows
 *               there is no registry                  -> CHECKING   what keys the prefix has, and `meta` of
 *                                                                   each prefix above it
 *               this process knew another one here    -> STANDBY    the same again, in ETCD_POLL_MS
 *               not a registry of ours                -> REFUSED
 *   CHECKING  nothing is there                        -> LOOKING    and then as if there were a registry
 *             rows of brokers, which wait for one     -> STANDBY    meta again, in ETCD_POLL_MS; its row
 *             nothing, and etcd was away at first     -> STANDBY    the same again, in ETCD_POLL_MS
 *             another registry lies above or below    -> REFUSED
 *   TAKING    the transaction succeeded,
 *               with the rows that were followed      -> LEADING
 *               with some that are followed anew      -> LOOKING    its own key
 *               of a new registry, or for a command   -> READING    pages of rows
 *             another one was first, or not known     -> LOOKING
 *             etcd has no room, and it is to serve    -> STANDBY    and it looks again in a second
 *   READING   all rows are there                      -> LEADING
 *             and `last` is not what TAKE wrote       -> LOST
 *   LEADING   etcd_leader_commit                      -> LEADING    COMMIT, until its outcome is known
 *             a comparison failed, the lease ended,
 *             its key or its last marker is not there -> LOST
 *             it yields (below)                       -> LEADING    the lease is revoked, and then LOST
 *   any       etcd_leader_end                         -> ENDING     the lease is revoked
 *   ENDING    answered, or no answer in ETCD_END_MS   -> ENDED
 *
 * The keys beside the rows (rows.h):
 *
 *   leader    its value names this run; bound to the lease; made only while there is none
 *   last      the marker of the last transaction: RUN.NUMBER; the first one of a run, TAKE, is RUN.0<BEFORE
 *             and says which one it came behind
 *   import    the rows are put into the prefix, and not all of them are there; or, with the value "moved",
 *             all are there, and the registry goes on in another store
 *   b/RUN     the row of a standby (broker/brokers.h), bound to a lease of its own.  The standby writes it
 *             when what it says has changed, once a second at most; the leader reads all of them with
 *             TAKE, and then once a second, with its own key and `last`.  Nothing is decided by them, and
 *             one that is not taken is written again later
 *
 * TAKE makes the leader's key only if there is none and meta, import and the marker in `last` are as they
 * were read, and raises the epoch in meta.  A broker that is to serve has followed all rows up to that
 * marker before, and leads without reading them: to read a large registry takes longer than a short lease,
 * whose end would be that of what was read.  So it reads on, also where another one leads meanwhile; a
 * broker that has all rows does not wait for one that reads.  A watch that does not bring what is missing in
 * ETCD_CATCH_UP_MS is begun again.  A row that is none of ours ends it, REFUSED, when none leads.
 *
 * A process makes a registry only where it knew none.  Where the one that it followed or led is gone, or
 * another one is there, etcd has lost its data, or had others put back, and numbers would be given twice.  It
 * says so (etcd_leader_refusal), and waits until that registry is there again.  Meanwhile its row tells a
 * process that is started there to wait, too.  That one waits as long as it runs, whatever becomes of the
 * first one, until any registry is there; and its own row says the same to the next one.  Where etcd did not
 * answer it, a process makes none for a lease and a second from then on: others may not have shown themselves
 * yet.
 *
 * An import takes the lead like a broker: its TAKE makes the key import, deletes the rows that an earlier
 * import left, and sets the cluster and the epoch of the file.  Before its last COMMIT, which deletes that
 * key, it reads all rows again.  While the key is there nothing else takes the lead, so an import happens as
 * a whole or can be run again.
 *
 * Each COMMIT compares the revision in which the leader's key was created, and the value of `last`, and
 * writes the next marker to `last`.  So a commit whose answer was lost is sent again, to the next endpoint.
 * It succeeds if the first one did not happen, and then the first one cannot happen any more.  If it fails,
 * the marker says whether the first one happened.  An outcome is never assumed.
 *
 * The end of a lease protects nothing; the comparison does.  Still no commit begins after a tenth of the
 * lease before it can have ended by our own clock: it is refused, UNAVAILABLE, and nothing happened.
 *
 * A leader whose lease is over by its own clock, and whose last request had no answer, yields, where its list
 * has standbys: one of them leads now, if it reaches etcd, and its members are sent there.  Its lease may be
 * there yet, as its requests may arrive though no answer comes back: it renews that lease no more, but asks
 * for its end until etcd answers.  Until then it stays LEADING, for what only reads; then it is LOST.  When
 * it yields follows from when its members have to be at the next one, which calls those lost that are not
 * there a lease of members (--lease) after it took the lead:
 *
 *   the next one leads            not before the end of the lease in etcd, nor, mostly, a second after it
 *   this one yields               a quarter of a members' lease after that end, or a lease of its own, where
 *                                 that is shorter: an etcd that is gone for a moment changes no leader
 *   a member learns that it has   a quarter of a members' lease later, with its next heartbeat
 *   it has found the next one     in the half that is left: it asks each 0.4 s at most (broker/standby.h)
 *
 * Five lanes, each with one request at most: WORK; LEASE, so that a slow commit delays no keepalive; FOLLOW,
 * of a standby; BROKERS, the rows of standbys; and LOGIN, for which the others wait: with a user, before the
 * first request, and again when etcd does not take the token any more.  What it did not take for that reason
 * did not happen.  A request that failed goes to the next endpoint; when each has failed, after a pause.  One
 * thread; nothing blocks. */
#ifndef BROKER_ETCD_LEADER_H
#define BROKER_ETCD_LEADER_H

#include "broker/brokers.h"
#include "broker/standby.h"
#include "broker/store/etcd_follow.h"

#define ETCD_ENDPOINTS 16
#define ETCD_POLL_MS 250              /* how often a standby looks */
#define ETCD_START_MS 5000            /* so long no endpoint answers at all, then the start has failed */
#define ETCD_END_MS 1000              /* a clean end waits so long for the lease to be revoked */
#define ETCD_CATCH_UP_MS 500          /* so long a watch may bring nothing of what is missing */
#define ETCD_REQUEST_BYTES (3u << 19) /* what etcd takes, 1.5 MiB */
#define ETCD_PREFIX_BYTES 129u        /* of a prefix, with its NUL */

typedef enum {
    ETCD_LOOKING,
    ETCD_STANDBY,
    ETCD_CHECKING,
    ETCD_TAKING,
    ETCD_READING,
    ETCD_LEADING,
    ETCD_LOST,    /* no leader any more; etcd_leader_why */
    ETCD_REFUSED, /* it cannot become one; etcd_leader_why */
    ETCD_ENDING,
    ETCD_ENDED
} etcd_state_t;

typedef enum { ETCD_WORK, ETCD_LEASE, ETCD_LOGIN, ETCD_FOLLOW, ETCD_BROKERS, ETCD_LANES } etcd_lane_t;
typedef enum {
    ETCD_RANGE,
    ETCD_TXN,
    ETCD_GRANT,
    ETCD_KEEPALIVE,
    ETCD_REVOKE,
    ETCD_AUTHENTICATE,
    ETCD_STREAM /* of a watch: its answers are pieces, and it ends with its connection */
} etcd_call_t;

typedef enum {
    ETCD_ANSWERED,  /* with a body, of whatever kind */
    ETCD_PIECE,     /* of a stream, which goes on */
    ETCD_UNSENT,    /* it did not reach etcd; of this one and the next two the body says why, for people */
    ETCD_UNTRUSTED, /* nor did it: a certificate of etcd or of this broker is not taken */
    ETCD_UNKNOWN    /* it may have reached it, and no answer came */
} etcd_outcome_t;

typedef struct {
    etcd_call_t call;
    int endpoint;        /* its place in the list */
    uint32_t timeout_ms; /* 0: none */
    bytes_t body;        /* borrowed until the answer */
    const char *token;   /* to show; NULL: none */
} etcd_request_t;

/* What the lead is taken for: to serve · to read all rows, of a registry that is there · to put rows into a
 * prefix that has no data, or an import that was not finished. */
typedef enum { ETCD_SERVE, ETCD_EXPORT, ETCD_IMPORT } etcd_purpose_t;

#define ETCD_HOLDER_BYTES (STANDBY_HOLDER_BYTES + 40u) /* with the run in front */

typedef struct {
    etcd_purpose_t purpose;
    uint64_t epoch;              /* IMPORT: of the registry that is imported; its cluster is `fresh` */
    const char *prefix;          /* borrowed for its life, as are the next ones */
    const char *run;             /* names this run, and no other one ever */
    const char *holder;          /* address, process, host, key: a standby says it to clients and people */
    const char *cluster;         /* that the prefix must have; NULL: any, or none yet */
    const char *led;             /* of the registry that this process led before; NULL: none */
    const char *fresh;           /* 16 hex digits: of a new cluster */
    const char *user, *password; /* NULL: none */
    const brokers_row_t *own;    /* what the list of brokers says of this one; NULL: it is in no list */
    int endpoints;
    uint32_t ttl_s;
    uint32_t member_lease_ms; /* of the members of each broker of the registry; 0: it has none */
} etcd_leader_opts_t;

typedef struct {
    etcd_call_t call;
    buf_t body;
    bool is_wanted, is_sent;
    bool is_unknown; /* an earlier try may have happened */
    uint64_t due_us, sent_us;
} etcd_lane_state_t;

typedef struct {
    etcd_leader_opts_t opts;
    etcd_state_t state;
    store_rows_t *rows;
    etcd_lane_state_t lanes[ETCD_LANES];
    int endpoint;
    uint64_t failures; /* in succession */
    bool was_answered; /* by any endpoint, since the start */
    uint64_t began_us;
    uint64_t lease, ttl_s;
    uint64_t lease_us;                   /* it cannot have ended by then */
    uint64_t created_revision;           /* of our leader's key */
    uint64_t meta_revision;              /* as it was read; as are the next two */
    uint64_t last_revision;              /* in which `last` was written; 0: never */
    char last_marker[ETCD_MARKER_BYTES]; /* its value then */
    uint64_t asked_revision;             /* of `last`, as it was followed when it was asked for */
    uint64_t import_revision;            /* of the key import; 0: there is none */
    bool is_moved; /* by what it says: the registry was moved; else an import was not finished */
    uint64_t
        took_revision;  /* of `last`, where TAKE found all rows followed; 0: it did not, or they were read */
    uint64_t behind_us; /* since when rows are missing; 0: none are */
    bool is_last;       /* etcd_leader_finish */
    char known[HEDDLE_NAME_MAX + 1]; /* the cluster of the registry that was there; "": none yet */
    bool must_wait;                  /* a row of another broker said that there was one */
    int checked;                     /* CHECKING: so many names are cut off the prefix that is asked about */
    uint64_t may_make_us;            /* before it makes no registry; 0: it may at once */
    bool is_alone;                   /* there is no registry, and CHECKING has found nothing */
    bool has_yielded;                /* etcd_leader_has_yielded */
    etcd_follow_t follow;
    uint64_t page_revision;         /* READING: as of which; its page is that of `follow` */
    bool has_last;                  /* READING: `last` was read, and is `marker` */
    char marker[ETCD_MARKER_BYTES]; /* of the last transaction of this run */
    uint64_t tries;  /* the number of its last try; that of one that was refused is not used again */
    int refused;     /* the commit was, with this code, and it is looked up whether it happened; 0 */
    bool is_refused; /* an earlier try of the commit may have happened, and etcd refuses the later ones */
    uint64_t steps;  /* so many answers of the lane WORK were of use */
    uint64_t asked_number; /* LEADING: of the last marker that was confirmed, when it asked for its key */
    bool is_committing, has_outcome;
    int outcome;                   /* of the commit */
    heddle_error_t why;            /* of the outcome; of LOST and REFUSED */
    heddle_error_t denied;         /* by etcd, what is asked for beside commits; code 0: it is not */
    etcd_lane_t denied_lane;       /* that asked for it */
    char other[ETCD_HOLDER_BYTES]; /* the leader that a standby waits for; "": none leads */
    bool is_full;                  /* STANDBY: etcd had no room when none led, and this one was to */
    bool is_gone;                  /* the watch said that it is gone, while that was looked up */
    char trouble[256];             /* why the last request that failed has no answer */
    bool is_untrusted;             /* it was for a certificate */
    buf_t after;                   /* the last key of the page before */
    buf_t token;                   /* with its NUL; empty: none */
    uint64_t login_us;             /* when it was asked for last */
    brokers_t brokers;             /* LEADING: as they were read last */
    struct {
        brokers_row_t row;
        uint64_t with;           /* the lease that it was written with */
        uint64_t lease, sent_us; /* lease: the same, once etcd has the row; 0: not yet */
    } shown;                     /* of a standby: what it wrote last */
} etcd_leader_t;

/* NO_MEMORY. */
int etcd_leader_init(etcd_leader_t *l, const etcd_leader_opts_t *opts, uint64_t now_us,
                     heddle_error_t *error);
void etcd_leader_fini(etcd_leader_t *l);

/* What the lane is to send now; it is sent then.  False: nothing. */
bool etcd_leader_next(etcd_leader_t *l, etcd_lane_t lane, uint64_t now_us, etcd_request_t *ret_request);
/* The end of the lane's request. */
void etcd_leader_answer(etcd_leader_t *l, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body,
                        uint64_t now_us);
/* When to call etcd_leader_next again, if nothing else happens. */
uint64_t etcd_leader_due(const etcd_leader_t *l);

/* LEADING, and no commit is under way.  AGAIN: begun · INTERNAL, NO_MEMORY, LIMIT, UNAVAILABLE: nothing
 * happened. */
int etcd_leader_commit(etcd_leader_t *l, const record_t *records, int count, uint64_t now_us,
                       heddle_error_t *error);
/* LEADING, and no commit is under way: READING, and then LEADING with the rows as etcd has them now. */
void etcd_leader_read_again(etcd_leader_t *l, uint64_t now_us);
/* As etcd_leader_commit.  Ends an IMPORT: until it has, no broker takes the lead of the prefix.  Ends an
 * EXPORT whose registry was moved: from then on none does, and no import replaces what is there. */
int etcd_leader_finish(etcd_leader_t *l, uint64_t now_us, heddle_error_t *error);
/* True, once: the commit ended.  OK: durable, and in the rows.  Else nothing happened. */
bool etcd_leader_take_outcome(etcd_leader_t *l, int *ret_rc, heddle_error_t *error);
/* Why a commit under way waits: etcd refuses to do it again, and so to say whether it happened.  Or, without
 * one, why the next one would be refused: this user may not do it, or not any more.  NULL: neither.  Borrowed
 * until the next answer. */
const heddle_error_t *etcd_leader_refusal(const etcd_leader_t *l);
void etcd_leader_end(etcd_leader_t *l, uint64_t now_us);
/* False: each endpoint in its turn gave no answer to what was asked last. */
bool etcd_leader_is_answered(const etcd_leader_t *l);
/* Of the one that leads, for good: what its members ask for, another broker has to answer. */
bool etcd_leader_has_yielded(const etcd_leader_t *l);
/* A standby that has all rows, but for the latest, and is answered and not refused: it could take over. */
bool etcd_leader_is_following(const etcd_leader_t *l);
/* A page of one row does not come.  It is asked for again; `ret_why` says which row, and what to do. */
bool etcd_leader_is_stuck(const etcd_leader_t *l, heddle_error_t *ret_why);
/* Of etcd's revisions, as it last looked: between what it has and the latest transaction. */
uint64_t etcd_leader_behind(const etcd_leader_t *l);

#endif

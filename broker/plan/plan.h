/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/plan.h (PURE): from where each member fetches one version.
 *
 * Members of one place can hold each other's memory instead of a copy; the bytes cross the network once for a
 * place.  The places of a version, and each member without one, are the *stations* of a chain:
 *
 *   publisher ──► station 1 ──► station 2 ──► station 3 ──► ...
 *                 head ──► the others of its place, when the head has all bytes
 *
 * One member of each station, its head, fetches the version.  A member serves each chunk as soon as that is
 * verified.  So the list of a head names the head of the station before it, the one before that, and so on,
 * though these may have no byte yet.  The publisher is named to the first PLAN_SOURCES stations only, because
 * its uplink is to carry the bytes once, however many stations there are.  A source is always of a station
 * before the member's, of its own place, or has all bytes.  So no members ever wait for each other in a
 * circle.
 *
 * The order of the stations is that of zones and names, which outlive sessions and restarts: connections stay
 * warm from version to version.  After normal members come those with a limited rate, and slow ones, and
 * after these those that were blamed; the one that was blamed last is last, as an earlier one may be well
 * again, and is not to wait for it.  Behind these are the last resorts, which other places fetch from only
 * where nothing else has the bytes.  When the rollout has begun (plan_begin), a new station goes to the tail,
 * and so does one that begins anew; the list of no other member changes.  The publisher's own place has its
 * bytes without a network, and is no station while the publisher serves.
 *
 * A station that was blamed may be as fast as any, and none fetches from it: one that joins then gets each
 * half of the chunks from another one of the last two stations before it, so that neither sends all bytes
 * twice.  Last resorts take all bytes, too, and give none: each half of what one gets comes from the station
 * that sends least.  While they are at most half as many as the other stations, none of these sends more than
 * half as much again.
 *
 * A member that comes when other stations have all bytes fetches from one of these that serves no other.  In
 * a *star* every source has all bytes: the version is fetched from the publisher, and later from the holders
 * with the least load.
 *
 * A list is *torn* when one that it names serves it no more; plan_next_torn names the member, and plan_mend
 * gives it another list.  The rollout calls the plan as a member joins, tells of its bytes, asks, or goes,
 * and at the end of each such step takes what that has left: those that are woken, the torn lists, and
 * those that were put last (messages.c).
 *
 *   plan.c      rows come and go, and have bytes; when a list is made
 *   stations.h  the order of the chain
 *   shape.h     which shape a version gets, and how two trees are laid over the stations
 *   sources.h   which sources a member's list names
 *   load.h      which members a row is named by, and what it sends for them
 *   fetch.h     the fetch of a row, and one that fetches for its place
 *   restored.h  lists of before a start of the broker; absent.h the sources in them that have not come back
 *
 * *Awaited*: a rollout waits for the fetch of a row, or other rows of its place do.  *Named*: a list of
 * sources names the member.  *Stuck*: its fetch gets no further, or too slowly.  *Link*: one of a network.
 *
 * Members are found by their token.  A track owns its plan.  One thread, nothing blocks. */
#ifndef BROKER_PLAN_H
#define BROKER_PLAN_H

#include "broker/plan/absent.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_SOURCES 3u     /* in one list */
#define PLAN_CANDIDATES 64u /* members with all bytes that one choice looks at */
#define PLAN_SLOW_FACTOR 4u /* a source whose rate is below best / 4 goes behind the others */
#define PLAN_HALVES 2u      /* of the chunks, that one station sends on: its uplink carries the bytes once */

/* AUTO: what takes the least time by an estimate. */
typedef enum { PLAN_AUTO, PLAN_STAR, PLAN_CHAIN, PLAN_TWO_TREE } plan_shape_t;
/* What a member has of the bytes. */
typedef enum {
    PLAN_PARTS,   /* some, or none */
    PLAN_LOADING, /* all, in a region, and it is loading them: a source for its place alone */
    PLAN_WHOLE    /* all: a source for any */
} plan_has_t;
typedef enum { PLAN_NONE, PLAN_WAITING, PLAN_WOKEN, PLAN_FETCHING, PLAN_STUCK } plan_fetch_t;

/* The session that published the version, or restated that it serves it: it gets ROLLOUT. */
typedef enum {
    PUBLISHER_NONE,     /* none since the broker was started */
    PUBLISHER_SERVES,   /* has the bytes */
    PUBLISHER_RELEASED, /* RELEASE was sent: has them until it publishes again */
    PUBLISHER_WITHOUT,  /* has them no more */
    PUBLISHER_LOST,     /* the session ended */
    PUBLISHER_LEFT      /* the session ended with LEAVE: it will not come back with them */
} publisher_state_t;
static inline bool publisher_serves(publisher_state_t state)
{
    return state == PUBLISHER_SERVES || state == PUBLISHER_RELEASED;
}
typedef struct {
    publisher_state_t state;
    uint64_t token; /* 0 in NONE LOST LEFT */
    uint64_t place; /* as in OPEN, of the last one; 0: none */
} plan_publisher_t;

/* LIMITED: its rate is, or it was put last while it fetched.  LAST_RESORT: a source of others only where
 * there is no other one. */
typedef enum { PLAN_NORMAL, PLAN_LIMITED, PLAN_LAST_RESORT } plan_rank_t;

/* Where a row or a station stands: ascending by wave, rank, blame, text, token. */
typedef struct {
    uint32_t wave; /* 0: there when the rollout began, and in the trees, if there are any; else the later the
                    * more */
    plan_rank_t rank;
    uint64_t blamed_ms; /* those that were blamed come later, the last one last; 0: it was not */
    char *text;         /* zone, name */
    uint64_t token;     /* its first one */
} plan_key_t;

/* A row whose lists name a source, in the list of all that name it (load.h). */
typedef struct plan_naming {
    struct plan_row *row;
    struct plan_naming *next, **back; /* back: what leads to it; NULL: the source has gone */
} plan_naming_t;

/* What a walk along the way of a half of the chunks has found of the row (sources.c). */
typedef struct {
    uint64_t walk;  /* plan_t.walks: an earlier one is of no use */
    uint32_t depth; /* stations on the way; UINT32_MAX: the asker's is one of them */
} plan_way_t;

typedef struct plan_station plan_station_t;
typedef struct plan_row {
    uint64_t token;
    struct copy_row *copy; /* of the member; its track sets it, and nothing here reads it (rollout/copy.h) */
    plan_station_t *station;
    plan_key_t key;
    plan_has_t has;
    bool is_demoted; /* it has all bytes, and others got none from it, or too slowly: a source for its place
                      * alone while there is another one */
    bool is_cut_off; /* it reaches no other member but the publisher, as far as is known */
    bool is_torn;    /* its list may name one that serves no more */
    bool is_served_here; /* its list begins, or began, with a member of its place, and it holds the memory of
                          * that */
    uint64_t rate;       /* bytes per second that it fetched at; 0: unknown, taken as good */
    uint32_t load;       /* members whose list begins with it, and that are still fetching */
    uint32_t source_at;  /* in plan_t.sources, while it has all bytes */
    uint32_t depth;      /* only while restored lists are put in order */
    plan_way_t ways[PLAN_HALVES];
    plan_fetch_t fetch; /* FETCHING, STUCK: its list counts as load */
    /* Of the chunks that `sources` are for: 1 the first half, 2 the second, and `others` are for the other
     * one; 0: all. */
    uint32_t half;
    uint32_t source_count, other_count;
    uint64_t sources[PLAN_SOURCES]; /* tokens, the first is asked first */
    uint64_t others[PLAN_SOURCES];
    plan_naming_t names[PLAN_HALVES * PLAN_SOURCES]; /* while they are load: of each that takes part */
    uint32_t name_count;
    plan_naming_t *namings; /* of those that name it, the last one first */
} plan_row_t;

/* Whether a station was put behind all others, as it was demoted while it fetched. */
typedef enum {
    PUT_LAST_NOT,
    PUT_LAST_LIMITED, /* it was limited before */
    PUT_LAST_DEMOTED  /* its key says that it is limited since then */
} plan_put_last_t;

/* One node of the chain or of the trees: the members of one place, or a member without one. */
struct plan_station {
    uint64_t place; /* 0: none */
    plan_key_t key; /* of its least row, while the rollout has not begun */
    plan_row_t **rows;
    size_t count, capacity; /* ascending by key */
    uint32_t load;          /* of all its rows together */
    plan_station_t *next;   /* of plan_t.woken */
    plan_put_last_t put_last;
    bool is_listed;              /* there */
    bool is_roomy;               /* in one of plan_t.roomy */
    size_t number;               /* in the trees as they were laid, from 1; 0: it is not in them */
    size_t turns[PLAN_HALVES];   /* in the tree of this half, from 1 (shape.h) */
    bool is_second[PLAN_HALVES]; /* child of its parent there, by these */
    size_t first_woken;          /* while it is listed: none of its rows before this one is WOKEN */
};

/* What the order of the stations follows. */
typedef enum {
    ORDER_OF_KEYS,
    ORDER_UNKNOWN, /* some lists were restored: their order is still to be made (restored.h) */
    ORDER_OF_LISTS /* it was: one of those that came first may be behind a later one */
} plan_order_t;

/* Stations that may serve more than they do, in any order, and some that may not.  There is room for all that
 * there are. */
typedef struct {
    plan_station_t **stations;
    size_t count;
} plan_roomy_t;

typedef struct {
    plan_shape_t wanted, shape; /* shape: never AUTO */
    uint64_t bytes, hop_bytes;  /* of the version; what the publisher sends in the time of a hop */
    plan_row_t **rows;
    size_t count, capacity; /* ascending by token */
    plan_row_t **sources;
    size_t source_count, source_capacity; /* rows that have all bytes, in any order */
    plan_station_t **chain;
    size_t station_count, station_capacity; /* ascending by key */
    plan_station_t **normals;               /* those of normal rank, in the same order */
    size_t normal_count, blamed_count, put_last_count;
    plan_station_t **places;
    size_t place_count, place_capacity; /* the stations with a place, ascending by it */
    plan_publisher_t publisher;
    uint32_t publisher_load; /* as of a row: what leaves its place over the network, while it serves */
    uint64_t seed;
    uint64_t best_rate; /* bytes per second that a member with all bytes fetched at; 0: not known */
    bool is_begun;
    plan_order_t order;
    absent_t absent;     /* sources that restored lists name, and that have not come back */
    uint32_t wave;       /* the last one */
    uint32_t begun_wave; /* of the station that began a fetch last, after those of the rollout's beginning */
    uint32_t waiting_count, woken_count;
    size_t tree_count;          /* stations that the trees were laid over */
    size_t last_resort_count;   /* rows */
    plan_station_t *woken;      /* places that may have WOKEN rows, the one that was woken last comes last */
    plan_station_t *last_woken; /* while there are any */
    plan_row_t **torn;
    size_t torn_count, torn_capacity; /* rows that are */
    plan_roomy_t roomy[2]; /* of stations for all; and of those with a limited rate, for others like it */
    uint64_t walks;        /* lists that were chosen, one asker after the other */
    uint64_t looks;        /* rows and stations that lists were made from: what the plan costs */
} plan_t;

static inline bool has_number(const uint64_t *numbers, uint32_t count, uint64_t number)
{
    for (uint32_t i = 0; i < count; i++)
        if (numbers[i] == number) return true;
    return false;
}
static inline bool plan_row_names(const plan_row_t *row, uint64_t token)
{
    return has_number(row->sources, row->source_count, token) ||
           has_number(row->others, row->other_count, token);
}

/* The lists of a row, as they are there. */
typedef struct {
    uint32_t half, source_count, other_count;
    uint64_t sources[PLAN_SOURCES], others[PLAN_SOURCES];
} plan_lists_t;

/* `bytes` of the version. */
void plan_init(plan_t *p, uint64_t seed, plan_shape_t shape, uint64_t bytes);
/* The rate that the publisher is limited to, or that links have shown; 0: it is not known.  The least one
 * counts, until plan_make_all. */
void plan_uplink(plan_t *p, uint64_t bytes_per_s);
void plan_fini(plan_t *p);

typedef struct {
    uint64_t token, place; /* place 0: none */
    const char *name, *zone;
    bool is_limited;     /* its rate is, or it was blamed */
    uint64_t blamed_ms;  /* when that was last; 0: it was not */
    bool is_last_resort; /* a source of others only where there is no other one */
    bool is_cut_off;     /* the publisher comes first in its list */
} plan_member_t;
/* A member takes part; it has nothing yet.  False: no memory. */
bool plan_add(plan_t *p, const plan_member_t *member);
/* The same process has a new session: it has nothing yet, and keeps its place in the chain.  Lists that name
 * it go on.  False: it takes no part. */
bool plan_renew(plan_t *p, uint64_t token, uint64_t new_token);
/* The version was on its way when the broker was started: its rollout has begun, and where no list says
 * otherwise it is a chain, or a star. */
void plan_resume(plan_t *p);
/* It was, and no member fetches: the rollout is to begin again. */
void plan_begin_anew(plan_t *p);
/* The member fetches along these lists, as a broker before this one sent them.  They may name members that
 * have not come back, under the tokens of before. */
void plan_restore(plan_t *p, uint64_t token, const plan_lists_t *lists);
/* A process has come back, with another token: restored lists that name it name this one, and so do all lists
 * where it is the publisher (plan_publisher comes first). */
void plan_came_back(plan_t *p, uint64_t former_token, uint64_t token);
/* It does not take part any more. */
void plan_remove(plan_t *p, uint64_t token);
/* All that the rollout waits for take part: a member that comes from now on goes to the tail. */
void plan_begin(plan_t *p);
/* The shape of the plan, and the list of each member that lacks bytes. */
void plan_make_all(plan_t *p);
void plan_publisher(plan_t *p, uint64_t token, publisher_state_t state, uint64_t place);
/* The token of the publisher, while it serves the bytes; 0: it does not. */
static inline uint64_t plan_server(const plan_t *p)
{
    return publisher_serves(p->publisher.state) ? p->publisher.token : 0;
}
/* Whether a member has all bytes now.  Its fetch has ended. */
void plan_have(plan_t *p, uint64_t token, bool is_whole, uint64_t rate);
/* It has all of the bytes in a region, while it loads them; its fetch goes on until then. */
void plan_loads(plan_t *p, uint64_t token, bool is_loading);
/* Makes the member's list anew, without those in `lost` unless there is no other.  Returns how many: 0 also
 * where it waits. */
uint32_t plan_make(plan_t *p, uint64_t token, const uint64_t *lost, uint32_t lost_count);
/* It fetches no more: its list is no load. */
void plan_done(plan_t *p, uint64_t token);
/* Nothing comes of its fetch, as far as is known, or too little: the others of its place do not wait for it,
 * and it is no source. */
void plan_stuck(plan_t *p, uint64_t token);
/* Others got bad bytes from the member, or none, or got them too slowly.  If it still fetches it goes on,
 * behind all others and from them, for the rest of this version, however long that stays, and in the next
 * one.  Those that name it get other lists.  Earlier demoted members move behind it.  None of them has a list
 * until plan_make assigns one, from the capacity that the others leave.  In two trees they count as before.
 * False: nothing changes, as it was put last before. */
bool plan_demote(plan_t *p, uint64_t token);
/* The next one of those that were put last, still fetch and have no list, in the order in which plan_make is
 * to give them theirs.  *at is 0 for the first one.  0: there are no more. */
uint64_t plan_put_last(plan_t *p, size_t *at);
/* The member has lost the publisher, and has no other source: one that still fetches is nearest to the
 * publisher from now on, and this one is behind all others.  plan_make gives it its new list. */
void plan_give_way(plan_t *p, uint64_t token);
/* Where the member's lists begin with the publisher, although another member that is well has all bytes now,
 * they are made anew without the publisher.  False: they are as they were. */
bool plan_leave_publisher(plan_t *p, uint64_t token);
/* It reaches no other member: the next list that is made for it begins with the publisher. */
void plan_cut_off(plan_t *p, uint64_t token);
/* A member that waited and need not any more; each is named once.  0: none. */
uint64_t plan_next_woken(plan_t *p);
/* A member that fetches, and whose list names one that serves no more; each is named once.  0: none. */
uint64_t plan_next_torn(plan_t *p);
/* Gives one that fetches another list, with what is left of the one that it has in front. */
void plan_mend(plan_t *p, uint64_t token);
/* NULL: takes no part */
plan_row_t *plan_row(const plan_t *p, uint64_t token);
/* The member is the first source of one that is fetching. */
bool plan_is_first(const plan_t *p, uint64_t token);
/* No member fetches. */
bool plan_is_idle(const plan_t *p);
/* It fetches, and something may come of that. */
bool plan_fetches(const plan_t *p, uint64_t token);
/* It fetches beside another one of its place, which is stuck. */
bool plan_is_second(const plan_t *p, uint64_t token);
/* Others of its place wait for the member. */
bool plan_is_awaited(const plan_t *p, uint64_t token);
/* Number `i`, from 0, of the members of its place, itself included; 0: there are no more, or it has none. */
uint64_t plan_in_place(const plan_t *p, uint64_t token, size_t i);
/* A process at this place has all bytes in memory that others of the place can hold. */
bool plan_is_at_place(const plan_t *p, uint64_t place);
/* The member that it waits for; 0: it waits for none. */
uint64_t plan_waits_for(const plan_t *p, uint64_t token);

/* ---- for the other files of the plan ---- */

int plan_key_order(const plan_key_t *a, const plan_key_t *b);
/* The station of this place; NULL: none. */
plan_station_t *plan_place(const plan_t *p, uint64_t place);
/* Where the station stands in the chain. */
size_t plan_station_index(const plan_t *p, const plan_station_t *station);
/* How many of normal rank are before it. */
size_t plan_normal_index(const plan_t *p, const plan_station_t *station);
/* The member is named in the lists of others; one that is loading in those of its place alone. */
bool plan_serves(const plan_t *p, const plan_row_t *row);
/* Of a list of sources the one that a worker with this list asks: the first one that takes part, or the
 * publisher.  0: none does. */
uint64_t plan_asked(const plan_t *p, const uint64_t *tokens, uint32_t count);
static inline bool plan_station_is_limited(const plan_station_t *station)
{
    return station->key.rank != PLAN_NORMAL;
}
/* In this version, or in one before. */
static inline bool plan_station_is_blamed(const plan_station_t *station)
{
    return station->put_last == PUT_LAST_DEMOTED || station->key.blamed_ms;
}
/* No other station fetches from it, as a rule, and it takes all bytes, as any. */
static inline bool plan_station_is_last_resort(const plan_station_t *station)
{
    return station->key.rank == PLAN_LAST_RESORT;
}
static inline bool plan_row_is_last_resort(const plan_row_t *row)
{
    return row->key.rank == PLAN_LAST_RESORT;
}
static inline bool plan_is_publishers_place(const plan_t *p, uint64_t place)
{
    return place && plan_server(p) && place == p->publisher.place;
}

#endif

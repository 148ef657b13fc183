/* SPDX-License-Identifier: Apache-2.0 */
/* tests/torture/plays.h: pieces of a cluster's life, each with a moment before it in which nothing fails.
 *
 *   prepare   nothing fails
 *   act       anything may fail; nothing is demanded but what is looked at after every step (scenario/check.c)
 *   converge  nothing fails any more: everybody comes back, what was asked is asked again and done, what
 *             was acknowledged is decided one way or the other, and a new version is served by all
 *
 * A broker that ends (its memory could not follow the disk) is started again, as a service manager would. */
#ifndef TESTS_TORTURE_PLAYS_H
#define TESTS_TORTURE_PLAYS_H

#include "tests/scenario/world.h"

enum { PLAY_WORKERS = 4 };

typedef struct {
    world_t *w;
    actor_t *workers[PLAY_WORKERS], *trainer, *admin;
    uint32_t worker_count, restarts;
    void (*start)(world_t *w); /* of the broker; NULL: world_broker_start */
    uint64_t asked;            /* publications */
    bool is_small;             /* versions of one chunk */
    bool is_last;              /* the one that everybody must come to serve */
    char request_id[32];
    int first_code; /* of the last publication, as it was answered first */
    uint64_t first_version;
} play_t;

typedef struct {
    const char *name;
    void (*prepare)(play_t *p);
    void (*act)(play_t *p);
    bool is_small; /* its versions have one chunk */
} play_row_t;

extern const play_row_t PLAYS[];
extern const size_t PLAY_COUNT;

void play_begin(play_t *p, const play_row_t *row, uint64_t seed);
/* A cluster that is empty, with a broker that is started by `start` whenever it is down; then piece by piece. */
void play_begin_with(play_t *p, void (*start)(world_t *w), uint64_t seed);
void play_open(play_t *p); /* workers and a trainer, as far as they get */
void play_publish(play_t *p);
void play_rollback(play_t *p);
void play_converge(play_t *p);
void play_end(play_t *p);

#endif

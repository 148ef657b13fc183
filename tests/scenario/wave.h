/* SPDX-License-Identifier: Apache-2.0 */
/* A wave: one version that comes to many workers, on links with a rate, in virtual time.  What it takes is said
 * in multiples of M/B, the time that its bytes take on one link: no system can take less than 1.  One wave at a
 * time; one thread.  What does not hold fails the test. */
#ifndef SCENARIO_WAVE_H
#define SCENARIO_WAVE_H
#include "tests/scenario/world.h"

#define RATE 37500000u /* 300 Mbit/s */
#define LATENCY_US 100u
#define CHUNK LIMIT_CHUNK_MIN_BYTES
#define LEASE_US (4 * SECOND)
#define HEARTBEAT_US (LEASE_US / 4)

enum { HOSTS = 16, RELAYS = 16 };

typedef struct {
    uint32_t workers, tensors; /* of 64 KiB each: a chunk */
    uint64_t seed;
    plan_shape_t shape;
    uint32_t hosts;        /* of the workers, in turns; 0: each is by itself */
    const char *publisher; /* the host of the publisher; NULL: it is by itself */
    uint32_t slow;         /* the number of a worker with a tenth of the rate, from 1; 0: none */
    uint64_t max_rate;     /* of the publisher, by its own choice; 0: no limit */
    uint64_t before_us;    /* from when all are there to the publication */
    uint32_t slower;       /* all links have the rate divided by this; 0: by 1 */
} wave_t;

typedef struct {
    double staged, active;  /* from the call of publish to the last worker, in M/B */
    double egress, ingress; /* bytes out of the publisher, and into all workers that are alive, in M */
    uint64_t active_us;
    double into[HOSTS]; /* bytes into all workers of a host, in M, also into those that were killed */
} figures_t;

extern const mem_link_t LINK;
extern const wave_t HALF_WAY; /* a chain of RELAYS */
extern const wave_t IN_TREES; /* two trees of RELAYS */
extern const wave_t ON_HOSTS; /* 64 workers on 16 hosts */

extern world_t *w;
extern actor_t *trainer, *workers[ACTORS_MAX]; /* as many workers as there are, then NULL */
extern uint64_t start_us;                      /* when the version was published */
extern double wave_bytes, unit_us;             /* M, M/B */
extern uint32_t host_count;

void close_world(void);
double took(void);                   /* since the version was published, in M/B */
double bytes_into(const actor_t *a); /* over the network, in M */
bool all_hold(uint64_t version);
/* One publisher, and workers that are all there before; each has a link of the same rate. */
void wave_begin(wave_t wave);
/* Until so much of the version has left the publisher. */
void publisher_sends(double share);
figures_t wave_end(const char *what);
figures_t undisturbed(wave_t wave);
/* A receive window, for the one that has to ask another. */
void check_twice(figures_t f, double count);
/* What came to it counts as having come into its host. */
void kill_of_host(uint32_t number);
/* The worker of the host that fetches for the others. */
uint32_t head_of(uint32_t host);
uint32_t published(event_type_t type, const char *other);
void publish_next(wave_t wave);
bool all_hold_but(uint64_t version, const actor_t *one);
void cut_link(actor_t *a, uint64_t for_us);
double most_out_of_a_worker(void);
void check_uplinks(const char *what, double publisher, double worker);

#endif

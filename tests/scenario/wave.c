/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scenario/wave.h"

#include <stdio.h>
#include <string.h>

const mem_link_t LINK = {.bytes_per_s = RATE, .latency_us = LATENCY_US};

world_t *w;
actor_t *trainer, *workers[ACTORS_MAX];
uint64_t start_us;
double wave_bytes, unit_us;

void close_world(void)
{
    if (w) world_destroy(&w);
    content_forget_all();
}

bool all_hold(uint64_t version)
{
    for (uint32_t i = 0; workers[i]; i++)
        if (workers[i]->alive && !worker_holds(workers[i], version)) return false;
    return true;
}

uint32_t host_count;
static double into_killed[HOSTS]; /* as in figures_t */

static mem_link_t link_of(const wave_t *wave)
{
    mem_link_t link = LINK;
    if (wave->slower) link.bytes_per_s /= wave->slower;
    return link;
}

/* "w01" on "h00", "w02" on "h01", ... */
static void add_worker(uint32_t number, const wave_t *wave)
{
    uint32_t hosts = wave->hosts;
    char name[16], host[16];
    static char names[HOSTS][16];
    snprintf(name, sizeof name, "w%02u", number + 1);
    snprintf(host, sizeof host, "h%02u", hosts ? number % hosts : 0);
    if (hosts) memcpy(names[number % hosts], host, sizeof host);
    worker_conf_t conf = {.link = link_of(wave), .host = hosts ? names[number % hosts] : NULL};
    if (number + 1 == wave->slow) conf.link.bytes_per_s /= 10;
    workers[number] = world_worker(w, name, conf);
}

void wave_begin(wave_t wave)
{
    w = world_new((world_opts_t){.seed = wave.seed, .keep = 1, .shape = wave.shape});
    trainer = world_trainer(
        w, "ann",
        (trainer_conf_t){.link = link_of(&wave), .host = wave.publisher, .max_rate_bytes = wave.max_rate});
    memset(workers, 0, sizeof workers);
    memset(into_killed, 0, sizeof into_killed);
    host_count = wave.hosts;
    for (uint32_t i = 0; i < wave.workers; i++) add_worker(i, &wave);
    UNTIL(w, SECOND, trainer_is_ready(trainer) && world_all_ready(w, wave.workers));
    if (wave.before_us) world_run(w, wave.before_us);
    content_shape_t shape = {.seed = wave.seed, .count = wave.tensors, .rows = 1024};
    wave_bytes = (double)content_bytes(content_get(shape));
    unit_us = wave_bytes / (double)link_of(&wave).bytes_per_s * 1e6;
    start_us = w->now_us;
    trainer_publish(trainer, (publish_t){.shape = shape});
}

void publisher_sends(double share)
{
    UNTIL(w, 10 * SECOND, (double)actor_counters(trainer).bytes_out >= share * wave_bytes);
}

/* Over the network, in M. */
double bytes_into(const actor_t *a) { return (double)actor_counters(a).bytes_in / wave_bytes; }

double took(void) { return (double)(w->now_us - start_us) / unit_us; }

figures_t wave_end(const char *what)
{
    uint32_t count = 0;
    while (workers[count]) count++;
    uint64_t limit_us = (uint64_t)unit_us * (count + 2) + SECOND;
    UNTIL(w, limit_us, all_hold(1));
    figures_t f = {.staged = took()};
    UNTIL(w, 2 * LEASE_US, world_all_active(w, 1)); /* a worker that was killed is waited for, a lease long */
    f.active = took();
    f.active_us = w->now_us - start_us;
    if (trainer->alive) f.egress = (double)actor_counters(trainer).bytes_out / wave_bytes;
    memcpy(f.into, into_killed, sizeof f.into);
    for (uint32_t i = 0; i < count; i++) {
        double in = workers[i]->alive ? bytes_into(workers[i]) : 0;
        f.ingress += in;
        if (host_count) f.into[i % host_count] += in;
    }
    printf(
        "%3u workers, %.1f MB, %s: staged %.3f, active %.3f M/B, %.3f M out of the publisher, %llu steps\n",
        count, wave_bytes / 1e6, what, f.staged, f.active, f.egress, (unsigned long long)w->steps);
    check_settled(w);
    world_destroy(&w);
    return f;
}

const wave_t HALF_WAY = {.workers = RELAYS, .tensors = 256, .seed = 21, .shape = PLAN_CHAIN};

figures_t undisturbed(wave_t wave)
{
    wave_begin(wave);
    return wave_end("undisturbed");
}

void check_twice(figures_t f, double count)
{
    cr_assert(f.egress <= 1.05, "%.3f M out of the publisher", f.egress);
    cr_assert(f.ingress <= count + LIMIT_WINDOW_BYTES / wave_bytes, "%.3f M came to %.0f workers", f.ingress,
              count);
}

const wave_t ON_HOSTS = {.workers = 4 * HOSTS, .tensors = 256, .seed = 31, .hosts = HOSTS};

void kill_of_host(uint32_t number)
{
    into_killed[number % host_count] = bytes_into(workers[number]);
    actor_kill(workers[number]);
}

uint32_t head_of(uint32_t host)
{
    uint32_t head = UINT32_MAX;
    for (uint32_t i = host; workers[i]; i += host_count) {
        if (bytes_into(workers[i]) == 0) continue;
        cr_assert_eq(head, UINT32_MAX, "one of a host fetches");
        head = i;
    }
    cr_assert_neq(head, UINT32_MAX);
    return head;
}

uint32_t published(event_type_t type, const char *other)
{
    uint32_t count = 0;
    const events_t *log = &w->broker->events;
    for (uint64_t seq = events_first(log); seq <= log->last_seq; seq++) {
        const event_row_t *e = events_at(log, seq);
        count += e->type == type && !strcmp(e->other, other);
    }
    return count;
}

void publish_next(wave_t wave)
{
    start_us = w->now_us;
    trainer_publish(trainer,
                    (publish_t){.shape = {.seed = ++wave.seed, .count = wave.tensors, .rows = 1024}});
}

bool all_hold_but(uint64_t version, const actor_t *one)
{
    for (uint32_t i = 0; workers[i]; i++)
        if (workers[i] != one && !worker_holds(workers[i], version)) return false;
    return true;
}

const wave_t IN_TREES = {.workers = RELAYS, .tensors = 269, .seed = 36, .shape = PLAN_TWO_TREE};

void cut_link(actor_t *a, uint64_t for_us)
{
    actor_cut(a, true);
    mem_cut(a->t, w->now_us + for_us);
}

double most_out_of_a_worker(void)
{
    double most = 0;
    for (uint32_t i = 0; workers[i]; i++) {
        double out = workers[i]->alive ? (double)actor_counters(workers[i]).bytes_out / wave_bytes : 0;
        if (out > most) most = out;
    }
    return most;
}

void check_uplinks(const char *what, double publisher, double worker)
{
    double out = (double)actor_counters(trainer).bytes_out / wave_bytes, most = most_out_of_a_worker();
    printf("%s: %.3f M/B, %.3f M out of the publisher, %.3f M out of a worker\n", what, took(), out, most);
    cr_assert(out <= publisher, "%s: %.3f M out of the publisher", what, out);
    cr_assert(most <= worker, "%s: %.3f M out of a worker", what, most);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* demo-reader: a worker that does what an inference process does with Heddle, and checks it.
 *
 * A thread takes the active version again and again, hashes its bytes anew and compares with the digest that it was
 * given under.  One JSON line for each change of version, and the totals at the end (SIGTERM or SIGINT):
 *   {"kind":"reader","reads":N,"errors":N,"versions":N}
 * With --log FILE each acquire is a line of FILE: version, digest it claims, digest found.  It copies each version, as
 * on a host of its own; with --hold it holds the memory of other processes. */
#include <heddle/heddle.h>

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    heddle_worker_t *worker;
    const char *adapter;
    FILE *log;
    atomic_bool stop;
    unsigned long reads, errors, versions;
} reader_t;

static heddle_worker_t *interruptible;
static volatile sig_atomic_t ended;

static void on_signal(int number)
{
    ended = number;
    if (interruptible) heddle_worker_interrupt(interruptible);
}

static void check(reader_t *r, const heddle_snapshot_t *s, uint64_t *last)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(s);
    char found[HEDDLE_DIGEST_TEXT] = "";
    r->reads++;
    if (heddle_snapshot_digest(s, found) != HEDDLE_OK || strcmp(found, m->digest) != 0) r->errors++;
    if (r->log)
        fprintf(r->log, "%llu %s %s\n", (unsigned long long)m->version, m->digest, found), fflush(r->log);
    if (m->version == *last) return;
    *last = m->version;
    r->versions++;
    printf("{\"kind\":\"read\",\"tag\":\"%s\",\"digest\":\"%s\",\"match\":%s}\n", m->tag, m->digest,
           strcmp(found, m->digest) ? "false" : "true");
    fflush(stdout);
}

static void *read_on(void *arg)
{
    reader_t *r = arg;
    uint64_t last = 0;
    bool seen = false;
    while (!atomic_load(&r->stop)) {
        heddle_snapshot_t *s = NULL;
        if (heddle_worker_acquire(r->worker, r->adapter, 0, &s) == HEDDLE_OK) {
            seen = true;
            check(r, s, &last);
            heddle_snapshot_release(&s);
        } else if (seen) {
            r->errors++; /* there was an active version: there must always be one */
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000000},
                  NULL); /* the load of a reader: at most 20 reads a second */
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct option LONGS[] = {{"adapter", 1, NULL, 'a'}, {"name", 1, NULL, 'n'},
                                          {"broker", 1, NULL, 'b'},  {"log", 1, NULL, 'l'},
                                          {"hold", 0, NULL, 'h'},    {0}};
    const char *adapters[] = {"policy", NULL}, *name = NULL, *broker = NULL, *log_path = NULL;
    int own_memory = 1;
    for (int c; (c = getopt_long(argc, argv, "", LONGS, NULL)) != -1;) {
        if (c == 'a') adapters[0] = optarg;
        else if (c == 'n') name = optarg;
        else if (c == 'b') broker = optarg;
        else if (c == 'l') log_path = optarg;
        else if (c == 'h') own_memory = 0;
        else return 2;
    }
    reader_t r = {.adapter = adapters[0], .log = log_path ? fopen(log_path, "a") : NULL};
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .broker = broker,
                                 .name = name,
                                 .adapters = adapters,
                                 .own_memory = own_memory};
    if (heddle_worker_open(&opts, &r.worker) != HEDDLE_OK) {
        fprintf(stderr, "demo-reader: %s\n", heddle_last_error()->message);
        return heddle_err_exit(heddle_last_error()->code);
    }
    interruptible = r.worker;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_on, &r) != 0) return 9;
    while (!ended) {
        heddle_event_t e = {.size = sizeof e};
        int rc = heddle_worker_next_event(r.worker, -1, &e);
        if (rc == HEDDLE_OK && e.type == HEDDLE_EVENT_JOINED)
            printf("{\"kind\":\"ready\",\"role\":\"worker\",\"name\":\"%s\"}\n", name ? name : ""),
                fflush(stdout);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    interruptible = NULL;
    heddle_worker_close(&r.worker);
    if (r.log) fclose(r.log);
    printf("{\"kind\":\"reader\",\"reads\":%lu,\"errors\":%lu,\"versions\":%lu}\n", r.reads, r.errors,
           r.versions);
    return r.errors ? 1 : 0;
}

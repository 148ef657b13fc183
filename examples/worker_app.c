/* SPDX-License-Identifier: Apache-2.0 */
/* worker_app ADAPTER: an engine that switches between two of its steps (APPLY_APP), until SIGINT or SIGTERM.  A version that arrived is loaded
 * beside the old one while steps go on; after the broker's decision the engine flips before its next step, never within one. */
#include <heddle/heddle.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A stand-in for an inference engine: two places for weights, one of them in use. */
typedef struct {
    char tag[HEDDLE_TAG_TEXT];
    uint64_t version;
    float *weights;
    size_t count;
} loaded_t;
typedef struct {
    loaded_t place[2];
    int in_use;
    unsigned long steps;
} engine_t;

static int fail(const char *what)
{
    const heddle_error_t *e = heddle_last_error();
    fprintf(stderr, "%s: %s: %s\n", what, heddle_err_name(e->code), e->message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found: %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint: %s\n", e->hint);
    return heddle_err_exit(e->code);
}

/* A refusal that may pass, and a broker that is silent, are waited out; another refusal is the end. */
static int tell(const heddle_event_t *e)
{
    const char *hint = e->type == HEDDLE_EVENT_REFUSED ? heddle_last_error()->hint : "";
    fprintf(stderr, "%s: %s: %s\n", e->type == HEDDLE_EVENT_REFUSED ? "refused" : "lost",
            heddle_err_name(e->code), e->message);
    if (hint[0]) fprintf(stderr, "  hint: %s\n", hint);
    return e->type == HEDDLE_EVENT_REFUSED && !e->retriable ? heddle_err_exit(e->code) : 0;
}

/* Copies the version's tensors to where the engine wants them.  NULL: done; else why it cannot. */
static const char *engine_load(engine_t *engine, const heddle_snapshot_t *s)
{
    const heddle_manifest_t *m = heddle_snapshot_manifest(s);
    loaded_t *to = &engine->place[!engine->in_use];
    to->version = 0; /* what it held is gone, also where this one cannot be loaded */
    float *weights = realloc(to->weights, m->data_bytes ? m->data_bytes : 1);
    if (!weights) return "no memory for the weights";
    to->weights = weights;
    to->count = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        heddle_tensor_t t = {.size = sizeof t};
        if (heddle_snapshot_tensor(s, i, &t) || t.dtype != HEDDLE_DTYPE_F32)
            return "this engine takes F32 alone";
        memcpy(to->weights + to->count, t.data, t.data_bytes);
        to->count += t.data_bytes / sizeof *to->weights;
    }
    snprintf(to->tag, sizeof to->tag, "%s", m->tag);
    to->version = m->version;
    return NULL;
}

static void engine_step(engine_t *engine)
{
    const loaded_t *l = &engine->place[engine->in_use];
    volatile double sum = 0;
    for (size_t i = 0; i < l->count; i++) sum += l->weights[i];
    engine->steps++;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the work of a step */
}

/* Loads a version out of Heddle's slot, where it is verified and complete.  NULL: done, or overtaken in the meantime. */
static const char *load(heddle_worker_t *w, engine_t *engine, const heddle_event_t *e)
{
    heddle_snapshot_t *s;
    if (heddle_worker_acquire(w, e->adapter, e->version, &s)) return NULL;
    const char *why = engine_load(engine, s);
    heddle_snapshot_release(&s);
    return why;
}

static int on_arrived(heddle_worker_t *w, engine_t *engine, const heddle_event_t *e)
{
    const char *why = load(w, engine, e);
    int rc = why ? heddle_worker_reject(w, e->adapter, e->version, why)
                 : heddle_worker_staged(w, e->adapter, e->version);
    return rc && rc != HEDDLE_ERR_NOT_FOUND ? fail("staged") : 0;
}

/* Decided.  A roll-back names a version that may have been loaded over since: it is still in its slot.  It may name the one that is
 * active already, a way back while another was being switched to: an engine that has begun to switch goes back, and answers the same. */
static void on_commit(heddle_worker_t *w, engine_t *engine, const heddle_event_t *e)
{
    int before = engine->in_use;
    if (engine->place[before].version != e->version) {
        const char *why = engine->place[!before].version == e->version ? NULL : load(w, engine, e);
        if (why || engine->place[!before].version != e->version) {
            heddle_worker_reject(w, e->adapter, e->version, why ? why : "the version is gone");
            return;
        }
        engine->in_use = !before;
    }
    if (heddle_worker_activate(w, e->adapter, e->version)) {
        engine->in_use = before; /* overtaken: the next COMMIT tells */
        return;
    }
    printf("switched to %s after step %lu\n", engine->place[engine->in_use].tag, engine->steps);
    fflush(stdout);
}

static volatile sig_atomic_t ending;
static void on_signal(int number)
{
    (void)number;
    ending = 1;
}

int main(int argc, char **argv)
{
    if (argc != 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s ADAPTER\n", argv[0]);
        return 2;
    }
    int status = 0;
    time_t patience = time(NULL) + 5; /* 0: a broker was heard, or it was said that none is */
    engine_t engine = {0};
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .adapters = (const char *const[]){argv[1], NULL},
                                 .apply = HEDDLE_APPLY_APP,
                                 .quiet =
                                     1}; /* what the library would say of a broker on stderr, tell() says */
    heddle_worker_t *w;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (heddle_worker_open(&opts, &w)) return fail("open");
    while (!ending && !status) {
        heddle_event_t e = {.size = sizeof e};
        while (!status && heddle_worker_next_event(w, 0, &e) == HEDDLE_OK) { /* between two steps */
            patience = 0;
            if (e.type == HEDDLE_EVENT_JOINED) puts("joined"), fflush(stdout);
            if (e.type == HEDDLE_EVENT_REFUSED || e.type == HEDDLE_EVENT_LOST_BROKER) status = tell(&e);
            if (e.type == HEDDLE_EVENT_ARRIVED) status = on_arrived(w, &engine, &e);
            if (e.type == HEDDLE_EVENT_COMMIT) on_commit(w, &engine, &e);
        }
        if (patience && time(NULL) >= patience) {
            fprintf(stderr, "no broker has answered for 5 s; waiting for one (HEDDLE_BROKER says where)\n");
            patience = 0;
        }
        engine_step(&engine);
    }
    heddle_worker_close(&w);
    free(engine.place[0].weights);
    free(engine.place[1].weights);
    return status;
}

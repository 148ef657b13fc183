/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/reading.h"

#include "core/errors.h"
#include "core/thread.h"
#include "memory/available.h"
#include "memory/pool.h"

#include <stdlib.h>

/* Only the header is read here: it is enough to check the adapter and to know the size of its region. */
static int lay_out(reading_t *r, heddle_error_t *error)
{
    pack_input_t in = {.config = peft_config(r->dir),
                       .metadata = peft_metadata(r->dir),
                       .kind = peft_kind(r->dir)};
    in.tensors = peft_tensors(r->dir, &in.count);
    int rc = pack_new(&in, &r->pack, error);
    if (rc) reading_close(r);
    return rc;
}

int reading_open(reading_t *r, const char *dir, heddle_error_t *error)
{
    *r = (reading_t){0};
    int rc = peft_open(dir, &r->dir, error);
    return rc ? rc : lay_out(r, error);
}

int reading_open_files(reading_t *r, const char *const *files, heddle_error_t *error)
{
    *r = (reading_t){0};
    int rc = peft_open_files(files, &r->dir, error);
    return rc ? rc : lay_out(r, error);
}

typedef struct {
    peft_sink_t sink;
    memory_region_t *region;
    size_t unasked_bytes; /* that may be made before it is asked again whether there is memory */
} into_t;

/* Pages are written through the memory file, which makes and fills them at once. */
static int put(const peft_sink_t *sink, uint64_t at, const void *pages, size_t bytes, heddle_error_t *error)
{
    into_t *into = (into_t *)(uintptr_t)sink;
    memory_region_t *r = into->region;
    if (into->unasked_bytes < bytes) {
        int rc = memory_available_check(r->bytes - r->made_bytes, error);
        if (rc) return rc;
        into->unasked_bytes = POOL_ASK_BYTES;
    }
    into->unasked_bytes -= bytes < into->unasked_bytes ? bytes : into->unasked_bytes;
    return memory_region_put(r, at, pages, bytes, error);
}

/* A warm region is written in place; a new one is made as the bytes come. Of a warm one nothing but its
 * memory is touched: the loop's thread may be offering it to this host. */
int reading_into(reading_t *r, memory_region_t *region, heddle_error_t *error)
{
    into_t into = {.sink = {.put = put}, .region = region};
    into.sink.leaves = pack_lay_digested(r->pack, region->base);
    bool is_warm = region->made_bytes == region->bytes;
    if (is_warm) into.sink.base = region->base;
    if (!into.sink.leaves) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to digest an adapter");
    int rc = peft_read(r->dir, &into.sink, r->pack->layout.places, error);
    while (!rc && !is_warm && (rc = memory_region_grow(region, error)) == HEDDLE_ERR_AGAIN)
        rc = stop_check(error);
    return rc;
}

void reading_close(reading_t *r)
{
    peft_close(&r->dir);
    pack_destroy(&r->pack);
}

/* -- ahead ------------------------------------------------------------------------------------ */

struct ahead {
    pthread_t thread;
    const stop_t *stop;
    char *dir;
    reading_t reading;
    memory_region_t *region;
    int rc;
    heddle_error_t error;
};

/* On its own thread, which has nothing but this struct. */
static void *read_ahead(void *self)
{
    ahead_t *a = self;
    stop_begin(a->stop);
    a->rc = reading_open(&a->reading, a->dir, &a->error);
    if (!a->rc) a->rc = memory_region_new(pack_bytes(a->reading.pack), &a->region, &a->error);
    if (!a->rc) a->rc = memory_region_begin(a->region, &a->error);
    if (!a->rc) a->rc = reading_into(&a->reading, a->region, &a->error);
    stop_end();
    return NULL;
}

static void destroy(ahead_t *a)
{
    reading_close(&a->reading);
    memory_region_destroy(&a->region);
    free(a->dir);
    free(a);
}

/* Reading ahead is an attempt: where it cannot start, the directory is read later. */
ahead_t *reading_ahead(const char *dir, const stop_t *stop)
{
    ahead_t *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->stop = stop;
    a->dir = strdup(dir);
    if (a->dir && !thread_start(READING_THREAD, read_ahead, a, &a->thread)) return a;
    destroy(a);
    return NULL;
}

bool reading_is_of(const ahead_t *a, const char *dir) { return a && !strcmp(a->dir, dir); }

/* The result is the caller's only when nothing can have changed since it was read. */
int reading_join(ahead_t **ahead, reading_t *ret_reading, memory_region_t **ret_region, heddle_error_t *error)
{
    ahead_t *a = *ahead;
    *ahead = NULL;
    pthread_join(a->thread, NULL);
    int rc = a->rc;
    if (rc) {
        *error = a->error;
    } else {
        /* The path may lead to another directory by now (a moved link, a rename), and some file systems
         * report no changes of a file. Where it is not certain that the bytes are the same, they are read
         * again. */
        bool is_sure = false;
        rc = peft_check_unchanged(a->reading.dir, &is_sure, error);
        if (!rc && !(is_sure && peft_is_at(a->reading.dir, a->dir)))
            rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s may have changed since it was read", a->dir);
    }
    if (!rc) {
        *ret_reading = a->reading;
        *ret_region = a->region;
        a->reading = (reading_t){0};
        a->region = NULL;
    }
    destroy(a);
    return rc;
}

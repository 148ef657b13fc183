/* SPDX-License-Identifier: Apache-2.0 */
/* memcpy and sync: the two references without other processes.
 *
 * They are lower bounds: on one thread no way to move an adapter is faster than one copy of its bytes, and no
 * registry that survives a crash is faster than one write that has reached the disk. */
#include "bench/reference.h"

#include "bench/moment.h"
#include "core/errors.h"
#include "core/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- memcpy ---------------------------------------------------------------------------------- */

typedef struct {
    reference_t base;
    const model_t *model;
    char *to;
} memcpy_t;

static uint64_t memcpy_bytes(const reference_opts_t *o) { return o->model->table.data_bytes; }

static void memcpy_close(reference_t *r)
{
    free(((memcpy_t *)r)->to);
    free(r);
}

static int memcpy_open(const reference_opts_t *o, reference_t **ret_reference, heddle_error_t *error)
{
    memcpy_t *m = calloc(1, sizeof *m);
    char *to = malloc(o->model->table.data_bytes);
    if (!m || !to) {
        free(m);
        free(to);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a copy of the adapter");
    }
    *m = (memcpy_t){{.ops = &REFERENCE_MEMCPY}, o->model, to};
    model_copy(o->model, to); /* so that no page fault is measured */
    *ret_reference = &m->base;
    return HEDDLE_OK;
}

static int memcpy_once(reference_t *r, double *ret_ms, heddle_error_t *error)
{
    (void)error;
    memcpy_t *m = (memcpy_t *)r;
    uint64_t start = moment_ns();
    model_copy(m->model, m->to);
    __asm__ volatile("" ::"r"(m->to) : "memory"); /* or the compiler may drop a copy that is never read */
    *ret_ms = moment_ms(start, moment_ns());
    return HEDDLE_OK;
}

const reference_ops_t REFERENCE_MEMCPY = {"memcpy", memcpy_bytes, memcpy_open, memcpy_once, memcpy_close};

/* ---- sync ------------------------------------------------------------------------------------ */

typedef struct {
    reference_t base;
    int fd;
} syncing_t;

static uint64_t sync_bytes(const reference_opts_t *o) { return (void)o, 0; }

static void sync_close(reference_t *r)
{
    close(((syncing_t *)r)->fd);
    free(r);
}

static int sync_open(const reference_opts_t *o, reference_t **ret_reference, heddle_error_t *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/sync", o->scratch);
    syncing_t *s = calloc(1, sizeof *s);
    if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory");
    *s = (syncing_t){{.ops = &REFERENCE_SYNC}, open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    if (s->fd < 0) {
        free(s);
        return error_fail(error, HEDDLE_ERR_INTERNAL, "cannot write %s: %s", path, strerror(errno));
    }
    *ret_reference = &s->base;
    return HEDDLE_OK;
}

static int sync_once(reference_t *r, double *ret_ms, heddle_error_t *error)
{
    static const char page[LIMIT_PAGE_BYTES] = {1};
    syncing_t *s = (syncing_t *)r;
    uint64_t start = moment_ns();
    /* Appended, so that the file's length changes as well as its bytes: the file system has to sync both. */
    if (write(s->fd, page, sizeof page) != (ssize_t)sizeof page || fdatasync(s->fd) != 0)
        return error_fail(error, HEDDLE_ERR_NO_SPACE, "a page could not be written and synced: %s",
                          strerror(errno));
    *ret_ms = moment_ms(start, moment_ns());
    return HEDDLE_OK;
}

const reference_ops_t REFERENCE_SYNC = {"sync", sync_bytes, sync_open, sync_once, sync_close};

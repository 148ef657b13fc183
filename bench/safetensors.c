/* SPDX-License-Identifier: Apache-2.0 */
/* The reference safetensors: runs bench/safetensors_peer.py, whose text this program carries.
 *
 * It is what users do without Heddle: the trainer saves a file in shared memory, and every engine opens it.
 * Python is started once, with its modules loaded; a repetition is one line there and one line back, with the
 * time that Python measured. */
#include "bench/child.h"
#include "bench/reference.h"
#include "core/errors.h"

#include "bench_safetensors_peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WAIT_MS = 120000, PATH = 4096 };
typedef struct {
    reference_t base;
    child_t child;
    char log[PATH], file[128];
} bench_peer_t;

/* The trainer's arrays, the file, and an array in each reader. Readers map the file, so it counts once. */
static uint64_t peer_bytes(const reference_opts_t *o)
{
    return (2 + (uint64_t)o->receivers) * o->model->table.data_bytes;
}

static void peer_close(reference_t *r)
{
    bench_peer_t *p = (bench_peer_t *)r;
    child_end(&p->child);
    unlink(p->file);
    free(p);
}

/* GONE means that Python ended, which is almost always a missing module: the reference is skipped then. */
static int peer_open(const reference_opts_t *o, reference_t **ret_reference, heddle_error_t *error)
{
    heddle_error_t why;
    double unused;
    bench_peer_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory");
    p->base.ops = &REFERENCE_SAFETENSORS;
    snprintf(p->log, sizeof p->log, "%s/python.log", o->scratch);
    /* In memory, not on a disk: the reference is the fastest form of the method. */
    snprintf(p->file, sizeof p->file, "/dev/shm/heddle-bench-%d.safetensors", getpid());
    char table[PATH], readers[16];
    snprintf(table, sizeof table, "%s/tensors", o->scratch);
    snprintf(readers, sizeof readers, "%u", o->receivers);
    FILE *f = fopen(table, "we");
    for (uint32_t i = 0; f && i < o->model->table.count; i++)
        fprintf(f, "%llu %s\n", (unsigned long long)o->model->table.rows[i].data_bytes,
                o->model->table.rows[i].name);
    int rc = f && fclose(f) == 0
                 ? HEDDLE_OK
                 : error_fail(&why, HEDDLE_ERR_NO_SPACE, "cannot write %s: %s", table, strerror(errno));
    const char *const argv[] = {"/proc/self/exe",       "--as",  "program", o->python, "-c",
                                BENCH_SAFETENSORS_PEER, p->file, table,     readers,   NULL};
    if (!rc) rc = child_start(argv, p->log, &p->child, &why);
    if (!rc) rc = child_line(&p->child, p->log, WAIT_MS, p->base.about, sizeof p->base.about, &why);
    /* The first round allocates and touches the arrays. */
    if (!rc) rc = REFERENCE_SAFETENSORS.once(&p->base, &unused, &why);
    if (!rc) {
        *ret_reference = &p->base;
        return HEDDLE_OK;
    }
    peer_close(&p->base);
    if (rc != HEDDLE_ERR_GONE) {
        *error = why;
        return rc;
    }
    error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s cannot run safetensors and numpy", o->python);
    error_hint(error, "name another with --python");
    return HEDDLE_ERR_NOT_FOUND;
}

static int peer_once(reference_t *r, double *ret_ms, heddle_error_t *error)
{
    bench_peer_t *p = (bench_peer_t *)r;
    char line[64], *end;
    if (write(p->child.fd, "\n", 1) != 1)
        return error_fail(error, HEDDLE_ERR_GONE, "the reference safetensors ended");
    int rc = child_line(&p->child, p->log, WAIT_MS, line, sizeof line, error);
    double ms = rc ? 0 : strtod(line, &end);
    if (!rc && (*end || end == line))
        rc = error_fail(error, HEDDLE_ERR_INTERNAL, "the reference safetensors said: %s", line);
    if (!rc) *ret_ms = ms;
    return rc;
}

const reference_ops_t REFERENCE_SAFETENSORS = {"safetensors", peer_bytes, peer_open, peer_once, peer_close};

/* SPDX-License-Identifier: Apache-2.0 */
/* bench/reference.h: what a figure is measured against, in the same run, in turn with it.
 *
 *    memcpy           the tensors, once, one after the other, into memory that was touched before
 *    socket           a bare TCP socket on loopback to each of as many processes as there are workers;
 *                     memory touched before
 *    socket+digest    the same, each receiver computing Heddle's leaf digests of the bytes, on the thread
 *                     that receives
 *    safetensors      Python: save_file to /dev/shm, each of as many processes opens it (safe_open) and
 *                     copies each tensor into an array touched before
 *    sync             4 KiB appended to a file where the registry lies, and fdatasync
 *
 *    open (memory made and touched) -> once, again and again -> close
 *
 * A reference that cannot run here returns the reason. The row owns it. One thread; INTERRUPTED after a
 * signal. */
#ifndef BENCH_REFERENCE_H
#define BENCH_REFERENCE_H

#include "bench/model.h"

typedef struct {
    const model_t *model; /* borrowed, as long as the reference lives; may be NULL for sync */
    uint32_t receivers;
    const char *scratch, *python;
} reference_opts_t;

typedef struct reference reference_t;
typedef struct reference_ops {
    const char *name;
    /* Bytes of memory that it takes. */
    uint64_t (*bytes)(const reference_opts_t *o);
    /* NOT_FOUND: what it needs is not here; the error's message says what. */
    int (*open)(const reference_opts_t *o, reference_t **ret_reference, heddle_error_t *error);
    /* One repetition. */
    int (*once)(reference_t *r, double *ret_ms, heddle_error_t *error);
    void (*close)(reference_t *r);
} reference_ops_t;

/* First member of each. */
struct reference {
    const reference_ops_t *ops;
    char about[128];
}; /* about: its versions; "" */

extern const reference_ops_t REFERENCE_MEMCPY, REFERENCE_SOCKET, REFERENCE_SOCKET_DIGEST,
    REFERENCE_SAFETENSORS, REFERENCE_SYNC;

#endif

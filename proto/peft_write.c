/* SPDX-License-Identifier: Apache-2.0 */
/* A verified arena -> the two files of a PEFT directory. */
#include "core/errors.h"
#include "core/failpoint.h"
#include "proto/peft_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODE 0644                    /* less the umask: an engine may run as another user */
#define STREAM_BYTES (1u << 20)      /* gathers small tensors; larger ones go straight to the file */

static bool is_full(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }

static int fail_write(const char *name, int err, uint64_t bytes, heddle_error_t *error)
{
    bool full = is_full(err);
    int rc = error_fail(error,
                        full            ? HEDDLE_ERR_NO_SPACE
                        : err == ENOMEM ? HEDDLE_ERR_NO_MEMORY
                                        : HEDDLE_ERR_INTERNAL,
                        "cannot write %s: %s", name, strerror(err));
    error_expected(error, "room for %" PRIu64 " bytes", bytes);
    error_found(error, "%s", strerror(err));
    error_hint(error, full ? "make room on the disk of the export directory"
                           : "look at the export directory and its file system");
    return rc;
}

/* Allocates all blocks of a new file, so that a full disk is found before anything is written. */
static int create(int dir_fd, const char *name, uint64_t bytes, heddle_error_t *error, FILE **ret_stream)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, MODE);
    if (fd < 0) return fail_write(name, errno, bytes, error);
    int err = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
    if (!is_full(err)) err = 0; /* not every file system can */
    if (!err && FAILPOINT("peft.write")) err = ENOSPC;
    FILE *stream = err ? NULL : fdopen(fd, "w");
    if (!stream) {
        err = err ? err : errno;
        close(fd);
        return fail_write(name, err, bytes, error);
    }
    setvbuf(stream, NULL, _IOFBF, STREAM_BYTES);
    *ret_stream = stream;
    return HEDDLE_OK;
}

/* Flushes, syncs and closes; `err` is what went wrong before, or 0. */
static int finish(FILE *stream, const char *name, int err, uint64_t bytes, heddle_error_t *error)
{
    if (!err && (fflush(stream) || fsync(fileno(stream)))) err = errno;
    if (fclose(stream) && !err) err = errno;
    return err ? fail_write(name, err, bytes, error) : HEDDLE_OK;
}

/* 0, or errno. */
static int put(FILE *stream, const void *data, size_t bytes)
{
    return bytes && fwrite(data, 1, bytes, stream) != bytes ? errno : 0;
}

static int write_model(int dir_fd, const manifest_t *m, const void *region, bytes_t header,
                       const uint32_t *order, heddle_error_t *error)
{
    FILE *stream;
    uint64_t bytes = header.bytes + m->data_bytes;
    int rc = create(dir_fd, PEFT_MODEL, bytes, error, &stream);
    if (rc) return rc;
    int err = put(stream, header.data, header.bytes);
    for (uint32_t i = 0; i < m->tensor_count && !err; i++) {
        manifest_row_t row;
        manifest_row(m, order[i], &row);
        err = put(stream, (const uint8_t *)region + row.offset, (size_t)row.bytes);
    }
    return finish(stream, PEFT_MODEL, err, bytes, error);
}

int peft_write(int dir_fd, const manifest_t *m, const void *region, heddle_error_t *error)
{
    buf_t header = {0};
    uint32_t *order = calloc(m->tensor_count, sizeof *order);
    int rc = order ? safetensors_write(m, &header, order, error)
                   : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to export %" PRIu32 " tensors",
                                m->tensor_count);
    if (!rc) rc = write_model(dir_fd, m, region, buf_view(&header), order, error);
    FILE *stream;
    /* The config comes last, as PEFT writes it: its presence shows that the weights are complete. */
    if (!rc) rc = create(dir_fd, PEFT_CONFIG, m->config.bytes, error, &stream);
    if (!rc)
        rc =
            finish(stream, PEFT_CONFIG, put(stream, m->config.data, m->config.bytes), m->config.bytes, error);
    buf_fini(&header);
    free(order);
    return rc;
}

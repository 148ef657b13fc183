/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and reading an adapter's directory; proto/peft.h says in which steps. */
#include "proto/peft_dir.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"
#include "proto/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STOP_BYTES (4u << 20) /* between two calls of stop_check: some milliseconds */

static int fail_dir(const char *dir, int err, heddle_error_t *error)
{
    struct stat st;
    int rc;
    if (err == ENOTDIR && stat(dir, &st) == 0) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%.300s is no directory", dir);
        error_contrast(error, "a directory with " PEFT_CONFIG " and " PEFT_MODEL,
                       S_ISREG(st.st_mode) ? "a file" : "no directory");
        error_hint(error, "give the directory that holds the adapter's two files");
    } else if (err == ENOENT || err == ENOTDIR || err == ENAMETOOLONG) {
        rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no directory %.300s", dir);
        error_contrast(error, "a directory with " PEFT_CONFIG " and " PEFT_MODEL, strerror(err));
        error_hint(error, "look at the path, and from which directory it is seen");
    } else {
        rc = error_fail(error, err == ENOMEM ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL,
                        "cannot open the directory %.300s: %s", dir, strerror(err));
        error_contrast(error, "a directory that can be read", strerror(err));
        error_hint(error, "run as the user who saved it, or change its mode");
    }
    return rc;
}

static int open_file(peft_dir_t *d, const char *dir, const char *name, input_file_t *file,
                     heddle_error_t *error)
{
    int rc = input_file_open(d->fd, dir, name, file, error);
    return rc == HEDDLE_ERR_NOT_FOUND ? peft_explain_missing(d->fd, dir, name, error) : rc;
}

/* Puts the file's path before a message about its content. */
static int within(const input_file_t *f, int rc, heddle_error_t *error)
{
    if (rc == HEDDLE_OK || !error) return rc;
    char message[sizeof error->message + sizeof f->shown + sizeof ": "];
    snprintf(message, sizeof message, "%s: %s", f->shown, error->message);
    error_text(error->message, sizeof error->message, message);
    return rc;
}

static int read_config(peft_dir_t *d, heddle_error_t *error)
{
    const input_file_t *f = &d->config_file;
    uint64_t bytes = (uint64_t)f->opened.st_size;
    if (bytes > LIMIT_CONFIG_BYTES) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "the config is too long");
        error_expected(error, "at most %u bytes", LIMIT_CONFIG_BYTES);
        error_found(error, "%" PRIu64 " bytes", bytes);
        error_hint(error, "is this PEFT's adapter_config.json?");
        return within(f, rc, error);
    }
    void *to = buf_grow(&d->config, (size_t)bytes + 1);   /* an empty file too is read, and refused as JSON */
    if (!to) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %s", f->shown);
    d->config.bytes = (size_t)bytes;
    return input_file_read(f, 0, to, bytes, error);
}

/* The first bytes of files that are often found in place of a safetensors file. */
static const char *guess_format(const uint8_t first[SAFETENSORS_PREFIX_BYTES])
{
    if (!memcmp(first, "version ", 8)) return "this is a Git LFS pointer: run git lfs pull";
    if (!memcmp(first, "PK\3\4", 4))
        return "this is a zip archive, as torch.save writes it: save with safe_serialization=True";
    if (first[0] == '{') return "this is a JSON file";
    return "is this a safetensors file? Save the adapter again";
}

/* The length of the header, refused when the file is too short for it: it is about to be allocated. */
static int read_header_bytes(const input_file_t *f, uint64_t *ret_bytes, heddle_error_t *error)
{
    uint8_t first[SAFETENSORS_PREFIX_BYTES];
    uint64_t file_bytes = (uint64_t)f->opened.st_size;
    int rc;
    if (file_bytes < sizeof first) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s is too short for a safetensors file", f->shown);
        error_expected(error, "a header's length in %zu bytes", sizeof first);
        error_found(error, "%" PRIu64 " bytes", file_bytes);
        error_hint(error, "a copy or a save ended early, or still runs: save the adapter again");
        return rc;
    }
    rc = input_file_read(f, 0, first, sizeof first, error);
    if (rc) return rc;
    uint64_t bytes = le64_get(first), room = file_bytes - sizeof first;
    if (bytes >= 2 && bytes <= LIMIT_SAFETENSORS_HEADER && bytes <= room) {
        *ret_bytes = bytes;
        return HEDDLE_OK;
    }
    bool too_long = bytes > LIMIT_SAFETENSORS_HEADER && bytes <= room;
    rc = error_fail(error, too_long ? HEDDLE_ERR_LIMIT : HEDDLE_ERR_BAD_ADAPTER,
                    "%s has a header of impossible length", f->shown);
    error_expected(error, "2 to %" PRIu64 " bytes",
                   room < LIMIT_SAFETENSORS_HEADER ? room : LIMIT_SAFETENSORS_HEADER);
    error_found(error, "%" PRIu64 " bytes, in a file of %" PRIu64, bytes, file_bytes);
    error_hint(error, "%s", guess_format(first));
    return rc;
}

static int read_header(peft_dir_t *d, heddle_error_t *error)
{
    const input_file_t *f = &d->model_file;
    uint64_t bytes = 0;
    int rc = read_header_bytes(f, &bytes, error);
    if (rc) return rc;
    d->data_start = SAFETENSORS_PREFIX_BYTES + bytes;
    void *header = buf_grow(&d->header, (size_t)bytes);
    if (!header) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the header of %s", f->shown);
    rc = input_file_read(f, SAFETENSORS_PREFIX_BYTES, header, bytes, error);
    if (rc) return rc;
    uint64_t data_bytes = (uint64_t)f->opened.st_size - d->data_start;
    return within(f, safetensors_parse(buf_view(&d->header), data_bytes, &d->table, error), error);
}

/* A publisher holds the region in memory: an adapter that cannot fit is refused here. */
static int check_fits(const peft_dir_t *d, heddle_error_t *error)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (d->layout.region_bytes <= memory) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "%s: the tensors are larger than this machine's memory",
                        d->model_file.shown);
    error_expected(error, "at most %" PRIu64 " bytes", memory);
    error_found(error, "%" PRIu64 " bytes in whole pages", d->layout.region_bytes);
    error_hint(error, "publish from a machine with more memory");
    return rc;
}

int peft_open(const char *dir, peft_dir_t **ret_dir, heddle_error_t *error)
{
    peft_dir_t *d = calloc(1, sizeof *d);
    if (!d) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to open %.300s", dir);
    d->fd = d->config_file.fd = d->model_file.fd = -1;
    d->fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = d->fd < 0 ? fail_dir(dir, errno, error) : HEDDLE_OK;
    if (!rc) rc = open_file(d, dir, PEFT_MODEL, &d->model_file, error);
    if (!rc) rc = open_file(d, dir, PEFT_CONFIG, &d->config_file, error);
    if (rc) goto fail;
    rc = read_config(d, error);
    if (rc) goto fail;
    rc = read_header(d, error);
    if (rc) goto fail;
    rc = peft_check(peft_config(d), d->table.tensors, d->table.count, d->features, d->base_model, error);
    if (rc) {
        rc = within(rc == HEDDLE_ERR_NO_LORA ? &d->model_file : &d->config_file, rc, error);
        goto fail;
    }
    rc = within(&d->model_file, layout_make(d->table.tensors, d->table.count, &d->layout, error), error);
    if (!rc) rc = check_fits(d, error);
    if (rc) goto fail;
    *ret_dir = d;
    return HEDDLE_OK;
fail:
    peft_close(&d);
    return rc;
}

void peft_close(peft_dir_t **dir)
{
    peft_dir_t *d = *dir;
    if (!d) return;
    layout_fini(&d->layout);
    safetensors_fini(&d->table);
    buf_fini(&d->header);
    buf_fini(&d->config);
    input_file_close(&d->config_file);
    input_file_close(&d->model_file);
    if (d->fd >= 0) close(d->fd);
    free(d);
    *dir = NULL;
}

const heddle_tensor_t *peft_tensors(const peft_dir_t *d, uint32_t *ret_count)
{
    *ret_count = d->table.count;
    return d->table.tensors;
}

bytes_t peft_config(const peft_dir_t *d) { return buf_view(&d->config); }
bytes_t peft_metadata(const peft_dir_t *d) { return d->table.metadata; }
const char *peft_features(const peft_dir_t *d) { return d->features; }
const char *peft_base_model(const peft_dir_t *d) { return d->base_model; }

int peft_check_unchanged(const peft_dir_t *d, bool *ret_sure, heddle_error_t *error)
{
    bool is_model_sure = false, is_config_sure = false;
    int rc = input_file_check_unchanged(&d->model_file, &is_model_sure, error);
    if (!rc) rc = input_file_check_unchanged(&d->config_file, &is_config_sure, error);
    if (!rc && !is_config_sure)
        rc = input_file_compare(&d->config_file, 0, d->config.data, d->config.bytes, error);
    if (!rc && !is_model_sure) { /* the tensors are left to the caller, which reads them anyway */
        uint8_t prefix[SAFETENSORS_PREFIX_BYTES];
        le64_put(prefix, d->header.bytes);
        rc = input_file_compare(&d->model_file, 0, prefix, sizeof prefix, error);
        if (!rc)
            rc = input_file_compare(&d->model_file, sizeof prefix, d->header.data, d->header.bytes, error);
    }
    if (!rc) *ret_sure = is_model_sure;
    return rc;
}

bool peft_is_at(const peft_dir_t *d, const char *dir)
{
    struct stat opened, named;
    return !fstat(d->fd, &opened) && !stat(dir, &named) && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* A pass over the tensors' bytes: the first one passes them on, a second one compares them with the file. */
typedef struct { const peft_dir_t *dir; const peft_sink_t *to; bool is_second; uint8_t *piece; } pass_t;

/* The piece is digested first, while it is still in the cache. */
static int pass_piece(const pass_t *p, uint64_t offset, uint64_t at, size_t bytes, heddle_error_t *error)
{
    const input_file_t *f = &p->dir->model_file;
    const peft_sink_t *to = p->to;
    uint64_t again[PEFT_PIECE_LEAVES], *leaves = to->leaves + at / LIMIT_PAGE_BYTES;
    uint8_t *piece = to->base && !p->is_second ? to->base + at : p->piece;
    size_t room = (size_t)tensor_room(bytes);
    int rc = input_file_read(f, offset, piece, bytes, error);
    if (rc) return rc;
    digest_leaves(piece, bytes, p->is_second ? again : leaves);
    if (p->is_second && memcmp(again, leaves, room / LIMIT_PAGE_BYTES * sizeof *leaves) != 0)
        return input_file_refuse_changed(f, "other bytes when it was read again", error);
    if (!p->is_second) memset(piece + bytes, 0, room - bytes);
    return p->is_second || to->base ? HEDDLE_OK : to->put(to, at, piece, room, error);
}

/* In pieces, so that a stop takes effect within a large tensor too. */
static int pass_tensors(const pass_t *p, const uint64_t *places, heddle_error_t *error)
{
    const peft_dir_t *d = p->dir;
    uint64_t since_stop_bytes = 0;
    for (uint32_t i = 0; i < d->table.count; i++) {
        uint64_t offset = d->data_start + d->table.starts[i], left = d->table.tensors[i].data_bytes;
        uint64_t at = places[i];
        since_stop_bytes += LIMIT_PAGE_BYTES; /* a small tensor costs a call and a page too */
        while (left > 0) {
            size_t bytes = left < PEFT_PIECE_BYTES ? (size_t)left : PEFT_PIECE_BYTES;
            int rc = pass_piece(p, offset, at, bytes, error);
            since_stop_bytes += bytes;
            if (!rc && since_stop_bytes >= STOP_BYTES) {
                rc = stop_check(error);
                since_stop_bytes = 0;
            }
            if (rc) return rc;
            at += bytes;
            offset += bytes;
            left -= bytes;
        }
    }
    return HEDDLE_OK;
}

int peft_read(peft_dir_t *d, const peft_sink_t *to, const uint64_t *places, heddle_error_t *error)
{
    bool is_sure = false;
    pass_t p = {.dir = d, .to = to, .piece = malloc(PEFT_PIECE_BYTES)};
    if (!p.piece) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read an adapter");
    int rc = pass_tensors(&p, places, error);
    if (!rc) rc = peft_check_unchanged(d, &is_sure, error);
    p.is_second = true;
    if (!rc && !is_sure) rc = pass_tensors(&p, places, error);
    free(p.piece);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* formats/peft.h: what a publication reads, PEFT directories and files of weights, and what an export writes.
 *
 *   peft_open (config and header checked) -> peft_read (tensors) -> peft_check_unchanged -> peft_close
 *
 * peft_open checks adapter_config.json and the safetensors header and provides the tensor table.
 * peft_open_files takes safetensors files instead, which are one version of kind tensors (formats/kind.h);
 * all that follows is the same for both.  peft_read
 * reads the tensors with pread, digests them and passes them on piece by piece.  At the end it checks that
 * no file has changed: by their times, by asking the kernel for writers, or else by reading once more
 * (formats/input_file.h).  Files are never mapped, because truncating a mapped file would kill the process.
 * Only regular files are opened, with O_NONBLOCK, because opening a FIFO would block. Calls block on the
 * disk, and core/stop.h ends them early.  The caller owns the handle; one thread at a time. */
#ifndef FORMATS_PEFT_H
#define FORMATS_PEFT_H

#include "core/bytes.h"
#include "formats/kind.h"
#include "formats/manifest.h"
#include <heddle/adapter.h>

typedef struct peft_dir peft_dir_t;

/* Each defect of DIR has a code of docs/operations.md, and a message with file, expected, found and hint. */
int peft_open(const char *dir, peft_dir_t **ret_dir, heddle_error_t *error);
/* The same of one or more safetensors files (a list that ends with NULL, borrowed until peft_close), which
 * together have each tensor once.  The metadata are those of the first one. */
int peft_open_files(const char *const *files, peft_dir_t **ret_dir, heddle_error_t *error);
const content_kind_t *peft_kind(const peft_dir_t *d);
const heddle_tensor_t *peft_tensors(const peft_dir_t *d, uint32_t *ret_count); /* in the files' order;
                                                                                * borrowed */
bytes_t peft_config(const peft_dir_t *d);
bytes_t peft_metadata(const peft_dir_t *d);     /* JSON text of __metadata__; empty where there was none */
const char *peft_features(const peft_dir_t *d); /* "dora,rslora" */
const char *peft_base_model(const peft_dir_t *d);
/* Where the tensors go: into memory at `base`; or, where that is NULL, to put, which takes whole pages for
 * offset `at` of the payload: a piece of a tensor that is borrowed for the call.  Both are padded with zeros.
 * leaves: one a page of the payload; each piece is digested on its way. */
typedef struct peft_sink {
    uint8_t *base;
    int (*put)(const struct peft_sink *self, uint64_t at, const void *pages, size_t bytes,
               heddle_error_t *error);
    uint64_t *leaves;
} peft_sink_t;
/* `places[i]`: offset in the payload for tensor i of the table.  Every page of every tensor comes once.
 * BAD_ADAPTER when a file changed since peft_open, or is open for writing; INTERNAL when it cannot be read;
 * NO_MEMORY; or the error that put returns. */
int peft_read(peft_dir_t *d, const peft_sink_t *to, const uint64_t *places, heddle_error_t *error);
/* BAD_ADAPTER when one of the files changed since it was opened, or is open for writing.  *ret_sure: as
 * input_file_check_unchanged, of the tensors; the config and the header were compared already where that had
 * to be. */
int peft_check_unchanged(const peft_dir_t *d, bool *ret_sure, heddle_error_t *error);
/* Whether the path still leads to the directory that was opened.  Not of files. */
bool peft_is_at(const peft_dir_t *d, const char *dir);
void peft_close(peft_dir_t **d);

/* Checks the bytes of an adapter_config.json and the names of the tensors; gives the features and base
 * model. */
int peft_check(bytes_t config, const heddle_tensor_t *tensors, uint32_t count, char ret_features[192],
               char ret_base_model[256], heddle_error_t *error);
/* A name of which the other half of the pair is missing (lora_A without lora_B, or the other way round), the
 * first in order, and that half's name; NULL: each has its other half. Half of a pair computes nothing: an
 * engine refuses the adapter, or serves the base model in its name. */
const char *peft_lone_half(const heddle_tensor_t *tensors, uint32_t count, char ret_other[1024]);
/* Logs what does not keep the tensors from being published, and is wrong as a rule: half of a pair. */
void peft_warn(const heddle_tensor_t *tensors, uint32_t count);

/* Writes the files of the manifest's kind (formats/kind.h) from a verified payload, into an existing empty
 * directory given as a descriptor, and syncs them; UNSUPPORTED_FEATURE for a kind of a later release.  The
 * layout is upstream's (tensors by dtype size descending, then name; header padded to 8 with blanks), so what
 * PEFT saved comes out identical.  Mode 0644 less the umask: an engine may run as another user. */
int peft_write(int dir_fd, const manifest_t *m, const void *payload, heddle_error_t *error);

/* The digest of a directory for tools, with the warnings of a publication: opens, lays out and digests it in
 * pieces, so that the tensors are never in memory as a whole.  DIR is PEFT's, or has model.safetensors alone,
 * as peft_write leaves one of kind tensors. */
int peft_digest(const char *dir, heddle_adapter_info_t *ret_info, heddle_error_t *error);
/* The same of files, as peft_open_files takes them. */
int peft_digest_files(const char *const *files, heddle_adapter_info_t *ret_info, heddle_error_t *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* proto/peft.h: PEFT directories and safetensors files, read and written.
 *
 * Reading is in two steps, so that the bytes go straight to where they belong: peft_open checks
 * adapter_config.json and the safetensors header and gives the tensor table; peft_read copies the tensors
 * with pread into a region, and checks at the end that neither file changed meanwhile: by their times, by
 * asking for writers, else by reading once more (proto/input_file.h).  Files are never mapped: one truncated
 * under a mapping would kill the process.  Only regular files are opened
 * (O_NONBLOCK first: a FIFO must not hang us).
 * Blocking calls, which core/stop.h ends early; one thread at a time for a handle. */
#ifndef PROTO_PEFT_H
#define PROTO_PEFT_H

#include "core/bytes.h"
#include "proto/manifest.h"
#include <heddle/adapter.h>

typedef struct peft_dir peft_dir_t;

/* Everything wrong with DIR has a code of contract.md and a message with file, expected, found and hint. */
int  peft_open(const char *dir, peft_dir_t **ret_dir, heddle_error_t *error);
const heddle_tensor_t *peft_tensors(const peft_dir_t *d, uint32_t *ret_count);   /* in the file's order;
                                                                                  * borrowed */
bytes_t peft_config(const peft_dir_t *d);
bytes_t peft_metadata(const peft_dir_t *d);      /* JSON text of __metadata__; empty where there was none */
const char *peft_features(const peft_dir_t *d);  /* "dora,rslora" */
const char *peft_base_model(const peft_dir_t *d);
/* `places[i]`: offset in `region` for tensor i of the table.  Padding is not touched: see
 * layout_zero_padding.
 * BAD_ADAPTER when a file changed since peft_open, or is open for writing; INTERNAL when it cannot be
 * read. */
int  peft_read(peft_dir_t *d, void *region, const uint64_t *places, heddle_error_t *error);
void peft_close(peft_dir_t **d);

/* Checks the bytes of an adapter_config.json and the names of the tensors; gives the features and base
 * model. */
int peft_check(bytes_t config, const heddle_tensor_t *tensors, uint32_t count, char ret_features[192],
               char ret_base_model[256], heddle_error_t *error);

/* Writes DIR/adapter_config.json and DIR/adapter_model.safetensors (mode 0600 as upstream) from a verified
 * arena, into an existing empty directory given as a descriptor; syncs both files.  The layout is upstream's
 * (tensors by dtype size descending, then name; header padded to 8 with blanks), so what PEFT saved comes
 * out identical. */
int  peft_write(int dir_fd, const manifest_t *m, const void *region, heddle_error_t *error);

/* The whole of it for tools: open, lay out, digest, in pieces: the tensors are never in memory as a whole. */
int  peft_digest(const char *dir, heddle_adapter_info_t *ret_info, heddle_error_t *error);

#endif

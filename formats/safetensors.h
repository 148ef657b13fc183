/* SPDX-License-Identifier: Apache-2.0 */
/* formats/safetensors.h: the header of a safetensors file <-> a table of tensors.
 *
 *   | u64 bytes of header | header: {"__metadata__":{...},"NAME":{"dtype","shape","data_offsets"},...} +
 *   blanks | data |
 *
 * Reading is stricter than the safetensors library: the header begins with '{', each name is unique, and a
 * tensor has exactly these three members.  As in the library, the tensors cover the data without holes,
 * overlaps or remaining bytes.  Bytes in, bytes out: no file is touched here.  The caller owns a table; any
 * thread. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include "core/bytes.h"
#include "formats/manifest.h"
#include <heddle/types.h>

#define SAFETENSORS_PREFIX_BYTES 8u

typedef struct {
    heddle_tensor_t *tensors; /* in the order of their data; names and dims lie in the arena */
    uint64_t *starts;         /* of each tensor in the data */
    uint32_t count;
    bytes_t metadata; /* text of __metadata__ as it was, in the arena; empty where there was none */
    arena_t arena;
} safetensors_t;

/* header: without the u64; data_bytes: what follows it in the file.  BAD_ADAPTER, LIMIT or NO_MEMORY.
 * On OK the caller calls safetensors_fini. */
int safetensors_parse(bytes_t header, uint64_t data_bytes, safetensors_t *ret_table, heddle_error_t *error);
void safetensors_fini(safetensors_t *t);

/* BAD_ADAPTER unless it is empty or a JSON object of texts. */
int safetensors_check_metadata(bytes_t metadata, heddle_error_t *error);

/* Appends the beginning of a file, u64 included, as upstream writes it: tensors by dtype descending, then
 * name; blanks up to a multiple of 8.  ret_order[i]: row of the manifest whose data come i-th; room for
 * tensor_count entries.
 * LIMIT when readers would refuse a header of this length; NO_MEMORY. */
int safetensors_write(const manifest_t *m, buf_t *out, uint32_t *ret_order, heddle_error_t *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* proto/peft_dir.h: the struct of an opened PEFT directory; only for the files proto/peft_*.c.  Its states,
 * thread and owner are in proto/peft.h. */
#ifndef PROTO_PEFT_DIR_H
#define PROTO_PEFT_DIR_H

#include "proto/input_file.h"
#include "proto/peft.h"
#include "proto/safetensors.h"

#define PEFT_CONFIG "adapter_config.json"
#define PEFT_MODEL "adapter_model.safetensors"
#define PEFT_PICKLE "adapter_model.bin"

/* The bytes that are read and digested at a time: whole leaves, and few enough to stay in the cache between
 * the two. */
#define PEFT_PIECE_BYTES (256u << 10)
#define PEFT_PIECE_LEAVES (PEFT_PIECE_BYTES / LIMIT_PAGE_BYTES)

struct peft_dir {
    int fd;
    input_file_t config_file, model_file;
    buf_t config;
    safetensors_t table;
    layout_t layout;
    uint64_t data_start;   /* of the tensors' bytes in the model file */
    buf_t header;          /* the bytes before them; kept to be compared at the end */
    char features[192], base_model[256];
};

/* Explains why DIR holds no adapter when one of its files is missing: a pickle, which is never read; an
 * adapter one level below; a save that is not finished.  `missing`: PEFT_CONFIG or PEFT_MODEL.  Returns
 * BAD_ADAPTER. */
int peft_explain_missing(int dir_fd, const char *dir, const char *missing, heddle_error_t *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* proto/peft_dir.h: shared by the files of proto/peft_*.c, and by nobody else. */
#ifndef PROTO_PEFT_DIR_H
#define PROTO_PEFT_DIR_H

#include "proto/input_file.h"
#include "proto/peft.h"
#include "proto/safetensors.h"

#define PEFT_CONFIG "adapter_config.json"
#define PEFT_MODEL "adapter_model.safetensors"
#define PEFT_PICKLE "adapter_model.bin"

/* Of a tensor that is read and digested at a time: whole leaves, and small enough to stay in the cache. */
#define PEFT_PIECE_BYTES (256u << 10)
#define PEFT_PIECE_LEAVES (PEFT_PIECE_BYTES / LIMIT_PAGE_BYTES)

struct peft_dir {
    int fd;
    input_file_t config_file, model_file;
    buf_t config;
    safetensors_t table;
    layout_t layout;
    uint64_t data_start;   /* of the tensors' bytes in the model file */
    buf_t header;          /* what is before them; kept to be compared */
    char features[192], base_model[256];
};

/* Says why there is no adapter in DIR, where one file of it was not found: a pickle that is never read, an
 * adapter one level below, a save that is not over.  `missing`: PEFT_CONFIG or PEFT_MODEL.  Returns
 * BAD_ADAPTER. */
int peft_explain_missing(int dir_fd, const char *dir, const char *missing, heddle_error_t *error);

#endif

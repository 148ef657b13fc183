/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/adapter.h: adapters as PEFT directories, full weights as safetensors files.
 *
 * These calls read or write files and block on the disk; any thread.  Files are hostile until decoded
 * within limits: nothing is mapped, nothing is executed, a pickle is never opened. */
#ifndef HEDDLE_ADAPTER_H
#define HEDDLE_ADAPTER_H

#include <heddle/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_adapter_info {
    size_t size;
    char digest[HEDDLE_DIGEST_TEXT];
    char kind[16];        /* "lora", "tensors" */
    char features[192];   /* comma-separated, sorted: alora bdlora bias dora embeddings
                           * init_base layer_replication modules_to_save qalora rank_pattern
                           * rslora target_parameters */
    char base_model[256]; /* base_model_name_or_path, "" where null */
    uint64_t data_bytes;
    uint32_t tensor_count, chunk_count, chunk_bytes;
} heddle_adapter_info_t;

/* Reads DIR as publish would, digests it, and tells what it found; what publish would warn of is logged.
 * Nothing is written, and the tensors are never in memory as a whole.  Set ret_info->size before the call
 * (sizeof; 0 means the same); on failure nothing else changes.
 * Errors: NOT_FOUND (no such directory), DENIED never, INTERNAL or NO_MEMORY (cannot be read, too large:
 * exit 9), and the group of exit 8 for anything wrong inside; heddle_last_error() has the file, what was
 * expected and found. */
HEDDLE_API int heddle_adapter_check(const char *dir, heddle_adapter_info_t *ret_info);
/* The same of safetensors files (a list that ends with NULL), as heddle_publisher_publish_files would read
 * them.  A directory that has model.safetensors, and no file of PEFT's, is the same as that file. */
HEDDLE_API int heddle_adapter_check_files(const char *const *files, heddle_adapter_info_t *ret_info);

#ifdef __cplusplus
}
#endif
#endif

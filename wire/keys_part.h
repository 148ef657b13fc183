/* SPDX-License-Identifier: Apache-2.0 */
/* wire/keys_part.h: reads and writes key files, for the ring (keyring.c) and its known brokers
 * (known_brokers.c). Inside wire/; any thread; blocks on the file system. */
#ifndef WIRE_KEYS_PART_H
#define WIRE_KEYS_PART_H

#include "wire/keys.h"

#include <sys/stat.h>

enum { KEY_FILE_BYTES = 4096 };

/* Fills the error of a file that cannot be used; `number`: an errno, or 0.  NOT_FOUND, DATA_DIR. */
int key_file_refuse(const char *path, const char *what, int number, heddle_error_t *error);
int key_file_text(const char *path, char ret_text[KEY_FILE_BYTES], struct stat *ret_stat,
                  heddle_error_t *error);
/* `endpoint`: KEY_FILE_BYTES, or NULL; left as it is where the file names none. */
int key_file_read(const char *path, key_pair_t *ret_pair, char *endpoint, heddle_error_t *error);
/* Writes the whole file or nothing; `replace`: an existing file is replaced, else EEXIST.  0 or an errno. */
int key_file_put(const char *path, const char *text, bool replace);
/* Fills the error of a write that failed.  NO_SPACE, DATA_DIR. */
int key_file_fail(const char *path, const char *what, int number, heddle_error_t *error);
/* *ret_number: the errno of a failure. */
int key_file_write(const char *path, const key_pair_t *pair, int *ret_number, heddle_error_t *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* core/names.h: names, references, digests and tags as text. Without state; any thread; nothing blocks. The
 * host name comes from the system. */
#ifndef CORE_NAMES_H
#define CORE_NAMES_H

#include <heddle/types.h>
#include <stdbool.h>

/* [A-Za-z0-9][A-Za-z0-9._-]{0,127} */
bool name_is_valid(const char *name);
/* BAD_NAME with what is wrong with it; `what`: "adapter", "worker", "writer", "label key". */
int name_check(const char *what, const char *name, heddle_error_t *error);
/* "k=v", both names. */
int label_check(const char *label, heddle_error_t *error);
/* A worker's place in a group: BAD_NAME, USAGE.  NULL or "" with 0, 0: it has none. */
int group_check(const char *group, uint64_t rank, uint64_t ranks, heddle_error_t *error);

/* What a tag has of the digest: its first hex digits. */
#define DIGEST_HEAD 12u

/* NAME, NAME@V (V >= 1), or a tag, NAME@V:HEAD.  version 0 and head "" where they are left out. */
typedef struct {
    char name[HEDDLE_NAME_MAX + 1];
    uint64_t version;
    char head[DIGEST_HEAD + 1];
} ref_t;
int ref_parse(const char *text, ref_t *ret_ref, heddle_error_t *error);

typedef struct {
    uint8_t b[32];
} digest_t;
void digest_text(const digest_t *d, char ret_text[HEDDLE_DIGEST_TEXT]);
bool digest_parse(const char *text, digest_t *ret_digest);
bool digest_equal(const digest_t *a, const digest_t *b);
void digest_head(const digest_t *d, char ret_head[DIGEST_HEAD + 1]);
void tag_text(const char *adapter, uint64_t version, const digest_t *d, char ret_text[HEDDLE_TAG_TEXT]);

/* <host>-<pid>, made to fit the rules for names. */
void name_default(char ret_name[HEDDLE_NAME_MAX + 1]);
/* Host name made to fit the rules for names. */
void name_host(char ret_name[HEDDLE_NAME_MAX + 1]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* cli/holders.h: what the workers have, beside the digest of somebody's files and the registry's.  Pure. */
#ifndef CLI_HOLDERS_H
#define CLI_HOLDERS_H

#include <heddle/error.h>
#include <jansson.h>

typedef struct {
    size_t listed_count, told_count, as_dir_count; /* told: with a digest; the others were silent */
    const char *other; /* the last one with neither's bytes, borrowed from the answer; NULL */
} holders_t;

/* Of the answer of a verify; NULL: nobody was asked. */
holders_t holders_of(const json_t *answer, const char *dir_digest, const char *registry_digest);
/* What to do about files that are not the version that they were compared with.  `version`: the one that
 * they are; 0: none. */
void holders_hint(const holders_t *h, const char *adapter, long long version, heddle_error_t *error);

#endif

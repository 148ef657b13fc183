/* SPDX-License-Identifier: Apache-2.0 */
/* cli/agreement.h: compares the digests that workers report with those of a directory and of the registry.
 * PURE: the answer is borrowed; any thread. */
#ifndef CLI_AGREEMENT_H
#define CLI_AGREEMENT_H

#include <heddle/error.h>
#include <jansson.h>

typedef struct {
    size_t listed_count, reported_count, as_dir_count; /* reported: a digest; the others did not answer */
    const char *other; /* the last worker with neither digest, borrowed from the answer; NULL: none */
} agreement_t;

/* Counts the workers in the answer of a verify; NULL: no worker was queried. */
agreement_t agreement_of(const json_t *answer, const char *dir_digest, const char *registry_digest);
/* Advice for files that are not the version that they were compared with.  `version`: the one that they are;
 * 0: none. */
void agreement_hint(const agreement_t *h, const char *adapter, long long version, heddle_error_t *error);

#endif

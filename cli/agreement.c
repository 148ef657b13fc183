/* SPDX-License-Identifier: Apache-2.0 */
/* Counting, and the advice that follows from the counts.
 *
 * Three parties have a digest: the files in DIR, the registry, and each worker. The advice names the one that
 * differs from all others. A worker with the bytes of neither is named first: it serves something that no
 * trainer has published. */
#include "cli/agreement.h"

#include "core/errors.h"

#include <stdbool.h>
#include <string.h>

agreement_t agreement_of(const json_t *answer, const char *dir_digest, const char *registry_digest)
{
    const json_t *list = json_object_get(answer, "workers");
    agreement_t h = {.listed_count = json_array_size(list)};
    for (size_t i = 0; i < h.listed_count; i++) {
        const json_t *w = json_array_get(list, i);
        const char *digest = json_string_value(json_object_get(w, "digest"));
        if (!digest) continue; /* a worker that did not answer proves nothing in either direction */
        bool is_as_dir = !strcmp(digest, dir_digest);
        h.reported_count++;
        h.as_dir_count += is_as_dir;
        if (!h.other && !is_as_dir && strcmp(digest, registry_digest) != 0)
            h.other = json_string_value(json_object_get(w, "worker"));
    }
    return h;
}

void agreement_hint(const agreement_t *h, const char *adapter, long long version, heddle_error_t *error)
{
    if (h->other)
        error_hint(error, "%.128s: end that worker; it fetches the version again when it is back", h->other);
    else if (version)
        error_hint(error, "`heddle verify %.128s@%lld --dir DIR` asks for the right one: it is %s@%lld",
                   adapter, version, adapter, version);
    else if (h->reported_count && h->as_dir_count == h->reported_count) {
        /* The list may have been cut, so this counts only the workers in it. */
        size_t silent_count = h->listed_count - h->reported_count;
        if (silent_count)
            error_hint(error,
                       "it is what every worker that answered has (%zu of %zu): ask again when the others "
                       "answer, before the registry is taken for what differs",
                       h->reported_count, h->listed_count);
        else
            error_hint(error,
                       "it is what every worker has that is listed (%zu): the registry is what differs",
                       h->listed_count);
    } else error_hint(error, "it is not a version of %s", adapter);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/verify_fetched.h"

#include "core/errors.h"

int verify_fetched_manifest(const announced_part_t *part, const void *view, manifest_t *ret_manifest,
                            heddle_error_t *error)
{
    int rc = manifest_read(announced_manifest(part, view), &part->manifest_digest, ret_manifest, error);
    if (rc) return rc;
    bool is_as_large = ret_manifest->payload_bytes == part->payload_bytes,
         is_of_kind = !part->kind[0] || !strcmp(ret_manifest->kind, part->kind);
    if (is_as_large && is_of_kind) return HEDDLE_OK;
    rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest has another %s than the announcement",
                    is_as_large ? "kind" : "payload size");
    if (is_as_large) error_contrast(error, part->kind, ret_manifest->kind);
    manifest_fini(ret_manifest);
    return rc;
}

bool verify_fetched_chunks(const manifest_t *m, const digest_job_t *job)
{
    uint64_t at = 0, offset;
    for (uint32_t bytes; at < job->bytes; at += bytes) {
        uint32_t chunk = (uint32_t)((job->cookie + at) / m->chunk_bytes);
        bytes = manifest_chunk(m, chunk, &offset);
        chunk_digest_t expected, found = digest_chunk(job->leaves + at / LIMIT_PAGE_BYTES, leaf_count(bytes));
        manifest_chunk_digest(m, chunk, &expected);
        if (memcmp(&found, &expected, sizeof found) != 0) return false;
    }
    return true;
}

/* The digest of the whole is what the broker has announced and what STAGED attests. */
int verify_fetched_whole(const manifest_t *m, const uint64_t *leaves, const digest_t *announced,
                         heddle_error_t *error)
{
    h1_t h;
    manifest_h1_begin(m, &h);
    h1_add_leaves(&h, leaves, leaf_count(m->payload_bytes));
    digest_t found = h1_final(&h);
    if (digest_equal(&found, announced)) return HEDDLE_OK;
    char expected[HEDDLE_DIGEST_TEXT], text[HEDDLE_DIGEST_TEXT];
    digest_text(announced, expected);
    digest_text(&found, text);
    int rc = error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH,
                        "the digest of the whole differs from what was announced");
    error_contrast(error, expected, text);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* http/asset.h (PURE): the files of the page that the broker shows in a browser.  The program carries them
 * (http/page/).  They are the same for every reader, and have nothing of the cluster.  Any thread. */
#ifndef HTTP_ASSET_H
#define HTTP_ASSET_H

#include <stddef.h>

typedef struct {
    const char *path, *type, *text;
    size_t bytes; /* of the text */
} asset_t;

/* What a browser may do with them: ask this address for more, and nothing else.  No script or style within
 * the page, no eval, no other host, no form, and no frame around it. */
#define ASSET_POLICY                                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "          \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "      \
    "trusted-types 'none'"

/* `path`: of `bytes` characters.  NULL: there is none. */
const asset_t *asset_find(const char *path, size_t bytes);

#endif

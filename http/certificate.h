/* SPDX-License-Identifier: Apache-2.0 */
/* http/certificate.h: with what an address of HTTP proves what it is: a certificate with its chain, and the
 * key to it, as two files in PEM.  The caller owns a certificate_t.  Any thread; reads files. */
#ifndef HTTP_CERTIFICATE_H
#define HTTP_CERTIFICATE_H

#include <heddle/error.h>
#include <stdint.h>

#define CERTIFICATE_MAX 65536u /* bytes of a file */

typedef struct {
    char *chain, *key; /* PEM, NUL-terminated; NULL: none */
    uint64_t end_ms;   /* when the first one of the chain ends to be valid, since 1970 */
} certificate_t;

/* DATA_DIR: a file cannot be read, others may read the key, they are not what they should be, do not belong
 * together, or the chain is not valid at `now_ms` · NO_MEMORY. */
int certificate_read(const char *chain_file, const char *key_file, uint64_t now_ms, certificate_t *ret,
                     heddle_error_t *error);
void certificate_fini(certificate_t *c); /* wipes the key */

#endif

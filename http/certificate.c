/* SPDX-License-Identifier: Apache-2.0 */
#include "http/certificate.h"

#include "core/clock.h"
#include "core/errors.h"
#include "http/secret.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a certificate");
}

static int take_file(const char *path, const char *what, bool is_secret, char **ret_text,
                     heddle_error_t *error)
{
    size_t bytes = 0;
    char *text = calloc(1, CERTIFICATE_MAX + 1);
    if (!text) return no_memory(error);
    *ret_text = text;
    int rc = secret_read(path, what, is_secret, text, CERTIFICATE_MAX, &bytes, error);
    if (rc || bytes < CERTIFICATE_MAX) return rc;
    return error_fail(error, HEDDLE_ERR_DATA_DIR, "%s: %.300s is too large", what, path);
}

/* A chain is valid as long as each of its certificates is. */
static int check_times(const char *path, const gnutls_x509_crt_t *chain, unsigned count, uint64_t now_ms,
                       uint64_t *ret_end_ms, heddle_error_t *error)
{
    char from[25], to[25], now[25];
    uint64_t begin_ms = 0, end_ms = UINT64_MAX;
    for (unsigned i = 0; i < count; i++) {
        uint64_t begins_ms = (uint64_t)gnutls_x509_crt_get_activation_time(chain[i]) * 1000;
        uint64_t ends_ms = (uint64_t)gnutls_x509_crt_get_expiration_time(chain[i]) * 1000;
        if (begins_ms > begin_ms) begin_ms = begins_ms;
        if (ends_ms < end_ms) end_ms = ends_ms;
    }
    *ret_end_ms = end_ms;
    if (now_ms >= begin_ms && now_ms < end_ms) return HEDDLE_OK;
    clock_text(begin_ms, from);
    clock_text(end_ms, to);
    clock_text(now_ms, now);
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the certificate in %.300s %s", path,
                        now_ms < begin_ms ? "is not valid yet" : "has expired");
    error_expected(error, "a time from %s to %s", from, to);
    error_found(error, "%s, by the clock of this host", now);
    error_hint(error, now_ms < begin_ms ? "set the clock of this host" : "put a new one in its place");
    return rc;
}

static int check_chain(const char *path, const char *text, uint64_t now_ms, uint64_t *ret_end_ms,
                       heddle_error_t *error)
{
    gnutls_x509_crt_t *chain = NULL;
    unsigned count = 0;
    gnutls_datum_t pem = {(unsigned char *)text, (unsigned)strlen(text)};
    int rc, why = gnutls_x509_crt_list_import2(&chain, &count, &pem, GNUTLS_X509_FMT_PEM, 0);
    if (why < 0 || !count) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has no certificate: %s", path,
                        gnutls_strerror(why));
        error_expected(error, "PEM: the certificate of this address, then its chain");
        return rc;
    }
    rc = check_times(path, chain, count, now_ms, ret_end_ms, error);
    for (unsigned i = 0; i < count; i++) gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    return rc;
}

static int check_key(const char *chain_file, const char *key_file, const certificate_t *c,
                     heddle_error_t *error)
{
    gnutls_certificate_credentials_t both;
    gnutls_datum_t chain = {(unsigned char *)c->chain, (unsigned)strlen(c->chain)},
                   key = {(unsigned char *)c->key, (unsigned)strlen(c->key)};
    if (gnutls_certificate_allocate_credentials(&both) < 0) return no_memory(error);
    int why = gnutls_certificate_set_x509_key_mem2(both, &chain, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_certificate_free_credentials(both);
    if (why >= 0) return HEDDLE_OK;
    if (why == GNUTLS_E_MEMORY_ERROR) return no_memory(error);
    if (why == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return error_fail(error, HEDDLE_ERR_DATA_DIR,
                          "the key in %.300s is not that of the certificate in %.300s", key_file, chain_file);
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has no key that can be used: %s", key_file,
                        gnutls_strerror(why));
    error_expected(error, "PEM: a private key without a password");
    return rc;
}

int certificate_read(const char *chain_file, const char *key_file, uint64_t now_ms, certificate_t *ret,
                     heddle_error_t *error)
{
    certificate_t c = {0};
    int rc = take_file(chain_file, "the certificate", false, &c.chain, error);
    if (!rc) rc = take_file(key_file, "the key", true, &c.key, error);
    if (!rc) rc = check_chain(chain_file, c.chain, now_ms, &c.end_ms, error);
    if (!rc) rc = check_key(chain_file, key_file, &c, error);
    if (rc) certificate_fini(&c);
    else *ret = c;
    return rc;
}

void certificate_fini(certificate_t *c)
{
    if (c->key) explicit_bzero(c->key, CERTIFICATE_MAX);
    free(c->key);
    free(c->chain);
    *c = (certificate_t){0};
}

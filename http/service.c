/* SPDX-License-Identifier: Apache-2.0 */
#include "http/service.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/log.h"
#include "http/certificate.h"
#include "http/listener.h"
#include "http/token.h"

#include <stdlib.h>
#include <string.h>

#define SOON_MS (14ull * 24 * 3600 * 1000) /* a certificate that ends before is worth a line of log */

struct service {
    server_t *server;
    char url[96];
};

/* ---- the options ---- */

static int check_without(const service_opts_t *opts, heddle_error_t *error)
{
    const char *option = opts->token_file  ? "--http-token"
                         : opts->cert_file ? "--http-cert"
                         : opts->key_file  ? "--http-key"
                                           : NULL;
    if (!option) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s is for --http, which is not given", option);
    error_hint(error, "say where with --http [HOST:]PORT");
    return rc;
}

/* Each client that reaches the address reads what the program knows, so that others than this host's users
 * need the token. */
static int check(const service_opts_t *opts, listener_address_t *ret_address, heddle_error_t *error)
{
    int rc;
    if (!opts->cert_file != !opts->key_file) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--http-cert and --http-key go together");
        error_contrast(error, "both, or neither", opts->cert_file ? "--http-cert alone" : "--http-key alone");
        return rc;
    }
    rc = listener_parse(opts->listen, ret_address, error);
    if (rc || ret_address->is_loopback || opts->token_file) return rc;
    rc = error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
                    "HTTP on %.100s can be reached from other hosts, and asks for no token", opts->listen);
    error_contrast(error, "a loopback address, or --http-token FILE", opts->listen);
    error_hint(error, "make a token: (umask 077; openssl rand -hex 32 >FILE), and name it with --http-token");
    return rc;
}

int service_check(const service_opts_t *opts, heddle_error_t *error)
{
    listener_address_t address;
    return opts->listen ? check(opts, &address, error) : check_without(opts, error);
}

/* ---- open and close ---- */

int service_open(const service_opts_t *opts, service_t **ret_service, heddle_error_t *error)
{
    listener_address_t address;
    char token[TOKEN_MAX + 1] = "";
    certificate_t certificate = {0};
    server_opts_t with = {.program = opts->program, .has_api = opts->has_api};
    service_t *s = calloc(1, sizeof *s);
    if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to serve HTTP");
    int rc = check(opts, &address, error);
    if (!rc && opts->token_file) rc = token_read(opts->token_file, token, error);
    if (!rc && opts->cert_file)
        rc = certificate_read(opts->cert_file, opts->key_file, clock_wall(clock_system()), &certificate,
                              error);
    with.token = token[0] ? token : NULL;
    with.certificate = certificate.chain ? &certificate : NULL;
    with.is_remote = !address.is_loopback;
    if (!rc) rc = listener_open(&address, with.certificate != NULL, &with.listen_fd, s->url, error);
    if (!rc) rc = server_open(&with, &s->server, error);
    if (!rc) {
        char end[25];
        uint64_t now_ms = clock_wall(clock_system());
        clock_text(certificate.end_ms, end);
        if (certificate.chain && certificate.end_ms - now_ms < SOON_MS)
            log_emit(LOG_WARN, "http.certificate", "the certificate of %s ends at %s", s->url, end);
        if (!certificate.chain && !address.is_loopback)
            log_emit(
                LOG_WARN, "http.plain",
                "%s is reached from other hosts without encryption: token and answers can be read on the "
                "network; start with --http-cert and --http-key",
                s->url);
    }
    explicit_bzero(token, sizeof token);
    certificate_fini(&certificate);
    if (rc) service_close(&s);
    else *ret_service = s;
    return rc;
}

mailbox_t *service_mailbox(service_t *s) { return server_mailbox(s->server); }
const char *service_url(const service_t *s) { return s ? s->url : NULL; }

void service_close(service_t **service)
{
    service_t *s = service ? *service : NULL;
    if (!s) return;
    *service = NULL;
    server_close(&s->server);
    free(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* http/service.h: HTTP as the options of a program ask for it: address, token, certificate.  What its loop
 * answers is in the mailbox.  The caller owns a service.  Opened and closed by one thread; service_close
 * waits for the server's. */
#ifndef HTTP_SERVICE_H
#define HTTP_SERVICE_H

#include "core/option.h"
#include "http/server.h"

typedef struct service service_t;

typedef struct {
    const char *program;                           /* "broker", for texts; borrowed for ever */
    const char *listen;                            /* --http [HOST:]PORT; NULL: no HTTP */
    const char *token_file, *cert_file, *key_file; /* --http-token, --http-cert, --http-key; NULL: none */
    bool has_api;                                  /* it answers /api/v1, and has the page */
} service_opts_t;

/* The rows of these options in a program's table (core/option.h): `at` is where its struct has the
 * service_opts_t, and `doc` says what this program answers. */
#define SERVICE_OPTIONS(at, doc)                                                                             \
    SERVICE_ROW("http", "[HOST:]PORT", doc, (at) + offsetof(service_opts_t, listen)),                        \
        SERVICE_ROW("http-token", "FILE",                                                                    \
                    "a secret that HTTP asks for (Authorization: Bearer), in a file for its owner alone",    \
                    (at) + offsetof(service_opts_t, token_file)),                                            \
        SERVICE_ROW("http-cert", "FILE",                                                                     \
                    "answer over HTTPS, with this certificate and its chain (PEM); with --http-key",         \
                    (at) + offsetof(service_opts_t, cert_file)),                                             \
        SERVICE_ROW("http-key", "FILE", "the private key of that certificate, for its owner alone",          \
                    (at) + offsetof(service_opts_t, key_file))
#define SERVICE_ROW(name, value, doc, offset)                                                                \
    {                                                                                                        \
        name, 0, OPTION_TEXT, value, NULL, NULL, doc, offset                                                 \
    }

/* Checks what can be checked before a file is made or read: USAGE · INSECURE_ADDRESS: other hosts reach the
 * address, and no token is asked for. */
int service_check(const service_opts_t *opts, heddle_error_t *error);
/* From here on clients connect.  What service_check says · DATA_DIR: a file · ADDRESS_IN_USE, INTERNAL,
 * NO_MEMORY. */
int service_open(const service_opts_t *opts, service_t **ret_service, heddle_error_t *error);
mailbox_t *service_mailbox(service_t *s);    /* of the loop: its questions; borrowed */
const char *service_url(const service_t *s); /* "http://127.0.0.1:9700"; NULL for NULL */
/* After the loop has stopped looking at the mailbox.  Accepts NULL and pointers to NULL. */
void service_close(service_t **service);

#endif

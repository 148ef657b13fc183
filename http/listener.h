/* SPDX-License-Identifier: Apache-2.0 */
/* http/listener.h: where HTTP is served: an address as it is written on a command line, and a socket that
 * listens there.  The caller owns the socket.  Any thread; nothing blocks, because no name is resolved. */
#ifndef HTTP_LISTENER_H
#define HTTP_LISTENER_H

#include <heddle/error.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char host[64]; /* an IP address, or "*": all IPv4 addresses of this host */
    uint16_t port; /* 0: any free one */
    bool is_loopback;
} listener_address_t;

/* "9700", "127.0.0.1:9700", "[::1]:9700", "*:9700"; port "*": any free one.  No host: 127.0.0.1.  USAGE. */
int listener_parse(const char *text, listener_address_t *ret_address, heddle_error_t *error);
/* ADDRESS_IN_USE · INTERNAL: not an address of this host, or not allowed · NO_MEMORY: no descriptor.
 * `ret_url`: "http://127.0.0.1:9700", with the port that was bound; `is_tls`: https. */
int listener_open(const listener_address_t *address, bool is_tls, int *ret_fd, char ret_url[96],
                  heddle_error_t *error);

#endif

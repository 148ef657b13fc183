/* SPDX-License-Identifier: Apache-2.0 */
#include "core/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* The manager's address: a path, or a name in the abstract namespace, where '@' stands for the leading NUL.
 * Returns its length; 0: there is none. */
static socklen_t manager(struct sockaddr_un *ret)
{
    const char *name = getenv("NOTIFY_SOCKET");
    size_t n = name ? strlen(name) : 0;
    if (n < 2 || n >= sizeof ret->sun_path || (*name != '/' && *name != '@')) return 0;
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, name, n);
    if (*name == '@') ret->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static bool tell(const char *text)
{
    static const struct timeval PATIENCE = {.tv_sec = 1}; /* a manager that hangs must not block us */
    struct sockaddr_un to;
    socklen_t bytes = manager(&to);
    int fd = bytes ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &PATIENCE, sizeof PATIENCE);
    size_t n = strlen(text);
    bool taken = sendto(fd, text, n, MSG_NOSIGNAL, (const struct sockaddr *)&to, bytes) == (ssize_t)n;
    close(fd);
    return taken;
}

/* The datagram has lines of KEY=value, so a line feed in the text would begin another key. */
static bool send_status(const char *before, const char *status)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%sSTATUS=%s", before, status);
    if (n < 0) return false;
    for (char *c = text + strlen(before); *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
    return tell(text);
}

bool notify_ready(const char *status) { return send_status("READY=1\n", status); }
bool notify_status(const char *status) { return send_status("", status); }
bool notify_stopping(void) { return tell("STOPPING=1"); }

/* SPDX-License-Identifier: Apache-2.0 */
/* core/notify.h: tells a service manager how far this process is: one datagram to the socket that
 * $NOTIFY_SOCKET names (systemd's sd_notify protocol; Type=notify in a unit).
 *
 * Each call returns whether the manager took it: false when nobody asked (no $NOTIFY_SOCKET), or when it did
 * not take it within a second.  A daemon has nothing else to do then, so the result may be ignored.  Any
 * thread. */
#ifndef CORE_NOTIFY_H
#define CORE_NOTIFY_H

#include <stdbool.h>

/* Serving.  `status`: one line for people (`systemctl status`). */
bool notify_ready(const char *status);
/* Still starting, or still serving: what it does now. */
bool notify_status(const char *status);
/* Asked to end, and ending. */
bool notify_stopping(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* core/notify.h: reports the state of this process to a service manager, as one datagram to the socket that
 * $NOTIFY_SOCKET names (systemd's sd_notify protocol; Type=notify in a unit).
 *
 * starting -> notify_ready -> (notify_status, any number) -> notify_stopping
 *
 * Each call returns whether the datagram was accepted. False: there is no $NOTIFY_SOCKET, or the manager
 * did not accept it within a second. A daemon goes on in either case, so the result may be ignored. Any
 * thread. */
#ifndef CORE_NOTIFY_H
#define CORE_NOTIFY_H

#include <stdbool.h>

/* The process serves.  `status`: one line for people (`systemctl status`). */
bool notify_ready(const char *status);
/* The state stays; only the line for people changes. */
bool notify_status(const char *status);
/* The process is ending. */
bool notify_stopping(void);

#endif

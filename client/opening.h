/* SPDX-License-Identifier: Apache-2.0 */
/* client/opening.h: a lock: one handle of the process at a time is opened.  UCX finds its settings in the
 * environment meanwhile (transfer/load.c), and setenv frees the text that getenv has returned.  So
 * keys, addresses, the plugin and CZMQ's own settings are read between begin and end.
 * Any thread; the second one blocks until the first has ended. */
#ifndef CLIENT_OPENING_H
#define CLIENT_OPENING_H

void opening_begin(void);
void opening_end(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* client/opening.h: one handle of the process at a time is opened.  UCX finds its settings in the
 * environment meanwhile (transfer/environment.h), and setenv frees what getenv looks at: keys,
 * addresses, the plugin and CZMQ's own settings are looked for between begin and end.
 * Any thread; the second one waits for the first, which waits for nobody. */
#ifndef CLIENT_OPENING_H
#define CLIENT_OPENING_H

void opening_begin(void);
void opening_end(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* broker/forget.h: an operator forgets an adapter: the question `forget`.  Its versions and decisions go, on
 * disk and in memory, and no list shows it any more.  Its greatest numbers stay, as a FLOOR: a later
 * publication goes on above them, and a worker that was lost may return with what it had.
 *
 * Refused while a writer has the adapter open, or a worker subscribes to it.  Loop thread. */
#ifndef BROKER_FORGET_H
#define BROKER_FORGET_H

#include "broker/call.h"

void on_forget(const call_t *c);
/* Before an ADAPTER_FORGET record is applied: what refers to the adapter's rows goes. */
void forget_adapter(broker_t *b, const record_t *rec, instant_t now);

#endif

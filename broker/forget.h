/* SPDX-License-Identifier: Apache-2.0 */
/* broker/forget.h: an operator forgets an adapter: the question `forget`.  The adapter's rows go, in the
 * registry and in memory, and its name is free again.  Version numbers then begin at 1.
 *
 * Refused while a process may still name its versions: a writer, or a worker that subscribes to it, also one
 * that was lost within MEMBER_LISTED_US and may return.  Loop thread. */
#ifndef BROKER_FORGET_H
#define BROKER_FORGET_H

#include "broker/call.h"

void on_forget(const call_t *c);
/* Before an ADAPTER_FORGET record is applied: what refers to the adapter's rows goes. */
void broker_end_adapter(broker_t *b, const record_t *rec, instant_t now);

#endif

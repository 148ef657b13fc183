/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_metrics.h: what the broker counts, for /metrics: totals of it, never a series of a worker or of
 * an adapter (`/api/v1` has those).  Loop thread; nothing blocks. */
#ifndef BROKER_MAIN_METRICS_H
#define BROKER_MAIN_METRICS_H

#include "broker/broker.h"
#include "broker/main_store.h"
#include "broker/standby.h"
#include "http/metrics.h"

/* `commits`: how long the store took for each transaction. */
void main_metrics_gather(const broker_t *b, const main_store_t *store, const histogram_t *commits,
                         instant_t now, samples_t *to);
void main_metrics_of_standby(const standby_t *s, samples_t *to);

#endif

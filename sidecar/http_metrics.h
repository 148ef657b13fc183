/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/http_metrics.h (PURE): what one worker counts, for /metrics, and whether it is ready, from the
 * report of heddle_worker_stats.  Unlike the broker's totals, these have a series for each of its adapters.
 * The caller owns everything.  One thread at a time; nothing blocks. */
#ifndef SIDECAR_HTTP_METRICS_H
#define SIDECAR_HTTP_METRICS_H

#include "http/metrics.h"

#include <heddle/error.h>
#include <jansson.h>

/* Ready: the broker counts it, and it serves a version of each adapter that is at most `lag` behind the
 * latest decision.  `stats` NULL: the worker is not opened yet.  OK · UNAVAILABLE. */
int http_metrics_ready(const json_t *stats, uint64_t lag, heddle_error_t *error);
/* `adapters`: names, in the order of the report, which outlive the samples. */
void http_metrics_gather(const json_t *stats, const char *const *adapters, uint64_t started_ms, bool is_ready,
                         samples_t *to);

#endif

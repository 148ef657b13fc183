/* SPDX-License-Identifier: Apache-2.0 */
/* http/metrics.h (PURE): metrics as data, and their text for Prometheus.
 *
 *   metric_t     what is counted: a row of a table that stands beside the counters
 *   samples_t    their values at one moment, one metric after the other; made where the counters are
 *   text         Prometheus' format 0.0.4, or OpenMetrics 1.0
 *
 * A metric has one label at most, whose values are words of the program, or of a worker the names of its
 * adapters: how many series there are does not depend on what is connected.  The caller owns samples; one
 * thread at a time; nothing blocks. */
#ifndef HTTP_METRICS_H
#define HTTP_METRICS_H

#include "core/bytes.h"
#include "core/histogram.h"

typedef enum { METRIC_GAUGE, METRIC_COUNTER, METRIC_HISTOGRAM, METRIC_INFO } metric_type_t;

typedef struct {
    const char *name; /* without _total, _info, _bucket; ends with its unit, if it has one */
    const char *unit; /* "seconds", "bytes"; "" */
    metric_type_t type;
    const char *label; /* NULL: none; a histogram has `le` besides */
    const char *help;  /* a sentence without its end */
} metric_t;

typedef struct {
    const metric_t *metric;
    const char *suffix; /* of a histogram: which of its series */
    const char *value;  /* of the label; NULL: none; borrowed for ever */
    const char *bound;  /* of a bucket: its `le`; NULL */
    double number;
} sample_t;

#define METRICS_SAMPLES 1024u /* a worker has up to 256 adapters */
typedef struct {
    sample_t rows[METRICS_SAMPLES];
    size_t count;
} samples_t;

/* All of one metric come one after the other; what is beyond METRICS_SAMPLES is left out. */
void samples_add(samples_t *s, const metric_t *metric, const char *value, double number);
void samples_add_histogram(samples_t *s, const metric_t *metric, const char *value, const histogram_t *h);
/* Appends the text. */
void metrics_text(const samples_t *s, bool is_openmetrics, buf_t *out);
const char *metrics_content_type(bool is_openmetrics);

#endif

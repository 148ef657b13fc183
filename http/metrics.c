/* SPDX-License-Identifier: Apache-2.0 */
#include "http/metrics.h"

/* ---- values ---- */

static void add(samples_t *s, sample_t sample)
{
    if (s->count < METRICS_SAMPLES) s->rows[s->count++] = sample;
}

void samples_add(samples_t *s, const metric_t *metric, const char *value, double number)
{
    const char *suffix = metric->type == METRIC_COUNTER ? "_total"
                         : metric->type == METRIC_INFO  ? "_info"
                                                        : "";
    add(s, (sample_t){metric, suffix, value, NULL, number});
}

/* Each bucket counts those of all smaller ones, too. */
void samples_add_histogram(samples_t *s, const metric_t *metric, const char *value, const histogram_t *h)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        count += h->counts[i];
        add(s, (sample_t){metric, "_bucket", value, histogram_bound(i), (double)count});
    }
    add(s, (sample_t){metric, "_sum", value, NULL, h->sum});
    add(s, (sample_t){metric, "_count", value, NULL, (double)count});
}

/* ---- text ---- */

/* A backslash, a quote and the end of a line would end the value. */
static void add_escaped(buf_t *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n') buf_add_text(out, "\\n");
        else {
            if (*text == '"' || *text == '\\') buf_add_text(out, "\\");
            buf_add(out, text, 1);
        }
    }
}

/* NAME="VALUE"; nothing without a value.  `before`: what stands before it. */
static void add_label(buf_t *out, const char *before, const char *name, const char *value)
{
    if (!value) return;
    buf_printf(out, "%s%s=\"", before, name);
    add_escaped(out, value);
    buf_add_text(out, "\"");
}

static void add_labels(buf_t *out, const sample_t *row)
{
    if (!row->value && !row->bound) return;
    add_label(out, "{", row->metric->label, row->value);
    add_label(out, row->value ? "," : "{", "le", row->bound);
    buf_add_text(out, "}");
}

/* In OpenMetrics a family has its name alone; in the older format that of its samples, and no infos. */
static void add_family(buf_t *out, const sample_t *first, bool is_openmetrics)
{
    static const char *const TYPES[] = {[METRIC_GAUGE] = "gauge",
                                        [METRIC_COUNTER] = "counter",
                                        [METRIC_HISTOGRAM] = "histogram",
                                        [METRIC_INFO] = "info"};
    const metric_t *m = first->metric;
    const char *end = is_openmetrics || m->type == METRIC_HISTOGRAM ? "" : first->suffix;
    const char *type = !is_openmetrics && m->type == METRIC_INFO ? "gauge" : TYPES[m->type];
    buf_printf(out, "# HELP %s%s %s.\n# TYPE %s%s %s\n", m->name, end, m->help, m->name, end, type);
    if (is_openmetrics && m->unit[0]) buf_printf(out, "# UNIT %s %s\n", m->name, m->unit);
}

void metrics_text(const samples_t *s, bool is_openmetrics, buf_t *out)
{
    for (size_t i = 0; i < s->count; i++) {
        const sample_t *row = &s->rows[i];
        const metric_t *m = row->metric;
        if (!i || s->rows[i - 1].metric != m) add_family(out, row, is_openmetrics);
        buf_printf(out, "%s%s", m->name, row->suffix);
        add_labels(out, row);
        buf_add_text(out, " ");
        /* Counts are whole numbers and are written as such, as far as a double has them. */
        static const double EXACT = 9007199254740992.0;
        bool is_whole =
            row->number > -EXACT && row->number < EXACT && row->number == (double)(int64_t)row->number;
        if (is_whole) buf_printf(out, "%lld\n", (long long)row->number);
        else buf_printf(out, "%.15g\n", row->number);
    }
    if (is_openmetrics) buf_add_text(out, "# EOF\n");
}

const char *metrics_content_type(bool is_openmetrics)
{
    return is_openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                          : "text/plain; version=0.0.4; charset=utf-8";
}

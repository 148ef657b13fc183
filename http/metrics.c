/* SPDX-License-Identifier: Apache-2.0 */
#include "http/metrics.h"

/* ---- values ---- */

static const struct {
    double seconds;
    const char *text;
} BOUNDS[HISTOGRAM_BOUNDS] = {{0.001, "0.001"}, {0.0025, "0.0025"}, {0.005, "0.005"}, {0.01, "0.01"},
                              {0.025, "0.025"}, {0.05, "0.05"},     {0.1, "0.1"},     {0.25, "0.25"},
                              {0.5, "0.5"},     {1, "1.0"},         {2.5, "2.5"},     {10, "10.0"}};

void histogram_note(histogram_t *h, double seconds)
{
    size_t i = 0;
    while (i < HISTOGRAM_BOUNDS && seconds > BOUNDS[i].seconds) i++;
    h->counts[i]++;
    h->sum += seconds;
}

static void add(samples_t *s, sample_t sample)
{
    if (s->count < METRICS_SAMPLES) s->rows[s->count++] = sample;
}

void samples_add(samples_t *s, const metric_t *metric, const char *value, double number)
{
    const char *suffix = metric->type == METRIC_COUNTER ? "_total"
                         : metric->type == METRIC_INFO  ? "_info"
                                                        : "";
    add(s, (sample_t){metric, suffix, value, number});
}

/* Each bucket counts those of all smaller ones, too. */
void samples_add_histogram(samples_t *s, const metric_t *metric, const histogram_t *h)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
        count += h->counts[i];
        const char *bound = i < HISTOGRAM_BOUNDS ? BOUNDS[i].text : "+Inf";
        add(s, (sample_t){metric, "_bucket", bound, (double)count});
    }
    add(s, (sample_t){metric, "_sum", NULL, h->sum});
    add(s, (sample_t){metric, "_count", NULL, (double)count});
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

/* Counts are whole numbers and are written as such, as far as a double has them. */
static void add_number(buf_t *out, double number)
{
    static const double EXACT = 9007199254740992.0;
    bool is_whole = number > -EXACT && number < EXACT && number == (double)(int64_t)number;
    if (is_whole) buf_printf(out, "%lld\n", (long long)number);
    else buf_printf(out, "%.15g\n", number);
}

void metrics_text(const samples_t *s, bool is_openmetrics, buf_t *out)
{
    for (size_t i = 0; i < s->count; i++) {
        const sample_t *row = &s->rows[i];
        const metric_t *m = row->metric;
        if (!i || s->rows[i - 1].metric != m) add_family(out, row, is_openmetrics);
        buf_printf(out, "%s%s", m->name, row->suffix);
        if (row->value) {
            buf_printf(out, "{%s=\"", m->type == METRIC_HISTOGRAM ? "le" : m->label);
            add_escaped(out, row->value);
            buf_add_text(out, "\"}");
        }
        buf_add_text(out, " ");
        add_number(out, row->number);
    }
    if (is_openmetrics) buf_add_text(out, "# EOF\n");
}

const char *metrics_content_type(bool is_openmetrics)
{
    return is_openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                          : "text/plain; version=0.0.4; charset=utf-8";
}

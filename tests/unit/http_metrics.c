/* SPDX-License-Identifier: Apache-2.0 */
/* The two texts of metrics, byte for byte. */
#include "http/metrics.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const metric_t INFO = {"x_build", "", METRIC_INFO, "version", "Of which release"},
                      COUNTER = {"x_frames", "", METRIC_COUNTER, "type", "How many came"},
                      GAUGE = {"x_age_seconds", "seconds", METRIC_GAUGE, NULL, "How old it is"},
                      HISTOGRAM = {"x_took_seconds", "seconds", METRIC_HISTOGRAM, "phase",
                                   "How long it took"};

static void fill(samples_t *s)
{
    *s = (samples_t){0};
    samples_add(s, &INFO, "a\\\"b\n", 1);
    samples_add(s, &COUNTER, "HI", 3);
    samples_add(s, &COUNTER, "BYE", 9007199254740991.0);
    samples_add(s, &GAUGE, NULL, 1795774207.125); /* a time since 1970, to the millisecond */
}

Test(metrics, the_text_of_prometheus)
{
    samples_t s;
    buf_t out = {0};
    fill(&s);
    metrics_text(&s, false, &out);
    cr_expect_str_eq(buf_text(&out), "# HELP x_build_info Of which release.\n"
                                     "# TYPE x_build_info gauge\n"
                                     "x_build_info{version=\"a\\\\\\\"b\\n\"} 1\n"
                                     "# HELP x_frames_total How many came.\n"
                                     "# TYPE x_frames_total counter\n"
                                     "x_frames_total{type=\"HI\"} 3\n"
                                     "x_frames_total{type=\"BYE\"} 9007199254740991\n"
                                     "# HELP x_age_seconds How old it is.\n"
                                     "# TYPE x_age_seconds gauge\n"
                                     "x_age_seconds 1795774207.125\n");
    buf_fini(&out);
}

Test(metrics, the_text_of_openmetrics)
{
    samples_t s;
    buf_t out = {0};
    fill(&s);
    metrics_text(&s, true, &out);
    cr_expect_str_eq(buf_text(&out), "# HELP x_build Of which release.\n"
                                     "# TYPE x_build info\n"
                                     "x_build_info{version=\"a\\\\\\\"b\\n\"} 1\n"
                                     "# HELP x_frames How many came.\n"
                                     "# TYPE x_frames counter\n"
                                     "x_frames_total{type=\"HI\"} 3\n"
                                     "x_frames_total{type=\"BYE\"} 9007199254740991\n"
                                     "# HELP x_age_seconds How old it is.\n"
                                     "# TYPE x_age_seconds gauge\n"
                                     "# UNIT x_age_seconds seconds\n"
                                     "x_age_seconds 1795774207.125\n"
                                     "# EOF\n");
    buf_fini(&out);
}

/* A bucket counts what is at most its bound, and what is in those before it. */
Test(metrics, a_histogram_adds_up)
{
    samples_t s = {0};
    histogram_t h = {0};
    buf_t out = {0};
    static const double SECONDS[] = {0, 0.001, 0.0011, 9.9, 10, 11};
    for (size_t i = 0; i < sizeof SECONDS / sizeof *SECONDS; i++) histogram_note(&h, SECONDS[i]);
    samples_add_histogram(&s, &HISTOGRAM, NULL, &h);
    samples_add_histogram(&s, &HISTOGRAM, "fetch", &h);
    metrics_text(&s, false, &out);
    const char *text = buf_text(&out);
    static const char *const LINES[] = {"# TYPE x_took_seconds histogram\n",
                                        "x_took_seconds_bucket{le=\"0.001\"} 2\n",
                                        "x_took_seconds_bucket{le=\"0.0025\"} 3\n",
                                        "x_took_seconds_bucket{le=\"2.5\"} 3\n",
                                        "x_took_seconds_bucket{le=\"10.0\"} 5\n",
                                        "x_took_seconds_bucket{le=\"+Inf\"} 6\n",
                                        "x_took_seconds_bucket{phase=\"fetch\",le=\"100.0\"} 6\n",
                                        "x_took_seconds_sum{phase=\"fetch\"} 30.9021\n",
                                        "x_took_seconds_sum 30.9021\n",
                                        "x_took_seconds_count 6\n"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++)
        cr_expect(strstr(text, LINES[i]), "%s in:\n%s", LINES[i], text);
    buf_fini(&out);
}

Test(metrics, samples_are_bounded)
{
    static samples_t s;
    for (size_t i = 0; i < METRICS_SAMPLES + 10; i++) samples_add(&s, &GAUGE, NULL, 1);
    cr_expect_eq(s.count, METRICS_SAMPLES);
}

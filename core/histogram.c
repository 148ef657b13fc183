/* SPDX-License-Identifier: Apache-2.0 */
#include "core/histogram.h"

static const struct {
    double seconds;
    const char *text;
} BOUNDS[HISTOGRAM_BOUNDS] = {{0.001, "0.001"}, {0.0025, "0.0025"}, {0.005, "0.005"}, {0.01, "0.01"},
                              {0.025, "0.025"}, {0.05, "0.05"},     {0.1, "0.1"},     {0.25, "0.25"},
                              {0.5, "0.5"},     {1, "1.0"},         {2.5, "2.5"},     {10, "10.0"},
                              {30, "30.0"},     {100, "100.0"}};

void histogram_note(histogram_t *h, double seconds)
{
    size_t i = 0;
    while (i < HISTOGRAM_BOUNDS && seconds > BOUNDS[i].seconds) i++;
    h->counts[i]++;
    h->sum += seconds;
}

const char *histogram_bound(size_t i) { return i < HISTOGRAM_BOUNDS ? BOUNDS[i].text : "+Inf"; }

/* SPDX-License-Identifier: Apache-2.0 */
/* core/histogram.h: how often something took how long.  PURE; the caller owns it, zeroed at first; one thread
 * at a time. */
#ifndef CORE_HISTOGRAM_H
#define CORE_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define HISTOGRAM_BOUNDS 14u
typedef struct {
    uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* by the first bound that it is not above; the last: by none */
    double sum;
} histogram_t;

void histogram_note(histogram_t *h, double seconds);
/* "0.001" to "100.0"; "+Inf" for the last */
const char *histogram_bound(size_t i);

#endif

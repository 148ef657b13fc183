/* SPDX-License-Identifier: Apache-2.0 */
/* core/units.h: durations, sizes and quorums in the form in which people write and read them. PURE; any
 * thread. */
#ifndef CORE_UNITS_H
#define CORE_UNITS_H

#include <heddle/types.h>
#include <stdbool.h>

/* "500ms", "30s", "5m", "2h"; a bare number is seconds; decimals are allowed.  Up to 24 days, so that it fits
 * an int of ms; more than 0 is rounded up to 1 ms. */
bool units_parse_duration(const char *text, uint32_t *ret_ms);
/* "4096", "20M" (10^6), "64Ki"; k M G Ti... */
bool units_parse_size(const char *text, uint64_t *ret_bytes);
/* "all", "none", "3", "50%" */
bool units_parse_quorum(const char *text, heddle_quorum_t *ret_quorum);
/* How many of `eligible` the quorum needs: at least `min`; a percentage rounds up. */
uint32_t units_quorum_need(heddle_quorum_t quorum, uint32_t eligible, uint32_t min);
void units_bytes_text(uint64_t bytes, char ret_text[16]); /* "17.6 MB" */
void units_ms_text(double ms, char ret_text[16]);         /* "9.6 ms", "1.2 s", "3 m 20 s" */

#endif

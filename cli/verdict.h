/* SPDX-License-Identifier: Apache-2.0 */
/* cli/verdict.h: what an answer of `heddle status` means for a monitoring system, as plugins of Nagios say
 * it.
 *
 *   ok        no limit is exceeded, and the broker has no reasons
 *   warning   the broker has a reason (`heddle status --check`)
 *   critical  a limit is exceeded, or the reason is one of: no process has the bytes of a version any more,
 *             the broker takes no records, a worker serves damaged bytes
 *   unknown   the answer has no reasons: the broker is of an earlier release
 *
 * PURE: the answer is borrowed; any thread. */
#ifndef CLI_VERDICT_H
#define CLI_VERDICT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are the exit statuses of a plugin. */
typedef enum { VERDICT_OK, VERDICT_WARNING, VERDICT_CRITICAL, VERDICT_UNKNOWN } verdict_t;

/* -1: there is no such limit. */
typedef struct {
    const char *adapter; /* it alone, its workers and the broker; NULL: all */
    int64_t min_workers; /* ready ones: that subscribe to the adapter, or of all */
    int64_t max_lag;     /* versions that a worker may be behind */
    int64_t max_age_ms;  /* since the active version was chosen */
} verdict_limits_t;

/* The answer of `heddle check`, but for `error`; NULL: no memory.  The caller owns it. */
json_t *verdict_of(const json_t *status, const verdict_limits_t *limits);
verdict_t verdict_level(const json_t *check);
/* "policy: 1 worker is ready, of 2 at least; and 3 more": the findings, the worst first. */
void verdict_text(const json_t *check, char *ret_text, size_t size);
/* "HEDDLE CRITICAL - ... | workers=1;;2:;0 lag=0;;3;0 age=12.5s;;600;0": one line, without its end. */
void verdict_line(const json_t *check, const verdict_limits_t *limits, char *ret_line, size_t size);

#endif

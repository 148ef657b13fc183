/* SPDX-License-Identifier: Apache-2.0 */
/* core/log.h: one line a thing that happened, on stderr: time, level, a stable event id, text.  Libraries
 * log nothing at level info or above unless something is lost, or no broker admits a worker (heddle/worker.h,
 * "Stderr"); programs decide the level.  What repeats goes through core/repeat.h.  Any thread. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level_t;

void log_set_level(log_level_t level);
log_level_t log_level(void);
/* `id` is stable and made for grep: "session.lapsed". */
void log_emit(log_level_t level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif

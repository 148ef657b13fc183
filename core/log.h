/* SPDX-License-Identifier: Apache-2.0 */
/* core/log.h: the log: one line on stderr for each event, with time, level, a stable event id and text. A
 * library logs nothing at level info or above unless data is lost, no broker admits a worker
 * (heddle/worker.h, "Stderr"), or a publisher whose events are not read has ended; programs choose the level.
 * Repeated events go through core/repeat.h. The level is process-wide; any thread. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level_t;

/* TEXT: for people.  JSON: an object on each line, {"at","level","event","text"}.  JOURNAL: for a service
 * manager that reads the priority in front of a line (sd-daemon(3)) and notes the time itself. */
typedef enum { LOG_TEXT, LOG_JSON, LOG_JOURNAL } log_format_t;
#define LOG_FORMATS "text|json|journal" /* the choices of an option, in the order of the enum */

void log_set_level(log_level_t level);
void log_set_format(log_format_t format); /* as the level: process-wide, any thread; TEXT without a call */
log_format_t log_format(void);
log_level_t log_level(void);
/* For programs, before their first thread: the library's texts name fields of its options, and `words` puts
 * the program's own options in their place (option_words); it makes no text longer.  Without a call they
 * stay. */
void log_set_words(void (*words)(char *text));
/* `id` is stable, so that scripts can search for it: "session.lapsed".  Writing may block on a full pipe. */
void log_emit(log_level_t level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif

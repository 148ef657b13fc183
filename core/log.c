/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const NAMES[] = {"error", "warn", "info", "debug"};
static _Atomic int current = LOG_WARN;

void log_set_level(log_level_t level) { atomic_store(&current, (int)level); }
log_level_t log_level(void) { return (log_level_t)atomic_load(&current); }

/* Without allocation or a lock: it is also called where memory has run out, on any thread. */
static void (*in_words)(char *text);

void log_set_words(void (*words)(char *text)) { in_words = words; }

void log_emit(log_level_t level, const char *id, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&current, memory_order_relaxed)) return;
    char at[25], line[2048];
    clock_text(clock_wall(clock_system()), at);
    int n = snprintf(line, sizeof line, "%s %-5s %s: ", at, NAMES[level], id);
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    error_text(line, (size_t)n + 1, line); /* no line feeds, and no terminal escapes from peers */
    if (in_words) in_words(line);
    n = (int)strlen(line); /* a UTF-8 sequence that was cut at the end is gone */
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)n); /* one write, so that lines of several threads
                                                              * stay whole */
    (void)written;
}

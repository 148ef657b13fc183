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
static _Atomic int current = LOG_WARN, how = LOG_TEXT;

void log_set_format(log_format_t format) { atomic_store(&how, (int)format); }
void log_set_level(log_level_t level) { atomic_store(&current, (int)level); }
log_format_t log_format(void) { return (log_format_t)atomic_load_explicit(&how, memory_order_relaxed); }
log_level_t log_level(void) { return (log_level_t)atomic_load(&current); }

/* Without allocation or a lock: it is also called where memory has run out, on any thread. */
static void (*in_words)(char *text);

void log_set_words(void (*words)(char *text)) { in_words = words; }

enum {
    TEXT_BYTES = 2048,
    LINE_BYTES = 2 * TEXT_BYTES + 256
}; /* each byte escaped, and what is around them */

/* The text as a string of JSON, without its quotes; it has no control characters, and the line has room. */
static size_t escape(const char *text, char *to)
{
    size_t n = 0;
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') to[n++] = '\\';
        to[n++] = *text;
    }
    return n;
}

/* What stands before the text, and is not escaped: it has nothing from outside. */
static int head(char *line, size_t size, log_format_t as, log_level_t level, const char *id)
{
    static const int PRIORITIES[] = {3, 4, 6, 7}; /* of syslog(3) */
    char at[25];
    if (as == LOG_JOURNAL) return snprintf(line, size, "<%d>%s: ", PRIORITIES[level], id);
    clock_text(clock_wall(clock_system()), at);
    if (as == LOG_TEXT) return snprintf(line, size, "%s %-5s %s: ", at, NAMES[level], id);
    return snprintf(line, size, "{\"at\":\"%s\",\"level\":\"%s\",\"event\":\"%s\",\"text\":\"", at,
                    NAMES[level], id);
}

void log_emit(log_level_t level, const char *id, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&current, memory_order_relaxed)) return;
    char text[TEXT_BYTES], line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > (int)sizeof text - 1) n = (int)sizeof text - 1;
    error_text(text, (size_t)n + 1, text); /* no line feeds, and no terminal escapes from peers; no part of a
                                            * character where it was cut */
    if (in_words) in_words(text);
    log_format_t as = log_format();
    n = head(line, sizeof line, as, level, id);
    if (as == LOG_JSON) {
        n += (int)escape(text, line + n);
        memcpy(line + n, "\"}", 2);
        n += 2;
    } else n += snprintf(line + n, sizeof line - (size_t)n - 1, "%s", text);
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)n); /* one write, so that lines of several threads
                                                              * stay whole */
    (void)written;
}

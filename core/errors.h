/* SPDX-License-Identifier: Apache-2.0 */
/* core/errors.h: fills a heddle_error_t. Each function that can fail for a reason that a user should learn
 * takes a `heddle_error_t *error`, which may be NULL, and returns the code. Texts are cut to fit, on a
 * UTF-8 boundary. The caller owns the object; error_last is the calling thread's own. */
#ifndef CORE_ERRORS_H
#define CORE_ERRORS_H

#include <heddle/error.h>
#include <stdint.h>

/* Clears the object, fills code, retriable and message; returns `code`. */
int error_fail(heddle_error_t *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Each fills one part of an object already made by error_fail; NULL texts leave the part alone. */
void error_where(heddle_error_t *error, const char *adapter, uint64_t version, const char *worker,
                 const char *phase);
void error_contrast(heddle_error_t *error, const char *expected, const char *found);
void error_expected(heddle_error_t *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void error_found(heddle_error_t *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void error_hint(heddle_error_t *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds to the message, and as the hint, that the broker at `endpoint` does not answer: what the error says
 * is from its last message, that long ago. */
void error_silent_broker(heddle_error_t *error, const char *endpoint, uint32_t silent_ms);
/* A refusal that came before the adapter was named says ":ADAPTER" in its roles: puts the name there, or
 * several as "a, worker:b". */
void error_name_adapter(heddle_error_t *error, const char *adapter);
/* Copies a text into a fixed field, cut on a UTF-8 boundary, control characters replaced by '?'.
 * `text` may be `to`. */
void error_text(char *to, size_t size, const char *text);
/* The same for a sentence in a small field: one that is too long ends at a word, and with " ...". */
void error_text_at_word(char *to, size_t size, const char *text);
/* A hash of code, expected and hint: equal for one reason that repeats, whose message may hold times. */
uint32_t error_reason(const heddle_error_t *error);
/* Makes `error` this thread's heddle_last_error(); returns its code. */
int error_publish(const heddle_error_t *error);
/* The thread's own object, to be filled in place by public calls. */
heddle_error_t *error_last(void);

#endif

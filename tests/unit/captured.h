/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/captured.h: what a call writes to stderr, up to 1,023 bytes.  One capture at a time; the text is
 * good until the next one ends. */
#ifndef TESTS_UNIT_CAPTURED_H
#define TESTS_UNIT_CAPTURED_H

#include <criterion/criterion.h>
#include <unistd.h>

typedef struct {
    int saved, from; /* stderr as it was; the reading end of the pipe in its place */
} captured_t;

static inline captured_t captured_begin(void)
{
    int ends[2];
    captured_t c = {.saved = dup(STDERR_FILENO)};
    cr_assert(c.saved >= 0 && pipe(ends) == 0);
    cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    c.from = ends[0];
    return c;
}

/* Puts stderr back first: afterwards the pipe has no writer, and reading ends. */
static inline const char *captured_end(captured_t *c)
{
    static char text[1024];
    dup2(c->saved, STDERR_FILENO);
    close(c->saved);
    ssize_t n = read(c->from, text, sizeof text - 1);
    close(c->from);
    cr_assert_geq(n, 0);
    text[n] = 0;
    return text;
}

#endif

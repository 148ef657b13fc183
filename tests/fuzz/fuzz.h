/* SPDX-License-Identifier: Apache-2.0 */
/* What every fuzz target has: one entry, a way to fail, and a reader of the bytes that it is given.
 *
 * A target is one file with LLVMFuzzerTestOneInput: under libFuzzer (preset `fuzz`) it is called with
 * bytes that are made up, in every other build replay.c calls it with the files of the corpus.  The
 * bytes end where their memory ends, so that the address sanitizer sees a read past them.  Everything
 * that a call makes it frees: a leak is a finding. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "core/bytes.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the bytes are. */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Of a target that makes many steps out of one input: how many there were is told at the end. */
static uint64_t step_count;
static inline void tell_steps(void) { fprintf(stderr, "steps: %llu\n", (unsigned long long)step_count); }

static inline void count_steps(uint64_t steps)
{
    if (!step_count && steps) atexit(tell_steps);
    step_count += steps;
}

/* Takes from the front; zeros when nothing is left. */
typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

static inline uint64_t input_take(input_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (; bytes > 0; bytes--) {
        value = value << 8 | (in->left ? *in->at : 0);
        if (in->left) in->at++, in->left--;
    }
    return value;
}

static inline uint8_t input_byte(input_t *in) { return (uint8_t)input_take(in, 1); }

/* As few bytes as can tell that many values apart. */
static inline uint64_t input_below(input_t *in, uint64_t below)
{
    return input_take(in, below <= 0x100 ? 1 : below <= 0x10000 ? 2 : below <= 0x100000000 ? 4 : 8) % below;
}

/* Up to so many, fewer at the end; borrowed. */
static inline bytes_t input_bytes(input_t *in, size_t bytes)
{
    bytes_t taken = bytes_of(in->at, bytes < in->left ? bytes : in->left);
    in->at += taken.bytes;
    in->left -= taken.bytes;
    return taken;
}

/* The same as a text in memory of its own size; the caller frees it. */
static inline char *input_text(input_t *in, size_t bytes)
{
    bytes_t from = input_bytes(in, bytes);
    char *text = malloc(from.bytes + 1);
    MUST(text);
    memcpy(text, from.data, from.bytes);
    text[from.bytes] = 0;
    return text;
}

#endif

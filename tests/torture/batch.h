/* SPDX-License-Identifier: Apache-2.0 */
/* tests/torture/batch.h: many runs, in children of this process, two at a time.
 *
 * A run that does not come back with a clean exit (an assertion, a crash, a leak, a time-out) is bad.  Runs share a child
 * as long as all is well; when one of them is bad, those of its batch are repeated, a child each, and each
 * that is bad is printed with the command that repeats it and the last words that it said. */
#ifndef TESTS_TORTURE_BATCH_H
#define TESTS_TORTURE_BATCH_H

#include <stddef.h>
#include <stdint.h>

typedef enum { NOTE_FINE, NOTE_REFUSED, NOTE_RESTARTED, NOTE_COUNT } batch_note_t;
typedef struct {
    size_t bad, notes[NOTE_COUNT];
} batch_result_t;

batch_result_t batch_run(void (*run)(void *self, uint64_t nth), void *self, const uint64_t *list,
                         size_t count, const char *repeat);
void batch_note(batch_note_t note); /* in a run */
/* The row that is asked for without --only: CRITERION_TEST_PATTERN, as tests/mutants/run sets it; NULL: all. */
const char *batch_only(void);
int batch_usage(const char *program);
int batch_list(const char *const *first, size_t count, size_t stride);

#endif

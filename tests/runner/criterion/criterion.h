/* SPDX-License-Identifier: Apache-2.0 */
/* In place of Criterion (2.4), which does not start under the thread sanitizer: what the tests use of it, with the same
 * meaning.  Each test is a forked process of its own; they run one after the other (runner.c).
 *
 * The process that forks has one thread: the sanitizer takes no threads in the child of a parent that has several. */
#ifndef TESTS_RUNNER_CRITERION_H
#define TESTS_RUNNER_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `suite`, `name`, `run` of Test; of TestSuite no `name`.  In the order of Criterion's fields where both have them is
 * not asked for: every test names them. */
typedef struct runner_test {
    const char *suite, *name;
    void (*run)(void);
    void (*init)(void);
    void (*fini)(void);
    double timeout;        /* seconds */
    int signal, exit_code; /* that it must end with */
    bool disabled;
    struct runner_test *next; /* the runner's */
} runner_test_t;

void runner_add(runner_test_t *test);
void runner_failed(bool is_fatal, const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void runner_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
bool runner_stdout_is(const char *expected);
void cr_redirect_stdout(void);

#define RUNNER_ADD(Id)                                                                                       \
    __attribute__((constructor)) static void Id##_add(void) { runner_add(&Id##_test); }
#define Test(Suite, Name, ...)                                                                               \
    static void Suite##_##Name##_run(void);                                                                  \
    static runner_test_t Suite##_##Name##_test = {.suite = #Suite,                                           \
                                                  .name = #Name,                                             \
                                                  .run = Suite##_##Name##_run,                               \
                                                  __VA_ARGS__};                                              \
    RUNNER_ADD(Suite##_##Name)                                                                               \
    static void Suite##_##Name##_run(void)
#define TestSuite(Suite, ...)                                                                                \
    static runner_test_t Suite##_suite_test = {.suite = #Suite, __VA_ARGS__};                                \
    RUNNER_ADD(Suite##_suite)

/* Its message is made where it does not hold.  The blank before it lets a message be told from none. */
#define RUNNER_CHECK(fatal, condition, text, ...)                                                            \
    ((condition) ? (void)0 : runner_failed(fatal, __FILE__, __LINE__, text, " " __VA_ARGS__))

#define cr_assert(condition, ...) RUNNER_CHECK(true, condition, #condition, __VA_ARGS__)
#define cr_assert_not(condition, ...) RUNNER_CHECK(true, !(condition), "not " #condition, __VA_ARGS__)
#define cr_assert_fail(...) RUNNER_CHECK(true, false, "fail", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) RUNNER_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) RUNNER_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) RUNNER_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) RUNNER_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) RUNNER_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) RUNNER_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(a, ...) RUNNER_CHECK(true, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) RUNNER_CHECK(true, (a) != NULL, #a " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) RUNNER_CHECK(true, !strcmp(a, b), #a " equals " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) RUNNER_CHECK(true, strcmp(a, b), #a " differs from " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) RUNNER_CHECK(true, !*(a), #a " is empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...)                                                                   \
    RUNNER_CHECK(true, !memcmp(a, b, bytes), #a " has the bytes of " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, epsilon, ...)                                                               \
    RUNNER_CHECK(true, fabs((double)(a) - (double)(b)) <= (epsilon), #a " is about " #b, __VA_ARGS__)
#define cr_assert_stdout_eq_str(text) RUNNER_CHECK(true, runner_stdout_is(text), "stdout is " #text, "")
#define cr_expect(condition, ...) RUNNER_CHECK(false, condition, #condition, __VA_ARGS__)
#define cr_expect_not(condition, ...) RUNNER_CHECK(false, !(condition), "not " #condition, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) RUNNER_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) RUNNER_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_null(a, ...) RUNNER_CHECK(false, (a) == NULL, #a " is NULL", __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) RUNNER_CHECK(false, !strcmp(a, b), #a " equals " #b, __VA_ARGS__)
#define cr_skip(...) runner_skip(__VA_ARGS__)
#define cr_skip_test(...) runner_skip(__VA_ARGS__)
#define cr_log_info(...) (printf(__VA_ARGS__), (void)putchar('\n'))

#endif

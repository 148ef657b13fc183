/* SPDX-License-Identifier: Apache-2.0 */
/* PROGRAM [--filter SUITE/TEST] [anything else is ignored]: the tests that criterion/criterion.h collected, each in a
 * process of its own.  CRITERION_TEST_PATTERN as Criterion takes it: a pattern of the shell, with @(a|b).
 * RUNNER_ONE_THREAD: a test that starts another thread fails.
 * RUNNER_WITHOUT: SUITE/TESTs that are left out, with blanks around each, and said to be. */
#include "criterion/criterion.h"

#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_SKIPPED = 77, EXIT_FAILED = 1 };
/* A sanitizer makes everything 5 to 15 times slower, and tests' own time-outs are for real hangs. */
#ifndef RUNNER_SLOWER
#define RUNNER_SLOWER 1
#endif

static runner_test_t *tests;
static const runner_test_t *current;
static bool has_failed;
static FILE *captured;

void runner_add(runner_test_t *test)
{
    runner_test_t **end = &tests;
    while (*end) end = &(*end)->next;
    *end = test;
}

static const runner_test_t *suite_of(const runner_test_t *test)
{
    for (const runner_test_t *t = tests; t; t = t->next)
        if (!t->name && !strcmp(t->suite, test->suite)) return t;
    static const runner_test_t none = {0};
    return &none;
}

void runner_failed(bool is_fatal, const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: %s/%s: does not hold: %s:", file, line, current->suite, current->name, condition);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    has_failed = true;
    if (!is_fatal) return;
    fflush(NULL);
    _exit(EXIT_FAILED); /* other threads may be in the middle of anything */
}

void runner_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s/%s: skipped: ", current->suite, current->name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    fflush(NULL);
    _exit(EXIT_SKIPPED);
}

void cr_redirect_stdout(void)
{
    fflush(stdout);
    captured = tmpfile();
    if (!captured || dup2(fileno(captured), STDOUT_FILENO) < 0) abort();
}

bool runner_stdout_is(const char *expected)
{
    static char text[1 << 16];
    fflush(stdout);
    ssize_t bytes = captured ? pread(fileno(captured), text, sizeof text - 1, 0) : -1;
    if (bytes < 0) return false;
    text[bytes] = 0;
    return !strcmp(text, expected);
}

/* The thread sanitizer leaves out what has one thread, as tests/threads/excluded says: in the other builds that is checked.
 * It takes the place of the libraries' own, also for them. */
#ifndef __SANITIZE_THREAD__
typedef int pthread_create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*run)(void *), void *self)
{
    pthread_create_t *real = (pthread_create_t *)dlsym(RTLD_NEXT, "pthread_create");
    if (getenv("RUNNER_ONE_THREAD"))
        runner_failed(true, __FILE__, __LINE__, "it has one thread", " tests/threads/excluded says so");
    return real(thread, attributes, run, self);
}
#endif

/* Ends as a program does: what the sanitizer found makes exit's code its own. */
static void run_here(const runner_test_t *test)
{
    const runner_test_t *suite = suite_of(test);
    void (*init)(void) = test->init ? test->init : suite->init;
    void (*fini)(void) = test->fini ? test->fini : suite->fini;
    current = test;
    if (init) init();
    test->run();
    if (fini) fini();
    exit(has_failed ? EXIT_FAILED : 0);
}

/* A child that is over by then, or is killed. */
static bool ends_in_time(pid_t child, double seconds)
{
    int fd = (int)syscall(SYS_pidfd_open, child, 0), rc;
    struct pollfd item = {.fd = fd, .events = POLLIN};
    do rc = poll(&item, 1, seconds > 0 ? (int)(seconds * 1000) : -1);
    while (rc < 0 && errno == EINTR);
    close(fd);
    if (rc == 0) kill(child, SIGKILL);
    return rc > 0;
}

static int status_of(const runner_test_t *test)
{
    const runner_test_t *suite = suite_of(test);
    double timeout = test->timeout > 0 ? test->timeout : suite->timeout;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) run_here(test);
    bool in_time = ends_in_time(child, timeout * RUNNER_SLOWER);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (!in_time)
        return fprintf(stderr, "%s/%s: time-out after %.0f s\n", test->suite, test->name,
                       timeout * RUNNER_SLOWER),
               EXIT_FAILED;
    if (WIFSIGNALED(status)) {
        if (WTERMSIG(status) == test->signal) return 0;
        fprintf(stderr, "%s/%s: ended by signal %d\n", test->suite, test->name, WTERMSIG(status));
        return EXIT_FAILED;
    }
    int code = WEXITSTATUS(status);
    if (code == EXIT_SKIPPED) return code;
    if (!test->signal && code == test->exit_code) return 0;
    fprintf(stderr, "%s/%s: ended with %d\n", test->suite, test->name, code);
    return EXIT_FAILED;
}

static bool is_wanted(const runner_test_t *test, const char *pattern)
{
    char name[512], word[514];
    const char *without = getenv("RUNNER_WITHOUT");
    snprintf(name, sizeof name, "%s/%s", test->suite, test->name ? test->name : "");
    snprintf(word, sizeof word, " %s ", name);
    if (!test->name || test->disabled || fnmatch(pattern, name, FNM_EXTMATCH) != 0) return false;
    if (!without || !strstr(without, word)) return true;
    printf("%s: left out\n", name);
    return false;
}

int main(int argc, char **argv)
{
    const char *pattern = getenv("CRITERION_TEST_PATTERN");
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--filter")) pattern = argv[i + 1];
    unsigned tested = 0, failed = 0, skipped = 0;
    for (const runner_test_t *t = tests; t; t = t->next) {
        if (!is_wanted(t, pattern ? pattern : "*")) continue;
        int status = status_of(t);
        tested++;
        skipped += status == EXIT_SKIPPED;
        failed += status == EXIT_FAILED;
    }
    printf("Tested: %u | Skipped: %u | Failing: %u\n", tested, skipped, failed);
    return failed != 0 || tested == 0;
}

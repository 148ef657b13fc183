/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 program | arguments, each ended by a NUL |: command lines of heddle (all commands), heddle-broker
 * and heddle-worker, through their own main and their own option tables.  The linker puts the three
 * functions below in the place of the real ones: what was parsed is checked, and the program is told
 * that it is done. */
#include "cli/cli.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>

enum { ARGUMENTS = 16 };

int heddle_main(int argc, char **argv);
int broker_main(int argc, char **argv);
int worker_main(int argc, char **argv);
int __real_option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                        heddle_error_t *error);
int __wrap_option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                        heddle_error_t *error);
int __wrap_cli_fail(const common_t *c, const char *kind, const heddle_error_t *error);
int __wrap_execv(const char *path, char *const argv[]);

static int choices_of(const char *value)
{
    int count = 1;
    for (; *value; value++) count += *value == '|';
    return count;
}

/* Programs have their arguments in static memory: the next run must not find those of this one. */
static void clear_value(const option_t *o, void *into)
{
    static const size_t BYTES[] = {
        [OPTION_FLAG] = sizeof(bool),         [OPTION_TEXT] = sizeof(char *),
        [OPTION_DURATION] = sizeof(uint32_t), [OPTION_DEADLINE] = sizeof(uint32_t),
        [OPTION_PERIOD] = sizeof(uint32_t),   [OPTION_SIZE] = sizeof(uint64_t),
        [OPTION_INTEGER] = sizeof(int64_t),   [OPTION_QUORUM] = sizeof(heddle_quorum_t),
        [OPTION_LIST] = sizeof(char **),      [OPTION_CHOICE] = sizeof(int)};
    memset((char *)into + o->offset, 0, BYTES[o->kind]);
}

static void check_value(const option_t *o, const void *into)
{
    const void *at = (const char *)into + o->offset;
    const heddle_quorum_t *quorum = at;
    switch (o->kind) {
    case OPTION_FLAG: break;
    case OPTION_TEXT: MUST(!*(const char *const *)at || **(const char *const *)at); break;
    case OPTION_PERIOD:
    case OPTION_DURATION: MUST(*(const uint32_t *)at <= INT32_MAX); break;
    case OPTION_DEADLINE: MUST(*(const uint32_t *)at && *(const uint32_t *)at <= INT32_MAX); break;
    case OPTION_SIZE: MUST(*(const uint64_t *)at < 1ull << 53); break;
    case OPTION_INTEGER: MUST(llabs(*(const int64_t *)at) < 1000000000000000000); break;
    case OPTION_QUORUM:
        MUST(quorum->kind <= HEDDLE_QUORUM_NONE &&
             (quorum->kind != HEDDLE_QUORUM_PERCENT || quorum->n <= 100));
        break;
    case OPTION_LIST:
        for (size_t n = 0; *(const char *const *const *)at && (*(const char *const *const *)at)[n]; n++)
            MUST(n < ARGUMENTS);
        break;
    case OPTION_CHOICE: MUST(*(const int *)at >= 0 && *(const int *)at < choices_of(o->value)); break;
    }
}

int __wrap_option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                        heddle_error_t *error)
{
    int rc = __real_option_parse(set, argc, argv, into, ret_args, error);
    MUST(rc == HEDDLE_OK || rc == 1 || (rc == HEDDLE_ERR_USAGE && error->message[0]));
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2 && rc == HEDDLE_OK; t++)
        for (const option_t *o = tables[t]; o && o->name; o++) check_value(o, into);
    for (int i = 0; rc == HEDDLE_OK && set->args && set->args[i]; i++)
        MUST(ret_args[i] || i >= set->args_required);
    option_fini(set, into);
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name; o++) clear_value(o, into);
    return 1;
}

int __wrap_cli_fail(const common_t *c, const char *kind, const heddle_error_t *error)
{
    MUST(c && kind && error->code && error->message[0]);
    return heddle_err_exit(error->code);
}

int __wrap_execv(const char *path, char *const argv[])
{
    MUST(path && argv && argv[0]);
    errno = ENOENT;
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int (*const PROGRAMS[])(int, char **) = {heddle_main, broker_main, worker_main};
    static FILE *quiet; /* --help prints */
    if (!quiet) quiet = freopen("/dev/null", "w", stdout);
    input_t in = {data, size};
    char program[] = "heddle", *argv[ARGUMENTS + 2] = {program};
    int argc = 1, which = input_byte(&in) % 3;
    while (in.left && argc <= ARGUMENTS) {
        const uint8_t *end = memchr(in.at, 0, in.left);
        argv[argc++] = input_text(&in, end ? (size_t)(end - in.at) : in.left);
        input_byte(&in); /* the NUL */
    }
    char *owned[ARGUMENTS + 2]; /* programs move them about */
    memcpy(owned, argv, sizeof owned);
    PROGRAMS[which](argc, argv);
    for (int i = 1; i < argc; i++) free(owned[i]);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The file of contexts: what it may hold, who may change it, and what is taken from it. */
#include "core/contexts.h"
#include "core/errors.h"
#include "../lib/temp_dir.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TWO                                                                                                  \
    "{\"in_use\":\"prod\",\"contexts\":{"                                                                    \
    "\"prod\":{\"broker\":\"tcp://10.0.0.5:7700\",\"broker_key\":\"K\",\"key\":\"/k\",\"later\":[1]},"       \
    "\"lab\":{\"broker\":\"tcp://10.0.0.6:7700\"}}}"

/* A configuration directory of this test's own. */
static void begin(void)
{
    make_dir();
    setenv("XDG_CONFIG_HOME", dir, 1);
    unsetenv("HEDDLE_BROKER");
    unsetenv("HEDDLE_CONTEXT");
}
TestSuite(contexts, .init = begin, .fini = remove_dir);

static int parsed(const char *text, heddle_error_t *error)
{
    json_t *root = NULL;
    int rc = contexts_parse(text, strlen(text), "file", &root, error);
    cr_assert_eq(rc == HEDDLE_OK, root != NULL);
    json_decref(root);
    return rc;
}

Test(contexts, what_is_malformed_is_refused)
{
    static const char *const WRONG[] = {"",
                                        "[]",
                                        "{",
                                        "{}",
                                        "{\"contexts\":[]}",
                                        "{\"contexts\":{}} x",
                                        "{\"contexts\":{},\"contexts\":{}}",
                                        "{\"contexts\":{\"a b\":{\"broker\":\"x\"}}}",
                                        "{\"contexts\":{\"a\":{}}}",
                                        "{\"contexts\":{\"a\":7}}",
                                        "{\"contexts\":{\"a\":{\"broker\":7}}}",
                                        "{\"contexts\":{\"a\":{\"broker\":\"\"}}}",
                                        "{\"contexts\":{\"a\":{\"broker\":\"x\\u001b[2J\"}}}",
                                        "{\"contexts\":{\"a\":{\"broker\":\"x\",\"key\":[]}}}",
                                        "{\"contexts\":{\"a\":{\"broker\":\"x\\u0000y\"}}}",
                                        "{\"contexts\":{\"a\":{\"broker\":\"heddle-join-1:c2VjcmV0\"}}}",
                                        "{\"in_use\":\"b\",\"contexts\":{\"a\":{\"broker\":\"x\"}}}",
                                        "{\"in_use\":7,\"contexts\":{}}"};
    heddle_error_t error;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        cr_assert_eq(parsed(WRONG[i], &error), HEDDLE_ERR_DATA_DIR, "%s", WRONG[i]);
        cr_assert(!strncmp(error.message, "file: ", 6) && error.hint[0], "%s: %s", WRONG[i], error.message);
    }
    cr_assert_eq(parsed(TWO, &error), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(parsed("{\"contexts\":{}}", &error), HEDDLE_OK, "%s", error.message);
}

static void put(const char *text, mode_t mode)
{
    contexts_t c;
    heddle_error_t error;
    cr_assert_eq(contexts_read(&c, &error), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(contexts_write(&c, &error), HEDDLE_OK, "%s", error.message);
    FILE *f = fopen(c.path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0 && chmod(c.path, mode) == 0);
    contexts_fini(&c);
}

Test(contexts, a_file_that_others_can_change_is_refused)
{
    contexts_t c;
    heddle_error_t error;
    static const mode_t WRONG[] = {0620, 0602, 0666};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        put(TWO, WRONG[i]);
        cr_assert_eq(contexts_read(&c, &error), HEDDLE_ERR_DATA_DIR);
        cr_assert(strstr(error.message, "can be changed by other users") && strstr(error.hint, "chmod 600"));
        contexts_fini(&c);
        unlink(c.path);
    }
    put(TWO, 0644);
    cr_assert_eq(contexts_read(&c, &error), HEDDLE_OK, "all may read it: %s", error.message);
    contexts_fini(&c);
    cr_assert(unlink(c.path) == 0 && mkfifo(c.path, 0600) == 0);
    cr_assert_eq(contexts_read(&c, &error), HEDDLE_ERR_DATA_DIR, "what would block is not read");
    contexts_fini(&c);
}

/* A command that has the lock reads what the one before has written. */
Test(contexts, one_at_a_time_changes_them)
{
    heddle_error_t error;
    char path[CONTEXTS_PATH];
    int locks[2];
    cr_assert_eq(contexts_lock(0, &locks[0], &error), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(contexts_lock(0, &locks[1], &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(error.message, "another command has locked the contexts"), "%s", error.message);
    close(locks[0]);
    cr_assert_eq(contexts_lock(0, &locks[1], &error), HEDDLE_OK, "%s", error.message);
    close(locks[1]);
    snprintf(path, sizeof path, "%s/heddle/contexts.lock", dir);
    struct stat st;
    cr_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    cr_assert(unlink(path) == 0 && symlink("/dev/null", path) == 0);
    cr_assert_eq(contexts_lock(0, &locks[0], &error), HEDDLE_ERR_DATA_DIR,
                 "what is elsewhere is not followed");
}

Test(contexts, are_added_used_and_removed)
{
    contexts_t c;
    heddle_error_t error;
    context_t found;
    struct stat st;
    cr_assert(!contexts_read(&c, &error) && !contexts_in_use(&c)[0], "no file: no contexts");
    cr_assert_eq(contexts_find(&c, "prod", &found, &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(contexts_put(&c, &(context_t){"prod", "tcp://h:1", NULL, "/k"}, &error), HEDDLE_OK);
    cr_assert_eq(contexts_put(&c, &(context_t){"../x", "tcp://h:1", NULL, NULL}, &error),
                 HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(contexts_put(&c, &(context_t){"x", "tcp://h\n:1", NULL, NULL}, &error), HEDDLE_ERR_USAGE);
    cr_assert_eq(contexts_put(&c, &(context_t){"x", "tcp://\xff:1", NULL, NULL}, &error), HEDDLE_ERR_USAGE);
    cr_assert_eq(contexts_put(&c, &(context_t){"x", "heddle-join-1:c2VjcmV0", NULL, NULL}, &error),
                 HEDDLE_ERR_USAGE, "a secret is not kept");
    cr_assert_eq(contexts_use(&c, "prod", &error), HEDDLE_OK);
    cr_assert_eq(contexts_use(&c, "prd", &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(error.hint, "did you mean prod?"), "%s", error.hint);
    cr_assert_eq(contexts_write(&c, &error), HEDDLE_OK, "%s", error.message);
    cr_assert(stat(c.path, &st) == 0 && (st.st_mode & 0777) == 0600, "for its owner alone");
    contexts_fini(&c);
    cr_assert_eq(contexts_read(&c, &error), HEDDLE_OK, "%s", error.message);
    cr_assert(!contexts_find(&c, "prod", &found, &error) && !strcmp(found.broker, "tcp://h:1") &&
              !found.broker_key && !strcmp(found.key, "/k"));
    cr_assert_eq(contexts_remove(&c, "prod", &error), HEDDLE_OK);
    cr_assert_str_eq(contexts_in_use(&c), "");
    cr_assert_eq(contexts_remove(&c, "prod", &error), HEDDLE_ERR_NOT_FOUND);
    contexts_fini(&c);
}

/* The broker that `values` get, and the key. */
static const char *chosen(context_t values)
{
    static char text[400];
    contexts_t c;
    heddle_error_t error;
    int rc = contexts_choose(&values, &c, &error);
    snprintf(text, sizeof text, "%s %s %s",
             rc            ? heddle_err_name(rc)
             : values.name ? values.name
                           : "-",
             values.broker, values.broker_key ? values.broker_key : "-");
    contexts_fini(&c);
    return text;
}

Test(contexts, defaults_are_of_the_context_that_is_used)
{
    contexts_t c;
    heddle_error_t error;
    context_t values = {0};
    put("{\"in_use\":\"a\",\"contexts\":{\"a\":{\"broker\":\"tcp://h:1\",\"timeout\":\"9s\"},"
        "\"b\":{\"broker\":\"tcp://h:2\",\"output\":\"json\"}}}",
        0600);
    cr_assert(!contexts_choose(&values, &c, &error) && !strcmp(values.timeout, "9s") && !values.output);
    contexts_fini(&c);
    values = (context_t){.name = "b"};
    cr_assert(!contexts_choose(&values, &c, &error) && !strcmp(values.output, "json") && !values.timeout);
    contexts_fini(&c);
    values = (context_t){.broker = "tcp://h:1"};
    cr_assert(!contexts_choose(&values, &c, &error) && !values.output && !values.timeout);
    contexts_fini(&c);
}

Test(contexts, an_option_beats_the_environment_which_beats_what_is_in_use)
{
    cr_assert_str_eq(chosen((context_t){0}), "- tcp://127.0.0.1:7700 -", "no file");
    put(TWO, 0600);
    cr_assert_str_eq(chosen((context_t){0}), "prod tcp://10.0.0.5:7700 K");
    cr_assert_str_eq(chosen((context_t){.broker_key = "mine"}), "prod tcp://10.0.0.5:7700 mine");
    cr_assert_str_eq(chosen((context_t){.broker = "tcp://b:1"}), "- tcp://b:1 -",
                     "the keys of a context are for its broker");
    setenv("HEDDLE_CONTEXT", "lab", 1);
    cr_assert_str_eq(chosen((context_t){.name = getenv("HEDDLE_CONTEXT")}), "lab tcp://10.0.0.6:7700 -");
    cr_assert_str_eq(chosen((context_t){.name = "prod"}), "prod tcp://10.0.0.5:7700 K");
    setenv("HEDDLE_BROKER", "tcp://e:1", 1);
    setenv("HEDDLE_BROKER_KEY", "its", 1);
    context_t of_environment = {getenv("HEDDLE_CONTEXT"), getenv("HEDDLE_BROKER"),
                                getenv("HEDDLE_BROKER_KEY"), NULL};
    cr_assert_str_eq(chosen(of_environment), "- tcp://e:1 its");
    of_environment.name = "prod";
    cr_assert_str_eq(chosen(of_environment), "prod tcp://10.0.0.5:7700 K", "--context puts it aside");
    cr_assert_null(getenv("HEDDLE_BROKER_KEY"), "for the library too");
    cr_assert_str_eq(chosen((context_t){.name = "prod", .broker = "tcp://b:1"}), "usage tcp://b:1 -");
    cr_assert_str_eq(chosen((context_t){.name = "none"}), "not_found tcp://127.0.0.1:7700 -");
}

/* As a program without options: what it passes, or the environment has, stays. */
Test(contexts, a_handle_takes_the_context_where_no_broker_is_named)
{
    put(TWO, 0600);
    contexts_t c;
    heddle_error_t error;
    context_t values = {0};
    cr_assert(!contexts_fill(NULL, &values, &c, &error) && !strcmp(values.broker, "tcp://10.0.0.5:7700"));
    contexts_fini(&c);
    setenv("HEDDLE_BROKER", "tcp://e:1", 1);
    values = (context_t){0};
    cr_assert(!contexts_fill(NULL, &values, &c, &error) && !values.broker && !values.key);
    contexts_fini(&c);
    put("{", 0600);
    cr_assert(!contexts_fill(NULL, &values, &c, &error), "a file that is not needed is not read");
    contexts_fini(&c);
    unsetenv("HEDDLE_BROKER");
    cr_assert_eq(contexts_fill(NULL, &values, &c, &error), HEDDLE_ERR_DATA_DIR,
                 "and one that is must be right");
    contexts_fini(&c);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle doctor` needs of the library: what a worker would run on here, which workers are reached, and
 * whether an invitation is still good. */
#include "tests/api/broker.h"

#include <heddle/keys.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

TestSuite(reach, .init = make_dir, .timeout = 60);

static json_t *answer;

static const char *text_at(const char *part, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(answer, part), key));
    return text ? text : "";
}

static void take(char *text)
{
    json_decref(answer);
    answer = json_loads(text, 0, NULL);
    cr_assert_not_null(answer, "%s", text);
    heddle_free(text);
}

static void probe(heddle_host_opts_t opts)
{
    char *text = NULL;
    opts.size = sizeof opts;
    OK(heddle_host_probe(&opts, &text));
    take(text);
}

static const char *code_of(const char *part)
{
    const char *code =
        json_string_value(json_object_get(json_object_get(json_object_get(answer, part), "error"), "code"));
    return code ? code : "";
}

static void end(void)
{
    char command[96];
    json_decref(answer);
    answer = NULL;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

Test(reach, a_host_that_is_well_has_no_errors)
{
    probe((heddle_host_opts_t){.broker = "tcp://127.0.0.1:1"});
    cr_assert_str_eq(text_at("data", "device"), "lo");
    cr_assert(text_at("ucx", "version")[0] && strstr(text_at("ucx", "library"), "libucp"));
    cr_assert_str_eq(text_at("memory", "way"), "shared");
    cr_assert(!code_of("ucx")[0] && !code_of("data")[0] && !code_of("memory")[0]);
    cr_assert(json_is_true(json_object_get(json_object_get(answer, "data"), "loopback")));
    cr_assert(json_is_false(json_object_get(json_object_get(answer, "data"), "elsewhere")));
    char *text = NULL;
    OK(heddle_host_probe(NULL, &text));
    heddle_free(text);
    FAILS(HEDDLE_ERR_USAGE, heddle_host_probe(NULL, NULL));
    FAILS(HEDDLE_ERR_USAGE, heddle_host_probe(&(heddle_host_opts_t){0}, &text));
    end();
}

Test(reach, each_part_has_its_own_error)
{
    probe((heddle_host_opts_t){.broker = "tcp://127.0.0.1:1", .data_device = "nowhere0"});
    cr_assert_str_eq(code_of("data"), "internal");
    cr_assert(!code_of("ucx")[0] && !code_of("memory")[0]);
    cr_assert_eq(chmod(dir, 0777), 0);
    probe((heddle_host_opts_t){.broker = "tcp://127.0.0.1:1", .host_share = dir});
    cr_assert_str_eq(code_of("memory"), "denied");
    cr_assert_str_eq(text_at("memory", "way"), "own");
    cr_assert(!code_of("data")[0]);
    cr_assert_eq(chmod(dir, 0700), 0);
    probe((heddle_host_opts_t){.broker = "tcp://192.0.2.1:1"});
    cr_assert_str_eq(code_of("data"), "insecure_address", "no key of a broker elsewhere is known");
    cr_assert(json_is_true(json_object_get(json_object_get(answer, "data"), "elsewhere")));
    end();
}

Test(reach, an_address_to_listen_at_is_tried)
{
    start_broker("tcp://127.0.0.1:*");
    FAILS(HEDDLE_ERR_ADDRESS_IN_USE, heddle_host_listen(endpoint));
    OK(heddle_host_listen("tcp://127.0.0.1:*"));
    OK(heddle_host_listen("ipc://@heddle-api-reach"));
    FAILS(HEDDLE_ERR_USAGE, heddle_host_listen("tcp://::1:7700"));
    FAILS(HEDDLE_ERR_USAGE, heddle_host_listen(NULL));
    FAILS(HEDDLE_ERR_INTERNAL, heddle_host_listen("tcp://192.0.2.1:7700"));
    FAILS(HEDDLE_ERR_INTERNAL, heddle_host_listen("ipc:///nowhere/socket"));
    end_broker();
}

static void ask(heddle_admin_t *admin, uint32_t patience_ms)
{
    char *text = NULL;
    heddle_reach_opts_t opts = {.size = sizeof opts, .patience_ms = patience_ms};
    OK(heddle_admin_reach(admin, &opts, &text));
    take(text);
}

static const char *reach_of(size_t i, const char *key)
{
    const json_t *row = json_array_get(json_object_get(answer, "workers"), i);
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

static char asked[64];

static void note_asked(void *self, const char *worker)
{
    cr_assert_eq(self, asked);
    strcat(strcat(asked, worker), " ");
}

static void check_asked(heddle_admin_t *admin, const char *const *left_out, const char *names)
{
    char *text = NULL;
    heddle_reach_opts_t opts = {.size = sizeof opts,
                                .patience_ms = PATIENCE_MS,
                                .at_once = 1,
                                .left_out = left_out,
                                .on_ask = note_asked,
                                .self = asked};
    asked[0] = 0;
    OK(heddle_admin_reach(admin, &opts, &text));
    take(text);
    cr_assert_str_eq(asked, names);
}

/* A process that stands still answers nothing, and its connection is not refused. */
Test(reach, says_of_each_worker_whether_it_answers)
{
    char line[4096], *text = NULL;
    child_t workers[2];
    heddle_admin_t *admin = NULL;
    start_broker("tcp://127.0.0.1:*");
    for (int i = 0; i < 2; i++) {
        char name[] = {'w', (char)('1' + i), 0};
        const char *argv[] = {"heddle-worker", "--broker", endpoint, "--adapter",
                              "policy",        "--name",   name,     NULL};
        child_start(&workers[i], argv, NULL);
        cr_assert(child_line(&workers[i], line, sizeof line, PATIENCE_MS));
    }
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = endpoint};
    OK(heddle_admin_open(&opts, &admin));
    ask(admin, PATIENCE_MS);
    cr_assert(json_is_true(json_object_get(answer, "ok")));
    cr_assert_eq(json_array_size(json_object_get(answer, "workers")), 2);
    for (size_t i = 0; i < 2; i++) cr_assert_str_eq(reach_of(i, "reach"), "yes");
    check_asked(admin, NULL, "w1 w2 ");
    check_asked(admin, (const char *[]){"w9", "w1", NULL}, "w2 ");
    cr_assert_str_eq(reach_of(0, "reach"), "untested");
    cr_assert_str_eq(reach_of(0, "reach_why"), "it was left out");
    cr_assert_str_eq(reach_of(1, "reach"), "yes");
    child_signal(&workers[1], SIGSTOP);
    ask(admin, 8000); /* long enough for the other one; the transfer ends a silent connection after 10 s */
    cr_assert(json_is_false(json_object_get(answer, "ok")));
    cr_assert_str_eq(reach_of(0, "reach"), "yes");
    cr_assert_str_eq(reach_of(1, "reach"), "no");
    cr_assert(strstr(reach_of(1, "reach_why"), "no answer in 8000 ms"), "%s", reach_of(1, "reach_why"));
    child_signal(&workers[1], SIGCONT);
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_reach(NULL, NULL, &text));
    FAILS(HEDDLE_ERR_USAGE, heddle_admin_reach(admin, NULL, NULL));
    heddle_admin_interrupt(admin);
    FAILS(HEDDLE_ERR_INTERRUPTED, heddle_admin_reach(admin, NULL, &text));
    heddle_admin_close(&admin);
    for (int i = 0; i < 2; i++) {
        child_signal(&workers[i], SIGTERM);
        cr_assert_eq(child_end(&workers[i], PATIENCE_MS), 0);
    }
    json_decref(answer);
    end_broker();
}

Test(reach, an_invitation_is_looked_at_and_not_used)
{
    char *text = NULL, join[1200];
    heddle_admin_t *admin = NULL;
    const char *roles[] = {"worker:policy", NULL};
    start_broker("tcp://127.0.0.1:*");
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = endpoint};
    heddle_invite_opts_t invite = {.size = sizeof invite, .roles = roles, .name = "node"};
    OK(heddle_admin_open(&opts, &admin));
    OK(heddle_admin_invite(admin, &invite, &text));
    take(text);
    snprintf(join, sizeof join, "%s", json_string_value(json_object_get(answer, "join")));
    for (int i = 0; i < 3; i++) {
        OK(heddle_join_check(join, 0, &text));
        take(text);
        const json_t *state = json_object_get(json_object_get(answer, "key"), "invitation");
        cr_assert_str_eq(json_string_value(json_object_get(state, "state")), "open");
        cr_assert_eq(json_integer_value(json_object_get(state, "used_count")), 0);
    }
    OK(heddle_admin_key_revoke(admin, "node", &text));
    heddle_free(text);
    FAILS(HEDDLE_ERR_DENIED, heddle_join_check(join, 0, &text));
    cr_assert(strstr(heddle_last_error()->message, "revoked"), "%s", heddle_last_error()->message);
    FAILS(HEDDLE_ERR_USAGE, heddle_join_check("heddle-join-1:no", 0, &text));
    FAILS(HEDDLE_ERR_USAGE, heddle_join_check(NULL, 0, &text));
    OK(heddle_join_read(join, &text));
    take(text);
    cr_assert_str_eq(json_string_value(json_object_get(answer, "broker")), endpoint);
    cr_assert_eq(strlen(json_string_value(json_object_get(answer, "broker_key"))), HEDDLE_KEY_TEXT - 1);
    cr_assert_eq(json_object_size(answer), 2, "nothing of the secret");
    FAILS(HEDDLE_ERR_USAGE, heddle_join_read("heddle-join-1:no", &text));
    FAILS(HEDDLE_ERR_USAGE, heddle_join_read(NULL, &text));
    FAILS(HEDDLE_ERR_USAGE, heddle_join_read(join, NULL));
    heddle_admin_close(&admin);
    json_decref(answer);
    end_broker();
}

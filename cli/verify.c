/* SPDX-License-Identifier: Apache-2.0 */
/* heddle verify: compares a version, in the registry, in workers and in exported directories, or files in
 * DIR.
 *
 * With --dir three parties may differ: the files, the registry, and what the workers have. The answer then
 * says which of them is alone, because the user must act on that one (cli/agreement.h). */
#include "cli/cli.h"
#include "cli/agreement.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    const char *dir, *ref;
    uint32_t deadline_ms;
} args_t;
static const option_t OPTIONS[] = {
    {"dir", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "compute the expected digest from these files; the workers' and the registry's are compared with it",
     offsetof(args_t, dir)},
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "30s", "give up after this", offsetof(args_t, deadline_ms)},
    {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {
    "heddle verify",
    "NAME|NAME@V|TAG [OPTION...]",
    "Every holder hashes its slot again now, and its exported directory; the digests are compared.  NAME "
    "alone:\n"
    "the active version.\n"
    "An exported directory that is missing or differs is reported; its worker then writes it again from "
    "memory.",
    "worker, version, digest: what was asked, of which version, and what it hashed.\n"
    "match: ok, or digest_mismatch; or why the worker gave no digest.\n"
    "exported: its exported directory: ok, DIFFERS, MISSING (there is none), or - (none is wanted).\n"
    "hash ms: how long the hashing took.\n" CLI_TAG "\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", every digest is the expected one; 1 one differs, or DIR is another version; 3 there is\n"
    "no such version; 5 a holder did not answer in time; 8 what is in DIR is refused.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n  heddle verify policy                     what is served now\n"
    "  heddle verify policy@7 --dir ./checkpoint-100    compared with your own files, not with the registry"};

static void render(const common_t *c, json_t *a)
{
    (void)c;
    printf("expected  %s\n", cli_string(a, "expected"));
    const json_t *list = json_object_get(a, "workers");
    if (json_array_size(list) == 0) return; /* no worker was queried */
    cli_table_t t;
    table_init(&t, "WORKER", ">VERSION", "DIGEST", "MATCH", "EXPORTED", ">HASH MS");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *exported = json_object_get(w, "exported_match");
        const char *code = cli_string(w, "code");
        /* With matching memory, the code in the answer belongs to the exported directory. */
        bool is_missing = code && !strcmp(code, "not_found") && json_is_false(exported);
        char s[3][64];
        table_row(&t, cli_string(w, "worker"), cli_text(w, "version", s[0]),
                  cli_short_digest(w, "digest", s[1]),
                  code && !is_missing  ? code
                  : cli_is(w, "match") ? "ok"
                                       : "DIFFERS",
                  !json_is_boolean(exported) ? "-"
                  : json_is_true(exported)   ? "ok"
                  : is_missing               ? "MISSING"
                                             : "DIFFERS",
                  cli_text(w, "hash_ms", s[2]));
    }
    table_print(&t);
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    return heddle_admin_verify(admin, args->ref, NULL, args->deadline_ms, ret_json);
}

/* The list of versions is read first: it tells which version REF means now, so that the registry's digest and
 * the workers' are of the same one, and whether the files are another version of the adapter. */
static int verify_dir(const args_t *args, heddle_admin_t *admin, const char *digest)
{
    const char *ref = args->ref, *at = strchr(ref, '@'), *meant_digest = NULL;
    char adapter[HEDDLE_NAME_MAX + 1], exact[HEDDLE_TAG_TEXT], *json = NULL;
    long long meant = 0, real = 0; /* the version that REF means; the newest with the bytes of DIR; 0: none */
    uint64_t began_us = clock_now(clock_system());
    snprintf(adapter, sizeof adapter, "%.*s", (int)strcspn(ref, "@"), ref);
    int rc = heddle_admin_versions(admin, adapter, &json);
    /* Further requests would only wait for the same broker again. After any other failure verify itself will
     * probably fail too, with a better message. */
    if (rc == HEDDLE_ERR_UNAVAILABLE) return cli_fail(&args->common, "verify", heddle_last_error());
    json_t *versions = rc ? NULL : json_loads(json, 0, NULL);
    const json_t *list = json_object_get(versions, "versions");
    heddle_free(json);
    json = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *state = cli_string(v, "state"), *its = cli_string(v, "digest");
        if (!its) continue;
        bool is_meant = at ? cli_integer(v, "version") == atoll(at + 1) : state && !strcmp(state, "active");
        if (is_meant && !meant_digest) meant_digest = its, meant = cli_integer(v, "version");
        if (!strcmp(its, digest)) real = cli_integer(v, "version");
    }
    /* NAME alone is pinned to the version that was found: an activation may come in between. */
    snprintf(exact, sizeof exact, "%s", ref);
    if (meant_digest && !at) snprintf(exact, sizeof exact, "%s@%lld", adapter, meant);
    rc = heddle_admin_verify(admin, exact, digest, cli_left_ms(args->deadline_ms, began_us), &json);
    heddle_error_t error = *cli_error(rc);
    json_t *answer = json ? json_loads(json, 0, NULL) : NULL;
    bool has_asked = !rc || rc == HEDDLE_ERR_DIGEST_MISMATCH ||
                     (rc == HEDDLE_ERR_DEADLINE && json_array_size(json_object_get(answer, "workers")) > 0);
    bool is_lost = rc == HEDDLE_ERR_VERSION_LOST; /* DIR can still be compared with the registry */
    if (((answer && has_asked) || is_lost) && meant_digest && strcmp(meant_digest, digest) != 0) {
        /* The workers were queried, so the answer does not rest on the registry alone: during its startup
         * grace period a broker queries none.  All workers with the registry's bytes differ from DIR then,
         * and none of them is at fault. */
        agreement_t h = agreement_of(answer, digest, meant_digest);
        error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH,
                   "%.300s is not %s@%lld (h1:%.12s... as the registry has it)%s%.100s%s", args->dir, adapter,
                   meant, meant_digest + strcspn(meant_digest, ":") + 1, h.other ? "; " : "",
                   h.other ? h.other : "", h.other ? " has the bytes of neither" : "");
        error_where(&error, adapter, (uint64_t)meant, h.other, "verify");
        error_contrast(&error, meant_digest, digest);
        agreement_hint(&h, adapter, real, &error);
    }
    json_decref(answer);
    json_decref(versions);
    return cli_answer(&args->common, "verify", &error, json, render);
}

int command_verify(int argc, char **argv)
{
    enum { LOOK_UP_MS = 1500 }; /* for the list of versions, even if the deadline is shorter */
    args_t args = {0};
    int end = cli_parse(&SET, "verify", argc, argv, &args, &args.ref);
    if (end >= 0) return end;
    if (!args.dir) return cli_ask(&args, "verify", ask, render);
    /* The files come first: if they are refused, no worker has to hash anything. */
    heddle_adapter_info_t info = {.size = sizeof info};
    if (heddle_adapter_check(args.dir, &info) != HEDDLE_OK)
        return cli_fail(&args.common, "verify", heddle_last_error());
    /* There are two requests within one deadline: the first one must not use up all of it. */
    if (args.common.timeout_ms > LOOK_UP_MS && args.deadline_ms < args.common.timeout_ms)
        args.common.timeout_ms = args.deadline_ms > LOOK_UP_MS ? args.deadline_ms : LOOK_UP_MS;
    heddle_admin_t *admin = cli_admin(&args.common, "verify", &end);
    if (!admin) return end;
    end = verify_dir(&args, admin, info.digest);
    cli_admin_close(&admin);
    return end;
}

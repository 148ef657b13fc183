/* SPDX-License-Identifier: Apache-2.0 */
/* heddle verify: compares a version, in the registry, in workers and in exported directories, or files in
 * DIR. */
#include "cli/cli.h"
#include "cli/holders.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { common_t common; const char *dir; uint32_t deadline_ms; } args_t;
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
    "alone: the active version.\n"
    "An exported directory that is missing or differs is reported; its worker then writes it again from "
    "memory.",
    CLI_TAG "\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", every digest is the expected one; 1 one differs, or DIR is another version; 3 there is no such "
    "version;\n"
    "5 a holder did not answer in time; 8 what is in DIR is refused.\n" CLI_EXITS_COMMON
    ".\n\nExamples:\n  heddle verify policy                     what is served now\n"
    "  heddle verify policy@7 --dir ./checkpoint-100    compared with your own files, not with the registry"};

/* With matching memory, the code in the answer belongs to the exported directory. */
static int is_missing(const json_t *w)
{
    const char *code = json_string_value(json_object_get(w, "code"));
    return code && !strcmp(code, "not_found") && json_is_false(json_object_get(w, "exported_match"));
}

static const char *exported(const json_t *w)
{
    const json_t *match = json_object_get(w, "exported_match");
    if (!json_is_boolean(match)) return "-";
    return json_is_true(match) ? "ok" : is_missing(w) ? "MISSING" : "DIFFERS";
}

static void render(const common_t *c, json_t *a)
{
    (void)c;
    printf("expected  %s\n", json_string_value(json_object_get(a, "expected")));
    const json_t *list = json_object_get(a, "workers");
    if (json_array_size(list) == 0) return; /* no worker was queried */
    table_t t;
    table_init(&t, 6, (const char *const[]){"WORKER", ">VERSION", "DIGEST", "MATCH", "EXPORTED", ">HASH MS"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *code = json_object_get(w, "code");
        char s[5][64];
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "version", s[0]),
                  cli_short_digest(w, "digest", s[1]),
                  json_is_string(code) && !is_missing(w)      ? json_string_value(code)
                  : json_is_true(json_object_get(w, "match")) ? "ok"
                                                              : "DIFFERS",
                  exported(w), cli_text(w, "hash_ms", s[2]));
    }
    table_print(&t);
}

/* The minimum time for the list of versions, which is read first, even if the deadline is shorter. */
enum { LOOK_UP_MS = 1500 };

/* ---- --dir: the files compared with the registry ---- */

static const char *digest_of(const json_t *version)
{
    return json_string_value(json_object_get(version, "digest"));
}

/* The version that REF means, in the list of all; NULL: none, and the broker's own error will explain it. */
static const json_t *version_meant(const json_t *list, const char *ref)
{
    const char *at = strchr(ref, '@');
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *state = json_string_value(json_object_get(v, "state"));
        if (at ? cli_integer(v, "version") == atoll(at + 1) : state && !strcmp(state, "active")) return v;
    }
    return NULL;
}

static const json_t *newest_with(const json_t *list, const char *digest)
{
    for (size_t i = json_array_size(list); i-- > 0;)
        if (digest_of(json_array_get(list, i)) && !strcmp(digest_of(json_array_get(list, i)), digest))
            return json_array_get(list, i);
    return NULL;
}

typedef struct {
    json_t *versions;
    const json_t *meant;                 /* borrowed from `versions`; NULL: the broker says what is wrong
                                          * with REF */
    char adapter[HEDDLE_NAME_MAX + 1];
    char ref[HEDDLE_TAG_TEXT];           /* exact where `meant` is */
} registered_t;

/* Reads the list of versions. UNAVAILABLE: the broker cannot be reached, so further queries are pointless. */
static int look_up(heddle_admin_t *admin, const char *ref, registered_t *ret)
{
    char *json = NULL;
    *ret = (registered_t){0};
    snprintf(ret->adapter, sizeof ret->adapter, "%.*s", (int)strcspn(ref, "@"), ref);
    snprintf(ret->ref, sizeof ret->ref, "%s", ref);
    int rc = heddle_admin_versions(admin, ret->adapter, &json);
    if (rc) return rc; /* verify itself will probably fail too, with a better message */
    ret->versions = json_loads(json, 0, NULL);
    heddle_free(json);
    ret->meant = version_meant(json_object_get(ret->versions, "versions"), ref);
    if (ret->meant && !digest_of(ret->meant)) ret->meant = NULL;
    if (ret->meant && !strchr(ref, '@'))
        snprintf(ret->ref, sizeof ret->ref, "%s@%lld", ret->adapter,
                 (long long)cli_integer(ret->meant, "version"));
    return HEDDLE_OK;
}

static int verify_dir(const args_t *args, heddle_admin_t *admin, const char *ref, const char *digest)
{
    registered_t r;
    char *json = NULL;
    uint64_t began_us = clock_now(clock_system());
    if (look_up(admin, ref, &r) == HEDDLE_ERR_UNAVAILABLE)
        return cli_fail(&args->common, "verify", heddle_last_error());
    int rc = heddle_admin_verify(admin, r.ref, digest, cli_left_ms(args->deadline_ms, began_us), &json);
    heddle_error_t error = *cli_error(rc);
    json_t *answer = json ? json_loads(json, 0, NULL) : NULL;
    bool has_asked = !rc || rc == HEDDLE_ERR_DIGEST_MISMATCH ||
                     (rc == HEDDLE_ERR_DEADLINE && json_array_size(json_object_get(answer, "workers")) > 0);
    bool is_lost = rc == HEDDLE_ERR_VERSION_LOST; /* DIR can still be compared with the registry */
    if (((answer && has_asked) || is_lost) && r.meant && strcmp(digest_of(r.meant), digest) != 0) {
        /* The workers were queried, so the answer does not rest on the registry alone: during its startup
         * grace period a broker queries none.  All workers with the registry's bytes differ from DIR then,
         * and none of them is at fault. */
        char short_digest[64];
        long long version = cli_integer(r.meant, "version");
        holders_t h = holders_of(answer, digest, digest_of(r.meant));
        error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH,
                   "%.300s is not %s@%lld (h1:%s... as the registry has it)%s%.100s%s", args->dir, r.adapter,
                   version, cli_short_digest(r.meant, "digest", short_digest), h.other ? "; " : "",
                   h.other ? h.other : "", h.other ? " has the bytes of neither" : "");
        error_where(&error, r.adapter, (uint64_t)version, h.other, "verify");
        error_contrast(&error, digest_of(r.meant), digest);
        const json_t *real = newest_with(json_object_get(r.versions, "versions"), digest);
        holders_hint(&h, r.adapter, real ? (long long)cli_integer(real, "version") : 0, &error);
    }
    json_decref(answer);
    json_decref(r.versions);
    return cli_answer(&args->common, "verify", &error, json, render);
}

static int verify(const args_t *args, heddle_admin_t *admin, const char *ref)
{
    char *json = NULL;
    int rc = heddle_admin_verify(admin, ref, NULL, args->deadline_ms, &json);
    return cli_answer(&args->common, "verify", cli_error(rc), json, render);
}

int command_verify(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "verify", argc, argv, &args, &ref);
    if (end >= 0) return end;
    heddle_adapter_info_t info = {.size = sizeof info};
    if (args.dir && heddle_adapter_check(args.dir, &info) != HEDDLE_OK)
        return cli_fail(&args.common, "verify", heddle_last_error());
    if (args.dir && args.common.timeout_ms > LOOK_UP_MS && args.deadline_ms < args.common.timeout_ms)
        args.common.timeout_ms = args.deadline_ms > LOOK_UP_MS ? args.deadline_ms : LOOK_UP_MS;
    heddle_admin_t *admin = cli_admin(&args.common, "verify", &end);
    if (!admin) return end;
    end = args.dir ? verify_dir(&args, admin, ref, info.digest) : verify(&args, admin, ref);
    cli_admin_close(&admin);
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <string.h>

typedef struct { common_t common; const char *dir; uint32_t deadline_ms; } args_t;
static const option_t OPTIONS[] = {
    {"dir", 0, OPTION_TEXT, "DIR", NULL, NULL, "compute the expected digest from these files; the registry's is compared with it first", offsetof(args_t, dir)},
    {"deadline", 0, OPTION_DURATION, "DUR", NULL, "30s", "give up after this", offsetof(args_t, deadline_ms)},
    {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {"heddle verify", "NAME|NAME@V [OPTION...]",
    "Every holder hashes its slot again now, and its exported directory; the digests are compared.  NAME alone: the active version.\n"
    "An exported directory that is missing or differs is told, and then written again by its worker, from its memory.", CLI_DUR, OPTIONS, CLI_COMMON, ARGS, 1,
    CLI_EXITS ", every digest is the expected one; 1 one differs, or DIR is another version; 3 there is no such version;\n"
    "5 a holder did not answer in time; 8 what is in DIR is refused.\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle verify policy                     what is served now\n"
    "  heddle verify policy@7 --dir ./checkpoint-100    compared with your own files, not with the registry"};

/* The code is the exported directory's where memory matches. */
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
    if (json_array_size(list) == 0) return; /* nobody was asked */
    table_t t;
    table_init(&t, 6, (const char *const[]){"WORKER", ">VERSION", "DIGEST", "MATCH", "EXPORTED", ">HASH MS"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i), *code = json_object_get(w, "code");
        char s[5][64];
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "version", s[0]), cli_short_digest(w, "digest", s[1]),
                  json_is_string(code) && !is_missing(w) ? json_string_value(code) : json_is_true(json_object_get(w, "match")) ? "ok" : "DIFFERS",
                  exported(w),
                  cli_text(w, "hash_ms", s[2]));
    }
    table_print(&t);
}

/* ---- --dir: what the files are, before anybody is suspected ---- */

static const char *digest_of(const json_t *version) { return json_string_value(json_object_get(version, "digest")); }

/* The version that REF means, in the list of all; NULL: the broker says what is wrong with it. */
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
        if (digest_of(json_array_get(list, i)) && !strcmp(digest_of(json_array_get(list, i)), digest)) return json_array_get(list, i);
    return NULL;
}

static int fail_other(const args_t *args, const char *adapter, const json_t *list, const json_t *meant, const char *digest)
{
    heddle_error_t error;
    char short_digest[64];
    const json_t *real = newest_with(list, digest);
    long long version = cli_integer(meant, "version");
    error_fail(&error, HEDDLE_ERR_DIGEST_MISMATCH, "%.300s is not %s@%lld (h1:%s...)", args->dir, adapter, version,
               cli_short_digest(meant, "digest", short_digest));
    error_where(&error, adapter, (uint64_t)version, NULL, "verify");
    error_contrast(&error, digest_of(meant), digest);
    if (real) error_hint(&error, "it is %s@%lld: `heddle verify %s@%lld --dir` asks for that one", adapter, (long long)cli_integer(real, "version"),
                         adapter, (long long)cli_integer(real, "version"));
    else error_hint(&error, "it is no version of %s; no worker was asked", adapter);
    json_t *answer = json_pack("{s:s, s:s, s:b, s:s, s:I, s:s, s:n, s:[]}", "schema", "heddle/1", "kind", "verify", "ok", 0, "adapter", adapter,
                               "version", (json_int_t)version, "expected", digest, "elapsed_ms", "workers");
    char *text = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    return cli_answer(&args->common, "verify", &error, text, render);
}

/* -1 to go on, with REF made exact; else the status to end with. */
static int compare_dir(const args_t *args, heddle_admin_t *admin, const char *digest, const char *ref, char *ret_ref, size_t ref_size)
{
    char adapter[HEDDLE_NAME_MAX + 1], *json = NULL;
    int end = -1;
    snprintf(adapter, sizeof adapter, "%.*s", (int)strcspn(ref, "@"), ref);
    snprintf(ret_ref, ref_size, "%s", ref);
    if (heddle_admin_versions(admin, adapter, &json) != HEDDLE_OK) return -1; /* so will verify, in its own words */
    json_t *answer = json_loads(json, 0, NULL);
    heddle_free(json);
    const json_t *list = json_object_get(answer, "versions"), *meant = version_meant(list, ref);
    if (meant && digest_of(meant)) {
        snprintf(ret_ref, ref_size, "%s@%lld", adapter, (long long)cli_integer(meant, "version"));
        if (strcmp(digest_of(meant), digest) != 0) end = fail_other(args, adapter, list, meant, digest);
    }
    json_decref(answer);
    return end;
}

static int verify(const args_t *args, heddle_admin_t *admin, const char *ref, const char *digest)
{
    char exact[HEDDLE_NAME_MAX + 32], *json = NULL;
    int end = digest ? compare_dir(args, admin, digest, ref, exact, sizeof exact) : -1;
    if (end >= 0) return end;
    int rc = heddle_admin_verify(admin, digest ? exact : ref, digest, args->deadline_ms, &json);
    return cli_answer(&args->common, "verify", cli_error(rc), json, render);
}

int command_verify(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "verify", argc, argv, &args, &ref);
    if (end >= 0) return end;
    heddle_adapter_info_t info = {.size = sizeof info};
    if (args.dir && heddle_adapter_check(args.dir, &info) != HEDDLE_OK) return cli_fail(&args.common, "verify", heddle_last_error());
    heddle_admin_t *admin = cli_admin(&args.common, "verify", &end);
    if (!admin) return end;
    end = verify(&args, admin, ref, args.dir ? info.digest : NULL);
    cli_admin_close(&admin);
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* heddle complete: names for the completion of shells (deploy/completion). It is hidden from all lists of
 * commands: its output is for the completion files of the same release. */
#include "cli/cli.h"

#include "core/contexts.h"
#include "core/errors.h"

#include <stdio.h>
#include <string.h>

static const char *const ARGS[] = {"KIND", "NAME", NULL};
static const option_set_t SET = {
    "heddle complete",
    "adapters|workers|contexts|versions [NAME] [OPTION...]",
    "Names, one a line: adapters, workers, the versions of adapter NAME, or contexts.",
    CLI_DUR,
    NULL,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ".\n" CLI_EXITS_COMMON "."};

static void print_name(void *self, const context_t *context)
{
    (void)self;
    puts(context->name);
}

static int print_contexts(const common_t *common)
{
    contexts_t contexts;
    heddle_error_t error;
    int rc = contexts_read(&contexts, &error);
    if (!rc) contexts_each(&contexts, print_name, NULL);
    contexts_fini(&contexts);
    return rc ? cli_fail(common, "complete", &error) : 0;
}

int command_complete(int argc, char **argv)
{
    common_t common = {0};
    const char *words[2] = {NULL, NULL};
    int end = cli_parse(&SET, "complete", argc, argv, &common, words);
    if (end >= 0) return end;
    /* A version is completed after its adapter's name, so only that kind takes a name. */
    const char *kind = words[0], *name = words[1];
    bool is_versions = !strcmp(kind, "versions"), is_adapters = !strcmp(kind, "adapters"),
         is_contexts = !strcmp(kind, "contexts"),
         is_known = is_versions || is_adapters || is_contexts || !strcmp(kind, "workers");
    if (!is_known || is_versions != (name != NULL)) {
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_USAGE, "no such kind of completion");
        error_expected(&error, "%s", SET.usage);
        return cli_fail(&common, "complete", &error);
    }
    if (is_contexts) return print_contexts(&common);
    heddle_admin_t *admin = cli_admin(&common, "complete", &end);
    if (!admin) return end;
    char *json = NULL, s[64];
    int rc = is_versions   ? heddle_admin_versions(admin, name, &json)
             : is_adapters ? heddle_admin_adapters(admin, &json)
                           : heddle_admin_workers(admin, NULL, &json);
    json_t *answer = rc ? NULL : json_loads(json, 0, NULL);
    const json_t *list = json_object_get(answer, kind);
    heddle_free(json);
    cli_clean_texts(answer); /* the shell puts them on the command line */
    for (size_t i = 0; i < json_array_size(list); i++)
        puts(cli_text(json_array_get(list, i), is_versions ? "version" : "name", s));
    json_decref(answer);
    end = rc ? cli_fail(&common, "complete", heddle_last_error()) : 0;
    cli_admin_close(&admin);
    return end;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    const char *out;
} args_t;

/* No broker is asked. */
static const option_t COMMON[] = {CLI_OUTPUT, {0}};
static const option_t OPTIONS[] = {{"out", 0, OPTION_TEXT, "FILE", NULL, NULL,
                                    "where it goes; default client.key of the key ring",
                                    offsetof(args_t, out)},
                                   {0}};
static const option_set_t SET = {
    "heddle keygen",
    "[--out FILE] [OPTION...]",
    "Makes a key pair in a file that only you can read, and prints the public key.",
    "An admin lets it in with `heddle keys add KEY --role ROLE`.  A key that is there already is never "
    "overwritten.",
    OPTIONS,
    COMMON,
    NULL,
    0,
    CLI_EXITS ", the file is there; 9 it was there before, or cannot be written.\n"
    "As everywhere: 2 usage, 129, 130 or 143 interrupted.\n\n"
    "Examples:\n  heddle keygen\n  heddle keygen --out node7.key"};

static void render(const common_t *c, json_t *answer)
{
    char s[64];
    puts(cli_text(answer, "public_key", s));
    if (!c->quiet)
        fprintf(stderr, "heddle keygen: the secret is in %s\n",
                json_string_value(json_object_get(answer, "file")));
}

int command_keygen(int argc, char **argv)
{
    args_t args = {0};
    char key[HEDDLE_KEY_TEXT], *file = NULL;
    int end = cli_parse(&SET, "keygen", argc, argv, &args, NULL);
    if (end >= 0) return end;
    int rc = heddle_key_generate(args.out, key, &file);
    json_t *answer = rc ? NULL
                        : json_pack("{s:s, s:s, s:b, s:s, s:s}", "schema", "heddle/1", "kind", "keygen",
                                    "ok", 1, "public_key", key, "file", file);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    heddle_free(file);
    return cli_answer(&args.common, "keygen", cli_error(rc), text, render);
}

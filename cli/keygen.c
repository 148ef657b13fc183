/* SPDX-License-Identifier: Apache-2.0 */
/* heddle keygen: makes a key pair, or prints the public key of the own one.
 *
 * The user's own key is made once, and later calls print it again, so that a set-up script can be repeated.
 * --out requests a new key: there an existing file is an error, because it may be the key of another program.
 */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    const char *out;
    bool show;
} args_t;

/* Without the options of a connection: no broker takes part. */
static const option_t COMMON[] = {CLI_OUTPUT, {0}};
static const option_t OPTIONS[] = {
    {"out", 0, OPTION_TEXT, "FILE", NULL, NULL, "the key's file; default client.key of the key ring",
     offsetof(args_t, out)},
    {"show", 0, OPTION_FLAG, NULL, NULL, NULL, "print the public key of a file that is there; make none",
     offsetof(args_t, show)},
    {0}};
static const option_set_t SET = {
    "heddle keygen",
    "[--out FILE] [--show] [OPTION...]",
    "Makes your key pair, in a file that only you can read, and prints the public key.  Where the key ring "
    "has your\n"
    "key already, prints that one.",
    "An admin lets it in with `heddle keys add KEY --role ROLE`.  A key that is there is never overwritten.",
    OPTIONS,
    COMMON,
    NULL,
    0,
    CLI_EXITS
    ", the file is there; 3 --show: there is no such file; 9 --out names a file that was there\n"
    "before, or the file cannot be written or read.\n"
    "As everywhere: 2 usage, 129, 130 or 143 interrupted.\n\n"
    "Examples:\n"
    "  heddle keygen\n"
    "  heddle keygen --out node7.key\n"
    "  heddle keygen --show --out ~/.config/heddle/keys/broker.key     the key of this user's brokers"};

/* Only the key is on stdout, so that $(heddle keygen) is the key; the rest is on stderr. */
static void render(const common_t *c, json_t *answer)
{
    char s[64];
    puts(cli_text(answer, "public_key", s));
    if (!c->quiet)
        fprintf(stderr,
                cli_is(answer, "created") ? "heddle keygen: a new key; the secret is in %s\n"
                                          : "heddle keygen: the key in %s\n",
                cli_string(answer, "file"));
}

int command_keygen(int argc, char **argv)
{
    args_t args = {0};
    char key[HEDDLE_KEY_TEXT], *file = NULL;
    int end = cli_parse(&SET, "keygen", argc, argv, &args, NULL);
    if (end >= 0) return end;
    int rc = args.show ? heddle_key_public(args.out, key, &file) : heddle_key_generate(args.out, key, &file);
    bool is_new = !rc && !args.show;
    heddle_error_t why = *cli_error(rc);
    /* A file that is there is not overwritten, and the code is the same as for one that cannot be written. So
     * it is read: if it is a key, it is the answer, or what --out must not replace. */
    if (!args.show && rc == HEDDLE_ERR_DATA_DIR) {
        int there = heddle_key_public(args.out, key, &file);
        if (!there && args.out) error_found(&why, "the key %s", key);
        else if (there != HEDDLE_ERR_NOT_FOUND) why = *cli_error(there); /* damaged: the better reason */
    }
    json_t *answer = NULL;
    if (!why.code)
        answer = json_pack("{s:s, s:s, s:b, s:s, s:s, s:b}", "schema", "heddle/1", "kind", "keygen", "ok", 1,
                           "public_key", key, "file", file, "created", is_new);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    heddle_free(file);
    return cli_answer(&args.common, "keygen", &why, text, render);
}

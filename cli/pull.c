/* SPDX-License-Identifier: Apache-2.0 */
/* heddle pull: fetches a version as a PEFT directory, without a worker that stays.
 *
 * The library writes DIR and compares the digest; here are the arguments, the progress bar and the answer.
 * --deadline covers the whole transfer, and --timeout only the connection to the broker. */
#include "cli/cli.h"

#include "core/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    common_t common;
    const char *data_device, *host_share;
    uint32_t deadline_ms;
    uint64_t max_rate_bytes;
    bool insecure;
    const char *words[2]; /* REF, DIR */
} args_t;
#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "60s", "from the call until every byte has come",
     AT(deadline_ms)},
    {"max-rate", 0, OPTION_SIZE, "SIZE", NULL, "0", "bytes fetched a second; 0: no limit",
     AT(max_rate_bytes)},
    {"data-device", 0, OPTION_TEXT, "IF", NULL, NULL,
     "network interface of the tensor bytes; default: the one that reaches the broker, if it is private",
     AT(data_device)},
    {"host-share", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "directory, mode 0700, in which processes of this host share memory; default: in a network namespace",
     AT(host_share)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "allow other addresses than loopback", AT(insecure)},
    {0}};
static const char *const ARGS[] = {"REF", "DIR", NULL};
static const option_set_t SET = {
    "heddle pull",
    "NAME|NAME@V|TAG DIR [OPTION...]",
    "Fetches a version from a worker or publisher that holds it, compares its digest, and writes DIR: a "
    "complete\n"
    "PEFT directory, or for full weights a directory with model.safetensors.\n"
    "NAME alone is the active version; where none is active, the newest.  DIR appears whole or not at all; "
    "it\n"
    "must not exist, or be empty.  No rollout, wait or heddle workers counts the process that pulls.",
    CLI_TAG "\n" CLI_DUR "  SIZE: bytes, or with k M G Ki Mi Gi (2M, 2MB/s), or 16Mbit.",
    OPTIONS,
    CLI_COMMON,
    ARGS,
    2,
    CLI_EXITS ", DIR is there; 1 the version failed, or its last holder is gone; 2 DIR is not empty; 3\n"
              "there is no such adapter or version; 5 the deadline ran out; 6 the key needs the role "
              "worker:NAME; 9 DIR\n"
              "cannot be written, or memory ran out.\n" CLI_EXITS_COMMON ".\n\n"
              "Environment:\n"
              "  HEDDLE_PLUGIN_DIR     where transfer_ucx.so is [beside the program, else where it was "
              "installed]\n"
              "  UCX_...               UCX's own settings; those that are set are left as they are\n\n"
              "Examples:\n  heddle pull policy ./policy-now\n"
              "  heddle pull policy@6 ./policy-6 && heddle verify policy@6 --dir ./policy-6\n"
              "  heddle pull policy@6 ./policy-6 -o json | jq -r .digest"};

typedef struct {
    bool is_drawn;
    uint64_t drawn_us;
} bar_t;

/* Called for each part that has come, so it draws ten times a second at most, and always at the end. */
static void draw(void *self, uint64_t bytes_done, uint64_t bytes)
{
    enum { DRAW_US = 100000 };
    bar_t *b = self;
    uint64_t now_us = clock_now(clock_system());
    if (bytes == 0 || (b->is_drawn && now_us < b->drawn_us + DRAW_US && bytes_done < bytes)) return;
    cli_draw_bar(bytes_done, bytes);
    b->is_drawn = true;
    b->drawn_us = now_us;
}

/* The sources in the order of the answer: with one holder that is slow, a user sees that it was used.  Those
 * that were asked in vain are left out. */
static void render(const common_t *c, json_t *a)
{
    (void)c;
    char s[5][64];
    const json_t *sources = json_object_get(a, "sources");
    printf("%s  %s, %s  in %s after %s ms", cli_text(a, "tag", s[0]), cli_bytes(a, "data_bytes", s[4]),
           cli_count(cli_integer(a, "tensor_count"), "tensor", s[1]), cli_text(a, "path", s[2]),
           cli_text(a, "elapsed_ms", s[3]));
    const char *between = ", from ";
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const json_t *source = json_array_get(sources, i);
        bool is_held = !strcmp(cli_text(source, "way", s[1]), "host");
        if (!is_held && !cli_integer(source, "bytes")) continue;
        printf("%s%s%s", between, is_held ? "the memory of " : "", cli_text(source, "name", s[0]));
        between = ", ";
    }
    puts("");
}

static int ask(heddle_admin_t *admin, const void *self, char **ret_json)
{
    const args_t *args = self;
    bar_t bar = {0};
    bool is_shown = isatty(STDERR_FILENO) && !args->common.quiet;
    heddle_pull_opts_t opts = {.size = sizeof opts,
                               .deadline_ms = args->deadline_ms,
                               .data_device = args->data_device,
                               .host_share = args->host_share,
                               .max_rate_bytes = args->max_rate_bytes,
                               .insecure = args->insecure,
                               .progress = is_shown ? draw : NULL,
                               .progress_self = &bar};
    int rc = heddle_admin_pull(admin, args->words[0], args->words[1], &opts, ret_json);
    /* The bar is no result: what remains on the terminal is the one line of the answer. */
    if (bar.is_drawn) cli_clear_bar();
    return rc;
}

int command_pull(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "pull", argc, argv, &args, args.words);
    return end >= 0 ? end : cli_ask(&args, "pull", ask, render);
}

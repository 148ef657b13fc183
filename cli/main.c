/* SPDX-License-Identifier: Apache-2.0 */
/* heddle: one program with subcommands, each in a file of its own. */
#include "cli/cli.h"

#include "core/errors.h"
#include "core/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const command_t COMMANDS[] = {
    {"broker", "run a broker (heddle-broker)", command_broker},
    {"worker", "run a worker beside an engine (heddle-worker)", command_worker},
    {"publish", "publish a PEFT directory as a new version", command_publish},
    {"status", "the cluster at a glance", command_status},
    {"adapters", "adapters: active and newest version, writer, how many are current", command_adapters},
    {"versions", "versions of an adapter, or one version and who has it", command_versions},
    {"workers", "workers: what each one serves and fetches", command_workers},
    {"events", "what happened, and what happens", command_events},
    {"wait", "wait until workers have a version", command_wait},
    {"activate", "promote or roll back to a version", command_activate},
    {"rollback", "go back to the version that was active before", command_rollback},
    {"resume", "end the hold of an adapter: activate its newest version", command_resume},
    {"pull", "fetch a version from its holders into a PEFT directory", command_pull},
    {"verify", "have every holder hash its bytes again", command_verify},
    {"keygen", "make a key of your own", command_keygen},
    {"keys", "who may do what: list, add and revoke keys", command_keys},
    {"bench", "measure on this host, compare two measurements (heddle-bench)", command_bench},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static const char NOTES[] =
    "Exit status: 0 ok, 1 the answer is no, 2 usage, 3 not found, 4 conflict, 5 deadline, 6 denied, 7 "
    "broker unavailable,\n"
    "8 input refused, 9 local system, 129, 130 or 143 interrupted (SIGHUP, SIGINT, SIGTERM).\n\n"
    "Environment:\n"
    "  HEDDLE_BROKER         where the broker listens, unless --broker is given [tcp://127.0.0.1:7700]\n"
    "  HEDDLE_BROKER_KEY     the broker's public key, or a file with it, unless --broker-key is given\n"
    "  HEDDLE_KEY            your own key, a file, unless --key is given [client.key of the key ring]\n"
    "  HEDDLE_KEYS           the key ring, a directory [$XDG_CONFIG_HOME/heddle/keys, else "
    "~/.config/heddle/keys]\n"
    "  HEDDLE_TRANSFER_MODE  publish, worker: auto, eager or rendezvous, how tensor bytes are sent "
    "[auto]\n"
    "  HEDDLE_PLUGIN_DIR     publish, worker: where transfer_ucx.so is [beside the program, else where "
    "it was installed]\n"
    "  UCX_...               publish, worker: UCX's own settings; those that are set are left as they "
    "are\n"
    "  XDG_STATE_HOME        broker: its data directory is heddle below it, unless --data is given "
    "[~/.local/state]\n"
    "  NOTIFY_SOCKET         broker, worker: a service manager, notified when they serve and end\n";

static void print_help(FILE *to)
{
    fputs("Usage: heddle COMMAND [OPTION...]\n\nMoves LoRA adapters from trainers to every rollout worker, "
          "by version.\n\nCommands:\n",
          to);
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    fprintf(to, "\nheddle COMMAND --help tells the options of each.\n\n%s", NOTES);
}

static const command_t *find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(COMMANDS[i].name, name)) return &COMMANDS[i];
    return NULL;
}

/* The index of the command's name, after common options: `heddle -o json status` means `heddle status -o
 * json`. */
static int command_index(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++)
        for (const option_t *o = CLI_COMMON; o->name; o++) {
            bool whole = (argv[i][1] == '-' && !strcmp(argv[i] + 2, o->name)) ||
                         (argv[i][1] == o->letter && o->letter && !argv[i][2]);
            if (whole && o->kind != OPTION_FLAG) { i++; break; }
        }
    return i < argc ? i : 0;
}

static int unknown(int argc, char **argv, const char *word)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};
    for (int i = 0; i < COMMAND_COUNT; i++) names[i] = COMMANDS[i].name;
    const char *nearest = word ? option_nearest(word, names) : NULL;
    heddle_error_t error;
    common_t common = {0};
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "-o") && !strcmp(argv[i + 1], "json")) common.output = OUTPUT_JSON;
    error_fail(&error, HEDDLE_ERR_USAGE, word ? "there is no command \"%.100s\"" : "no command was given%.0s",
               word ? word : "");
    char all[512] = "";
    for (int i = 0; i < COMMAND_COUNT; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", names[i]);
    error_contrast(&error, all, word);
    if (nearest) error_hint(&error, "did you mean `heddle %s`? see heddle --help", nearest);
    else error_hint(&error, "see heddle --help");
    return cli_fail(&common, "", &error);
}

/* The list of commands for tools/surfaces, which then calls each with --dump-options. */
static int dump_commands(void)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        printf("command\t%s\t%s\n", COMMANDS[i].name, COMMANDS[i].summary);
    for (size_t at = 0, n; NOTES[at]; at += n + 1) {
        n = strcspn(NOTES + at, "\n");
        printf("note\t%.*s\n", (int)n, NOTES + at);
    }
    return 0;
}

static int run(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--dump-options")) return dump_commands();
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) { print_help(stdout); return 0; }
    if (argc > 1 && !strcmp(argv[1], "--version")) { printf("heddle %s\n", heddle_version()); return 0; }
    if (argc > 1 && !strcmp(argv[1], "help")) {
        bool is_general = argc < 3 || argv[2][0] == '-' || !strcmp(argv[2], "help");
        if (is_general) { print_help(stdout); return 0; }
        const command_t *about = find(argv[2]);
        if (!about) return unknown(argc, argv, argv[2]);
        char *help[] = {argv[0], "--help", NULL};
        return about->run(2, help);
    }
    int at = command_index(argc, argv);
    static const command_t COMPLETE = {"complete", "", command_complete};
    const command_t *command = at ? find(argv[at]) : NULL;
    if (at && !strcmp(argv[at], COMPLETE.name)) command = &COMPLETE;
    if (!command) return unknown(argc, argv, at ? argv[at] : NULL);
    /* The command's name leaves its place, and argv[2..at] become the common options before it. */
    for (int i = at; i > 1; i--) argv[i] = argv[i - 1];
    argv[1] = argv[0];
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    heddle_error_t error;
    common_t common = {.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE};
    int rc = process_begin(&error);
    return process_end(rc ? cli_fail(&common, "", &error) : run(argc, argv));
}

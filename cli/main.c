/* SPDX-License-Identifier: Apache-2.0 */
/* heddle: one program with subcommands.
 *
 * Most of them are functions here, a file for each noun. The broker, the worker and the benchmark are
 * programs of their own, because a service manager starts them by name; the subcommand execs the program in
 * the same directory, so that one command name reaches all of them, of the same release. */
#include "cli/cli.h"

#include "core/errors.h"
#include "core/process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name, *summary;
    command_fn *run;     /* NULL: */
    const char *program; /* the program that it execs */
    const char *word;    /* that program's first argument; NULL: none */
} subcommand_t;

static const subcommand_t COMMANDS[] = {
    {"broker", "run a broker (heddle-broker)", NULL, "heddle-broker", NULL},
    {"worker", "run a worker beside an engine (heddle-worker)", NULL, "heddle-worker", NULL},
    {"publish", "publish a PEFT directory as a new version", command_publish, NULL, NULL},
    {"status", "the cluster at a glance", command_status, NULL, NULL},
    {"brokers", "brokers of the registry: which one leads, how far each standby follows", command_brokers,
     NULL, NULL},
    {"check", "one line and an exit status for a monitoring system", command_check, NULL, NULL},
    {"doctor", "what is wrong with this host, why it matters, and how to mend it", command_doctor, NULL,
     NULL},
    {"top", "adapters, workers and transfers as they move, on the whole terminal", command_top, NULL, NULL},
    {"adapters", "adapters: active and newest version, writer, how many are current", command_adapters, NULL,
     NULL},
    {"versions", "versions of an adapter, or one version and who has it", command_versions, NULL, NULL},
    {"workers", "workers: what each one serves and fetches", command_workers, NULL, NULL},
    {"events", "what happened, and what happens", command_events, NULL, NULL},
    {"wait", "wait until workers have a version", command_wait, NULL, NULL},
    {"activate", "promote or roll back to a version", command_activate, NULL, NULL},
    {"rollback", "go back to the version that was active before", command_rollback, NULL, NULL},
    {"resume", "end the hold of an adapter: activate its newest version", command_resume, NULL, NULL},
    {"forget", "forget an adapter that no process publishes or serves", command_forget, NULL, NULL},
    {"drain", "have workers leave: what only they hold goes to others first", command_drain, NULL, NULL},
    {"pull", "fetch a version from its holders into a PEFT directory", command_pull, NULL, NULL},
    {"verify", "have every holder hash its bytes again", command_verify, NULL, NULL},
    {"keygen", "make a key of your own", command_keygen, NULL, NULL},
    {"keys", "who may do what: list, add and revoke keys", command_keys, NULL, NULL},
    {"invite", "one string with which other hosts join", command_invite, NULL, NULL},
    {"context", "named brokers: list, add, use and remove them", command_context, NULL, NULL},
    {"registry", "a registry as one file, from one store into another (heddle-broker)", NULL, "heddle-broker",
     "registry"},
    {"bench", "measure on this host, compare two measurements (heddle-bench)", NULL, "heddle-bench", NULL},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static const char NOTES[] =
    "Exit status: 0 ok, 1 the answer is no, 2 usage, 3 not found, 4 conflict, 5 deadline, 6 denied, 7 "
    "broker\n"
    "unavailable, 8 input refused, 9 local system, 129, 130 or 143 interrupted (SIGHUP, SIGINT, SIGTERM).\n"
    "heddle check, heddle doctor: 0 ok, 1 warning, 2 critical, 3 unknown, or wrong usage.\n\n"
    "Environment:\n"
    "  HEDDLE_BROKER         where the broker listens, unless --broker or --context is given "
    "[tcp://127.0.0.1:7700]\n"
    "  HEDDLE_CONTEXT        the context that names it, where HEDDLE_BROKER is not set [the one in use]\n"
    "  HEDDLE_BROKER_KEY     the broker's public key, or a file with it, unless --broker-key is given\n"
    "  HEDDLE_KEY            your own key, a file, unless --key is given [client.key of the key ring]\n"
    "  HEDDLE_JOIN           worker: the string of heddle invite, or @FILE with it, unless --join is given\n"
    "  HEDDLE_KEYS           the key ring, a directory [$XDG_CONFIG_HOME/heddle/keys, else "
    "~/.config/heddle/keys]\n"
    "  HEDDLE_TRANSFER_MODE  publish, worker: eager or rendezvous, how tensor bytes are sent [eager]\n"
    "  HEDDLE_GUARD          publish, worker: 0 ends the protection of complete versions from stray writes "
    "[1]\n"
    "  HEDDLE_PLUGIN_DIR     publish, worker: folder of transfer_ucx.so [beside the program, else as "
    "installed]\n"
    "  UCX_...               publish, worker: UCX's own settings; those that are set are left as they are\n"
    "  XDG_STATE_HOME        broker: its data directory is heddle below it, unless --data is given "
    "[~/.local/state]\n"
    "  NOTIFY_SOCKET         broker, worker: a service manager, notified when they serve and end\n";

static const subcommand_t *find(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(COMMANDS[i].name, name)) return &COMMANDS[i];
    return NULL;
}

/* An unknown command lists all of them, since the user may not know what there is. */
static int unknown(int argc, char **argv, const char *word)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};
    for (int i = 0; i < COMMAND_COUNT; i++) names[i] = COMMANDS[i].name;
    const char *nearest = word ? option_nearest(word, names) : NULL;
    heddle_error_t error;
    common_t common = {.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE};
    error_fail(&error, HEDDLE_ERR_USAGE,
               word       ? "there is no command \"%.100s\""
               : argc > 1 ? "no command was given, only %.100s"
                          : "no command was given%.0s",
               word       ? word
               : argc > 1 ? argv[1]
                          : "");
    char all[512] = "";
    for (int i = 0; i < COMMAND_COUNT; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", names[i]);
    error_contrast(&error, all, word);
    if (nearest) error_hint(&error, "did you mean `heddle %s`? see heddle --help", nearest);
    else error_hint(&error, "see heddle --help");
    return cli_fail(&common, "", &error);
}

static int run_command(const subcommand_t *command, int argc, char **argv)
{
    if (command->run) return command->run(argc, argv);
    char path[4096];
    const char **words = calloc((size_t)argc + 2, sizeof *words);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    char *slash = NULL;
    if (n > 0) {
        path[n] = 0;
        slash = strrchr(path, '/');
    }
    if (slash && words) {
        snprintf(slash + 1, 64, "%s", command->program);
        /* It names itself as it was typed (process_name); its table of options is that of the program. */
        char typed[64];
        snprintf(typed, sizeof typed, "heddle %s", command->name);
        words[0] = argc == 2 && !strcmp(argv[1], "--dump-options") ? path : typed;
        words[1] = command->word;
        memcpy(&words[command->word ? 2 : 1], argv + 1, (size_t)argc * sizeof *words); /* with its NULL */
        execv(path, (char *const *)words);
    }
    /* Here only if it could not be run. A search in $PATH would be wrong: it might find another release. */
    int why = errno;
    free(words);
    heddle_error_t error;
    common_t common = {0};
    error_fail(&error, HEDDLE_ERR_INTERNAL, "cannot run %s: %s", slash ? path : command->program,
               strerror(why));
    error_hint(&error, "%s is installed beside heddle; in a checkout, make build", command->program);
    return cli_fail(&common, command->name, &error);
}

static int run(int argc, char **argv)
{
    const char *first = argc > 1 ? argv[1] : "";
    /* The list of commands for tools/surfaces, which then calls each with --dump-options. */
    if (argc == 2 && !strcmp(first, "--dump-options")) {
        for (int i = 0; i < COMMAND_COUNT; i++)
            printf("command\t%s\t%s\n", COMMANDS[i].name, COMMANDS[i].summary);
        for (size_t at = 0, n; NOTES[at]; at += n + 1) {
            n = strcspn(NOTES + at, "\n");
            printf("note\t%.*s\n", (int)n, NOTES + at);
        }
        return 0;
    }
    if (!strcmp(first, "--version")) {
        printf("heddle %s\n", heddle_version());
        return 0;
    }
    /* `heddle help publish` is `heddle publish --help`, and `heddle help` is `heddle --help`. */
    bool is_about = !strcmp(first, "help") && argc > 2 && argv[2][0] != '-' && strcmp(argv[2], "help");
    if (is_about) {
        const subcommand_t *about = find(argv[2]);
        char *help[] = {argv[0], "--help", NULL};
        return about ? run_command(about, 2, help) : unknown(argc, argv, argv[2]);
    }
    if (!strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help")) {
        puts(
            "Usage: heddle COMMAND [OPTION...]\n\nMoves LoRA adapters from trainers to every rollout worker, "
            "by version.\n\nCommands:");
        for (int i = 0; i < COMMAND_COUNT; i++) printf("  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
        printf("\nheddle COMMAND --help tells the options of each.\n\n%s", NOTES);
        return 0;
    }
    /* Common options may come before the command: `heddle -o json status` means `heddle status -o json`. The
     * value of such an option is no command. */
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++)
        for (const option_t *o = CLI_COMMON; o->name; o++) {
            bool is_long = argv[at][1] == '-' && !strcmp(argv[at] + 2, o->name);
            bool is_short = o->letter && argv[at][1] == o->letter && !argv[at][2];
            if ((is_long || is_short) && option_takes_next(o)) {
                at++;
                break;
            }
        }
    if (at >= argc) return unknown(argc, argv, NULL);
    /* For the completion of shells, and for `heddle doctor`: they are in no list of commands. */
    static const subcommand_t HIDDEN[] = {{"complete", "", command_complete, NULL, NULL},
                                          {"reach", "", command_reach, NULL, NULL}};
    const subcommand_t *command = find(argv[at]);
    for (size_t i = 0; i < sizeof HIDDEN / sizeof *HIDDEN; i++)
        if (!strcmp(argv[at], HIDDEN[i].name)) command = &HIDDEN[i];
    if (!command) return unknown(argc, argv, argv[at]);
    /* The command's name leaves its place, and argv[2..at] become the common options before it. */
    for (int i = at; i > 1; i--) argv[i] = argv[i - 1];
    argv[1] = argv[0];
    return run_command(command, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    heddle_error_t error;
    common_t common = {.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE};
    int rc = process_begin(&error);
    return process_end(rc ? cli_fail(&common, "", &error) : run(argc, argv));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* heddle context: lists, adds, chooses and removes named brokers (core/contexts.h).
 *
 * Every action reads the whole file, and one that changes it writes it anew, under its lock; no broker takes
 * part.  Each answers with what there is then. */
#include "cli/cli.h"

#include "core/contexts.h"
#include "core/errors.h"

#include <heddle/keys.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOCK_MS = 5000 };

typedef struct {
    common_t common;
    const char *broker, *broker_key, *key;
    uint32_t timeout_ms;
    int output; /* output_t */
    bool use;
    const char *words[2]; /* the action, its name */
} args_t;

static const char *const ARGS[] = {"ACTION", "NAME", NULL};
static const option_t COMMON[] = {CLI_OUTPUT, {0}};
/* Without their variables: what is in the environment by chance is not written down. */
static const option_t OPTIONS[] = {
    {"broker", 0, OPTION_TEXT, "EP[,EP]", NULL, NULL, "add: where the broker listens",
     offsetof(args_t, broker)},
    {"broker-key", 0, OPTION_TEXT, "KEY|FILE", NULL, NULL,
     "add: the broker's public key; default what the key ring knows of it", offsetof(args_t, broker_key)},
    {"key", 0, OPTION_TEXT, "FILE", NULL, NULL, "add: your own key there; default client.key of the key ring",
     offsetof(args_t, key)},
    {"default-timeout", 0, OPTION_DURATION, "DUR", NULL, NULL, "add: --timeout of commands that have none",
     offsetof(args_t, timeout_ms)},
    {"default-output", 0, OPTION_CHOICE, "table|json", NULL, NULL, "add: --output of commands that have none",
     offsetof(args_t, output)},
    {"use", 0, OPTION_FLAG, NULL, NULL, NULL, "add: it is in use from now on", offsetof(args_t, use)},
    {0}};
static const option_set_t SET = {
    "heddle context",
    "list | add NAME --broker EP | use [NAME] | remove NAME [OPTION...]",
    "Named brokers, each with its keys and defaults; the one in use is where commands, workers and "
    "publishers\n"
    "connect.",
    "A broker that is named otherwise has precedence, and then nothing of the context counts: --broker, "
    "then\n"
    "--context NAME, then HEDDLE_BROKER, then HEDDLE_CONTEXT, then the one in use, then "
    "tcp://127.0.0.1:7700.\n"
    "add: of a name that is there, replaces it; it is in use with --use alone.  use without NAME: none is in "
    "use.\n"
    "context: its name.  used: whether it is in use.  broker, broker key, key: as the options have them.\n"
    "timeout, output: what --timeout and --output are for a command that connects by it, unless it has the "
    "option.\n"
    "They are in $XDG_CONFIG_HOME/heddle/contexts, else ~/.config/heddle/contexts; a file that other users "
    "can\n"
    "change is refused.  add: the address, the keys and their files are checked, and no broker is "
    "asked.\n" CLI_DUR,
    OPTIONS,
    COMMON,
    ARGS,
    1,
    CLI_EXITS "; 3 there is no such context; 9 the file cannot be read or written, or is refused.\n"
              "As everywhere: 2 usage, 129, 130 or 143 interrupted.\n\nExamples:\n"
              "  heddle context add prod --broker tcp://10.0.0.5:7700 --broker-key 'QGid9d...' --use\n"
              "  heddle context add lab --broker tcp://lab:7700 --default-timeout 20s --default-output json\n"
              "  heddle context use lab\n"
              "  heddle status --context lab     one command at another broker"};

/* ---- the actions ---- */

/* A relative path would be another file for a command that runs elsewhere. */
static const char *in_full(const char *path, char ret_full[CONTEXTS_PATH])
{
    return path && path[0] != '/' && realpath(path, ret_full) ? ret_full : path;
}

/* As --timeout takes it; NULL: there is none. */
static const char *timeout_text(uint32_t ms, char ret_text[16])
{
    bool is_whole = ms % 1000 == 0;
    snprintf(ret_text, 16, "%u%s", is_whole ? ms / 1000 : ms, is_whole ? "s" : "ms");
    return ms ? ret_text : NULL;
}

/* What no client could use is refused here, and not by each command that uses the context later. */
static int add(contexts_t *c, const args_t *args, heddle_error_t *error)
{
    char broker_key[CONTEXTS_PATH], key[CONTEXTS_PATH], timeout[16];
    int rc = heddle_broker_check(args->broker, args->broker_key, args->key);
    if (rc) {
        *error = *heddle_last_error();
        return rc;
    }
    /* Text that is a key is the name of no file: both at once were refused. */
    context_t context = {.name = args->words[1],
                         .broker = args->broker,
                         .broker_key = in_full(args->broker_key, broker_key),
                         .key = in_full(args->key, key),
                         .timeout = timeout_text(args->timeout_ms, timeout),
                         .output = args->output == OUTPUT_JSON ? "json" : NULL};
    rc = contexts_put(c, &context, error);
    return !rc && args->use ? contexts_use(c, context.name, error) : rc;
}

static int use(contexts_t *c, const args_t *args, heddle_error_t *error)
{
    return contexts_use(c, args->words[1] ? args->words[1] : "", error);
}

static int drop(contexts_t *c, const args_t *args, heddle_error_t *error)
{
    return contexts_remove(c, args->words[1], error);
}

typedef enum { NAME_NONE, NAME_PERHAPS, NAME_NEEDED } need_t;
static const struct {
    const char *name;
    need_t need;
    int (*change)(contexts_t *c, const args_t *args, heddle_error_t *error); /* NULL: only shows */
} ACTIONS[] = {{"list", NAME_NONE, NULL},
               {"add", NAME_NEEDED, add},
               {"use", NAME_PERHAPS, use},
               {"remove", NAME_NEEDED, drop}};

/* ---- the answer ---- */

typedef struct {
    json_t *list;
    const char *in_use;
} listed_t;

static void list_one(void *self, const context_t *c)
{
    const listed_t *l = self;
    json_array_append_new(l->list, json_pack("{s:s, s:b, s:s, s:s?, s:s?, s:s?, s:s?}", "name", c->name,
                                             "in_use", !strcmp(c->name, l->in_use), "broker", c->broker,
                                             "broker_key", c->broker_key, "key", c->key, "timeout",
                                             c->timeout, "output", c->output));
}

static char *answer_of(const contexts_t *c)
{
    listed_t l = {json_array(), contexts_in_use(c)};
    contexts_each(c, list_one, &l);
    json_t *answer =
        json_pack("{s:s, s:s, s:b, s:s, s:s?, s:o}", "schema", "heddle/1", "kind", "context", "ok", 1, "file",
                  c->path, "in_use", l.in_use[0] ? l.in_use : NULL, "contexts", l.list);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    return text;
}

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "contexts");
    if (!json_array_size(list)) {
        puts("no contexts: heddle context add NAME --broker EP");
        return;
    }
    cli_table_t t;
    table_init(&t, "USED", "CONTEXT", "BROKER", "BROKER KEY", "KEY", "TIMEOUT", "OUTPUT");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        char s[6][64];
        table_row(&t, cli_is(row, "in_use") ? "yes" : "no", cli_text(row, "name", s[0]),
                  cli_text(row, "broker", s[1]), cli_text(row, "broker_key", s[2]),
                  cli_text(row, "key", s[3]), cli_text(row, "timeout", s[4]), cli_text(row, "output", s[5]));
    }
    table_print(&t);
}

/* NULL: the words are right. */
static const char *wrong_with(const args_t *args, size_t action)
{
    need_t need = ACTIONS[action].need;
    bool is_add = ACTIONS[action].change == add;
    bool has_options = args->broker || args->broker_key || args->key || args->use || args->timeout_ms ||
                       args->output != OUTPUT_TABLE;
    if (args->words[1] && need == NAME_NONE) return "list takes no name";
    if (!args->words[1] && need == NAME_NEEDED) return "the name of the context is missing";
    if (!is_add && has_options)
        return "--broker, --broker-key, --key, --use and the --default ones are for add";
    return is_add && !args->broker ? "--broker is missing" : NULL;
}

static int answer(const args_t *args, size_t action)
{
    heddle_error_t error;
    contexts_t c = {0};
    int lock = -1;
    int rc = ACTIONS[action].change ? contexts_lock(LOCK_MS, &lock, &error) : HEDDLE_OK;
    if (!rc) rc = contexts_read(&c, &error);
    if (!rc && ACTIONS[action].change) rc = ACTIONS[action].change(&c, args, &error);
    if (!rc && ACTIONS[action].change) rc = contexts_write(&c, &error);
    if (lock >= 0) close(lock);
    int end = rc ? cli_fail(&args->common, "context", &error)
                 : cli_answer(&args->common, "context", &(heddle_error_t){0}, answer_of(&c), render);
    contexts_fini(&c);
    return end;
}

int command_context(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "context", argc, argv, &args, args.words);
    if (end >= 0) return end;
    const char *names[sizeof ACTIONS / sizeof *ACTIONS + 1] = {NULL};
    size_t count = sizeof ACTIONS / sizeof *ACTIONS, i = 0;
    for (size_t k = 0; k < count; k++) names[k] = ACTIONS[k].name;
    while (names[i] && strcmp(names[i], args.words[0])) i++;
    const char *wrong = i < count ? wrong_with(&args, i) : "there is no such action";
    if (!wrong) return answer(&args, i);
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s", wrong);
    if (i < count) {
        error_expected(&error, "heddle context %s", SET.usage);
        error_hint(&error, "see heddle context --help");
    } else option_unknown_name(args.words[0], names, "see heddle context --help", &error);
    return cli_fail(&args.common, "context", &error);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* cli/cli.h: the parts that the subcommands share: common options, one way to print an answer, one way to
 * fail. Written against include/heddle and core's option table alone. Main thread only; each call blocks
 * until its answer is there or its deadline has passed. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "core/option.h"
#include <heddle/heddle.h>
#include <jansson.h>
#include <stdbool.h>

/* First member of every command's argument struct. */
typedef struct {
    const char *broker, *broker_key, *key;
    const char *context; /* whose broker that is; NULL: it was named otherwise, or is the default */
    const char *join;    /* then it names the broker, and the four above are not filled; NULL: not given */
    uint32_t timeout_ms;
    int output; /* output_t */
    bool quiet;
    int log_level;
} common_t;
typedef enum { OUTPUT_TABLE, OUTPUT_JSON } output_t;
extern const option_t CLI_COMMON[];
/* The common options of a command that needs no broker. */
#define CLI_OUTPUT                                                                                           \
    {"output",                                                                                               \
     'o',                                                                                                    \
     OPTION_CHOICE,                                                                                          \
     "table|json",                                                                                           \
     NULL,                                                                                                   \
     "table",                                                                                                \
     "for people, or one JSON object",                                                                       \
     offsetof(common_t, output)},                                                                            \
        {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "no progress, no notes", offsetof(common_t, quiet)},   \
    {                                                                                                        \
        "log-level", 0, OPTION_CHOICE, "error|warn|info|debug", NULL, "warn", "what is logged on stderr",    \
            offsetof(common_t, log_level)                                                                    \
    }

/* The option of a command that can ask again and again (cli_watch). */
#define CLI_WATCH(type)                                                                                      \
    {                                                                                                        \
        "watch", 0, OPTION_PERIOD, "DUR", NULL, "2s", "ask again every DUR until interrupted",               \
            offsetof(type, watch_ms)                                                                         \
    }
#define CLI_WATCH_HELP                                                                                       \
    "--watch: on a terminal the answer is drawn in place, as much as has room: a narrow one has fewer "      \
    "columns; else\neach follows the one before, after its time; -o json: one object a line.  While the "    \
    "broker is lost it\nwaits for it, and says so.\n"

/* The options of a command that gives rights to a key; `before` stands before the roles. */
#define CLI_ROLE(type, before)                                                                               \
    {                                                                                                        \
        "role", 0, OPTION_LIST, "ROLE", NULL, NULL,                                                          \
            before "reader, publisher:ADAPTER or worker:ADAPTER (* any); may be given again",                \
            offsetof(type, roles)                                                                            \
    }
#define CLI_NAME(type, doc)                                                                                  \
    {                                                                                                        \
        "name", 0, OPTION_TEXT, "NAME", NULL, NULL, doc, offsetof(type, name)                                \
    }

/* Parts of --help. */
#define CLI_DUR "DUR: 500ms, 30s, 5m; a bare number is seconds."
#define CLI_TAG                                                                                              \
    "TAG, as each sample carries it (policy@7:3f9a1c20d4e1): NAME@V with that digest; exit 3 if it differs."
#define CLI_QUORUM "How many workers: all, a number, or a share of them such as 50%."
#define CLI_EXITS "Exit status: 0 ok"
#define CLI_EXITS_COMMON                                                                                     \
    "As everywhere: 2 usage, 6 denied, 7 no broker answers, 9 this machine, 129, 130 or 143 interrupted"

/* One subcommand; returns the exit status. */
typedef int command_fn(int argc, char **argv);
command_fn command_publish, command_status, command_check, command_doctor, command_adapters, command_versions,
    command_workers, command_events, command_wait, command_activate, command_rollback, command_resume,
    command_forget, command_drain, command_pull, command_verify, command_keygen, command_keys, command_invite,
    command_context, command_top, command_complete, command_reach, command_brokers;

/* ---- what each command does (common.c) ---- */

/* Parses into `into` (which begins with a common_t).  Returns -1 to go on, else the exit status to end with:
 * help was printed, or the arguments are wrong and the error was printed. */
int cli_parse(const option_set_t *set, const char *kind, int argc, char **argv, void *into,
              const char **ret_args);
/* Opens the admin handle, wired to SIGINT and SIGTERM.  NULL: failed, *ret_exit holds the status to end
 * with. */
heddle_admin_t *cli_admin(const common_t *c, const char *kind, int *ret_exit);
/* Resets the signal handlers first, because a signal may arrive while the handle is being closed. */
void cli_admin_close(heddle_admin_t **admin);
/* A name that matches nothing may be mistyped: where the broker knows no `noun` ("adapter", "worker") of that
 * name, a line on stderr says so and names the nearest.  Silent with --quiet, and where the broker does not
 * answer. */
void cli_note_unknown(heddle_admin_t *admin, const common_t *c, const char *kind, const char *noun,
                      const char *name);
/* A broker that was started a moment ago decides nothing yet: a line on stderr says for how long.  Returns
 * the failure where the broker does not answer, since the caller's own request would wait as long again. */
int cli_note_settling(heddle_admin_t *admin, const common_t *c);
/* A command that is one request: opens the handle, makes the `call`, prints its answer and closes.  `args`
 * begins with a common_t, which `render` gets too.  Returns the exit status. */
typedef int call_t(heddle_admin_t *admin, const void *args, char **ret_json);
typedef void render_t(const common_t *c, json_t *answer);
int cli_ask(const void *args, const char *kind, call_t *call, render_t *render);
/* The same every period_ms (0: once), until a signal or a failure ends it; a lost broker is waited for
 * (watch.c). */
int cli_watch(const void *args, uint32_t period_ms, const char *kind, call_t *call, render_t *render);
/* Waits so long, or until a signal that ends the program. */
void cli_pause(uint32_t ms);
/* Calls `interrupt(handle)` on SIGINT or SIGTERM, until called with NULL. */
void cli_on_signal(void (*interrupt)(void *handle), void *handle);
/* 130 or 143 after a signal, else 0. */
int cli_signal_exit(void);
/* The rest in ms of a deadline that began at `began_us` (clock_now); at least 1, because 0 means no deadline.
 */
uint32_t cli_left_ms(uint32_t deadline_ms, uint64_t began_us);

/* ---- one answer or one failure (answer.c) ---- */

/* Prints the error on stderr (and as an object on stdout with -o json); returns the exit status. */
int cli_fail(const common_t *c, const char *kind, const heddle_error_t *error);
/* Prints an answer: with -o json the text itself, else what `render` makes of it, its texts settled.  `why`:
 * the call's failure (code 0: none), which then follows on stderr.  Takes `json` (may be NULL: then the
 * failure alone is printed). */
int cli_answer(const common_t *c, const char *kind, const heddle_error_t *why, char *json, render_t *render);
/* The failure as the member `error` of an answer, with the hint of its code; the caller owns it. */
json_t *cli_error_object(const char *kind, const heddle_error_t *error);
void cli_print_json(json_t *value);
/* The failure of the call that just returned rc. */
const heddle_error_t *cli_error(int rc);

/* ---- values of an answer, for people (show.c) ---- */

/* Replaces the control characters in all texts: a text from a peer must not drive the user's terminal.  The
 * names of fields stay as they are. */
void cli_clean_texts(json_t *value);
/* A member of an object: its text, NULL where it is none; its number, 0 where it is none; whether it is
 * true. */
const char *cli_string(const json_t *object, const char *key);
int64_t cli_integer(const json_t *object, const char *key);
bool cli_is(const json_t *object, const char *key);
/* A member as text, "-" where null or absent: as it is, "17.6 MB", "9.6 ms", "3 s ago" from an RFC 3339 time,
 * the first twelve digits of a digest. */
const char *cli_text(const json_t *object, const char *key, char scratch[64]);
const char *cli_bytes(const json_t *object, const char *key, char scratch[64]);
const char *cli_ms(const json_t *object, const char *key, char scratch[64]);
const char *cli_age(const json_t *object, const char *key, char scratch[64]);
const char *cli_short_digest(const json_t *object, const char *key, char scratch[64]);
/* "1 adapter", "2 adapters". */
const char *cli_count(int64_t n, const char *noun, char scratch[64]);
/* "deadline: was not staged in time", of an object with code and message; "-" where there is no code. */
const char *cli_why(const json_t *object, char *scratch, size_t size);
/* "node=gpu-7 pod=p2 +3": of a worker's labels as many as have room in a column, and how many more there are;
 * "-" for none. */
const char *cli_labels(const json_t *worker, char scratch[64]);
/* The texts of a list, one after the other; "" for none. */
const char *cli_join(const json_t *list, const char *separator, char *scratch, size_t size);

/* The table of adapters, which `heddle status` shows below its own lines. */
void cli_show_adapters(const common_t *c, json_t *answer);
/* The outcome of `heddle activate`, rollback or resume. */
void cli_show_decision(const json_t *answer, bool is_awaited);
/* A worker that --worker names may never have joined: then there is no heartbeat. */
bool cli_is_unknown(const json_t *missing);
/* A line for each worker that a wait, or a decision that was awaited, had not reached. */
void cli_show_missing(const json_t *missing);
/* "[####....]  40 %  7.0 MB of 17.6 MB " over the current line of stderr, and an empty line in its place. */
void cli_draw_bar(uint64_t bytes_done, uint64_t bytes);
void cli_clear_bar(void);

/* A table for people: columns as wide as needed.  Marks before a heading: '>' sets its column to the right.
 * In a frame (table_fit) a column with '~' is left out where there is no room for all, then names, of a
 * column with '<', lose their beginning; what does not fit then is cut, and a last one with '+' goes on in
 * rows of its own.
 *
 *   table_init(&t, "NAME", ">BYTES");    table_row(&t, "policy", "17");    table_print(&t);
 *
 * A row has as many cells as there are headings, which is asserted: macros count what the compiler cannot. */
enum { TABLE_COLUMNS = 16 };
typedef struct {
    int columns;
    char **cells;
    int count, capacity;
} cli_table_t;
#define TABLE_CELLS(...)                                                                                     \
    (const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))
#define table_init(table, ...) table_begin(table, TABLE_CELLS(__VA_ARGS__))
#define table_row(table, ...) table_add(table, TABLE_CELLS(__VA_ARGS__))
void table_begin(cli_table_t *t, const char *const *headings, int count); /* TABLE_COLUMNS at most */
void table_add(cli_table_t *t, const char *const *cells, int count);      /* NULL: "-" */
void table_print(cli_table_t *t);                                         /* and frees it */
void table_fit(int columns); /* the frame in which tables are printed from now on; 0: none */

#endif

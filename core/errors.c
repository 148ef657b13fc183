/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last error, and fields that are cut and cleaned. */
#include "core/errors.h"

#include "core/bytes.h"
#include "core/clock.h"
#include "core/repeat.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int code;
    const char *name;
    int exit;
    heddle_broken_t broken;
    int retriable;
    const char *text;
} error_row_t;

static const error_row_t ROWS[] = {
#define X(NAME, value, name, exit, group, retriable, text)                                                   \
    {-(value), name, exit, HEDDLE_BROKEN_##group, retriable, text},
    HEDDLE_ERRORS(X)
#undef X
};

static const error_row_t *row_of(int code)
{
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        if (ROWS[i].code == code) return &ROWS[i];
    return NULL;
}

const char *heddle_err_name(int code)
{
    const error_row_t *row = row_of(code);
    return code == HEDDLE_OK ? "ok" : row ? row->name : "unknown";
}

const char *heddle_err_text(int code)
{
    const error_row_t *row = row_of(code);
    return code == HEDDLE_OK ? "ok" : row ? row->text : "unknown error";
}

int heddle_err_exit(int code)
{
    const error_row_t *row = row_of(code);
    return code == HEDDLE_OK ? 0 : row ? row->exit : 9;
}

heddle_broken_t heddle_err_broken(int code)
{
    const error_row_t *row = row_of(code);
    return code == HEDDLE_OK ? HEDDLE_BROKEN_NOTHING : row ? row->broken : HEDDLE_BROKEN_PROCESS;
}

int heddle_err_from_name(const char *name)
{
    if (name && !strcmp(name, "ok")) return HEDDLE_OK;
    for (size_t i = 0; name && i < sizeof ROWS / sizeof *ROWS; i++)
        if (!strcmp(ROWS[i].name, name)) return ROWS[i].code;
    return HEDDLE_ERR_INTERNAL;
}

/* The length of the control character that begins here; 0: none does. These are the ASCII ones; U+0080 to
 * U+009F, which terminals interpret too; and those that change the direction of text (UAX 9: U+200E, U+200F,
 * U+202A to U+202E, U+2066 to U+2069), with which a peer could make a message read as another. */
static size_t control_bytes(const unsigned char *at)
{
    if (at[0] == 0xc2 && (at[1] & 0xe0) == 0x80) return 2;
    bool is_mark = at[0] == 0xe2 && at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f);
    bool is_embedding = at[0] == 0xe2 && at[1] == 0x80 && at[2] >= 0xaa && at[2] <= 0xae;
    bool is_isolate = at[0] == 0xe2 && at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9;
    if (is_mark || is_embedding || is_isolate) return 3;
    return at[0] < 0x20 || at[0] == 0x7f;
}

/* A text that a user gave may be the line of a key file, "secret KEY", in place of a path or a public key.  A
 * key has 40 characters, and may be cut; shorter words are those of a sentence about a secret. */
static void mask_keys(char *text)
{
    enum { SECRET_LEAST = 16 };
    static const char WORD[] = "secret ";
    for (char *at = text; (at = strstr(at, WORD)) != NULL;) {
        at += sizeof WORD - 1;
        size_t bytes = strcspn(at, " \"\n");
        if (bytes >= SECRET_LEAST) memset(at, '*', bytes);
    }
}

/* Texts of peers and files end in terminals and logs: what a terminal would interpret becomes '?'. */
void error_text(char *to, size_t size, const char *text)
{
    size_t n = strlen(text);
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* do not cut a UTF-8 sequence */
    }
    memmove(to, text, n);
    to[n] = 0;
    for (size_t i = 0; i < n;) {
        size_t bytes = control_bytes((const unsigned char *)to + i);
        memset(to + i, '?', bytes);
        i += bytes ? bytes : 1;
    }
    mask_keys(to);
}

/* A text without a space in its second half is cut anywhere. */
void error_text_at_word(char *to, size_t size, const char *text)
{
    static const char MORE[] = " ...";
    bool is_cut = strlen(text) >= size;
    error_text(to, size, text);
    if (!is_cut || size < 2 * sizeof MORE) return;
    size_t at = size - sizeof MORE;
    while (at > size / 2 && to[at] != ' ') at--;
    if (to[at] == ' ') memcpy(to + at, MORE, sizeof MORE);
}

/* A join string (wire/join_string.h) that came where none is expected, as in a mistyped command line. */
static void mask_join_strings(char *text)
{
    static const char WORD[] = "heddle-join-";
    static const char BASE64URL[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (char *at = text; (at = strstr(at, WORD)) != NULL;) {
        at += strcspn(at, ": ");
        if (*at == ':') at++;
        size_t bytes = strspn(at, BASE64URL);
        memset(at, '*', bytes);
    }
}

/* Not in error_text, by which the answer of `heddle invite` is shown too. */
static void set_field(char *to, size_t size, const char *text)
{
    error_text(to, size, text);
    mask_join_strings(to);
}

static void format_into(char *to, size_t size, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    set_field(to, size, text);
}

int error_fail(heddle_error_t *error, int code, const char *format, ...)
{
    if (!error) return code;
    *error = (heddle_error_t){.code = code};
    const error_row_t *row = row_of(code);
    error->retriable = row ? row->retriable : 0;
    va_list args;
    va_start(args, format);
    format_into(error->message, sizeof error->message, format, args);
    va_end(args);
    return code;
}

void error_where(heddle_error_t *error, const char *adapter, uint64_t version, const char *worker,
                 const char *phase)
{
    if (!error) return;
    if (adapter) set_field(error->adapter, sizeof error->adapter, adapter);
    if (version) error->version = version;
    if (worker) set_field(error->worker, sizeof error->worker, worker);
    if (phase) set_field(error->phase, sizeof error->phase, phase);
}

void error_contrast(heddle_error_t *error, const char *expected, const char *found)
{
    if (!error) return;
    if (expected) set_field(error->expected, sizeof error->expected, expected);
    if (found) set_field(error->found, sizeof error->found, found);
}

#define FORMATTED(part)                                                                                      \
    void error_##part(heddle_error_t *error, const char *format, ...)                                        \
    {                                                                                                        \
        if (!error) return;                                                                                  \
        va_list args;                                                                                        \
        va_start(args, format);                                                                              \
        format_into(error->part, sizeof error->part, format, args);                                          \
        va_end(args);                                                                                        \
    }
FORMATTED(expected)
FORMATTED(found)
FORMATTED(hint)

/* Of each thread: calls on different handles may be made on several threads at once. */
static _Thread_local heddle_error_t last;

const heddle_error_t *heddle_last_error(void) { return &last; }
heddle_error_t *error_last(void) { return &last; }

/* Without the message, which may hold numbers that change from one try to the next. */
uint32_t error_reason(const heddle_error_t *error)
{
    return (uint32_t)-error->code + 31 * repeat_key(error->expected) + 961 * repeat_key(error->hint);
}

int error_publish(const heddle_error_t *error)
{
    last = *error;
    return error->code;
}

static void replace_word(char *field, size_t size, const char *word, const char *by)
{
    char before[sizeof((heddle_error_t *)NULL)->message];
    char *at = strstr(field, word);
    if (!at) return;
    size_t n = (size_t)(at - field);
    text_printf(before, sizeof before, "%s", field);
    text_printf(field + n, size - n, "%s%s", by, before + n + strlen(word));
}

void error_silent_broker(heddle_error_t *error, const char *endpoint, uint32_t silent_ms)
{
    char since[25], message[sizeof error->message];
    if (!error) return;
    clock_text(clock_wall(clock_system()) - silent_ms, since);
    text_printf(message, sizeof message,
                "%s; the broker at %.200s has not answered for %u s (since %.8s UTC), and this is from "
                "then",
                error->message, endpoint, silent_ms / 1000, since + 11);
    error_text(error->message, sizeof error->message, message);
    error_hint(error,
               "does the broker at %.100s still run? `heddle status` and its log tell; started again "
               "with the same --data it goes on",
               endpoint);
}

void error_name_adapter(heddle_error_t *error, const char *adapter)
{
    char role[sizeof error->expected];
    text_printf(role, sizeof role, ":%s", adapter);
    replace_word(error->message, sizeof error->message, ":ADAPTER", role);
    replace_word(error->expected, sizeof error->expected, ":ADAPTER", role);
    replace_word(error->hint, sizeof error->hint, ":ADAPTER", role);
}

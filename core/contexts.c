/* SPDX-License-Identifier: Apache-2.0 */
/* The file of contexts: where it is, what it may hold, and how it is replaced whole. */
#include "core/contexts.h"

#include "core/config_path.h"
#include "core/errors.h"
#include "core/names.h"
#include "core/option.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 64 * 1024, VALUE_BYTES = 1024, LOOK_MS = 10 };

/* ---- what it may hold ---- */

static const char *const VALUES[] = {"broker", "broker_key", "key", "timeout", "output"};

/* A value is printed in errors and tables, and is no place for what a terminal obeys, or for the secret of a
 * join string (wire/join_string.h). */
static bool is_value(const char *text)
{
    size_t n = strlen(text);
    if (strstr(text, "heddle-join-")) return false;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return false;
    return n > 0 && n < VALUE_BYTES;
}

static int malformed(const char *path, heddle_error_t *error, const char *what)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s: %s", path, what);
    error_expected(error, "{\"in_use\": NAME, \"contexts\": {NAME: {\"broker\": EP, ...}}}");
    error_hint(error, "correct it, or remove it and add the contexts again: `heddle context add`");
    return rc;
}

static int check_context(const char *name, const json_t *row, const char *path, heddle_error_t *error)
{
    char what[300];
    if (!name_is_valid(name)) return malformed(path, error, "the name of a context is not a name");
    snprintf(what, sizeof what, "context %.128s names no broker", name);
    if (!json_is_string(json_object_get(row, "broker"))) return malformed(path, error, what);
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        const json_t *value = json_object_get(row, VALUES[i]);
        if (!value || json_is_null(value)) continue;
        snprintf(what, sizeof what, "context %.128s: %s is not a text that it may be", name, VALUES[i]);
        if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value) ||
            !is_value(json_string_value(value)))
            return malformed(path, error, what);
    }
    return HEDDLE_OK;
}

static int check(const json_t *root, const char *path, heddle_error_t *error)
{
    json_t *all = json_object_get(root, "contexts"), *row;
    const json_t *in_use = json_object_get(root, "in_use");
    const char *name;
    if (!json_is_object(all)) return malformed(path, error, "it has no object \"contexts\"");
    json_object_foreach(all, name, row)
    {
        int rc = check_context(name, row, path, error);
        if (rc) return rc;
    }
    bool is_known = json_is_string(in_use) && json_object_get(all, json_string_value(in_use));
    if (in_use && !json_is_null(in_use) && !is_known)
        return malformed(path, error, "\"in_use\" is not the name of a context");
    return HEDDLE_OK;
}

int contexts_parse(const char *text, size_t bytes, const char *path, json_t **ret_root, heddle_error_t *error)
{
    json_error_t why;
    char what[300];
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        snprintf(what, sizeof what, "line %d: %.160s", why.line, why.text);
        error_text(what, sizeof what, what);
        return malformed(path, error, what);
    }
    int rc = check(root, path, error);
    if (rc) json_decref(root);
    else *ret_root = root;
    return rc;
}

/* ---- the file ---- */

static int unreadable(const char *path, int number, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s cannot be read: %s", path, strerror(number));
    error_hint(error, "check that uid %u may read it", (unsigned)geteuid());
    return rc;
}

/* It says which broker this user's keys are presented to, so no other user may have changed it.  For root a
 * foreign owner is normal. */
static int check_file(const char *path, const struct stat *st, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    uid_t own = geteuid();
    if (!S_ISREG(st->st_mode) || st->st_size > FILE_BYTES) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s is not a file of contexts", path);
        error_contrast(error, "a regular file of at most 64 KiB", NULL);
        error_hint(error, "move it elsewhere, then add the contexts: `heddle context add`");
    } else if (st->st_mode & 022 || (st->st_uid != own && st->st_uid != 0 && own != 0)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s can be changed by other users", path);
        error_expected(error, "a file of uid %u, mode 600", (unsigned)own);
        error_found(error, "uid %u, mode %03o", (unsigned)st->st_uid, (unsigned)st->st_mode & 0777);
        error_hint(error, "look at what it says, then chmod 600 it");
    }
    return rc;
}

/* Without O_NONBLOCK a FIFO in its place would block. */
static int read_file(contexts_t *c, heddle_error_t *error)
{
    char *text = malloc(FILE_BYTES + 1);
    struct stat st;
    ssize_t n = 0;
    if (!text) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for contexts");
    int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = HEDDLE_OK;
    bool is_missing = fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (fd < 0 || fstat(fd, &st)) rc = is_missing ? HEDDLE_OK : unreadable(c->path, errno, error);
    else rc = check_file(c->path, &st, error);
    if (!rc && !is_missing && (n = read(fd, text, FILE_BYTES)) < 0) rc = unreadable(c->path, errno, error);
    if (fd >= 0) close(fd);
    if (!rc && is_missing) {
        c->root = json_pack("{s:n, s:{}}", "in_use", "contexts");
        if (!c->root) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for contexts");
    } else if (!rc) rc = contexts_parse(text, (size_t)n, c->path, &c->root, error);
    free(text);
    return rc;
}

static int find_place(char ret_path[CONTEXTS_PATH], heddle_error_t *error)
{
    if (config_path("contexts", ret_path, CONTEXTS_PATH)) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE,
                        "no place for contexts: neither XDG_CONFIG_HOME nor HOME is a usable path");
    error_hint(error, "name the broker with opts.broker or HEDDLE_BROKER");
    return rc;
}

int contexts_read(contexts_t *ret_contexts, heddle_error_t *error)
{
    *ret_contexts = (contexts_t){0};
    int rc = find_place(ret_contexts->path, error);
    return rc ? rc : read_file(ret_contexts, error);
}

static int unwritten(const char *path, int number, heddle_error_t *error)
{
    bool is_full = number == ENOSPC || number == EDQUOT;
    int rc = error_fail(error, is_full ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_DATA_DIR,
                        "%.300s cannot be written: %s", path, strerror(number));
    if (is_full) error_hint(error, "make room on its file system, then try again");
    else error_hint(error, "check that uid %u may write in its directory", (unsigned)geteuid());
    return rc;
}

/* The directories above the file, each for this user alone. */
static int make_parents(const char *path)
{
    char part[CONTEXTS_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return errno;
    }
    return 0;
}

/* A command has the lock for milliseconds, unless it is stopped within them. */
int contexts_lock(uint32_t wait_ms, int *ret_lock, heddle_error_t *error)
{
    char path[CONTEXTS_PATH + 8];
    int rc = find_place(path, error);
    if (rc) return rc;
    int number = make_parents(path);
    strcat(path, ".lock");
    int fd = number ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) return unwritten(path, number ? number : errno, error);
    for (uint32_t waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB); waited_ms += LOOK_MS) {
        number = errno;
        if (number == EINTR) continue;
        if (number == EWOULDBLOCK && waited_ms < wait_ms) {
            poll(NULL, 0, LOOK_MS);
            continue;
        }
        close(fd);
        if (number != EWOULDBLOCK) return unwritten(path, number, error);
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "another command has locked the contexts, for %u ms now", wait_ms);
        error_hint(error, "`fuser %.300s` names the process", path);
        return rc;
    }
    *ret_lock = fd;
    return HEDDLE_OK;
}

/* A temporary file first: a crash, or a full disk, must not lose the contexts that were there. */
int contexts_write(const contexts_t *c, heddle_error_t *error)
{
    char temporary[CONTEXTS_PATH + 16];
    int number = make_parents(c->path);
    if (number) return unwritten(c->path, number, error);
    char *text = json_dumps(c->root, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!text) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for contexts");
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", c->path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
    size_t bytes = strlen(text);
    bool is_written = fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes && write(fd, "\n", 1) == 1;
    if (!is_written) number = errno ? errno : EIO;
    else if (fsync(fd) || rename(temporary, c->path)) number = errno;
    if (fd >= 0) close(fd);
    if (fd >= 0 && number) unlink(temporary);
    free(text);
    return number ? unwritten(c->path, number, error) : HEDDLE_OK;
}

void contexts_fini(contexts_t *c)
{
    json_decref(c->root);
    c->root = NULL;
}

/* ---- one of them ---- */

const char *contexts_in_use(const contexts_t *c)
{
    const char *name = json_string_value(json_object_get(c->root, "in_use"));
    return name ? name : "";
}

static json_t *all_of(const contexts_t *c) { return json_object_get(c->root, "contexts"); }

static context_t context_of(const char *name, const json_t *row)
{
    return (context_t){name,
                       json_string_value(json_object_get(row, "broker")),
                       json_string_value(json_object_get(row, "broker_key")),
                       json_string_value(json_object_get(row, "key")),
                       json_string_value(json_object_get(row, "timeout")),
                       json_string_value(json_object_get(row, "output"))};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Ascending, and NULL at the end; the caller frees the list. */
static const char **names_of(const contexts_t *c)
{
    size_t count = json_object_size(all_of(c)), i = 0;
    const char **names = calloc(count + 1, sizeof *names), *name;
    json_t *row;
    if (!names) return NULL;
    json_object_foreach(all_of(c), name, row) names[i++] = name;
    qsort(names, count, sizeof *names, by_name);
    return names;
}

int contexts_find(const contexts_t *c, const char *name, context_t *ret_context, heddle_error_t *error)
{
    const json_t *row = json_object_get(all_of(c), name);
    if (row) {
        *ret_context = context_of(name, row);
        return HEDDLE_OK;
    }
    const char **names = names_of(c);
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no context \"%.128s\"", name);
    option_unknown_name(name, names, "`heddle context list` shows them", error);
    free(names);
    return rc;
}

void contexts_each(const contexts_t *c, void (*see)(void *self, const context_t *context), void *self)
{
    const char **names = names_of(c);
    for (size_t i = 0; names && names[i]; i++) {
        context_t context = context_of(names[i], json_object_get(all_of(c), names[i]));
        see(self, &context);
    }
    free(names);
}

int contexts_put(contexts_t *c, const context_t *context, heddle_error_t *error)
{
    const char *const given[] = {context->broker, context->broker_key, context->key, context->timeout,
                                 context->output};
    int rc = name_check("context", context->name, error);
    for (size_t i = 0; !rc && i < sizeof VALUES / sizeof *VALUES; i++)
        if (given[i] && !is_value(given[i])) {
            rc =
                error_fail(error, HEDDLE_ERR_USAGE,
                           "%s of a context is empty or too long, or has control characters or a join string",
                           VALUES[i]);
            error_hint(error, "1 to %d characters", VALUE_BYTES - 1);
        }
    if (rc) return rc;
    json_t *row = json_pack("{s:s?, s:s?, s:s?, s:s?, s:s?}", "broker", context->broker, "broker_key",
                            context->broker_key, "key", context->key, "timeout", context->timeout, "output",
                            context->output);
    if (json_object_set_new(all_of(c), context->name, row)) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "a value of the context is not text");
        error_hint(error, "values are UTF-8");
    }
    return rc;
}

int contexts_remove(contexts_t *c, const char *name, heddle_error_t *error)
{
    context_t gone;
    int rc = contexts_find(c, name, &gone, error);
    if (rc) return rc;
    if (!strcmp(contexts_in_use(c), name)) json_object_set_new(c->root, "in_use", json_null());
    json_object_del(all_of(c), name);
    return HEDDLE_OK;
}

int contexts_use(contexts_t *c, const char *name, heddle_error_t *error)
{
    context_t used;
    int rc = name[0] ? contexts_find(c, name, &used, error) : HEDDLE_OK;
    if (!rc) json_object_set_new(c->root, "in_use", name[0] ? json_string(name) : json_null());
    return rc;
}

/* ---- who connects ---- */

static const char *set_in(const char *variable)
{
    const char *text = getenv(variable);
    return text && text[0] ? text : NULL;
}

int contexts_fill(const char *name, context_t *values, contexts_t *ret_contexts, heddle_error_t *error)
{
    context_t found = {0};
    *ret_contexts = (contexts_t){0};
    const char *wanted = name && name[0] ? name : set_in("HEDDLE_CONTEXT");
    if (values->broker && values->broker[0]) return HEDDLE_OK;
    if (!(name && name[0]) && set_in("HEDDLE_BROKER")) return HEDDLE_OK;
    /* A daemon without a home has no contexts, and needs none. */
    if (!wanted && !config_path("contexts", ret_contexts->path, sizeof ret_contexts->path)) return HEDDLE_OK;
    int rc = contexts_read(ret_contexts, error);
    if (!rc && !wanted) wanted = contexts_in_use(ret_contexts);
    if (rc || !wanted[0]) return rc;
    rc = contexts_find(ret_contexts, wanted, &found, error);
    if (rc) return rc;
    values->name = found.name;
    values->broker = found.broker;
    if (!values->broker_key) values->broker_key = found.broker_key;
    if (!values->key) values->key = found.key;
    values->timeout = found.timeout;
    values->output = found.output;
    return HEDDLE_OK;
}

/* A value that is still what the variable has: no option was stored over it. */
static bool is_of(const char *value, const char *variable) { return value && value == getenv(variable); }

/* The variables go too, because the library looks at them where an option is not given. */
static int put_environment_aside(context_t *values, heddle_error_t *error)
{
    if (values->broker && !is_of(values->broker, "HEDDLE_BROKER")) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "--broker and --context name two brokers");
        error_hint(error, "give one of the two");
        return rc;
    }
    if (is_of(values->broker_key, "HEDDLE_BROKER_KEY")) values->broker_key = NULL;
    if (is_of(values->key, "HEDDLE_KEY")) values->key = NULL;
    values->broker = NULL;
    unsetenv("HEDDLE_BROKER_KEY");
    unsetenv("HEDDLE_KEY");
    return HEDDLE_OK;
}

int contexts_choose(context_t *values, contexts_t *ret_contexts, heddle_error_t *error)
{
    const char *name = is_of(values->name, "HEDDLE_CONTEXT") ? NULL : values->name;
    int rc = name ? put_environment_aside(values, error) : HEDDLE_OK;
    *ret_contexts = (contexts_t){0};
    values->name = NULL;
    if (!rc) rc = contexts_fill(name, values, ret_contexts, error);
    if (!values->broker) values->broker = CONTEXTS_BROKER;
    return rc;
}

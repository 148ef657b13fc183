/* SPDX-License-Identifier: Apache-2.0 */
/* core/contexts.h: named brokers of a user, and which one is in use: the file that `heddle context` keeps.
 *
 *   $XDG_CONFIG_HOME/heddle/contexts, else ~/.config/heddle/contexts, mode 0600:
 *     {"in_use": "prod", "contexts":
 *      {"prod": {"broker": "tcp://10.0.0.5:7700", "broker_key": "QGid9d...", "key": "/home/...",
 *                "timeout": "10s", "output": "json"}}}
 *
 * The file is hostile until it was parsed: a file that other users can change is refused, and so is one that
 * is malformed or too large, or has a join string, which is a secret.  One that is not there has no contexts.
 * Fields that are not known are kept.
 *
 * What reads it to change it locks it first, by a file beside it (contexts.lock): of two commands at once
 * neither loses what the other one wrote.  A reader needs no lock, since the file is replaced whole.
 *
 * A context is used as a whole: its keys are for its broker.  So it is used only where no broker is named,
 * by an option or HEDDLE_BROKER.  `timeout` and `output` are defaults of the options of these names, as text:
 * they are for commands, which check them.
 *
 * The owner ends a contexts_t with contexts_fini; texts of a context are borrowed from it.  Any thread;
 * reading and writing block on the file system. */
#ifndef CORE_CONTEXTS_H
#define CORE_CONTEXTS_H

#include <heddle/types.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTEXTS_PATH 4096
#define CONTEXTS_BROKER "tcp://127.0.0.1:7700" /* where none is named */

typedef struct {
    char path[CONTEXTS_PATH];
    json_t *root;
} contexts_t;

/* NULL: not said. */
typedef struct {
    const char *name, *broker, *broker_key, *key, *timeout, *output;
} context_t;

/* USAGE: there is no place for the file · DATA_DIR: it cannot be read, or is refused. */
int contexts_read(contexts_t *ret_contexts, heddle_error_t *error);
/* Before contexts_read of what is to be changed, until the descriptor *ret_lock is closed; waits for another
 * command for `wait_ms` at most.  USAGE and DATA_DIR as contexts_read, NO_SPACE · UNAVAILABLE: another
 * process has the lock. */
int contexts_lock(uint32_t wait_ms, int *ret_lock, heddle_error_t *error);
/* DATA_DIR, NO_SPACE.  The file that was there stays whole. */
int contexts_write(const contexts_t *c, heddle_error_t *error);
void contexts_fini(contexts_t *c);
/* The text of the file; `path` is for errors.  DATA_DIR: malformed. */
int contexts_parse(const char *text, size_t bytes, const char *path, json_t **ret_root,
                   heddle_error_t *error);

/* "": none. */
const char *contexts_in_use(const contexts_t *c);
/* NOT_FOUND: the hint names one that is like it. */
int contexts_find(const contexts_t *c, const char *name, context_t *ret_context, heddle_error_t *error);
/* Calls `see` for each context, by name. */
void contexts_each(const contexts_t *c, void (*see)(void *self, const context_t *context), void *self);
/* Adds it, or replaces the one of its name.  BAD_NAME, USAGE: a value that no file may have. */
int contexts_put(contexts_t *c, const context_t *context, heddle_error_t *error);
/* NOT_FOUND.  One that is in use is in use no more. */
int contexts_remove(contexts_t *c, const char *name, heddle_error_t *error);
/* "": none is in use from now on.  NOT_FOUND. */
int contexts_use(contexts_t *c, const char *name, heddle_error_t *error);

/* Where `values` name no broker, nor does HEDDLE_BROKER: fills what is NULL in them from the context `name`;
 * NULL: that of HEDDLE_CONTEXT, else the one in use, else nothing is filled.  Its texts are borrowed from
 * *ret_contexts, which the caller ends whatever is returned. */
int contexts_fill(const char *name, context_t *values, contexts_t *ret_contexts, heddle_error_t *error);
/* The same for a program: `values` are those of its options, with `name` of --context (HEDDLE_CONTEXT); then
 * `name` is the context that is used (NULL: none), and there is a broker.  An option has precedence over the
 * environment: --context puts aside what variables say of another broker.  USAGE: --broker and --context.  To
 * be called while the process has one thread. */
int contexts_choose(context_t *values, contexts_t *ret_contexts, heddle_error_t *error);

#endif

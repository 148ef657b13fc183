/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_store.h: the store that the broker was started with: the registry in its data directory
 * (SQLite), or in an etcd (--store).
 *
 * SQLite confirms a commit at once.  An etcd answers AGAIN, and main_store_committed says in a later turn how
 * it ended; its turns are main_store_turn's, when main_store_fd is readable or main_store_due has come.  The
 * loop's thread. */
#ifndef BROKER_MAIN_STORE_H
#define BROKER_MAIN_STORE_H

#include "broker/store/etcd.h"
#include "broker/store/store.h"
#include "core/option.h"

typedef struct {
    store_t *sqlite;
    etcd_t *etcd; /* one of the two */
} main_store_t;

/* What an etcd asks for, as options name it: files, or NULL. */
typedef struct {
    const char *ca, *cert, *key; /* --store-ca, --store-cert, --store-key */
    const char *user;            /* --store-user: its one line is USER:PASSWORD */
} main_store_access_t;

/* The rows of these options in a program's table: `at` is where its struct has the main_store_access_t. */
#define MAIN_STORE_OPTIONS(at)                                                                               \
    MAIN_STORE_ROW("store-ca",                                                                               \
                   "with etcds://: who may have signed the certificate of etcd (PEM); default: "             \
                   "the system's authorities",                                                               \
                   (at) + offsetof(main_store_access_t, ca)),                                                \
        MAIN_STORE_ROW("store-cert", "with etcds://: show etcd this certificate (PEM); with --store-key",    \
                       (at) + offsetof(main_store_access_t, cert)),                                          \
        MAIN_STORE_ROW("store-key", "the private key of that certificate, for its owner alone",              \
                       (at) + offsetof(main_store_access_t, key)),                                           \
        MAIN_STORE_ROW("store-user", "the user at etcd: USER:PASSWORD, in a file for its owner alone",       \
                       (at) + offsetof(main_store_access_t, user))
#define MAIN_STORE_ROW(name, doc, offset)                                                                    \
    {                                                                                                        \
        name, 0, OPTION_TEXT, "FILE", NULL, NULL, doc, offset                                                \
    }

/* USAGE: what goes with what. */
int main_store_check(const char *url, const main_store_access_t *access, heddle_error_t *error);
/* Without --store.  USAGE: an option is about it. */
int main_store_no_access(const main_store_access_t *access, heddle_error_t *error);
int main_store_without(const char *option, heddle_error_t *error); /* that one: USAGE */
/* $XDG_STATE_HOME/heddle, else ~/.local/state/heddle.  USAGE: there is neither. */
int main_store_default_dir(char *to, size_t size, heddle_error_t *error);
/* Sets what the files say in `opts`, whose user and password point into `scratch` then; the caller wipes it.
 * DATA_DIR: a file. */
#define MAIN_STORE_SCRATCH 1024
int main_store_access(const main_store_access_t *access, char scratch[MAIN_STORE_SCRATCH], etcd_opts_t *opts,
                      heddle_error_t *error);

/* Without an address in `opts`: in DIR `data`, and of the rest its purpose counts.  What store_open, or
 * etcd_open, says. */
int main_store_open(main_store_t *s, const char *data, const etcd_opts_t *opts, heddle_error_t *error);
void main_store_close(main_store_t *s);
/* No broker starts with it from here on.  What store_mark_moved, or etcd_finish, says. */
int main_store_mark_moved(main_store_t *s, heddle_error_t *error);

/* Where that mark is, for people. */
void main_store_name_mark(const main_store_t *s, char *to, size_t size);

int main_store_load(main_store_t *s, int (*each)(void *self, const record_t *record), void *self,
                    heddle_error_t *error);
int main_store_commit(main_store_t *s, const record_t *records, int count, heddle_error_t *error);
bool main_store_committed(main_store_t *s, int *ret_rc, heddle_error_t *error);
int main_store_config(main_store_t *s, const char *adapter, uint64_t version, buf_t *out);
int main_store_key_count(const main_store_t *s, uint64_t *ret_count, heddle_error_t *error);
const char *main_store_place(const main_store_t *s); /* the directory, or the address of the etcd */
const char *main_store_cluster(const main_store_t *s);
uint64_t main_store_epoch(const main_store_t *s);
const brokers_t *main_store_brokers(main_store_t *s);  /* NULL: SQLite, of which there is one */
bool main_store_is_answered(const main_store_t *s);    /* by the etcd; of SQLite: true */
const char *main_store_trouble(const main_store_t *s); /* as etcd_trouble; of SQLite: "" */
uint64_t main_store_bytes(const main_store_t *s);

int main_store_fd(const main_store_t *s); /* -1: none */
void main_store_turn(main_store_t *s);
uint64_t main_store_due(const main_store_t *s);
/* OK, or FENCED: another broker may decide now. */
int main_store_lost(const main_store_t *s, heddle_error_t *error);

#endif

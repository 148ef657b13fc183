/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_store.h"

#include "core/clock.h"
#include "core/errors.h"
#include "http/secret.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main_store_check(const char *url, const main_store_access_t *a, heddle_error_t *error)
{
    return etcd_check(&(etcd_opts_t){.url = url, .ca = a->ca, .cert = a->cert, .key = a->key}, error);
}

int main_store_without(const char *option, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s is about --store, which is not given", option);
    error_hint(error, "name the etcd with --store, or leave %s out", option);
    return rc;
}

int main_store_no_access(const main_store_access_t *a, heddle_error_t *error)
{
    const char *option = a->ca     ? "--store-ca"
                         : a->cert ? "--store-cert"
                         : a->key  ? "--store-key"
                         : a->user ? "--store-user"
                                   : NULL;
    return option ? main_store_without(option, error) : HEDDLE_OK;
}

/* A relative XDG_STATE_HOME does not count, as its standard says. */
int main_store_default_dir(char *to, size_t size, heddle_error_t *error)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    const struct passwd *me = home && *home ? NULL : getpwuid(getuid());
    if (me) home = me->pw_dir;
    int n = -1;
    if (state && *state == '/') n = snprintf(to, size, "%s/heddle", state);
    else if (home && *home == '/') n = snprintf(to, size, "%s/.local/state/heddle", home);
    if (n > 0 && (size_t)n < size) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE,
                        "no place for the data: neither XDG_STATE_HOME nor HOME is a usable path");
    error_contrast(error, "--data DIR", "none");
    error_hint(error, "name a directory with --data");
    return rc;
}

/* libcurl reads it: here a fault of the file is said in words. */
static int look_at(const char *path, const char *what, bool is_secret, heddle_error_t *error)
{
    char text[4096];
    size_t bytes;
    int rc = path ? secret_read(path, what, is_secret, text, sizeof text, &bytes, error) : HEDDLE_OK;
    explicit_bzero(text, sizeof text);
    return rc;
}

static int read_user(const char *path, char *scratch, etcd_opts_t *opts, heddle_error_t *error)
{
    size_t bytes = 0;
    int rc = secret_read(path, "the user at etcd", true, scratch, MAIN_STORE_SCRATCH, &bytes, error);
    if (rc) return rc;
    while (bytes && (scratch[bytes - 1] == '\n' || scratch[bytes - 1] == '\r')) bytes--;
    bool is_line = bytes > 0 && bytes < MAIN_STORE_SCRATCH;
    for (size_t i = 0; i < bytes && is_line; i++) is_line = (unsigned char)scratch[i] >= ' ';
    if (is_line) scratch[bytes] = 0;
    char *colon = is_line ? strchr(scratch, ':') : NULL;
    if (colon && colon > scratch && colon[1]) {
        *colon = 0;
        opts->user = scratch;
        opts->password = colon + 1;
        return HEDDLE_OK;
    }
    rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has not one line with a user and a password", path);
    error_expected(error, "USER:PASSWORD");
    error_hint(error, "make one: (umask 077; echo USER:PASSWORD >FILE)");
    return rc;
}

int main_store_access(const main_store_access_t *a, char scratch[MAIN_STORE_SCRATCH], etcd_opts_t *opts,
                      heddle_error_t *error)
{
    int rc = look_at(a->ca, "the authorities of etcd", false, error);
    if (!rc) rc = look_at(a->cert, "the certificate for etcd", false, error);
    if (!rc) rc = look_at(a->key, "its key", true, error);
    if (!rc && a->user) rc = read_user(a->user, scratch, opts, error);
    opts->ca = a->ca;
    opts->cert = a->cert;
    opts->key = a->key;
    return rc;
}

int main_store_open(main_store_t *s, const char *data, const etcd_opts_t *opts, heddle_error_t *error)
{
    if (opts->url) return etcd_open(opts, &s->etcd, error);
    return opts->purpose == ETCD_EXPORT ? store_open_moved(data, &s->sqlite, error)
                                        : store_open(data, &s->sqlite, error);
}

void main_store_close(main_store_t *s)
{
    store_close(&s->sqlite);
    etcd_close(&s->etcd);
}

int main_store_mark_moved(main_store_t *s, heddle_error_t *error)
{
    return s->etcd ? etcd_finish(s->etcd, error) : store_mark_moved(s->sqlite, error);
}

void main_store_name_mark(const main_store_t *s, char *to, size_t size)
{
    if (s->etcd)
        text_printf(to, size, "the value \"moved\" of the key %.120s/" ETCD_KEY_IMPORT " (etcdctl get)",
                    etcd_prefix(s->etcd));
    else text_printf(to, size, "the file %.200s/moved", store_dir(s->sqlite));
}

int main_store_load(main_store_t *s, int (*each)(void *self, const record_t *record), void *self,
                    heddle_error_t *error)
{
    return s->etcd ? etcd_load(s->etcd, each, self, error) : store_load(s->sqlite, each, self, error);
}

int main_store_commit(main_store_t *s, const record_t *records, int count, heddle_error_t *error)
{
    return s->etcd ? etcd_commit(s->etcd, records, count, error)
                   : store_commit(s->sqlite, records, count, error);
}

bool main_store_committed(main_store_t *s, int *ret_rc, heddle_error_t *error)
{
    return s->etcd && etcd_committed(s->etcd, ret_rc, error);
}

int main_store_config(main_store_t *s, const char *adapter, uint64_t version, buf_t *out)
{
    return s->etcd ? etcd_config(s->etcd, adapter, version, out, NULL)
                   : store_config(s->sqlite, adapter, version, out, NULL);
}

int main_store_key_count(const main_store_t *s, uint64_t *ret_count, heddle_error_t *error)
{
    if (!s->etcd) return store_key_count(s->sqlite, ret_count, error);
    *ret_count = etcd_key_count(s->etcd);
    return HEDDLE_OK;
}

const char *main_store_place(const main_store_t *s)
{
    return s->etcd ? etcd_url(s->etcd) : store_dir(s->sqlite);
}

const char *main_store_cluster(const main_store_t *s)
{
    return s->etcd ? etcd_cluster(s->etcd) : store_cluster(s->sqlite);
}

uint64_t main_store_epoch(const main_store_t *s)
{
    return s->etcd ? etcd_epoch(s->etcd) : store_epoch(s->sqlite);
}

const brokers_t *main_store_brokers(main_store_t *s) { return s->etcd ? etcd_brokers(s->etcd) : NULL; }

bool main_store_is_answered(const main_store_t *s) { return !s->etcd || etcd_is_answered(s->etcd); }

const char *main_store_trouble(const main_store_t *s) { return s->etcd ? etcd_trouble(s->etcd) : ""; }

uint64_t main_store_bytes(const main_store_t *s)
{
    return s->etcd ? etcd_bytes(s->etcd) : store_bytes(s->sqlite);
}

int main_store_fd(const main_store_t *s) { return s->etcd ? etcd_fd(s->etcd) : -1; }

void main_store_turn(main_store_t *s)
{
    if (s->etcd) etcd_turn(s->etcd);
}

uint64_t main_store_due(const main_store_t *s) { return s->etcd ? etcd_due(s->etcd) : CLOCK_NEVER; }

int main_store_lost(const main_store_t *s, heddle_error_t *error)
{
    return s->etcd ? etcd_lost(s->etcd, error) : HEDDLE_OK;
}

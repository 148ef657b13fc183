/* SPDX-License-Identifier: Apache-2.0 */
#include "http/request.h"

#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

/* ---- pieces of a target ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Copies the piece with %XX as bytes.  False: it is too long, has a malformed escape, or a control
 * character. */
static bool take_piece(const char *from, size_t bytes, char *to, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        int c = (unsigned char)from[i];
        if (c == '%') {
            int high = i + 1 < bytes ? hex(from[i + 1]) : -1, low = i + 2 < bytes ? hex(from[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c < 0x20 || c == 0x7f || n + 1 >= size) return false;
        to[n++] = (char)c;
    }
    to[n] = 0;
    return true;
}

static int refuse(heddle_error_t *error, int code, const char *what, const char *found)
{
    error_fail(error, code, "%s", what);
    error_found(error, "%.200s", found);
    error_hint(error, "docs/observe.md lists the addresses and what they take");
    return request_status(code);
}

/* ---- the query ---- */

static bool take_number(const char *text, uint64_t max, uint64_t *ret_number)
{
    uint64_t n = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        n = n * 10 + (uint64_t)(*text - '0');
        if (n > max) return false;
    }
    *ret_number = n;
    return true;
}

static int take_name(const char *what, const char *text, char *to, heddle_error_t *error)
{
    int rc = name_check(what, text, error);
    if (rc) return request_status(rc);
    error_text(to, HEDDLE_NAME_MAX + 1, text);
    return 200;
}

/* Of two values one would be ignored.  *seen has a bit for each argument that was there. */
static bool is_repeated(const char *key, unsigned *seen)
{
    static const char *const KEYS[] = {"after", "epoch", "limit", "adapter", "worker"};
    unsigned bit = 0;
    for (unsigned i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (!strcmp(key, KEYS[i])) bit = 1u << i;
    bool had = *seen & bit;
    *seen |= bit;
    return had;
}

/* One `key=value`: of events, and `after` of the versions of an adapter. */
static int take_argument(const char *from, size_t bytes, request_t *r, unsigned *seen, heddle_error_t *error)
{
    char text[HEDDLE_NAME_MAX + 32] = "";
    if (!take_piece(from, bytes, text, sizeof text))
        return refuse(error, HEDDLE_ERR_USAGE, "an argument is too long or malformed", text);
    char *value = strchr(text, '=');
    bool is_of_events = r->op && !strcmp(r->op, "events");
    bool is_of_versions = r->op && !strcmp(r->op, "versions") && !r->ref.version;
    if (value) *value++ = 0;
    if (is_repeated(text, seen)) return refuse(error, HEDDLE_ERR_USAGE, "an argument is given twice", text);
    if (is_of_versions && value && !strcmp(text, "after")) {
        if (take_number(value, LIMIT_EXACT, &r->after)) return 200;
        return refuse(error, HEDDLE_ERR_USAGE, "the argument is not a number", value);
    }
    if (is_of_events && value) {
        if (!strcmp(text, "adapter")) return take_name("adapter", value, r->ref.name, error);
        if (!strcmp(text, "worker")) return take_name("worker", value, r->worker, error);
        uint64_t *number = !strcmp(text, "after")   ? &r->after
                           : !strcmp(text, "epoch") ? &r->epoch
                           : !strcmp(text, "limit") ? &r->limit
                                                    : NULL;
        bool is_limit = number == &r->limit;
        uint64_t most = is_limit ? REQUEST_EVENTS_MAX : number == &r->epoch ? UINT32_MAX : LIMIT_EXACT;
        if (number && take_number(value, most, number) && (!is_limit || r->limit)) return 200;
        if (is_limit) {
            int status = refuse(error, HEDDLE_ERR_USAGE, "the limit of events is out of range", value);
            error_expected(error, "1 to %u", REQUEST_EVENTS_MAX);
            return status;
        }
        if (number) return refuse(error, HEDDLE_ERR_USAGE, "the argument is not a number", value);
    }
    int status = refuse(error, HEDDLE_ERR_USAGE, "there is no such argument", text);
    error_expected(error, "%s",
                   is_of_events     ? "after, epoch, limit, adapter or worker"
                   : is_of_versions ? "after"
                                    : "no arguments");
    return status;
}

static int take_arguments(const char *from, request_t *r, heddle_error_t *error)
{
    unsigned seen = 0;
    while (*from) {
        size_t bytes = strcspn(from, "&");
        int status = bytes ? take_argument(from, bytes, r, &seen, error) : 200;
        if (status != 200) return status;
        from += bytes + (from[bytes] == '&');
    }
    return 200;
}

/* ---- the path ---- */

typedef enum { WITHOUT_NAME, WITH_NAME, WITH_REF, MAY_HAVE_NAME } argument_t;
static const struct {
    const char *path;
    request_kind_t kind;
    const char *op;
    argument_t argument; /* the piece behind the path */
} ROUTES[] = {{"/livez", REQUEST_LIVEZ, NULL, WITHOUT_NAME},
              {"/readyz", REQUEST_READYZ, NULL, WITHOUT_NAME},
              {"/metrics", REQUEST_METRICS, NULL, WITHOUT_NAME},
              {"/api/v1/status", REQUEST_API, "status", WITHOUT_NAME},
              {"/api/v1/adapters", REQUEST_API, "adapters", WITHOUT_NAME},
              {"/api/v1/versions", REQUEST_API, "versions", WITH_REF},
              {"/api/v1/workers", REQUEST_API, "workers", MAY_HAVE_NAME},
              {"/api/v1/events", REQUEST_API, "events", WITHOUT_NAME}};

static int take_reference(const char *text, ref_t *ret_ref, heddle_error_t *error)
{
    int rc = ref_parse(text, ret_ref, error);
    if (!rc && ret_ref->version > LIMIT_EXACT) {
        rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no version %llu of %s",
                        (unsigned long long)ret_ref->version, ret_ref->name);
        error_where(error, ret_ref->name, ret_ref->version, NULL, NULL);
    }
    return rc ? request_status(rc) : 200;
}

static int take_path(const char *from, size_t bytes, request_t *r, heddle_error_t *error)
{
    char text[HEDDLE_NAME_MAX + 64] = "";
    const asset_t *asset = asset_find(from, bytes);
    if (asset) {
        *r = (request_t){.kind = REQUEST_ASSET, .asset = asset};
        return 200;
    }
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++) {
        size_t n = strlen(ROUTES[i].path);
        if (bytes < n || memcmp(from, ROUTES[i].path, n) != 0 || (bytes > n && from[n] != '/')) continue;
        bool has_piece = bytes > n + 1; /* "/workers/" is "/workers" */
        argument_t argument = ROUTES[i].argument;
        if (has_piece ? argument == WITHOUT_NAME : argument == WITH_REF) break;
        *r = (request_t){.kind = ROUTES[i].kind, .op = ROUTES[i].op};
        if (!has_piece) return 200;
        if (!take_piece(from + n + 1, bytes - n - 1, text, sizeof text)) break;
        return argument == WITH_REF ? take_reference(text, &r->ref, error)
                                    : take_name("worker", text, r->ref.name, error);
    }
    error_text(text, bytes + 1 < sizeof text ? bytes + 1 : sizeof text, from);
    return refuse(error, HEDDLE_ERR_NOT_FOUND, "there is nothing at this address", text);
}

int request_parse(const char *method, const char *target, request_t *ret_request, heddle_error_t *error)
{
    request_t r = {0};
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        refuse(error, HEDDLE_ERR_USAGE, "this address is only read", method);
        error_expected(error, "GET or HEAD");
        return 405;
    }
    if (strlen(target) > REQUEST_TARGET_MAX)
        return refuse(error, HEDDLE_ERR_USAGE, "the address is too long", target);
    size_t bytes = strcspn(target, "?");
    int status = take_path(target, bytes, &r, error);
    if (status == 200 && target[bytes]) status = take_arguments(target + bytes + 1, &r, error);
    if (status == 200) *ret_request = r;
    return status;
}

/* ---- the question, and its end ---- */

void request_query(const request_t *r, msg_query_t *ret_query)
{
    bool is_events = r->op && !strcmp(r->op, "events");
    *ret_query = (msg_query_t){.op = r->op,
                               .name = r->ref.name,
                               .version = r->ref.version,
                               .digest_head = r->ref.head,
                               .worker = r->worker,
                               .after = r->after,
                               .epoch = r->epoch,
                               .limit = is_events && !r->limit ? REQUEST_EVENTS_MAX : r->limit,
                               .after_name = "",
                               .by = "",
                               .expected = ""};
}

void request_resume(request_t *r, const char *id)
{
    char text[48];
    uint64_t epoch, seq;
    if (strlen(id) >= sizeof text) return;
    error_text(text, sizeof text, id);
    char *dash = strchr(text, '-');
    if (!dash) return;
    *dash = 0;
    if (!take_number(text, UINT32_MAX, &epoch) || !take_number(dash + 1, LIMIT_EXACT - 1, &seq)) return;
    r->epoch = epoch;
    r->after = seq + 1;
}

bool request_is_same(const request_t *a, const request_t *b)
{
    return !strcmp(a->op, b->op) && a->after == b->after && a->epoch == b->epoch && a->limit == b->limit &&
           a->ref.version == b->ref.version && !strcmp(a->ref.name, b->ref.name) &&
           !strcmp(a->ref.head, b->ref.head) && !strcmp(a->worker, b->worker);
}

bool request_is_probe(const request_t *r) { return r->kind == REQUEST_LIVEZ || r->kind == REQUEST_READYZ; }

int request_status(int code)
{
    switch (code) {
    case HEDDLE_OK: return 200;
    case HEDDLE_ERR_USAGE:
    case HEDDLE_ERR_BAD_NAME: return 400;
    case HEDDLE_ERR_DENIED: return 401;
    case HEDDLE_ERR_NOT_FOUND: return 404;
    case HEDDLE_ERR_LIMIT:
    case HEDDLE_ERR_UNAVAILABLE:
    case HEDDLE_ERR_NO_MEMORY:
    case HEDDLE_ERR_NO_SPACE: return 503;
    case HEDDLE_ERR_DEADLINE: return 504;
    default: return 500;
    }
}

/* Characters alone decide: a name that has only digits and dots is not resolved as a name. */
bool request_is_of_address(const char *host)
{
    static const char LOCAL[] = "localhost";
    size_t n = sizeof LOCAL - 1;
    if (host[0] == '[') {
        n = 1 + strspn(host + 1, "0123456789abcdefABCDEF:.");
        if (n == 1 || host[n++] != ']') return false;
    } else if (strncmp(host, LOCAL, n) != 0) {
        n = strspn(host, "0123456789.");
        if (!n) return false;
    }
    if (host[n] == ':') n += 1 + strspn(host + n + 1, "0123456789");
    return !host[n]; /* what else stands behind an address makes a name of it */
}

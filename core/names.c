/* SPDX-License-Identifier: Apache-2.0 */
/* Names must be safe in a path, a shell and a URL; the rules are strict, so that they need no quoting
 * anywhere. */
#include "core/names.h"

#include "core/bytes.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
static bool is_name_char(char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; }

/* What is wrong with a name. */
typedef enum { NAME_FITS, NAME_TOO_LONG, NAME_ODD } name_flaw_t;

static name_flaw_t flaw_of(const char *text, size_t bytes)
{
    size_t good = 0;
    while (good < bytes && is_name_char(text[good])) good++;
    if (!bytes || good < bytes || !is_alnum(text[0])) return NAME_ODD;
    return bytes <= HEDDLE_NAME_MAX ? NAME_FITS : NAME_TOO_LONG;
}

static int refuse_length(const char *what, const char *name, const char *text, size_t bytes,
                         heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_NAME, "%s%s \"%.40s...\" is not allowed: it has %zu bytes",
                        what, name, text, bytes);
    error_expected(error, "at most %u bytes", HEDDLE_NAME_MAX);
    error_found(error, "%zu bytes", bytes);
    error_hint(error, "make it shorter by %zu", bytes - HEDDLE_NAME_MAX);
    return rc;
}

static int check_span(const char *what, const char *text, size_t bytes, heddle_error_t *error)
{
    name_flaw_t flaw = flaw_of(text, bytes);
    if (flaw == NAME_FITS) return HEDDLE_OK;
    if (flaw == NAME_TOO_LONG) return refuse_length(what, " name", text, bytes, error);
    int most = bytes < 140 ? (int)bytes : 140;
    int rc = error_fail(error, HEDDLE_ERR_BAD_NAME, "%s name \"%.*s\" is not allowed", what, most, text);
    error_expected(error, "a letter or digit, then up to 127 of letters, digits, '.', '_', '-'");
    error_found(error, "\"%.*s\"", most, text);
    bool is_id = !strcmp(what, "request id");
    error_hint(error,
               is_id ? "use an id such as \"run-7.1\"" : "use a name such as \"policy\" or \"tenant-42\"");
    return rc;
}

bool name_is_valid(const char *name) { return name && flaw_of(name, strlen(name)) == NAME_FITS; }

int name_check(const char *what, const char *name, heddle_error_t *error)
{
    return check_span(what, name ? name : "", name ? strlen(name) : 0, error);
}

int label_check(const char *label, heddle_error_t *error)
{
    const char *equals = label ? strchr(label, '=') : NULL;
    size_t key_bytes = equals ? (size_t)(equals - label) : 0, value_bytes = equals ? strlen(equals + 1) : 0;
    name_flaw_t key = equals ? flaw_of(label, key_bytes) : NAME_ODD;
    name_flaw_t value = equals ? flaw_of(equals + 1, value_bytes) : NAME_ODD;
    if (key == NAME_FITS && value == NAME_FITS) return HEDDLE_OK;
    if (key == NAME_TOO_LONG && value != NAME_ODD)
        return refuse_length("key of label", "", label, key_bytes, error);
    if (key == NAME_FITS && value == NAME_TOO_LONG)
        return refuse_length("value of label", "", equals + 1, value_bytes, error);
    int rc = error_fail(error, HEDDLE_ERR_BAD_NAME, "label \"%.200s\" is not allowed", label ? label : "");
    error_contrast(error, "key=value, both names of letters, digits, '.', '_', '-'", label);
    error_hint(error, "write it as run=a7, without spaces or other characters");
    return rc;
}

/* A rank without a group, or a group without ranks, is a mistake of a start script: such a worker would never
 * complete its group, and every version would wait for it. */
int group_check(const char *group, uint64_t rank, uint64_t ranks, heddle_error_t *error)
{
    bool has_group = group && *group;
    int rc = has_group ? name_check("group", group, error) : HEDDLE_OK;
    bool is_right = has_group ? ranks && ranks <= LIMIT_RANKS && rank < ranks : !rank && !ranks;
    if (rc || is_right) return rc;
    rc = error_fail(error, HEDDLE_ERR_USAGE, "rank %llu of %llu is not a place in %s%s",
                    (unsigned long long)rank, (unsigned long long)ranks, has_group ? "group " : "no group",
                    has_group ? group : "");
    error_found(error, "rank %llu of %llu", (unsigned long long)rank, (unsigned long long)ranks);
    if (has_group) {
        error_expected(error, "1 to %u ranks, and a rank below that number", LIMIT_RANKS);
        error_hint(error, "ranks count from 0, and all workers of a group have the same number of them");
    } else {
        error_expected(error, "rank 0 of 0, or the name of a group");
        error_hint(error, "name the group too, or leave rank and ranks out");
    }
    return rc;
}

/* Takes what may follow the version: nothing, or a colon and the first digits of the digest. */
static bool take_head(const char *text, char ret_head[DIGEST_HEAD + 1])
{
    if (!*text) return true;
    if (*text != ':' || strlen(text + 1) != DIGEST_HEAD ||
        strspn(text + 1, "0123456789abcdef") != DIGEST_HEAD)
        return false;
    memcpy(ret_head, text + 1, DIGEST_HEAD);
    return true;
}

/* The digest of a whole tag tells that the version is the one that was meant, and not one of another registry
 * with the same number. */
int ref_parse(const char *text, ref_t *ret_ref, heddle_error_t *error)
{
    ref_t ref = {.version = 0};
    const char *at = strchr(text, '@');
    size_t bytes = at ? (size_t)(at - text) : strlen(text);
    int rc = check_span("adapter", text, bytes, error);
    if (rc) return rc;
    memcpy(ref.name, text, bytes);
    if (at) {
        size_t digits = 0;
        for (const char *p = at + 1; *p >= '0' && *p <= '9' && digits < 19; p++, digits++)
            ref.version = ref.version * 10 + (uint64_t)(*p - '0');
        if (digits == 0 || ref.version == 0 || !take_head(at + 1 + digits, ref.head)) {
            rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.200s\" is not a reference to a version", text);
            error_contrast(error, "NAME, NAME@V (V = 1, 2, 3, ...) or a whole tag, NAME@V:3f9a1c20d4e1",
                           text);
            error_hint(error, "`heddle versions %.*s` lists the versions", (int)(at - text), text);
            return rc;
        }
    }
    *ret_ref = ref;
    return HEDDLE_OK;
}

static void put_hex(const uint8_t *bytes, size_t count, char *ret_text)
{
    static const char DIGITS[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        *ret_text++ = DIGITS[bytes[i] >> 4];
        *ret_text++ = DIGITS[bytes[i] & 15];
    }
    *ret_text = 0;
}

void digest_text(const digest_t *d, char ret_text[HEDDLE_DIGEST_TEXT])
{
    memcpy(ret_text, "h1:", 3);
    put_hex(d->b, sizeof d->b, ret_text + 3);
}

/* Only small letters, so that each digest has one spelling: texts of it are compared as texts, too. */
bool digest_parse(const char *text, digest_t *ret_digest)
{
    if (!text || strlen(text) != HEDDLE_DIGEST_TEXT - 1 || memcmp(text, "h1:", 3) != 0) return false;
    digest_t d;
    for (int i = 0; i < 64; i++) {
        char c = text[3 + i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0) return false;
        d.b[i / 2] = (uint8_t)(i % 2 ? d.b[i / 2] | v : v << 4);
    }
    *ret_digest = d;
    return true;
}

bool digest_equal(const digest_t *a, const digest_t *b) { return memcmp(a->b, b->b, sizeof a->b) == 0; }

void digest_head(const digest_t *d, char ret_head[DIGEST_HEAD + 1])
{
    put_hex(d->b, DIGEST_HEAD / 2, ret_head);
}

void tag_text(const char *adapter, uint64_t version, const digest_t *d, char ret_text[HEDDLE_TAG_TEXT])
{
    char head[DIGEST_HEAD + 1];
    digest_head(d, head);
    snprintf(ret_text, HEDDLE_TAG_TEXT, "%.128s@%llu:%s", adapter, (unsigned long long)version, head);
}

/* A host name may have characters that a name may not; it must become one, because it is part of the default
 * names of workers and writers. */
void name_host(char ret_name[HEDDLE_NAME_MAX + 1])
{
    char host[HEDDLE_NAME_MAX + 1] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "host");
    for (char *p = host; *p; p++)
        if (!is_name_char(*p)) *p = '-';
    if (!is_alnum(host[0])) host[0] = 'h';
    memcpy(ret_name, host, sizeof host);
}

void name_default(char ret_name[HEDDLE_NAME_MAX + 1])
{
    char host[HEDDLE_NAME_MAX + 1];
    name_host(host);
    snprintf(ret_name, HEDDLE_NAME_MAX + 1, "%.100s-%ld", host, (long)getpid());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Brackets and strings are counted here; everything else about JSON is left to jansson. */
#include "formats/json_text.h"

#include "core/errors.h"
#include "core/limits.h"

/* The position leads to the damage even where the text has a single line of megabytes. */
static int refuse(const char *what, size_t at, const char *why, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s is not JSON at byte %zu", what, at);
    error_contrast(error, "a JSON object", why);
    error_hint(error, "the file is damaged or was still being written: save the adapter again");
    return rc;
}

/* Index behind the string that begins at `at`, or 0 when it does not end. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes; at++) {
        if (text[at] == '\\') at++;
        else if (text[at] == '"') return at + 1;
    }
    return 0;
}

/* The four blanks of RFC 8259; isspace would take more, depending on the locale. */
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static size_t skip_blanks(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && is_blank(text[at])) at++;
    return at;
}

/* Index behind the value that begins at `at`: it ends where, with all brackets closed, a ',' '}' ']' or
 * blank comes.
 * 0: it does not end.  *deepest is raised to how deep it goes. */
static size_t skip_value(const char *text, size_t bytes, size_t at, uint32_t *deepest)
{
    uint32_t depth = 0;
    while (at < bytes) {
        char c = text[at];
        if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_blank(c))) break;
        if (c == '"') {
            at = skip_string(text, bytes, at);
            if (at == 0) return 0;
        } else {
            if (c == '{' || c == '[') depth++;
            if (c == '}' || c == ']') depth--;
            at++;
        }
        if (depth > *deepest) *deepest = depth;
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) break;
    }
    return depth ? 0 : at;
}

/* jansson recurses, so that the depth is limited before it sees the text. */
static int check_depth(uint32_t depth, const char *what, size_t at, heddle_error_t *error)
{
    if (depth <= LIMIT_JSON_DEPTH) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_LIMIT, "%s is nested too deep at byte %zu", what, at);
    error_expected(error, "at most %u levels", LIMIT_JSON_DEPTH);
    error_found(error, "%u levels", depth);
    error_hint(error, "no adapter needs this: save it again with PEFT");
    return rc;
}

/* Names that come twice are refused by jansson while it fills its hash: no second pass is needed. */
static int load(bytes_t text, const char *what, size_t base, json_t **ret_value, heddle_error_t *error)
{
    json_error_t why;
    json_t *value = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!value) {
        enum json_error_code code = json_error_code(&why);
        size_t at = base + (why.position < 0 ? 0 : (size_t)why.position);
        if (code == json_error_out_of_memory || !why.text[0]) /* every other error of jansson has a text */
            return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read %s", what);
        if (code != json_error_duplicate_key) return refuse(what, at, why.text, error);
        int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s has a name twice in an object, at byte %zu",
                            what, at);
        error_contrast(error, "each name once", why.text);
        error_hint(error, "readers would take one or the other: save the adapter again");
        return rc;
    }
    *ret_value = value;
    return HEDDLE_OK;
}

int json_text_load(bytes_t text, const char *what, json_t **ret_value, heddle_error_t *error)
{
    uint32_t depth = 0;
    size_t at = skip_blanks(text.data, text.bytes, 0);
    if (at == text.bytes) return refuse(what, at, "nothing", error);
    skip_value(text.data, text.bytes, at, &depth); /* a value without an end is reported by jansson */
    int rc = check_depth(depth, what, at, error);
    return rc ? rc : load(text, what, 0, ret_value, error);
}

/* A member is parsed alone, yet its errors give the position in the whole text. */
int json_member_load(const json_members_t *m, bytes_t span, json_t **ret_value, heddle_error_t *error)
{
    return load(span, m->what, (size_t)((const char *)span.data - (const char *)m->text.data), ret_value,
                error);
}

/* Upstream's readers refuse blanks before the header too. */
int json_members_begin(bytes_t text, const char *what, json_members_t *ret_members, heddle_error_t *error)
{
    if (text.bytes == 0 || *(const char *)text.data != '{')
        return refuse(what, 0, "it does not begin with '{'", error);
    *ret_members = (json_members_t){.text = text, .at = 1, .what = what};
    return HEDDLE_OK;
}

/* Only the frame of the object is read here: names, colons and commas.  What a value holds is jansson's. */
int json_members_next(json_members_t *m, json_member_t *ret_member, bool *ret_more, heddle_error_t *error)
{
    const char *text = m->text.data;
    size_t bytes = m->text.bytes, at = skip_blanks(text, bytes, m->at);
    if (at < bytes && text[at] == '}') {
        m->at = at + 1;
        /* The '}' has been read: nothing but blanks may follow. */
        m->at = skip_blanks(m->text.data, m->text.bytes, m->at);
        if (m->at < m->text.bytes) return refuse(m->what, m->at, "bytes after the end of the object", error);
        *ret_more = false;
        return HEDDLE_OK;
    }
    if (m->seen > 0) {
        if (at == bytes || text[at] != ',') return refuse(m->what, at, "no ',' or '}' after a value", error);
        at = skip_blanks(text, bytes, at + 1);
    }
    size_t key = at, key_end = at < bytes && text[at] == '"' ? skip_string(text, bytes, at) : 0;
    if (key_end == 0) return refuse(m->what, at, "no name where one must be", error);
    at = skip_blanks(text, bytes, key_end);
    if (at == bytes || text[at] != ':') return refuse(m->what, at, "no ':' after a name", error);
    uint32_t depth = 0;
    size_t value = skip_blanks(text, bytes, at + 1), value_end = skip_value(text, bytes, value, &depth);
    int rc = check_depth(depth + 1, m->what, value, error);
    if (rc) return rc;
    if (value_end <= value) return refuse(m->what, value, "no value, or one without an end", error);
    *ret_member =
        (json_member_t){bytes_of(text + key, key_end - key), bytes_of(text + value, value_end - value)};
    *ret_more = true;
    m->at = value_end;
    m->seen++;
    return HEDDLE_OK;
}

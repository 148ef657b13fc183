/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/cell.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/sorted.h"
#include "proto/value.h"

#include <stdlib.h>
#include <string.h>

/* Numbers beyond LIMIT_EXACT cannot be read exactly by every JSON reader, so they end there. */
json_t *cell_count(uint64_t n) { return json_integer((json_int_t)(n < LIMIT_EXACT ? n : LIMIT_EXACT)); }
json_t *cell_number(uint64_t n) { return n ? cell_count(n) : json_null(); }

json_t *cell_text(const char *text)
{
    if (!text || !*text) return json_null();
    json_t *value = json_string(text);
    if (value) return value;
    /* Texts are valid UTF-8, but one that was cut to fit may end inside a character.  Then every byte beyond
     * ASCII becomes "?". */
    char *copy = strdup(text);
    for (char *c = copy; c && *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    value = copy ? json_string(copy) : NULL;
    free(copy);
    return value;
}

json_t *cell_time(uint64_t wall_ms)
{
    char text[25];
    if (!wall_ms) return json_null();
    clock_text(wall_ms, text);
    return json_stringn_nocheck(text, sizeof text - 1);
}

json_t *cell_ms(uint64_t us) { return json_real((double)us / 1000.0); }
json_t *cell_span(uint64_t us) { return us ? cell_ms(us) : json_null(); }

json_t *cell_digest(const digest_t *d)
{
    char text[HEDDLE_DIGEST_TEXT];
    if (!d) return json_null();
    digest_text(d, text);
    return json_stringn_nocheck(text, sizeof text - 1);
}

json_t *cell_tag(const char *adapter, uint64_t version, const digest_t *d)
{
    char text[HEDDLE_TAG_TEXT];
    if (!d) return json_null();
    tag_text(adapter, version, d, text);
    return json_string(text);
}

json_t *cell_code(int code) { return code ? json_string(heddle_err_name(code)) : json_null(); }

json_t *cell_words(const char *text)
{
    json_t *list = json_array();
    for (const char *at = text; list && *at;) {
        size_t n = strcspn(at, ",");
        if (json_array_append_new(list, json_stringn(at, n)) != 0) {
            json_decref(list);
            return NULL;
        }
        at += n + (at[n] == ',');
    }
    return list;
}

json_t *cell_body(const char *kind, bool ok, json_t *fields)
{
    json_t *body = json_pack("{s:s, s:s, s:b}", "schema", "heddle/1", "kind", kind, "ok", (int)ok);
    if (fields && body && json_object_update(body, fields) == 0) {
        json_decref(fields);
        return body;
    }
    json_decref(fields);
    json_decref(body);
    return NULL;
}

void rows_init(rows_t *r, uint64_t asked, uint64_t usual)
{
    *r = (rows_t){.list = json_array(), .limit = asked ? asked : usual};
    r->failed = !r->list;
}

/* Each row is encoded to know its size: a page ends before it would not fit into one message.  The first
 * row always goes in, so that each page makes progress. */
bool rows_add(rows_t *r, json_t *row)
{
    buf_clear(&r->scratch);
    if (!row || r->failed || value_encode(row, &r->scratch) != HEDDLE_OK) r->failed = true;
    else if (json_array_size(r->list) > 0 &&
             (json_array_size(r->list) >= r->limit || r->bytes + r->scratch.bytes > ANSWER_PAGE_BYTES))
        r->full = true;
    if (r->failed || r->full) {
        json_decref(row);
        return false;
    }
    r->bytes += r->scratch.bytes;
    r->failed = json_array_append_new(r->list, row) != 0;
    return !r->failed;
}

json_t *rows_end(rows_t *r)
{
    json_t *list = r->list;
    if (r->failed) {
        json_decref(list);
        list = NULL;
    }
    buf_fini(&r->scratch);
    r->list = NULL;
    return list;
}

/* Many workers have the same host, or subscribe to one adapter: as a rule the one that was added last. */
void texts_add(texts_t *t, const char *text)
{
    if (t->failed || (t->count && !strcmp(t->list[t->count - 1], text))) return;
    t->failed = !sorted_grow(&t->list, t->count, &t->capacity);
    if (t->failed) t->count = 0;
    else t->list[t->count++] = text;
}

void texts_sort(texts_t *t)
{
    size_t count = 0;
    if (t->count) qsort(t->list, t->count, sizeof *t->list, text_order);
    for (size_t i = 0; i < t->count; i++)
        if (!count || strcmp(t->list[count - 1], t->list[i]) != 0) t->list[count++] = t->list[i];
    t->count = count;
}

void texts_fini(texts_t *t)
{
    free(t->list);
    *t = (texts_t){0};
}

int cell_no_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the answer");
}

json_t *cell_settling(const answer_view_t *b)
{
    return cell_count((rollout_settling_us(b->rollout, b->members, b->now.us) + 999) / 1000);
}

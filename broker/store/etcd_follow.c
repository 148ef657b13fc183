/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_follow.h"

#include <stdlib.h>

void etcd_follow_init(etcd_follow_t *f)
{
    *f = (etcd_follow_t){0};
    etcd_page_init(&f->page);
}

void etcd_follow_fini(etcd_follow_t *f)
{
    rows_destroy(&f->rows);
    buf_fini(&f->after);
    *f =
        (etcd_follow_t){.page = f->page, .anew_count = f->anew_count, .why_anew = f->why_anew, .bad = f->bad};
}

static bool begin_anew(etcd_follow_t *f, const char *why)
{
    etcd_follow_fini(f);
    f->anew_count++;
    f->why_anew = why;
    return false;
}

void etcd_follow_forget(etcd_follow_t *f)
{
    (void)begin_anew(f, "etcd does not have what was followed, as after a snapshot was restored");
}

bool etcd_follow_request(const etcd_follow_t *f, const char *prefix, buf_t *out)
{
    if (f->state == ETCD_FOLLOWING) etcd_json_watch(out, prefix, f->revision + 1);
    else etcd_json_range(out, prefix, buf_view(&f->after), f->page.rows, f->revision);
    return f->state == ETCD_FOLLOWING;
}

static bool is_key(bytes_t key, const char *name)
{
    return key.bytes == strlen(name) && !memcmp(key.data, name, key.bytes);
}

bool etcd_follow_is_beside(bytes_t key)
{
    size_t below = strlen(ETCD_KEY_BROKERS);
    return is_key(key, ETCD_KEY_LEADER) || is_key(key, ETCD_KEY_LAST) || is_key(key, ETCD_KEY_IMPORT) ||
           (key.bytes > below && !memcmp(key.data, ETCD_KEY_BROKERS, below));
}

static bool take_row(etcd_follow_t *f, bytes_t key, const etcd_kv_t *kv)
{
    bool is_last = is_key(key, ETCD_KEY_LAST);
    if (is_key(key, ETCD_KEY_META) || (!is_last && etcd_follow_is_beside(key))) return true;
    if (!is_last) return !rows_follow(f->rows, key, kv->value, kv->is_gone, &f->bad);
    if (kv->value.bytes >= sizeof f->marker) return false;
    text_printf(f->marker, sizeof f->marker, "%.*s", (int)kv->value.bytes,
                kv->value.bytes ? (const char *)kv->value.data : "");
    f->last_revision = kv->mod_revision;
    return true;
}

static bool take_page(etcd_follow_t *f, const char *prefix, const etcd_answer_t *a)
{
    heddle_error_t error;
    bool has_rows = a->kv_count || (f->state == ETCD_UNREAD && !a->has_more);
    if (a->code || !has_rows || (f->state == ETCD_UNREAD && rows_new(&f->rows, &error))) return false;
    if (f->state == ETCD_UNREAD) f->revision = a->revision;
    f->state = ETCD_FOLLOW_READING;
    for (size_t i = 0; i < a->kv_count; i++) {
        bytes_t key = etcd_json_below(prefix, a->kvs[i].key);
        if (!take_row(f, key, &a->kvs[i])) return false;
        if (i + 1 < a->kv_count) continue;
        buf_clear(&f->after);
        buf_add(&f->after, key.data, key.bytes);
    }
    if (!a->has_more) f->state = ETCD_FOLLOWING;
    return !f->after.failed;
}

/* Of two transactions, one behind the other.  A run counts its own from 0 on, and only the first one of all
 * comes behind none. */
static bool is_next(const char *before, const char *marker)
{
    size_t bytes = strcspn(before, ETCD_BEHIND);
    const char *behind = strpbrk(marker, ETCD_BEHIND), *dot = strchr(before, '.'), *at = strchr(marker, '.');
    if (behind) return strlen(behind + 1) == bytes && !memcmp(behind + 1, before, bytes);
    if (!at || (dot && (dot - before != at - marker || memcmp(before, marker, (size_t)(at - marker)))))
        return false;
    return strtoull(at + 1, NULL, 10) == (dot ? strtoull(dot + 1, NULL, 10) + 1 : 0);
}

/* A watch begins where the one before ended, so nothing is said twice; if it were, the marker would not be
 * the next one. */
static bool take_events(etcd_follow_t *f, const char *prefix, const etcd_answer_t *a)
{
    char before[ETCD_MARKER_BYTES];
    if (a->code || a->is_canceled) return false;
    for (size_t i = 0; i < a->kv_count; i++) {
        const etcd_kv_t *kv = &a->kvs[i];
        bytes_t key = etcd_json_below(prefix, kv->key);
        memcpy(before, f->marker, sizeof before);
        if (!take_row(f, key, kv)) return false;
        if (is_key(key, ETCD_KEY_LAST) && !is_next(before, f->marker)) return false;
        if (kv->mod_revision > f->revision) f->revision = kv->mod_revision;
    }
    return true;
}

bool etcd_follow_answer(etcd_follow_t *f, const char *prefix, const etcd_answer_t *a)
{
    bool is_good = f->state == ETCD_FOLLOWING ? take_events(f, prefix, a) : take_page(f, prefix, a);
    if (is_good) f->bad.code = HEDDLE_OK;
    return is_good || begin_anew(f, "what came next was compacted, or a part of it was missing");
}

bool etcd_follow_has(const etcd_follow_t *f, uint64_t last_revision, const char *marker)
{
    return f->state == ETCD_FOLLOWING && last_revision && f->last_revision == last_revision &&
           !strcmp(f->marker, marker);
}

store_rows_t *etcd_follow_take(etcd_follow_t *f)
{
    store_rows_t *rows = f->rows;
    f->rows = NULL;
    etcd_follow_fini(f);
    return rows;
}

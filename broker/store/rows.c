/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/rows.h"

#include "broker/store/rows_value.h"
#include "broker/store/schema.h"
#include "core/errors.h"

#include <stdlib.h>

#define uthash_nonfatal_oom(row) ((row)->is_unfit = true)
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define META "meta"

typedef struct row {
    record_kind_t kind;
    const char *name; /* of adapter, worker or key: in `texts` */
    uint64_t number;  /* of a version */
    bool is_latest;   /* DECISION */
    bool is_unfit;    /* there was no memory to find it by its key */
    bool is_gone;     /* the change ends it; it leaves the table when the change is kept */
    size_t last_step; /* of the change that made or changed it */
    buf_t value;
    UT_hash_handle hh;
    char key[ROWS_KEY_BYTES];
    char texts[HEDDLE_NAME_MAX + 1];
} row_t;

/* What the checks of an adapter's records need of all its versions. */
typedef struct summary {
    char name[HEDDLE_NAME_MAX + 1];
    uint64_t version_count, last_version, last_decision;
    bool is_unfit;
    UT_hash_handle hh;
} numbers_t;

/* One step back: the value of a row as it was, or a summary.  It needs no memory, as a row stays in its table
 * until the change is kept. */
typedef struct {
    row_t *row; /* NULL: a summary */
    bool is_new, was_gone;
    buf_t was;
    numbers_t *of, before;
} undo_t;

struct store_rows {
    row_t *all;
    numbers_t *adapters;
    undo_t *undo;
    size_t undo_count, undo_capacity;
    char below[ROWS_OPS][ROWS_KEY_BYTES];
    int below_count;
    char cluster[17];
    uint64_t epoch, epoch_before, schema;
    uint64_t bytes;
    bool is_changing;
};

/* ---- keys ---- */

/* The kinds that a version has rows of, by the last letter of their keys. */
static const struct {
    char letter;
    record_kind_t kind;
    bool is_latest;
} PARTS[] = {{'v', RECORD_VERSION, false}, {'s', RECORD_STATE, false},    {'l', RECORD_LOSS, false},
             {'p', RECORD_STAGED, false},  {'f', RECORD_DECISION, false}, {'g', RECORD_DECISION, true}};
enum { PART_COUNT = sizeof PARTS / sizeof *PARTS };
static const struct {
    char letter;
    record_kind_t kind;
} NAMED[] = {{'a', RECORD_ADAPTER}, {'w', RECORD_WRITER},      {'f', RECORD_FLOOR},
             {'k', RECORD_KEY},     {'r', RECORD_KEYS_REVOKE}, {'n', RECORD_WORKER}};
enum { NAMED_COUNT = sizeof NAMED / sizeof *NAMED };

static void version_key(char *to, const char *adapter, uint64_t version, const char *part)
{
    text_printf(to, ROWS_KEY_BYTES, "v/%s/%016llx/%s", adapter, (unsigned long long)version, part);
}

static void named_key(char *to, char letter, const char *name)
{
    text_printf(to, ROWS_KEY_BYTES, "%c/%s", letter, name);
}

/* 16 digits of a number as version_key writes them. */
static bool take_hex(const char *text, uint64_t *ret_number)
{
    uint64_t number = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at) return false;
        number = number << 4 | (uint64_t)(at - digits);
    }
    *ret_number = number;
    return true;
}

/* What the key is of.  A public key may have a '/' in it, so a name goes to the end. */
static bool parse_key(row_t *row)
{
    const char *key = row->key;
    size_t length = strlen(key);
    if (length < 3 || key[1] != '/') return false;
    const char *name = key + 2;
    size_t name_bytes = length - 2;
    if (key[0] == 'v') {
        if (length < 2 + 1 + 19 || key[length - 2] != '/' || key[length - 19] != '/') return false;
        if (!take_hex(key + length - 18, &row->number) || !row->number) return false;
        name_bytes = length - 2 - 19;
        for (int i = 0; i < PART_COUNT; i++)
            if (PARTS[i].letter == key[length - 1]) {
                row->kind = PARTS[i].kind;
                row->is_latest = PARTS[i].is_latest;
            }
    } else {
        for (int i = 0; i < NAMED_COUNT; i++)
            if (NAMED[i].letter == key[0]) row->kind = NAMED[i].kind;
    }
    if (!row->kind || name_bytes > HEDDLE_NAME_MAX) return false;
    memcpy(row->texts, name, name_bytes);
    row->texts[name_bytes] = 0;
    row->name = row->texts;
    return true;
}

/* ---- rows by key ---- */

static row_t *find_any(const store_rows_t *rows, const char *key)
{
    row_t *row;
    HASH_FIND_STR(rows->all, key, row);
    return row;
}

static row_t *find(const store_rows_t *rows, const char *key)
{
    row_t *row = find_any(rows, key);
    return row && !row->is_gone ? row : NULL;
}

static row_t *find_part(const store_rows_t *rows, const record_t *r, const char *part)
{
    char key[ROWS_KEY_BYTES];
    version_key(key, r->adapter, r->version, part);
    return find(rows, key);
}

static row_t *find_named(const store_rows_t *rows, char letter, const char *name)
{
    char key[ROWS_KEY_BYTES];
    named_key(key, letter, name);
    return find(rows, key);
}

static void free_row(row_t *row)
{
    if (!row) return;
    buf_fini(&row->value);
    free(row);
}

static size_t bytes_of_row(const row_t *row)
{
    return row->is_gone ? 0 : strlen(row->key) + row->value.bytes;
}

static bool insert(store_rows_t *rows, row_t *row)
{
    HASH_ADD_STR(rows->all, key, row);
    if (row->is_unfit) return false;
    rows->bytes += bytes_of_row(row);
    return true;
}

static void take_out(store_rows_t *rows, row_t *row)
{
    HASH_DEL(rows->all, row);
    rows->bytes -= bytes_of_row(row);
    free_row(row);
}

/* `value` is the row's from here on; the one before it is the caller's. */
static void set(store_rows_t *rows, row_t *row, buf_t value, bool is_gone)
{
    rows->bytes -= bytes_of_row(row);
    row->value = value;
    row->is_gone = is_gone;
    rows->bytes += bytes_of_row(row);
}

static numbers_t *summary_of(store_rows_t *rows, const char *adapter)
{
    numbers_t *s;
    HASH_FIND_STR(rows->adapters, adapter, s);
    if (s) return s;
    s = calloc(1, sizeof *s);
    if (!s) return NULL;
    text_printf(s->name, sizeof s->name, "%s", adapter);
    HASH_ADD_STR(rows->adapters, name, s);
    if (!s->is_unfit) return s;
    free(s);
    return NULL;
}

/* ---- new and read ---- */

int rows_new(store_rows_t **ret_rows, heddle_error_t *error)
{
    store_rows_t *rows = calloc(1, sizeof *rows);
    if (!rows) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the registry's rows");
    *ret_rows = rows;
    return HEDDLE_OK;
}

void rows_destroy(store_rows_t **rows_at)
{
    store_rows_t *rows = *rows_at;
    row_t *row, *next_row;
    numbers_t *s, *next;
    if (!rows) return;
    *rows_at = NULL;
    rows_undo(rows);
    HASH_ITER(hh, rows->all, row, next_row)
    {
        HASH_DEL(rows->all, row);
        free_row(row);
    }
    HASH_ITER(hh, rows->adapters, s, next)
    {
        HASH_DEL(rows->adapters, s);
        free(s);
    }
    free(rows->undo);
    free(rows);
}

void rows_meta(const char *cluster, uint64_t epoch, char *to)
{
    text_printf(to, ROWS_META_BYTES, "heddle registry %d %s %llu", STORE_SCHEMA, cluster,
                (unsigned long long)epoch);
}

/* A decimal number up to `end`, and what is behind that; NULL: none. */
static const char *take_decimal(const char *text, char end, uint64_t *ret_number)
{
    uint64_t number = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && at - text < 19; at++) number = number * 10 + (uint64_t)(*at - '0');
    if (at == text || *at != end) return NULL;
    *ret_number = number;
    return end ? at + 1 : at;
}

#define BEGIN "heddle registry "

bool rows_is_meta(bytes_t value)
{
    return value.bytes >= sizeof BEGIN - 1 && !memcmp(value.data, BEGIN, sizeof BEGIN - 1);
}

/* "heddle registry 9 0123456789abcdef 4" */
static int read_meta(store_rows_t *rows, bytes_t value, heddle_error_t *error)
{
    char text[ROWS_META_BYTES] = "";
    uint64_t number;
    if (value.bytes < sizeof text) memcpy(text, value.data, value.bytes);
    const char *at = rows_is_meta(value) ? text + sizeof BEGIN - 1 : NULL;
    if (at) at = take_decimal(at, ' ', &rows->schema);
    if (at && rows->schema > STORE_SCHEMA) {
        int rc =
            error_fail(error, HEDDLE_ERR_DATA_NEWER,
                       "the registry was written by a newer Heddle: schema %llu, this one knows up to %d",
                       (unsigned long long)rows->schema, STORE_SCHEMA);
        error_expected(error, "schema %d or lower", STORE_SCHEMA);
        error_found(error, "schema %llu", (unsigned long long)rows->schema);
        error_hint(error, "run the Heddle that wrote it, or a newer one; the data were left as they are");
        return rc;
    }
    if (at && strlen(at) > 17 && at[16] == ' ' && take_hex(at, &number) &&
        take_decimal(at + 17, 0, &rows->epoch) && rows->epoch <= EPOCH_MAX) {
        text_printf(rows->cluster, sizeof rows->cluster, "%.16s", at);
        return HEDDLE_OK;
    }
    int rc =
        error_fail(error, HEDDLE_ERR_DATA_DIR, "the prefix has a key \"meta\" that Heddle did not write");
    error_contrast(error, "a line that begins with \"heddle registry\"", text);
    error_hint(error, "choose another prefix; this one was left as it was");
    return rc;
}

/* Two rows of one place in the order of store_load: they are read once more, so only their form counts. */
static int check_row(const row_t *row, heddle_error_t *error)
{
    record_t r = {.kind = row->kind};
    if (rows_value_take(buf_view(&row->value), &r)) {
        bool is_of_key = row->kind == RECORD_KEY || row->kind == RECORD_KEYS_REVOKE;
        const char *name = row->kind == RECORD_WORKER ? r.worker : is_of_key ? r.public_key : r.adapter;
        if (!strcmp(name, row->name) && (!row->number || r.version == row->number)) return HEDDLE_OK;
    }
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the row %.300s is damaged", row->key);
    error_hint(error, "nothing was changed: restore a snapshot of etcd, or choose another prefix");
    return rc;
}

int rows_read(store_rows_t *rows, bytes_t key, bytes_t value, heddle_error_t *error)
{
    if (key.bytes == strlen(META) && !memcmp(key.data, META, key.bytes)) return read_meta(rows, value, error);
    row_t *row = calloc(1, sizeof *row);
    if (!row) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a row of the registry");
    bool is_key = key.bytes > 0 && key.bytes < sizeof row->key;
    if (is_key) memcpy(row->key, key.data, key.bytes);
    int rc = HEDDLE_OK;
    if (!is_key || strlen(row->key) != key.bytes || !parse_key(row) || find(rows, row->key)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the prefix has a key that Heddle did not write: %.200s",
                        row->key);
        error_hint(error, "choose another prefix; this one was left as it was");
    }
    if (!rc && value.bytes) buf_add(&row->value, value.data, value.bytes);
    if (!rc && !row->value.failed) rc = check_row(row, error);
    if (!rc && (row->value.failed || !insert(rows, row)))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a row of the registry");
    if (rc) free_row(row);
    return rc;
}

int rows_follow(store_rows_t *rows, bytes_t key, bytes_t value, bool is_gone, heddle_error_t *error)
{
    char text[ROWS_KEY_BYTES] = "";
    if (key.bytes < sizeof text) memcpy(text, key.data, key.bytes);
    row_t *row = find_any(rows, text);
    if (row) take_out(rows, row);
    return is_gone ? HEDDLE_OK : rows_read(rows, key, value, error);
}

static bool count(store_rows_t *rows, const row_t *row)
{
    if (row->kind != RECORD_VERSION && row->kind != RECORD_DECISION) return true;
    numbers_t *s = summary_of(rows, row->name);
    if (!s) return false;
    if (row->kind == RECORD_VERSION) {
        s->version_count++;
        if (row->number > s->last_version) s->last_version = row->number;
    } else {
        record_t r = {.kind = row->kind};
        rows_value_take(buf_view(&row->value), &r);
        if (r.decision > s->last_decision) s->last_decision = r.decision;
    }
    return true;
}

int rows_end_read(store_rows_t *rows, heddle_error_t *error)
{
    row_t *row, *next;
    if (rows->all && !rows->cluster[0]) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the prefix has rows, and no key \"meta\"");
        error_hint(error, "restore a snapshot of etcd, or choose another prefix");
        return rc;
    }
    for (row = rows->all; row; row = row->hh.next)
        if (!count(rows, row))
            return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the registry's rows");
    HASH_ITER(hh, rows->all, row, next)
    {
        char key[ROWS_KEY_BYTES];
        version_key(key, row->name, row->number, "v");
        if (row->number && !find(rows, key)) {
            int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the row %.300s has no version", row->key);
            error_hint(error, "restore a snapshot of etcd, or choose another prefix");
            return rc;
        }
        if (row->kind != RECORD_ADAPTER) continue;
        numbers_t *s = summary_of(rows, row->name);
        if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the registry's rows");
        if (s->version_count || find_named(rows, 'f', row->name) || find_named(rows, 'w', row->name))
            continue;
        take_out(rows, row);
    }
    return HEDDLE_OK;
}

/* ---- what they say ---- */

const char *rows_cluster(const store_rows_t *rows) { return rows->cluster; }
uint64_t rows_epoch(const store_rows_t *rows) { return rows->epoch; }
uint64_t rows_bytes(const store_rows_t *rows) { return rows->bytes; }
uint64_t rows_count(const store_rows_t *rows) { return HASH_COUNT(rows->all); }

/* A live key is revoked where all that its invitation entered is. */
static bool take_key(const store_rows_t *rows, const row_t *row, record_t *ret_key)
{
    record_t key = {.kind = RECORD_KEY}, all = {.kind = RECORD_KEYS_REVOKE};
    if (row->kind != RECORD_KEY || row->is_gone || !rows_value_take(buf_view(&row->value), &key))
        return false;
    const row_t *of = *key.entered_by ? find_named(rows, 'r', key.entered_by) : NULL;
    if (!key.revoked_ms && of && rows_value_take(buf_view(&of->value), &all)) key.revoked_ms = all.revoked_ms;
    *ret_key = key;
    return true;
}

uint64_t rows_live_keys(const store_rows_t *rows)
{
    uint64_t count = 0;
    const row_t *row;
    record_t key;
    for (row = rows->all; row; row = row->hh.next) count += take_key(rows, row, &key) && !key.revoked_ms;
    return count;
}

/* The order of store_load: by kind, but that KEY comes before WORKER, LOSS and STAGED; then by name. */
static int rank_of(record_kind_t kind) { return kind == RECORD_KEY ? 2 * RECORD_FLOOR + 1 : 2 * (int)kind; }

static int by_place(const void *a_at, const void *b_at)
{
    const row_t *a = *(row_t *const *)a_at, *b = *(row_t *const *)b_at;
    if (a->kind != b->kind) return rank_of(a->kind) < rank_of(b->kind) ? -1 : 1;
    int order = strcmp(a->name, b->name);
    if (order) return order;
    if (a->kind == RECORD_DECISION) {
        record_t x = {.kind = a->kind}, y = {.kind = b->kind};
        rows_value_take(buf_view(&a->value), &x);
        rows_value_take(buf_view(&b->value), &y);
        return x.decision < y.decision ? -1 : x.decision > y.decision;
    }
    return a->number < b->number ? -1 : a->number > b->number;
}

/* A row of STAGED counts until its version has ended, and one of KEYS_REVOKE is said by its keys. */
int rows_walk(store_rows_t *rows, int (*each)(void *self, const record_t *record), void *self,
              heddle_error_t *error)
{
    size_t count = HASH_COUNT(rows->all), n = 0;
    row_t **sorted = calloc(count + 1, sizeof *sorted), *row;
    if (!sorted) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read the registry's rows");
    for (row = rows->all; row; row = row->hh.next)
        if (!row->is_gone) sorted[n++] = row;
    qsort(sorted, n, sizeof *sorted, by_place);
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = rows->epoch};
    int rc = rows->epoch ? each(self, &epoch) : HEDDLE_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        record_t r = {.kind = sorted[i]->kind};
        if (!rows_value_take(buf_view(&sorted[i]->value), &r)) rc = check_row(sorted[i], error);
        else if (r.kind == RECORD_KEYS_REVOKE || (r.kind == RECORD_STAGED && find_part(rows, &r, "s")))
            continue;
        else if (r.kind != RECORD_KEY || take_key(rows, sorted[i], &r)) rc = each(self, &r);
    }
    free(sorted);
    return rc;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(row_t *const *)a)->key, (*(row_t *const *)b)->key);
}

int rows_each(store_rows_t *rows, int (*each)(void *self, bytes_t key, bytes_t value), void *self,
              heddle_error_t *error)
{
    size_t n = 0;
    int rc = HEDDLE_OK;
    row_t **sorted = calloc(HASH_COUNT(rows->all) + 1, sizeof *sorted);
    if (!sorted) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read the registry's rows");
    for (row_t *row = rows->all; row; row = row->hh.next) sorted[n++] = row;
    qsort(sorted, n, sizeof *sorted, by_key);
    for (size_t i = 0; i < n && !rc; i++)
        rc = each(self, bytes_of(sorted[i]->key, strlen(sorted[i]->key)), buf_view(&sorted[i]->value));
    free(sorted);
    return rc;
}

int rows_config(const store_rows_t *rows, const char *adapter, uint64_t version, buf_t *out,
                heddle_error_t *error)
{
    record_t r = {.kind = RECORD_VERSION, .adapter = adapter, .version = version};
    const row_t *row = find_part(rows, &r, "v");
    if (!row || !rows_value_take(buf_view(&row->value), &r))
        return error_fail(error, HEDDLE_ERR_NOT_FOUND, "the registry has no %.128s@%llu", adapter,
                          (unsigned long long)version);
    buf_add(out, r.config.data, r.config.bytes);
    return out->failed ? error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a config") : HEDDLE_OK;
}

/* ---- change ---- */

static undo_t *note_undo(store_rows_t *rows)
{
    if (rows->undo_count == rows->undo_capacity) {
        size_t capacity = rows->undo_capacity ? 2 * rows->undo_capacity : 128;
        undo_t *more = realloc(rows->undo, capacity * sizeof *more);
        if (!more) return NULL;
        rows->undo = more;
        rows->undo_capacity = capacity;
    }
    undo_t *u = &rows->undo[rows->undo_count++];
    *u = (undo_t){0};
    return u;
}

static undo_t *note_step(store_rows_t *rows, row_t *row)
{
    undo_t *u = note_undo(rows);
    if (!u) return NULL;
    u->row = row;
    u->was_gone = row->is_gone;
    row->last_step = rows->undo_count;
    return u;
}

/* `row` is of the rows from here on: its value takes the place of what has the key now. */
static int place(store_rows_t *rows, row_t *row)
{
    row_t *old = find_any(rows, row->key);
    undo_t *u = note_step(rows, old ? old : row);
    int rc = u ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
    if (u && old) {
        u->was = old->value;
        set(rows, old, row->value, false);
        row->value = (buf_t){0};
    } else if (u) {
        u->is_new = insert(rows, row);
        if (u->is_new) return HEDDLE_OK;
        rows->undo_count--;
        rc = HEDDLE_ERR_NO_MEMORY;
    }
    free_row(row);
    return rc;
}

static int drop(store_rows_t *rows, row_t *row)
{
    undo_t *u = note_step(rows, row);
    if (!u) return HEDDLE_ERR_NO_MEMORY;
    u->was = row->value;
    set(rows, row, (buf_t){0}, true);
    return HEDDLE_OK;
}

static int put(store_rows_t *rows, const char *key, const record_t *r)
{
    for (int i = 0; i < rows->below_count; i++) /* etcd takes no key of a range that ends in the same turn */
        if (!strncmp(key, rows->below[i], strlen(rows->below[i]))) return HEDDLE_ERR_INTERNAL;
    row_t *row = calloc(1, sizeof *row);
    if (!row) return HEDDLE_ERR_NO_MEMORY;
    text_printf(row->key, sizeof row->key, "%s", key);
    rows_value_put(&row->value, r);
    if (!parse_key(row) || row->value.failed) {
        int rc = row->value.failed ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL;
        free_row(row);
        return rc;
    }
    return place(rows, row);
}

static int put_part(store_rows_t *rows, const record_t *r, const char *part)
{
    char key[ROWS_KEY_BYTES];
    version_key(key, r->adapter, r->version, part);
    return put(rows, key, r);
}

static int put_named(store_rows_t *rows, char letter, const char *name, const record_t *r)
{
    char key[ROWS_KEY_BYTES];
    named_key(key, letter, name);
    return put(rows, key, r);
}

static int drop_named(store_rows_t *rows, char letter, const char *name)
{
    row_t *row = find_named(rows, letter, name);
    return row ? drop(rows, row) : HEDDLE_OK;
}

/* The summary may be written to; rows_undo puts it back. */
static numbers_t *change_summary(store_rows_t *rows, const char *adapter)
{
    numbers_t *s = summary_of(rows, adapter);
    undo_t *u = s ? note_undo(rows) : NULL;
    if (!u) return NULL;
    u->of = s;
    u->before = *s;
    return s;
}

static void note_below(store_rows_t *rows, const char *prefix)
{
    text_printf(rows->below[rows->below_count++], ROWS_KEY_BYTES, "%s", prefix);
}

static int add_version(store_rows_t *rows, const record_t *r)
{
    if (find_part(rows, r, "v") || !r->version) return HEDDLE_ERR_INTERNAL;
    numbers_t *s = change_summary(rows, r->adapter);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    s->version_count++;
    if (r->version > s->last_version) s->last_version = r->version;
    return put_part(rows, r, "v");
}

/* The first and the latest decision of a version stay. */
static int add_decision(store_rows_t *rows, const record_t *r)
{
    numbers_t *s = change_summary(rows, r->adapter);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    if (r->decision <= s->last_decision) return HEDDLE_ERR_INTERNAL;
    s->last_decision = r->decision;
    return put_part(rows, r, find_part(rows, r, "f") ? "g" : "f");
}

static bool has_last_decision(const store_rows_t *rows, const record_t *r, const numbers_t *s)
{
    static const char *const OF[] = {"f", "g"};
    for (int i = 0; i < 2; i++) {
        record_t d = {.kind = RECORD_DECISION};
        const row_t *row = find_part(rows, r, OF[i]);
        if (row && rows_value_take(buf_view(&row->value), &d) && d.decision == s->last_decision) return true;
    }
    return false;
}

/* Only of a version that has ended, and never the greatest number, nor what the last decision names. */
static int forget_version(store_rows_t *rows, const record_t *r)
{
    numbers_t *s = change_summary(rows, r->adapter);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    bool may_go = find_part(rows, r, "v") && find_part(rows, r, "s") && r->version < s->last_version;
    if (!may_go || has_last_decision(rows, r, s)) return HEDDLE_ERR_INTERNAL;
    s->version_count--;
    char key[ROWS_KEY_BYTES];
    int rc = HEDDLE_OK;
    for (int i = 0; i < PART_COUNT && !rc; i++) {
        row_t *row = find_part(rows, r, (char[]){PARTS[i].letter, 0});
        if (row) rc = drop(rows, row);
    }
    version_key(key, r->adapter, r->version, "");
    note_below(rows, key);
    return rc;
}

/* Of a version that is not there, there are no rows. */
static int drop_versions(store_rows_t *rows, const char *adapter)
{
    char key[ROWS_KEY_BYTES];
    int rc = HEDDLE_OK;
    for (row_t *row = rows->all; row && !rc; row = row->hh.next)
        if (row->number && !row->is_gone && !strcmp(row->name, adapter)) rc = drop(rows, row);
    text_printf(key, sizeof key, "v/%s/", adapter);
    note_below(rows, key);
    return rc;
}

/* A closed writer stays, so that the adapter is not one that members alone know of. */
static int forget_adapter(store_rows_t *rows, const record_t *r)
{
    numbers_t *s = change_summary(rows, r->adapter);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    int rc = s->version_count ? drop_versions(rows, r->adapter) : HEDDLE_OK;
    s->version_count = s->last_version = s->last_decision = 0;
    if (rc) return rc;
    return put_named(rows, 'w', r->adapter, &(record_t){.kind = RECORD_WRITER, .adapter = r->adapter});
}

/* A name that was opened and never published to. */
static int drop_adapter(store_rows_t *rows, const record_t *r)
{
    const numbers_t *s = summary_of(rows, r->adapter);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    bool may_go =
        find_named(rows, 'a', r->adapter) && !s->version_count && !find_named(rows, 'f', r->adapter);
    return may_go ? drop_named(rows, 'a', r->adapter) : HEDDLE_ERR_INTERNAL;
}

static int raise_floor(store_rows_t *rows, const record_t *r)
{
    record_t floor = *r, old = {.kind = RECORD_FLOOR};
    const row_t *row = find_named(rows, 'f', r->adapter);
    if (row && rows_value_take(buf_view(&row->value), &old)) {
        if (old.version > floor.version) floor.version = old.version;
        if (old.decision > floor.decision) floor.decision = old.decision;
    }
    return put_named(rows, 'f', r->adapter, &floor);
}

static bool is_named_by_a_key(const store_rows_t *rows, const char *invitation)
{
    const row_t *row;
    record_t key;
    for (row = rows->all; row; row = row->hh.next)
        if (take_key(rows, row, &key) && !strcmp(key.entered_by, invitation)) return true;
    return false;
}

/* `r`: KEY or KEY_DROP. */
static int change_key(store_rows_t *rows, const record_t *r)
{
    const row_t *row = find_named(rows, 'k', r->public_key);
    char invitation[HEDDLE_NAME_MAX + 1] = "";
    record_t was;
    if (row && take_key(rows, row, &was)) text_printf(invitation, sizeof invitation, "%s", was.entered_by);
    int rc =
        r->kind == RECORD_KEY ? put_named(rows, 'k', r->public_key, r) : drop_named(rows, 'k', r->public_key);
    bool is_last = *invitation && find_named(rows, 'r', invitation) && !is_named_by_a_key(rows, invitation);
    return rc || !is_last ? rc : drop_named(rows, 'r', invitation);
}

/* One row for all keys that name the invitation, and its own. */
static int revoke_keys(store_rows_t *rows, const record_t *r)
{
    const row_t *row = find_named(rows, 'k', r->public_key);
    record_t own;
    int rc = HEDDLE_OK;
    if (row && take_key(rows, row, &own) && !own.revoked_ms) {
        own.revoked_ms = r->revoked_ms;
        rc = put_named(rows, 'k', r->public_key, &own);
    }
    bool is_said = find_named(rows, 'r', r->public_key) || !is_named_by_a_key(rows, r->public_key);
    return rc || is_said ? rc : put_named(rows, 'r', r->public_key, r);
}

static int change(store_rows_t *rows, const record_t *r)
{
    switch (r->kind) {
    case RECORD_EPOCH:
        if (r->epoch > rows->epoch) rows->epoch = r->epoch;
        return HEDDLE_OK;
    case RECORD_ADAPTER:
        if (find_named(rows, 'a', r->adapter)) return HEDDLE_ERR_INTERNAL;
        return put_named(rows, 'a', r->adapter, r);
    case RECORD_VERSION: return add_version(rows, r);
    case RECORD_DECISION: return add_decision(rows, r);
    case RECORD_STATE: return find_part(rows, r, "v") ? put_part(rows, r, "s") : HEDDLE_ERR_INTERNAL;
    case RECORD_LOSS:
        if (!find_part(rows, r, "v")) return HEDDLE_OK;
        if (r->message && *r->message) return put_part(rows, r, "l");
        row_t *row = find_part(rows, r, "l");
        return row ? drop(rows, row) : HEDDLE_OK;
    case RECORD_STAGED: return find_part(rows, r, "v") ? put_part(rows, r, "p") : HEDDLE_OK;
    case RECORD_WRITER:
        return r->token ? put_named(rows, 'w', r->adapter, r) : drop_named(rows, 'w', r->adapter);
    case RECORD_FLOOR: return raise_floor(rows, r);
    case RECORD_WORKER:
        return *r->serves ? put_named(rows, 'n', r->worker, r) : drop_named(rows, 'n', r->worker);
    case RECORD_KEY:
    case RECORD_KEY_DROP: return change_key(rows, r);
    case RECORD_KEYS_REVOKE: return revoke_keys(rows, r);
    case RECORD_FORGET: return forget_version(rows, r);
    case RECORD_ADAPTER_DROP: return drop_adapter(rows, r);
    case RECORD_ADAPTER_FORGET: return forget_adapter(rows, r);
    }
    return HEDDLE_ERR_INTERNAL;
}

/* The records of one turn come in any order, so what they refer to is looked for at their end. */
static bool refers_to_what_is_there(const store_rows_t *rows, const record_t *r)
{
    if (r->kind == RECORD_DECISION) return find_part(rows, r, "v") != NULL;
    if (r->kind == RECORD_VERSION)
        return !find_part(rows, r, "v") || find_named(rows, 'a', r->adapter) != NULL;
    return true;
}

/* Of each key that was changed, the row as it is now: once, though it was changed twice. */
static bool list_ops(const store_rows_t *rows, rows_ops_t *ret_ops)
{
    ret_ops->count = 0;
    for (int i = 0; i < rows->below_count; i++)
        ret_ops->op[ret_ops->count++] = (rows_op_t){.kind = ROWS_DELETE_BELOW, .key = rows->below[i]};
    for (size_t i = 0; i < rows->undo_count; i++) {
        const row_t *row = rows->undo[i].row;
        bool is_done = !row || row->last_step != i + 1;
        for (int k = 0; k < rows->below_count && !is_done; k++)
            is_done = !strncmp(row->key, rows->below[k], strlen(rows->below[k]));
        if (is_done) continue;
        if (ret_ops->count == ROWS_OPS) return false;
        ret_ops->op[ret_ops->count++] = row->is_gone ? (rows_op_t){.kind = ROWS_DELETE, .key = row->key}
                                                     : (rows_op_t){ROWS_PUT, row->key, buf_view(&row->value)};
    }
    return true;
}

int rows_change(store_rows_t *rows, const record_t *records, int count, rows_ops_t *ret_ops,
                heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    rows->is_changing = true;
    rows->epoch_before = rows->epoch;
    for (int i = 0; i < count && !rc; i++)
        rc = rows->below_count == ROWS_OPS ? HEDDLE_ERR_INTERNAL : change(rows, &records[i]);
    for (int i = 0; i < count && !rc; i++)
        if (!refers_to_what_is_there(rows, &records[i])) rc = HEDDLE_ERR_INTERNAL;
    if (!rc && !list_ops(rows, ret_ops)) rc = HEDDLE_ERR_INTERNAL;
    if (!rc) return HEDDLE_OK;
    rows_undo(rows);
    error_fail(error, rc, "cannot write %d record%s: %s", count, count == 1 ? "" : "s",
               rc == HEDDLE_ERR_NO_MEMORY ? "no memory" : "they contradict what is stored");
    return rc;
}

/* A row that is gone is freed at its last step, as earlier ones name it, too. */
void rows_keep(store_rows_t *rows)
{
    for (size_t i = 0; i < rows->undo_count; i++) {
        undo_t *u = &rows->undo[i];
        buf_fini(&u->was);
        if (u->row && u->row->is_gone && u->row->last_step == i + 1) take_out(rows, u->row);
    }
    rows->undo_count = 0;
    rows->below_count = 0;
    rows->is_changing = false;
}

/* Backwards, so that a row that was changed twice gets its first value again. */
void rows_undo(store_rows_t *rows)
{
    if (!rows->is_changing) return;
    while (rows->undo_count) {
        undo_t *u = &rows->undo[--rows->undo_count];
        if (u->of) {
            UT_hash_handle links = u->of->hh;
            *u->of = u->before;
            u->of->hh = links;
        } else if (u->is_new) {
            take_out(rows, u->row);
        } else {
            buf_t now = u->row->value;
            set(rows, u->row, u->was, u->was_gone);
            buf_fini(&now);
        }
    }
    rows->epoch = rows->epoch_before;
    rows->below_count = 0;
    rows->is_changing = false;
}

/* A writer without a token is what an adapter has that was forgotten. */
int rows_adopt(store_rows_t *rows, const record_t *r, heddle_error_t *error)
{
    rows_ops_t ops;
    record_t forgotten = {.kind = RECORD_ADAPTER_FORGET, .adapter = r->adapter};
    bool is_forgotten = r->kind == RECORD_WRITER && !r->token;
    int rc = rows_change(rows, is_forgotten ? &forgotten : r, 1, &ops, error);
    if (!rc) rows_keep(rows);
    return rc;
}

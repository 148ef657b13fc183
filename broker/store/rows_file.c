/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/rows_file.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/names.h"

#define META "meta"
#define BEGIN "heddle registry export "
enum { END_BYTES = 4 + 8 + 32, LINE_MAX_BYTES = 32 };

/* ---- put ---- */

static int add_record(void *rows, const record_t *r)
{
    heddle_error_t error;
    return rows_adopt(rows, r, &error);
}

/* Into `out`, where there is one. */
typedef struct {
    buf_t *out;
    size_t limit, bytes;
    uint64_t count;
    h1_t digest;
} file_writer_t;

static void put_bytes(file_writer_t *w, const void *data, size_t bytes)
{
    h1_add(&w->digest, data, bytes);
    if (w->out) buf_add(w->out, data, bytes);
    w->bytes += bytes;
}

static void put_number(file_writer_t *w, uint64_t number, size_t bytes)
{
    uint8_t le[8];
    le64_put(le, number);
    put_bytes(w, le, bytes);
}

static int put_row(void *self, bytes_t key, bytes_t value)
{
    file_writer_t *w = self;
    if (w->bytes + 8 + key.bytes + value.bytes > w->limit) return HEDDLE_ERR_LIMIT;
    put_number(w, key.bytes, 4);
    put_bytes(w, key.data, key.bytes);
    put_number(w, value.bytes, 4);
    put_bytes(w, value.data, value.bytes);
    w->count++;
    return HEDDLE_OK;
}

/* The same rows as any store has them: what the records of `from` say. */
static int say_again(store_rows_t *from, store_rows_t **ret_rows, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    char meta[ROWS_META_BYTES];
    rows_meta(rows_cluster(from), rows_epoch(from), meta);
    int rc = rows_new(&rows, error);
    if (!rc) rc = rows_read(rows, bytes_of(META, strlen(META)), bytes_of(meta, strlen(meta)), error);
    if (!rc) {
        rc = rows_walk(from, add_record, rows, error);
        if (rc) error_fail(error, rc, "the rows of the registry contradict each other");
    }
    if (!rc) rc = rows_end_read(rows, error);
    if (rc) rows_destroy(&rows);
    else *ret_rows = rows;
    return rc;
}

static int put_all(store_rows_t *rows, file_writer_t *w, heddle_error_t *error)
{
    char lines[LINE_MAX_BYTES + ROWS_META_BYTES], meta[ROWS_META_BYTES];
    rows_meta(rows_cluster(rows), rows_epoch(rows), meta);
    text_printf(lines, sizeof lines, BEGIN "%d\n%s\n", ROWS_FILE_FORMAT, meta);
    h1_init(&w->digest); /* BLAKE2b of all bytes, however they are cut */
    put_bytes(w, lines, strlen(lines));
    int rc = rows_each(rows, put_row, w, error);
    if (rc == HEDDLE_ERR_LIMIT) {
        error_fail(error, rc, "the registry is larger than an export can be");
        error_expected(error, "at most %llu bytes", (unsigned long long)w->limit);
        error_hint(error, "forget adapters that are not needed any more: `heddle forget NAME`");
    }
    put_number(w, 0, 4);
    put_number(w, w->count, 8);
    return rc;
}

int rows_file_put(store_rows_t *from, size_t limit, buf_t *out, rows_file_t *ret_file, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    file_writer_t w = {.out = out, .limit = limit - END_BYTES};
    int rc = say_again(from, &rows, error);
    if (rc) return rc;
    rc = put_all(rows, &w, error);
    rows_destroy(&rows);
    digest_t digest = h1_final(&w.digest);
    buf_add(out, digest.b, sizeof digest.b);
    if (!rc && out->failed) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the export");
    if (!rc) *ret_file = (rows_file_t){w.count, digest};
    return rc;
}

int rows_file_sum(store_rows_t *from, rows_file_t *ret_file, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    file_writer_t w = {.limit = SIZE_MAX};
    int rc = say_again(from, &rows, error);
    if (!rc) rc = put_all(rows, &w, error);
    rows_destroy(&rows);
    if (!rc) *ret_file = (rows_file_t){w.count, h1_final(&w.digest)};
    return rc;
}

/* ---- take ---- */

static int refuse(const char *found, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the file is not a whole export of a registry");
    error_contrast(error, "a file of `heddle registry export`", found);
    error_hint(error, "nothing was changed: copy the file again, or export the registry again");
    return rc;
}

static int refuse_newer(uint64_t format, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_NEWER, "the file was exported by a newer Heddle");
    error_expected(error, "format %d", ROWS_FILE_FORMAT);
    error_found(error, "format %llu", (unsigned long long)format);
    error_hint(error, "nothing was changed: import it with the Heddle that exported it, or a newer one");
    return rc;
}

/* A line up to its end; false: there is none in so many bytes. */
static bool take_line(bytes_t *left, size_t limit, bytes_t *ret_line)
{
    const char *at = left->data;
    const char *end = left->bytes ? memchr(at, '\n', left->bytes < limit ? left->bytes : limit) : NULL;
    if (!end) return false;
    *ret_line = bytes_of(at, (size_t)(end - at));
    *left = bytes_of(end + 1, left->bytes - ret_line->bytes - 1);
    return true;
}

/* "heddle registry export 1".  Before the digest is looked at, as a newer format may have another one. */
static int take_format(bytes_t *left, heddle_error_t *error)
{
    static const size_t SKIPPED = sizeof BEGIN - 1;
    bytes_t line;
    uint64_t format = 0;
    if (!take_line(left, LINE_MAX_BYTES, &line) || line.bytes <= SKIPPED || memcmp(line.data, BEGIN, SKIPPED))
        return refuse("another file", error);
    for (size_t i = SKIPPED; i < line.bytes; i++) {
        uint8_t digit = (uint8_t)(((const uint8_t *)line.data)[i] - '0');
        if (digit > 9) return refuse("another file", error);
        format = format * 10 + digit;
    }
    if (format > ROWS_FILE_FORMAT) return refuse_newer(format, error);
    return format == ROWS_FILE_FORMAT ? HEDDLE_OK : refuse("another format", error);
}

/* A length, and so many bytes. */
static bool take_part(bytes_t *left, bytes_t *ret_part)
{
    if (left->bytes < 4) return false;
    uint32_t bytes = le32_get(left->data);
    const uint8_t *at = (const uint8_t *)left->data + 4;
    if (bytes > left->bytes - 4) return false;
    *ret_part = bytes_of(at, bytes);
    *left = bytes_of(at + bytes, left->bytes - 4 - bytes);
    return true;
}

/* rows_read says of a prefix in etcd what is wrong: here it is what was found in the file. */
static int take_row(store_rows_t *rows, bytes_t key, bytes_t value, heddle_error_t *error)
{
    heddle_error_t why = {0};
    int rc = rows_read(rows, key, value, &why);
    if (rc == HEDDLE_ERR_DATA_DIR) return refuse(why.message, error);
    if (rc) *error = why;
    return rc;
}

static int take_rows(store_rows_t *rows, bytes_t left, uint64_t *ret_count, heddle_error_t *error)
{
    bytes_t meta, key, value, before = {0};
    int rc = HEDDLE_OK;
    if (!take_line(&left, ROWS_META_BYTES, &meta)) return refuse("no line of its schema", error);
    rc = take_row(rows, bytes_of(META, strlen(META)), meta, error);
    for (*ret_count = 0; !rc && take_part(&left, &key) && key.bytes; ++*ret_count) {
        size_t least = before.bytes < key.bytes ? before.bytes : key.bytes;
        int order = least ? memcmp(before.data, key.data, least) : 0;
        bool is_next = order < 0 || (order == 0 && before.bytes < key.bytes);
        bool is_meta = key.bytes == strlen(META) && !memcmp(key.data, META, key.bytes);
        if (!is_next || is_meta || !take_part(&left, &value)) return refuse("rows out of order", error);
        rc = take_row(rows, key, value, error);
        before = key;
    }
    if (rc) return rc;
    if (left.bytes != 8 || le64_get(left.data) != *ret_count) return refuse("another number of rows", error);
    if (!rows_epoch(rows)) return refuse("no epoch", error);
    if (rows_epoch(rows) == EPOCH_MAX) return refuse("an epoch after which there is no other", error);
    heddle_error_t why = {0};
    rc = rows_end_read(rows, &why);
    if (rc == HEDDLE_ERR_DATA_DIR) return refuse(why.message, error);
    if (rc) *error = why;
    return rc;
}

static int check_name(void *self, const record_t *r)
{
    const char *name = r->kind == RECORD_WORKER ? r->worker : r->adapter;
    char found[2 * HEDDLE_NAME_MAX];
    if (r->kind == RECORD_EPOCH || r->kind == RECORD_KEY || name_is_valid(name)) return HEDDLE_OK;
    text_printf(found, sizeof found, "the name \"%s\"", name);
    return refuse(found, self);
}

/* What no export has.  A row may also be taken away by a later one without a contradiction: a version of an
 * adapter whose writer is closed. */
static int check_records(store_rows_t *read, uint64_t count, store_rows_t **ret_rows, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    int rc = rows_walk(read, check_name, error, error);
    if (!rc) rc = say_again(read, &rows, error);
    if (rc == HEDDLE_ERR_INTERNAL || (!rc && rows_count(rows) != count))
        rc = refuse("rows that contradict each other", error);
    if (rc) rows_destroy(&rows);
    else *ret_rows = rows;
    return rc;
}

int rows_file_take(bytes_t file, store_rows_t **ret_rows, rows_file_t *ret_file, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    bytes_t left = file;
    uint64_t count = 0;
    int rc = take_format(&left, error);
    if (rc) return rc;
    if (left.bytes < END_BYTES) return refuse("a file that was cut", error);
    digest_t digest = digest_blake2b(file.data, file.bytes - sizeof digest.b);
    const uint8_t *said = (const uint8_t *)file.data + file.bytes - sizeof digest.b;
    if (memcmp(said, digest.b, sizeof digest.b))
        return refuse("another digest than its last bytes say", error);
    rc = rows_new(&rows, error);
    if (!rc) rc = take_rows(rows, bytes_of(left.data, left.bytes - sizeof digest.b), &count, error);
    store_rows_t *said_again = NULL;
    if (!rc) rc = check_records(rows, count, &said_again, error);
    rows_destroy(&rows);
    if (rc) return rc;
    *ret_rows = said_again;
    *ret_file = (rows_file_t){count, digest};
    return HEDDLE_OK;
}

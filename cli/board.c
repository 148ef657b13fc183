/* SPDX-License-Identifier: Apache-2.0 */
/* Rows are made anew from the answers after every change: there is nothing to keep in step. */
#include "cli/board.h"

#include "cli/cli.h"
#include "cli/frame.h"
#include "core/errors.h"
#include "core/units.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const board_column_t COLUMNS[BOARD_VIEWS][BOARD_COLUMNS + 1] = {
    [BOARD_ADAPTERS] = {{"ADAPTER", 24, .is_name = true},
                        {"ACTIVE", 8, true},
                        {"NEWEST", 8, true},
                        {"STATE", 11, false},
                        {"CURRENT", 9, true},
                        {"LAG", 5, true},
                        {"HELD", 6, true},
                        {"WRITER", 24, .is_name = true}},
    [BOARD_WORKERS] = {{"WORKER", 20, .is_name = true},
                       {"SESSION", 9, false},
                       {"ADAPTER", 16, .is_name = true},
                       {"VERSION", 8, true},
                       {"STATE", 10, false},
                       {"LAG", 5, true, .gives_way = true},
                       {"DONE", 6, true, .gives_way = true},
                       {"FETCHED", 10, true, .gives_way = true},
                       {"HEARTBEAT", 10, true, .gives_way = true},
                       {"LABELS", 40, .is_name = true, .gives_way = true, .is_optional = true},
                       {"WHY", 60, false}},
    [BOARD_TRANSFERS] = {{"WORKER", 20, .is_name = true},
                         {"ADAPTER", 16, .is_name = true},
                         {"VERSION", 8, true},
                         {"DONE", 6, true},
                         {"BYTES", 10, true, .gives_way = true},
                         {"OF", 10, true, .gives_way = true},
                         {"RATE", 12, true},
                         {"LEFT", 8, true},
                         {"SOURCE", 24, .is_name = true}}};

const board_column_t *board_columns(board_view_t view) { return COLUMNS[view]; }

const char *board_view_name(board_view_t view)
{
    static const char *const NAMES[BOARD_VIEWS] = {"adapters", "workers", "transfers"};
    return NAMES[view];
}

static int column_count(board_view_t view)
{
    int n = 0;
    while (n < BOARD_COLUMNS && COLUMNS[view][n].name) n++;
    return n;
}

static bool has_column(const board_t *b, int c)
{
    if (!COLUMNS[b->view][c].is_optional) return true;
    for (size_t i = 0; i < b->count; i++)
        if (strcmp(b->rows[i].cells[c], "-") != 0) return true;
    return false;
}

/* A heading has the sign of the order behind it. */
static int longest(const board_t *b, int c)
{
    int width = frame_width(COLUMNS[b->view][c].name) + 1;
    for (size_t i = 0; i < b->count; i++) {
        int cell = frame_width(b->rows[i].cells[c]);
        if (cell > width) width = cell;
    }
    return width;
}

static int width_of(const board_t *b, int c)
{
    const board_column_t *column = &COLUMNS[b->view][c];
    int width = column->is_name ? longest(b, c) : column->width;
    return width < column->width ? width : column->width;
}

enum { GAP = 2 }; /* between two columns, or two parts of the head */

/* The last one says why: on a narrow screen those that give way make room for the half of it, and what it
 * does not need is for names. */
void board_widths(const board_t *b, int columns, int ret_widths[BOARD_COLUMNS])
{
    int last = column_count(b->view) - 1, left = columns;
    for (int c = 0; c < BOARD_COLUMNS; c++) ret_widths[c] = c < last && has_column(b, c) ? width_of(b, c) : 0;
    for (int c = 0; c < last; c++) left -= ret_widths[c] ? ret_widths[c] + GAP : 0;
    for (int c = last - 1; c >= 0 && left < COLUMNS[b->view][last].width / 2; c--) {
        if (!COLUMNS[b->view][c].gives_way || !ret_widths[c]) continue;
        left += ret_widths[c] + GAP;
        ret_widths[c] = 0;
    }
    for (int c = 0; c < last; c++) {
        int room = left - COLUMNS[b->view][last].width, more = longest(b, c) - ret_widths[c];
        if (!ret_widths[c] || !COLUMNS[b->view][c].is_name || room <= 0 || more <= 0) continue;
        if (more > room) more = room;
        ret_widths[c] += more;
        left -= more;
    }
    ret_widths[last] = left > 0 ? left : 0;
}

const char *board_fit(const board_column_t *column, const char *cell, int width, char ret_text[BOARD_CELL])
{
    bool is_cut_behind = !column->is_name || column->is_optional;
    return is_cut_behind ? cell : frame_tail(cell, width, ret_text, BOARD_CELL);
}

/* ---- rows ---- */

static board_row_t *add_row(board_t *b, const char *worker, const char *adapter)
{
    if (!(b->count & (b->count - 1))) { /* 0, 1, 2, 4, ...: it is full */
        board_row_t *rows = realloc(b->rows, (b->count ? 2 * b->count : 1) * sizeof *rows);
        if (!rows) return NULL;
        b->rows = rows;
    }
    board_row_t *row = &b->rows[b->count++];
    *row = (board_row_t){0};
    text_printf(row->worker, sizeof row->worker, "%s", worker);
    text_printf(row->key, sizeof row->key, "%s/%s", worker, adapter);
    return row;
}

/* Letters of ASCII in either size are the same; others are compared as they are. */
static bool has_text(const char *text, const char *part)
{
    size_t n = strlen(part);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && text[i] && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i])) i++;
        if (i == n) return true;
    }
    return n == 0;
}

/* What is not known is sorted behind all that is.  The filter sees all of a text that its cell cuts. */
static void put(const board_t *b, board_row_t *row, int column, const char *text, double value)
{
    row->is_found |= has_text(text, b->filter);
    text_printf(row->cells[column], BOARD_CELL, "%s", text);
    row->values[column] = text[0] == '-' && !text[1] ? -1 : value;
}

static void put_number(const board_t *b, board_row_t *row, int column, const json_t *object, const char *key)
{
    char s[64];
    put(b, row, column, cli_text(object, key, s), (double)cli_integer(object, key));
}

static void put_bytes(const board_t *b, board_row_t *row, int column, const json_t *object, const char *key)
{
    char s[64];
    put(b, row, column, cli_bytes(object, key, s), (double)cli_integer(object, key));
}

static double part_done(const json_t *fetching)
{
    double all = (double)cli_integer(fetching, "data_bytes"),
           done = (double)cli_integer(fetching, "bytes_done");
    return all > 0 ? (done < all ? done / all : 1) : 0;
}

static void put_done(const board_t *b, board_row_t *row, int column, const json_t *fetching)
{
    char text[16] = "-";
    if (json_is_object(fetching)) text_printf(text, sizeof text, "%.0f %%", 100 * part_done(fetching));
    put(b, row, column, text, part_done(fetching));
}

static void add_adapter(board_t *b, const json_t *a)
{
    const json_t *active = json_object_get(a, "active"), *newest = json_object_get(a, "newest");
    char s[64], current[64];
    const char *name = cli_text(a, "name", s);
    board_row_t *row = add_row(b, "", name);
    if (!row) return;
    put(b, row, 0, name, 0);
    put_number(b, row, 1, active, "version");
    put_number(b, row, 2, newest, "version");
    put(b, row, 3, cli_text(newest, "state", s), 0);
    text_printf(current, sizeof current, "%lld/%lld", (long long)cli_integer(a, "current_count"),
                (long long)cli_integer(a, "subscriber_count"));
    put(b, row, 4, current, (double)cli_integer(a, "current_count"));
    put_number(b, row, 5, a, "max_lag");
    put_number(b, row, 6, json_object_get(a, "held"), "version");
    put(b, row, 7, cli_text(json_object_get(a, "writer"), "name", s), 0);
}

/* " node=gpu-7 pod=p2": all of a worker's labels, each after a space. */
static void add_pairs(buf_t *out, const json_t *labels)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)labels, key, value)
    {
        char name[HEDDLE_NAME_MAX + 1], s[64];
        error_text(name, sizeof name, key);
        buf_printf(out, " %s=%s", name, cli_text(labels, key, s));
    }
}

static bool has_label(const json_t *labels, const char *part)
{
    buf_t all = {0};
    add_pairs(&all, labels);
    bool is_there = has_text(buf_text(&all), part);
    buf_fini(&all);
    return is_there;
}

static void add_worker(board_t *b, const json_t *w, const json_t *a)
{
    char s[2][64], why[600];
    const char *name = cli_text(w, "name", s[0]), *adapter = cli_text(a, "name", s[1]);
    if (b->adapter[0] && strcmp(b->adapter, adapter) != 0) return;
    board_row_t *row = add_row(b, name, adapter);
    if (!row) return;
    put(b, row, 0, name, 0);
    put(b, row, 1, cli_text(w, "state", s[0]), 0);
    put(b, row, 2, adapter, 0);
    put_number(b, row, 3, a, "version");
    put(b, row, 4, cli_text(a, "state", s[0]), 0);
    put_number(b, row, 5, a, "lag");
    put_done(b, row, 6, json_object_get(a, "fetching"));
    put_bytes(b, row, 7, json_object_get(w, "counters"), "bytes_in");
    put(b, row, 8, cli_ms(w, "heartbeat_age_ms", s[0]), (double)cli_integer(w, "heartbeat_age_ms"));
    put(b, row, 9, cli_labels(w, s[0]), 0);
    row->is_found |= has_label(json_object_get(w, "labels"), b->filter);
    put(b, row, 10, cli_why(a, why, sizeof why), 0);
}

static void add_transfer(board_t *b, const json_t *w, const json_t *a)
{
    const json_t *f = json_object_get(a, "fetching");
    char s[2][64], text[64], left[16] = "-";
    if (!json_is_object(f)) return;
    const char *name = cli_text(w, "name", s[0]), *adapter = cli_text(a, "name", s[1]);
    board_row_t *row = add_row(b, name, adapter);
    if (!row) return;
    double rate = (double)cli_integer(f, "rate_bytes"),
           rest = (double)cli_integer(f, "data_bytes") - (double)cli_integer(f, "bytes_done");
    double left_ms = rate > 0 && rest > 0 ? rest * 1000 / rate : 0;
    put(b, row, 0, name, 0);
    put(b, row, 1, adapter, 0);
    put_number(b, row, 2, f, "version");
    put_done(b, row, 3, f);
    put_bytes(b, row, 4, f, "bytes_done");
    put_bytes(b, row, 5, f, "data_bytes");
    const char *bytes = cli_bytes(f, "rate_bytes", s[0]);
    text_printf(text, sizeof text, "%s%s", bytes, strcmp(bytes, "-") != 0 ? "/s" : "");
    put(b, row, 6, text, rate);
    if (rate > 0) units_ms_text(left_ms, left);
    put(b, row, 7, left, left_ms);
    put(b, row, 8, cli_text(f, "source", s[0]), 0);
}

static int compare(const void *one, const void *other, void *self)
{
    const board_t *b = self;
    const board_row_t *x = one, *y = other;
    int c = b->sort[b->view], order;
    if (COLUMNS[b->view][c].is_number) order = (x->values[c] < y->values[c]) - (x->values[c] > y->values[c]);
    else order = strcmp(x->cells[c], y->cells[c]);
    if (b->is_reversed[b->view]) order = -order;
    return order ? order : strcmp(x->key, y->key);
}

static void make_rows(board_t *b)
{
    const json_t *adapters = json_object_get(b->status, "adapters"),
                 *workers = json_object_get(b->workers, "workers");
    b->count = 0;
    for (size_t i = 0; b->view == BOARD_ADAPTERS && i < json_array_size(adapters); i++)
        add_adapter(b, json_array_get(adapters, i));
    for (size_t i = 0; b->view != BOARD_ADAPTERS && i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i), *its = json_object_get(w, "adapters");
        for (size_t k = 0; k < json_array_size(its); k++) {
            if (b->view == BOARD_WORKERS) add_worker(b, w, json_array_get(its, k));
            else add_transfer(b, w, json_array_get(its, k));
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < b->count; i++)
        if (b->rows[i].is_found) b->rows[kept++] = b->rows[i];
    b->count = kept;
    if (b->count) qsort_r(b->rows, b->count, sizeof *b->rows, compare, b);
    /* The selection stays on its row; where that has gone, on its place. */
    for (size_t i = 0; i < b->count; i++)
        if (!strcmp(b->rows[i].key, b->selected)) b->at = i;
    if (b->at >= b->count) b->at = b->count ? b->count - 1 : 0;
    text_printf(b->selected, sizeof b->selected, "%s", b->count ? b->rows[b->at].key : b->selected);
}

void board_take(board_t *b, json_t *status, json_t *workers)
{
    json_decref(b->status);
    json_decref(b->workers);
    b->status = status;
    b->workers = workers;
    make_rows(b);
}

void board_fini(board_t *b)
{
    json_decref(b->status);
    json_decref(b->workers);
    free(b->rows);
    *b = (board_t){0};
}

/* ---- keys ---- */

static void select_row(board_t *b, size_t at)
{
    b->at = at;
    if (at < b->count) text_printf(b->selected, sizeof b->selected, "%s", b->rows[at].key);
}

/* By so many lines; of a worker that is shown alone and of the help the text moves, and the screen ends that
 * at its last. */
static void move(board_t *b, long by)
{
    bool is_text = b->has_help || b->worker[0];
    size_t *at = b->has_help ? &b->help_scroll : b->worker[0] ? &b->scroll : &b->at;
    size_t last = is_text ? SIZE_MAX / 4 : b->count ? b->count - 1 : 0;
    long to = (long)*at + by;
    size_t place = to < 0 ? 0 : (size_t)to > last ? last : (size_t)to;
    if (is_text) *at = place;
    else select_row(b, place);
}

static void show_view(board_t *b, board_view_t view)
{
    b->view = view;
    b->adapter[0] = b->worker[0] = 0;
    b->at = b->scroll = 0;
    b->selected[0] = 0;
}

static void open_row(board_t *b)
{
    if (b->worker[0] || b->at >= b->count) return;
    const board_row_t row = b->rows[b->at];
    if (b->view == BOARD_ADAPTERS) {
        show_view(b, BOARD_WORKERS);
        text_printf(b->adapter, sizeof b->adapter, "%s", row.key + 1); /* behind the slash */
        b->filter[0] = 0;
    } else {
        text_printf(b->worker, sizeof b->worker, "%s", row.worker);
        b->scroll = 0;
    }
}

static void go_back(board_t *b)
{
    if (b->has_help) b->has_help = false;
    else if (b->worker[0]) b->worker[0] = 0;
    else if (b->filter[0]) b->filter[0] = 0;
    else if (b->adapter[0]) {
        char selected[BOARD_KEY];
        text_printf(selected, sizeof selected, "/%s", b->adapter);
        show_view(b, BOARD_ADAPTERS);
        memcpy(b->selected, selected, sizeof selected);
    }
}

static void type(board_t *b, int key)
{
    size_t n = strlen(b->filter);
    if (key == BOARD_ENTER) b->is_typing = false;
    else if (key == BOARD_ESCAPE) b->is_typing = false, b->filter[0] = 0;
    else if (key == BOARD_BACKSPACE && n > 0) b->filter[n - 1] = 0;
    else if (key == BOARD_BACKSPACE) b->is_typing = false;
    else if (key >= 0x20 && key < 0x7f && n + 1 < sizeof b->filter)
        b->filter[n] = (char)key, b->filter[n + 1] = 0;
}

static void sort_by(board_t *b, int step)
{
    int count = column_count(b->view), *at = &b->sort[b->view];
    do *at = (*at + step + count) % count;
    while (!has_column(b, *at));
    b->is_reversed[b->view] = false;
}

static void command(board_t *b, int key, size_t page)
{
    switch (key) {
    case 'q': b->is_over = true; break;
    case '?':
    case 'h': b->has_help = true, b->help_scroll = 0; break;
    case '1':
    case '2':
    case '3': show_view(b, (board_view_t)(key - '1')); break;
    case '\t': show_view(b, (board_view_t)((b->view + 1) % BOARD_VIEWS)); break;
    case '/': b->is_typing = true, b->worker[0] = 0; break;
    case '<':
    case BOARD_LEFT: sort_by(b, -1); break;
    case '>':
    case BOARD_RIGHT: sort_by(b, 1); break;
    case 'r': b->is_reversed[b->view] = !b->is_reversed[b->view]; break;
    case 'k':
    case BOARD_UP: move(b, -1); break;
    case 'j':
    case BOARD_DOWN: move(b, 1); break;
    case BOARD_PAGE_UP: move(b, -(long)page); break;
    case BOARD_PAGE_DOWN: move(b, (long)page); break;
    case 'g':
    case BOARD_HOME: move(b, -(1l << 40)); break;
    case 'G':
    case BOARD_END: move(b, 1l << 40); break;
    case BOARD_ENTER: open_row(b); break;
    case BOARD_ESCAPE:
    case BOARD_BACKSPACE: go_back(b); break;
    default: break;
    }
}

static bool is_of_text(int key)
{
    static const int KEYS[] = {
        BOARD_UP, BOARD_DOWN, BOARD_PAGE_UP, BOARD_PAGE_DOWN, BOARD_HOME, BOARD_END, 'k', 'j', 'g', 'G', 'q'};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (key == KEYS[i]) return true;
    return false;
}

void board_key(board_t *b, int key, size_t page)
{
    bool is_help_over = b->has_help && !is_of_text(key);
    if (b->is_typing) type(b, key);
    else if (is_help_over) b->has_help = false; /* any other key */
    else command(b, key, page);
    make_rows(b);
}

/* ---- texts ---- */

static void summarize(const board_t *b, char *ret_text, size_t size)
{
    const json_t *count = json_object_get(b->status, "count"),
                 *workers = json_object_get(b->workers, "workers");
    int64_t transfers = 0;
    char s[3][64];
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *its = json_object_get(json_array_get(workers, i), "adapters");
        for (size_t k = 0; k < json_array_size(its); k++)
            transfers += json_is_object(json_object_get(json_array_get(its, k), "fetching"));
    }
    text_printf(ret_text, size, "%s, %s ready, %lld lost, %s",
                cli_count(cli_integer(count, "adapters"), "adapter", s[0]),
                cli_count(cli_integer(count, "workers_ready"), "worker", s[1]),
                (long long)cli_integer(count, "workers_lost"), cli_count(transfers, "transfer", s[2]));
}

void board_head(const board_t *b, const char *where, const char *now, int columns, buf_t *out)
{
    enum { LEAST = 12 };
    char summary[160], end[400];
    summarize(b, summary, sizeof summary);
    int most = columns - frame_width(now) - GAP;
    for (char *part; frame_width(summary) > most && (part = strrchr(summary, ',')) != NULL;) *part = 0;
    int room = most - frame_width(summary) - GAP;
    bool has_room = room >= LEAST || room >= frame_width(where);
    buf_printf(out, "%s  ", summary);
    if (has_room) buf_printf(out, "%s  ", frame_tail(where, room, end, sizeof end));
    buf_add_text(out, now);
}

static void add_line(buf_t *out, const char *name, const char *text)
{
    buf_printf(out, "%-12s%s\n", name, text);
}

static void add_subscription(buf_t *out, const json_t *a)
{
    char s[6][64], why[600];
    const json_t *f = json_object_get(a, "fetching");
    buf_printf(out, "\nadapter     %s\n", cli_text(a, "name", s[0]));
    buf_printf(out, "  serves    version %s, %s, decision %s, lag %s\n", cli_text(a, "version", s[0]),
               cli_text(a, "state", s[1]), cli_text(a, "decision", s[2]), cli_text(a, "lag", s[3]));
    buf_printf(out, "  digest    %s\n", cli_text(a, "digest", s[0]));
    if (json_is_object(f))
        buf_printf(out, "  fetches   version %s, %.0f %%, %s of %s, %s/s, from %s\n",
                   cli_text(f, "version", s[0]), 100 * part_done(f), cli_bytes(f, "bytes_done", s[1]),
                   cli_bytes(f, "data_bytes", s[2]), cli_bytes(f, "rate_bytes", s[3]),
                   cli_text(f, "source", s[4]));
    const char *text = cli_why(a, why, sizeof why);
    if (strcmp(text, "-") != 0) buf_printf(out, "  why       %s\n", text);
}

static void add_labels(buf_t *out, const json_t *labels)
{
    if (!json_object_size(labels)) return;
    buf_printf(out, "%-11s", "labels");
    add_pairs(out, labels);
    buf_add_text(out, "\n");
}

static const json_t *named(const json_t *list, const char *wanted)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = cli_string(json_array_get(list, i), "name");
        if (name && !strcmp(name, wanted)) return json_array_get(list, i);
    }
    return NULL;
}

/* Those of workers are in their rows. */
static void add_reasons(const json_t *status, const char *wanted, buf_t *out)
{
    const json_t *reasons = json_object_get(status, "reasons");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const json_t *r = json_array_get(reasons, i);
        const char *adapter = cli_string(r, "adapter"), *message = cli_string(r, "message"),
                   *name = cli_string(r, "name");
        bool is_of_row = adapter ? !strcmp(adapter, wanted) : !cli_string(r, "worker");
        if (!is_of_row || !message) continue;
        buf_printf(out, "%s%s", out->bytes ? "; " : "", message);
        if (adapter && name && !strcmp(name, "adapter.held"))
            buf_printf(out, " (`heddle resume %s` ends that)", adapter);
    }
}

void board_why(const board_t *b, buf_t *out)
{
    char why[600];
    if (b->view == BOARD_TRANSFERS || b->at >= b->count) return;
    const board_row_t *row = &b->rows[b->at];
    if (b->view == BOARD_ADAPTERS) {
        add_reasons(b->status, row->key + 1, out);
        return;
    }
    const json_t *w = named(json_object_get(b->workers, "workers"), row->worker);
    const char *adapter = row->key + strlen(row->worker) + 1; /* behind the slash */
    const char *text = cli_why(named(json_object_get(w, "adapters"), adapter), why, sizeof why);
    if (strcmp(text, "-") != 0) buf_add_text(out, text);
}

void board_worker(const board_t *b, buf_t *out)
{
    const json_t *w = named(json_object_get(b->workers, "workers"), b->worker),
                 *adapters = json_object_get(w, "adapters");
    const json_t *counters = json_object_get(w, "counters"), *slots = json_object_get(w, "slots"),
                 *memory = json_object_get(w, "memory"), *transport = json_object_get(w, "transport");
    char s[5][64], list[300];
    add_line(out, "worker", b->worker);
    if (!w) {
        add_line(out, "session", "it is not listed any more");
        return;
    }
    buf_printf(out, "session     %s, last heartbeat %s ago\n", cli_text(w, "state", s[0]),
               cli_ms(w, "heartbeat_age_ms", s[1]));
    add_line(out, "current", cli_text(w, "current", s[0]));
    buf_printf(out, "host        %s, pid %s\n", cli_text(w, "host", s[0]), cli_text(w, "pid", s[1]));
    add_line(out, "joined", cli_text(w, "joined_at", s[0]));
    add_labels(out, json_object_get(w, "labels"));
    buf_printf(out, "transport   %s %s, %s\n", cli_text(transport, "backend", s[0]),
               cli_text(transport, "ucx", s[1]),
               cli_join(json_object_get(transport, "devices"), " ", list, sizeof list));
    add_line(out, "addresses", cli_join(json_object_get(transport, "addresses"), " ", list, sizeof list));
    buf_printf(out, "slots       %s, %s free, %s held\n", cli_text(slots, "total", s[0]),
               cli_text(slots, "free", s[1]), cli_text(slots, "held", s[2]));
    buf_printf(out, "memory      %s own, %s held of others\n", cli_bytes(memory, "own_bytes", s[0]),
               cli_bytes(memory, "held_bytes", s[1]));
    buf_printf(out, "bytes       %s in, %s out\n", cli_bytes(counters, "bytes_in", s[0]),
               cli_bytes(counters, "bytes_out", s[1]));
    for (size_t i = 0; i < json_array_size(adapters); i++) add_subscription(out, json_array_get(adapters, i));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Values of an answer as people read them: texts, numbers with units, ages, tables.
 *
 * An answer comes from the broker, which may be of another release: a member that is missing or has another
 * type is printed as "-" or as 0, and is never an error. */
#include "cli/cli.h"

#include "cli/frame.h"
#include "core/errors.h"
#include "core/units.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* At any depth, because only the renderers know which texts they print. */
void cli_clean_texts(json_t *value)
{
    const char *key;
    json_t *part;
    size_t i;
    if (json_is_string(value)) {
        char *text = strdup(json_string_value(value));
        if (text) error_text(text, strlen(text) + 1, text);
        json_string_set(value, text ? text : "");
        free(text);
    }
    json_array_foreach(value, i, part) cli_clean_texts(part);
    json_object_foreach(value, key, part) cli_clean_texts(part);
}

/* ---- members of an object ---- */

const char *cli_string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

int64_t cli_integer(const json_t *object, const char *key)
{
    return (int64_t)json_number_value(json_object_get(object, key));
}

bool cli_is(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* "-" rather than nothing: an empty cell would shift the columns for scripts that split lines at blanks. */
const char *cli_text(const json_t *object, const char *key, char scratch[64])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_string(v)) return json_string_value(v)[0] ? json_string_value(v) : "-";
    if (json_is_integer(v)) snprintf(scratch, 64, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(scratch, 64, "%.1f", json_real_value(v));
    else if (json_is_boolean(v)) snprintf(scratch, 64, "%s", json_is_true(v) ? "yes" : "no");
    else return "-";
    return scratch;
}

const char *cli_count(int64_t n, const char *noun, char scratch[64])
{
    snprintf(scratch, 64, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return scratch;
}

const char *cli_bytes(const json_t *object, const char *key, char scratch[64])
{
    if (!json_is_number(json_object_get(object, key))) return "-";
    units_bytes_text((uint64_t)cli_integer(object, key), scratch);
    return scratch;
}

const char *cli_ms(const json_t *object, const char *key, char scratch[64])
{
    if (!json_is_number(json_object_get(object, key))) return "-";
    units_ms_text(json_number_value(json_object_get(object, key)), scratch);
    return scratch;
}

/* The broker's clock made the time and this host's clock is now, so an age may come out below 0. */
const char *cli_age(const json_t *object, const char *key, char scratch[64])
{
    const char *text = cli_string(object, key);
    struct tm t = {0};
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &t)) return "-";
    long seconds = (long)(time(NULL) - timegm(&t));
    if (seconds < 0) seconds = 0;
    if (seconds < 120) snprintf(scratch, 64, "%ld s ago", seconds);
    else if (seconds < 7200) snprintf(scratch, 64, "%ld m ago", seconds / 60);
    else if (seconds < 172800) snprintf(scratch, 64, "%ld h ago", seconds / 3600);
    else snprintf(scratch, 64, "%ld d ago", seconds / 86400);
    return scratch;
}

/* Twelve digits, as in a tag: enough to compare by eye. What comes before them is the kind of the digest. */
const char *cli_short_digest(const json_t *object, const char *key, char scratch[64])
{
    const char *text = cli_string(object, key);
    if (!text || strlen(text) < 15) return "-";
    snprintf(scratch, 64, "%.12s", text + 3);
    return scratch;
}

const char *cli_why(const json_t *object, char *scratch, size_t size)
{
    const char *code = cli_string(object, "code"), *message = cli_string(object, "message"),
               *note = cli_string(object, "note");
    if (!code) return note ? note : "-";
    snprintf(scratch, size, "%s%s%s", code, message ? ": " : "", message ? message : "");
    return scratch;
}

const char *cli_labels(const json_t *worker, char scratch[64])
{
    enum { ROOM = 40 };
    const json_t *labels = json_object_get(worker, "labels");
    const char *key;
    json_t *value;
    size_t used = 0, more = 0;
    scratch[0] = 0;
    json_object_foreach((json_t *)labels, key, value)
    {
        char name[HEDDLE_NAME_MAX + 1];
        const char *text = json_string_value(value);
        error_text(name, sizeof name, key);
        bool has_room = !more && text && used + strlen(name) + strlen(text) + 2 <= ROOM;
        if (has_room)
            used += (size_t)snprintf(scratch + used, 64 - used, "%s%s=%s", used ? " " : "", name, text);
        else more++;
    }
    if (more) snprintf(scratch + used, 64 - used, "%s+%zu", used ? " " : "", more);
    return used || more ? scratch : "-";
}

const char *cli_join(const json_t *list, const char *separator, char *scratch, size_t size)
{
    size_t n = 0;
    scratch[0] = 0;
    for (size_t i = 0; i < json_array_size(list) && n < size; i++)
        n += (size_t)snprintf(scratch + n, size - n, "%s%s", i ? separator : "",
                              json_string_value(json_array_get(list, i)));
    return scratch;
}

/* ---- progress ---- */

void cli_draw_bar(uint64_t bytes_done, uint64_t bytes)
{
    enum { WIDTH = 30 };
    double part = bytes_done < bytes ? (double)bytes_done / (double)bytes : 1;
    char bar[WIDTH + 1], done[16], all[16];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < (int)(part * WIDTH) ? '#' : '.';
    bar[WIDTH] = 0;
    units_bytes_text(bytes_done, done);
    units_bytes_text(bytes, all);
    fprintf(stderr, "\r[%s] %3d %%  %s of %s ", bar, (int)(part * 100), done, all);
}

void cli_clear_bar(void) { fprintf(stderr, "\r%78s\r", ""); }

/* ---- tables ---- */

/* Copies: the texts come from buffers that the next row uses again.  Out of memory: the table ends there. */
static void add_cell(cli_table_t *t, const char *text)
{
    if (t->count == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 64;
        char **cells = realloc(t->cells, (size_t)capacity * sizeof *cells);
        if (!cells) return;
        t->cells = cells;
        t->capacity = capacity;
    }
    t->cells[t->count++] = strdup(text ? text : "-");
}

void table_begin(cli_table_t *t, const char *const *headings, int count)
{
    assert(count <= TABLE_COLUMNS);
    *t = (cli_table_t){.columns = count};
    table_add(t, headings, count);
}

void table_add(cli_table_t *t, const char *const *cells, int count)
{
    assert(count == t->columns);
    for (int i = 0; i < count; i++) add_cell(t, cells[i]);
}

/* Of what is drawn as a frame; 0: as wide as it is. */
static int frame_columns;

void table_fit(int columns) { frame_columns = columns; }

static const char MARKS[] = ">+~<"; /* of a heading (cli.h) */

static const char *cell_text(const cli_table_t *t, int i)
{
    return t->cells[i] + (i < t->columns ? strspn(t->cells[i], MARKS) : 0);
}

static bool has_mark(const cli_table_t *t, int column, char mark)
{
    const char *heading = t->cells[column];
    return memchr(heading, mark, strspn(heading, MARKS)) != NULL;
}

/* In so many columns; so many are left of the line. */
static int print_cut(const char *text, int width, bool is_right, int left)
{
    int pad = width > frame_width(text) ? width - frame_width(text) : 0;
    int before = is_right ? (pad < left ? pad : left) : 0, behind;
    size_t bytes = frame_cut(text, strlen(text), left - before);
    left -= before + frame_width(text);
    behind = is_right || left < 0 ? 0 : pad < left ? pad : left;
    printf("%*s%.*s%*s", before, "", (int)bytes, text, behind, "");
    return left - behind > 0 ? left - behind : 0;
}

/* Rows of their own below the line, with the heading in front: what is wrong must be seen. */
static void print_below(const char *heading, const char *text)
{
    enum { INDENT = 4 };
    int indent = INDENT + frame_width(heading) + 2;
    bool is_wide = frame_columns > 2 * indent;
    size_t bytes = strlen(text), next;
    for (bool is_first = true; bytes; text += next, bytes -= next, is_first = false) {
        size_t n = frame_wrap(text, bytes, frame_columns - (is_wide ? indent : 0), &next);
        if (is_wide) printf("%*s%-*s", INDENT, "", indent - INDENT, is_first ? heading : "");
        printf("%.*s\n", (int)n, text);
    }
}

/* In the columns that are left behind the others. */
static void print_beside(const char *text, int indent)
{
    size_t bytes = strlen(text), next;
    for (bool is_first = true; is_first || bytes; text += next, bytes -= next, is_first = false) {
        size_t n = frame_wrap(text, bytes, frame_columns - indent, &next);
        printf("%*s%.*s\n", is_first ? 0 : indent, "", (int)n, text);
    }
}

enum { GAP = 2 };

/* The names of the widest column lose a character at a time, until so many are gained. */
static void cut_names(const cli_table_t *t, int *widths, int wanted)
{
    enum { LEAST = 8 };
    for (; wanted > 0; wanted--) {
        int *widest = NULL;
        for (int c = 0; c < t->columns; c++)
            if (has_mark(t, c, '<') && (!widest || widths[c] > *widest)) widest = &widths[c];
        if (!widest || *widest <= LEAST) return;
        --*widest;
    }
}

/* In a frame: of the columns that give way those to the right go first, until the others have room.  0: it is
 * left out. */
static void fit_columns(const cli_table_t *t, int *widths)
{
    int last = t->columns - 1, all = has_mark(t, last, '+') ? -GAP : widths[last];
    for (int c = 0; c < last; c++) all += widths[c] + GAP;
    for (int c = last - 1; c >= 0 && frame_columns && all > frame_columns; c--) {
        if (!has_mark(t, c, '~')) continue;
        all -= widths[c] + GAP;
        widths[c] = 0;
    }
    if (frame_columns) cut_names(t, widths, all - frame_columns);
}

/* The heading decides the side for its whole column.  The last column is not filled, so that a long reason
 * does not make every line wrap. */
static void print_row(const cli_table_t *t, int at, const int *widths)
{
    enum { LEAST_BESIDE = 20 };
    int last = t->columns - 1, before = 0, left = frame_columns ? frame_columns : INT_MAX;
    for (int c = 0; c < last; c++) before += widths[c] ? widths[c] + GAP : 0;
    bool goes_on = frame_columns && has_mark(t, last, '+');
    bool is_beside = goes_on && (before + widths[last] <= left || left - before >= LEAST_BESIDE);
    for (int c = 0; c < last || (c == last && !goes_on); c++) {
        char name[512];
        const char *text = cell_text(t, at + c);
        bool is_right = has_mark(t, c, '>');
        if (!widths[c]) continue;
        if (has_mark(t, c, '<')) text = frame_tail(text, widths[c], name, sizeof name);
        left = print_cut(text, c == last && !is_right ? 0 : widths[c], is_right, left);
        if (c < last) left = print_cut("", GAP, false, left);
    }
    const char *text = cell_text(t, at + last);
    if (is_beside) print_beside(text, before);
    else puts("");
    if (goes_on && !is_beside && at && strcmp(text, "-") != 0) print_below(cell_text(t, last), text);
}

void table_print(cli_table_t *t)
{
    int widths[TABLE_COLUMNS] = {0};
    for (int i = 0; i < t->count; i++) {
        int width = frame_width(cell_text(t, i)), *widest = &widths[i % t->columns];
        if (width > *widest) *widest = width;
    }
    fit_columns(t, widths);
    for (int i = 0; i < t->count; i += t->columns) print_row(t, i, widths);
    for (int i = 0; i < t->count; i++) free(t->cells[i]);
    free(t->cells);
    *t = (cli_table_t){0};
}

bool cli_is_unknown(const json_t *missing)
{
    return !json_is_number(json_object_get(missing, "heartbeat_age_ms"));
}

void cli_show_missing(const json_t *missing)
{
    char s[64];
    for (size_t i = 0; i < json_array_size(missing); i++) {
        const json_t *m = json_array_get(missing, i);
        const char *worker = cli_string(m, "worker"), *note = cli_string(m, "note");
        if (cli_is_unknown(m)) {
            printf("  missing: %s, no such worker is known\n", worker);
            continue;
        }
        const char *code = cli_string(m, "code"); /* none: it is on its way */
        const char *phase =
            cli_string(m, "phase"); /* none: the version ended before it came to this worker */
        printf("  missing: %s%s%s%s%s, last heartbeat %s ms ago%s%s\n", worker, phase ? ", " : "",
               phase ? phase : "", code ? ", " : "", code ? code : "", cli_text(m, "heartbeat_age_ms", s),
               note ? ": " : "", note ? note : "");
    }
}

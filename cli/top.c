/* SPDX-License-Identifier: Apache-2.0 */
/* heddle top: adapters, workers and transfers as they move, on the whole screen.
 *
 * Two threads.  One asks the broker, which may take as long as --timeout, and leaves each answer in a mailbox
 * of one; the main thread has the board and the screen, and waits for keys, answers and signals together.
 * What is shown follows from the board alone (cli/board.h); this file draws it. */
#include "cli/cli.h"

#include "cli/board.h"
#include "cli/frame.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/option_json.h"
#include "core/thread.h"
#include "core/units.h"

#include <locale.h>
#include <ncurses.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
    common_t common;
    uint32_t period_ms;
} args_t;
static const option_t OPTIONS[] = {{"period", 0, OPTION_DURATION, "DUR", NULL, "1s",
                                    "ask the broker so often, at most every 100ms",
                                    offsetof(args_t, period_ms)},
                                   {0}};
/* What ? shows, and --help beside the options. */
#define KEYS_TEXT                                                                                            \
    "1 2 3, Tab: adapters, workers, transfers.\n"                                                            \
    "Up, Down, PgUp, PgDn, Home, End (k j g G): select a row.\n"                                             \
    "Enter: open it: the workers of an adapter, or all about a worker.\n"                                    \
    "Esc, Backspace: back.\n"                                                                                \
    "< >, Left, Right: sort by another column.  r: in reverse.\n"                                            \
    "/: show only rows with a text in them; Enter keeps it, Esc ends it.\n"                                  \
    "? or h: the keys; any key but those that scroll ends that.  q: quit.\n"                                 \
    "At the bottom is what needs a person, of the selected row: why, where its\n"                            \
    "column has no room, and of an adapter the reasons of `heddle status --check`.\n"                        \
    "A narrow terminal has fewer columns, and the end of a name that is too long;\n"                         \
    "of a worker that is opened all is there, wrapped.\n"                                                    \
    "Labels have a column where a worker has some; those without room are counted\n"                         \
    "(+2), and / finds these, too.\n"                                                                        \
    "While the broker is lost the last answer stays, under a line that says so.\n"                           \
    "Without a terminal: `heddle workers --watch`.\n"
static const option_set_t SET = {"heddle top",
                                 "[OPTION...]",
                                 "Adapters, workers and transfers as they move, on the whole terminal.",
                                 KEYS_TEXT CLI_DUR,
                                 OPTIONS,
                                 CLI_COMMON,
                                 NULL,
                                 0,
                                 CLI_EXITS ".\n" CLI_EXITS_COMMON ".\n\nExamples:\n  heddle top\n"
                                           "  heddle top --period 500ms --context prod"};

/* ---- the thread that asks ---- */

typedef struct {
    heddle_admin_t *admin;
    uint32_t period_ms;
    int changed_fd; /* there is something in the mailbox */
    int end_fd;     /* the thread is to end */
    pthread_mutex_t lock;
    json_t *status, *workers; /* NULL: none that is new */
    heddle_error_t error;     /* of the last question; code 0: it was answered */
} asking_t;

static json_t *parsed(int rc, char *json)
{
    json_t *answer = rc ? NULL : json_loads(json, 0, NULL);
    heddle_free(json);
    option_json_words(answer);
    cli_clean_texts(answer);
    return answer;
}

static int ask(heddle_admin_t *admin, json_t **ret_status, json_t **ret_workers)
{
    char *status = NULL, *workers = NULL;
    int rc = heddle_admin_status(admin, &status);
    *ret_status = parsed(rc, status);
    if (!rc) rc = heddle_admin_workers(admin, NULL, &workers);
    *ret_workers = parsed(rc, workers);
    return rc;
}

static void *ask_on(void *self)
{
    asking_t *a = self;
    struct pollfd end = {.fd = a->end_fd, .events = POLLIN};
    while (poll(&end, 1, (int)a->period_ms) == 0) {
        json_t *status, *workers;
        int rc = ask(a->admin, &status, &workers);
        pthread_mutex_lock(&a->lock);
        a->error = *cli_error(rc);
        if (!rc) {
            json_decref(a->status);
            json_decref(a->workers);
            a->status = status;
            a->workers = workers;
        } else json_decref(status);
        pthread_mutex_unlock(&a->lock);
        eventfd_write(a->changed_fd, 1);
    }
    return NULL;
}

/* ---- drawing ---- */

typedef struct {
    board_t board;
    const args_t *args;
    char away_at[25]; /* since when there is no answer; "": there is one */
    char why[300];    /* there is none */
    size_t first;     /* row at the top */
} top_t;

enum { HEAD_LINES = 3, FOOT_LINES = 1, LEAST_MS = 100 };

static size_t page_of(void)
{
    return LINES > HEAD_LINES + FOOT_LINES ? (size_t)(LINES - HEAD_LINES - FOOT_LINES) : 1;
}

/* From the left border, and the rest of the line blank. */
static void put_line(int y, const char *text, attr_t attributes)
{
    if (y >= LINES) return;
    attrset(attributes);
    move(y, 0);
    addnstr(text, (int)frame_cut(text, strlen(text), COLS));
    for (int x = getcurx(stdscr); getcury(stdscr) == y && x < COLS; x++) addch(' ');
    attrset(A_NORMAL);
}

static void draw_first_line(const top_t *t)
{
    char where[400], at[25], now[16];
    const common_t *c = &t->args->common;
    buf_t text = {0};
    clock_text(clock_wall(clock_system()), at);
    snprintf(now, sizeof now, "%.8sZ", at + strlen("2026-11-28T"));
    snprintf(where, sizeof where, "%.200s%s%s", c->broker, c->context ? ", " : "",
             c->context ? c->context : "");
    if (t->away_at[0]) buf_printf(&text, "%s  %s", t->away_at, t->why);
    else board_head(&t->board, where, now, COLS, &text);
    put_line(0, buf_text(&text), t->away_at[0] ? A_BOLD | A_REVERSE : A_BOLD);
    buf_fini(&text);
}

static void draw_head(const top_t *t)
{
    char text[400] = "";
    const board_t *b = &t->board;
    draw_first_line(t);
    for (int v = 0; v < BOARD_VIEWS; v++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, b->view == (board_view_t)v ? "[%d:%s]  " : " %d:%s   ", v + 1,
                 board_view_name((board_view_t)v));
    }
    size_t n = strlen(text);
    if (b->worker[0]) snprintf(text + n, sizeof text - n, "worker %s", b->worker);
    else if (b->adapter[0]) snprintf(text + n, sizeof text - n, "of adapter %s", b->adapter);
    put_line(1, text, A_NORMAL);
}

static void draw_foot(const board_t *b)
{
    char text[200];
    if (b->is_typing) snprintf(text, sizeof text, "/%s_", b->filter);
    else
        snprintf(text, sizeof text,
                 "%s%s%sEnter open  Esc back  < > sort  r reverse  / filter  ? help  q quit",
                 b->filter[0] ? "filter: " : "", b->filter, b->filter[0] ? "   " : "");
    put_line(LINES - 1, text, A_REVERSE);
}

/* A row in columns; `cells` of the headings or of a row. */
static void row_text(const board_t *b, const int *widths, const char *const *cells, buf_t *to)
{
    const board_column_t *columns = board_columns(b->view);
    buf_clear(to);
    for (int c = 0; c < BOARD_COLUMNS && columns[c].name; c++) {
        char name[BOARD_CELL];
        if (!widths[c]) continue;
        const char *cell = board_fit(&columns[c], cells[c], widths[c], name);
        size_t bytes = frame_cut(cell, strlen(cell), widths[c]);
        int pad = widths[c] - frame_width(cell);
        if (pad < 0) pad = 0;
        buf_printf(to, "%*s%.*s%*s  ", columns[c].is_number ? pad : 0, "", (int)bytes, cell,
                   columns[c].is_number ? 0 : pad, "");
    }
}

/* Above the last line: what needs a person, of the selected row, unless a cell of it has all of that.
 * Returns how many rows that takes. */
static size_t draw_why(const board_t *b, int room)
{
    enum { MOST = 4 };
    buf_t why = {0}, row = {0};
    frame_rows_t rows = {.columns = COLS};
    board_why(b, &why);
    const char *text = buf_text(&why), *at = text;
    size_t bytes = strlen(text), count = 0;
    if (frame_cut(text, bytes, room) < bytes && page_of() > 2 * MOST)
        while (count < MOST && frame_next(&rows, &at)) count++;
    rows = (frame_rows_t){.columns = COLS};
    at = text;
    for (size_t i = 0; i < count && frame_next(&rows, &at); i++) {
        buf_clear(&row);
        buf_printf(&row, "%*s%.*s", rows.row_indent, "", (int)rows.row_bytes, rows.row);
        put_line(LINES - FOOT_LINES - (int)(count - i), buf_text(&row), A_BOLD);
    }
    buf_fini(&row);
    buf_fini(&why);
    return count;
}

static void draw_rows(top_t *t)
{
    const board_t *b = &t->board;
    const board_column_t *columns = board_columns(b->view);
    char names[BOARD_COLUMNS][BOARD_CELL];
    const char *cells[BOARD_COLUMNS];
    int widths[BOARD_COLUMNS];
    buf_t text = {0};
    board_widths(b, COLS, widths);
    int last = 0;
    while (last + 1 < BOARD_COLUMNS && columns[last + 1].name) last++;
    int room = b->view == BOARD_ADAPTERS ? 0 : widths[last] < BOARD_CELL ? widths[last] : BOARD_CELL - 1;
    size_t page = page_of() - draw_why(b, room);
    for (int c = 0; c < BOARD_COLUMNS && columns[c].name; c++) {
        bool is_sorted = c == b->sort[b->view];
        snprintf(names[c], sizeof names[c], "%s%s", columns[c].name,
                 !is_sorted                ? ""
                 : b->is_reversed[b->view] ? "-"
                                           : "+");
        cells[c] = names[c];
    }
    row_text(b, widths, cells, &text);
    put_line(2, buf_text(&text), A_UNDERLINE);
    if (b->at < t->first) t->first = b->at;
    if (b->at >= t->first + page) t->first = b->at - page + 1;
    for (size_t i = 0; i < page; i++) {
        size_t at = t->first + i;
        for (int c = 0; c < BOARD_COLUMNS && at < b->count; c++) cells[c] = b->rows[at].cells[c];
        if (at < b->count) row_text(b, widths, cells, &text);
        const char *line = at < b->count ? buf_text(&text) : i == 0 && !b->count ? "(none)" : "";
        put_line(HEAD_LINES + (int)i, line, at < b->count && at == b->at ? A_REVERSE : A_NORMAL);
    }
    buf_fini(&text);
}

/* Rows from `skip` on; returns how many there are. */
static size_t draw_text_from(const char *text, size_t skip)
{
    frame_rows_t rows = {.columns = COLS};
    buf_t row = {0};
    size_t count = 0;
    put_line(2, "", A_NORMAL);
    for (int y = HEAD_LINES; y < LINES - FOOT_LINES; y++) put_line(y, "", A_NORMAL);
    for (; frame_next(&rows, &text); count++) {
        if (count < skip || count - skip >= page_of()) continue;
        buf_clear(&row);
        buf_printf(&row, "%*s%.*s", rows.row_indent, "", (int)rows.row_bytes, rows.row);
        put_line(HEAD_LINES + (int)(count - skip), buf_text(&row), A_NORMAL);
    }
    buf_fini(&row);
    return count;
}

/* The text ends at the last row of the screen. */
static void draw_text(const char *text, size_t *scroll)
{
    size_t rows = draw_text_from(text, *scroll), most = rows > page_of() ? rows - page_of() : 0;
    if (*scroll <= most) return;
    *scroll = most;
    draw_text_from(text, *scroll);
}

static void draw_worker(board_t *b)
{
    buf_t out = {0};
    board_worker(b, &out);
    draw_text(buf_text(&out), &b->scroll);
    buf_fini(&out);
}

static void draw(top_t *t)
{
    draw_head(t);
    if (t->board.has_help) draw_text(KEYS_TEXT, &t->board.help_scroll);
    else if (t->board.worker[0]) draw_worker(&t->board);
    else draw_rows(t);
    draw_foot(&t->board);
    refresh();
}

/* ---- keys ---- */

static int key_of(int key)
{
    static const struct {
        int curses, board;
    } KEYS[] = {{KEY_UP, BOARD_UP},
                {KEY_DOWN, BOARD_DOWN},
                {KEY_LEFT, BOARD_LEFT},
                {KEY_RIGHT, BOARD_RIGHT},
                {KEY_PPAGE, BOARD_PAGE_UP},
                {KEY_NPAGE, BOARD_PAGE_DOWN},
                {KEY_HOME, BOARD_HOME},
                {KEY_END, BOARD_END},
                {KEY_ENTER, BOARD_ENTER},
                {'\r', BOARD_ENTER},
                {'\n', BOARD_ENTER},
                {27, BOARD_ESCAPE},
                {KEY_BACKSPACE, BOARD_BACKSPACE},
                {127, BOARD_BACKSPACE},
                {'\b', BOARD_BACKSPACE}};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (KEYS[i].curses == key) return KEYS[i].board;
    return key < 0x80 ? key : 0;
}

/* What ncurses calls a key may also be a new size, which it has taken over then. */
static void take_keys(top_t *t)
{
    for (int key; (key = getch()) != ERR;)
        if (key != KEY_RESIZE) board_key(&t->board, key_of(key), page_of());
}

static void take_answer(top_t *t, asking_t *a)
{
    eventfd_t count;
    eventfd_read(a->changed_fd, &count);
    pthread_mutex_lock(&a->lock);
    json_t *status = a->status, *workers = a->workers;
    heddle_error_t error = a->error;
    a->status = a->workers = NULL;
    pthread_mutex_unlock(&a->lock);
    if (!error.code) t->away_at[0] = 0;
    else if (!t->away_at[0]) clock_text(clock_wall(clock_system()), t->away_at);
    if (error.code == HEDDLE_ERR_UNAVAILABLE)
        snprintf(t->why, sizeof t->why, "the broker at %.200s does not answer; waiting for it",
                 t->args->common.broker);
    else if (error.code) snprintf(t->why, sizeof t->why, "%.200s; asking again", error.message);
    if (status) board_take(&t->board, status, workers);
}

/* In a signal handler: only what one may call. */
static void on_signal(void *self) { eventfd_write(((asking_t *)self)->changed_fd, 1); }

/* The screen is drawn after every key, answer and signal, of which one may be that of a new size. */
static void run(top_t *t, asking_t *a)
{
    while (!t->board.is_over && !cli_signal_exit()) {
        struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                               {.fd = a->changed_fd, .events = POLLIN}};
        draw(t);
        int ready = poll(fds, 2, 1000);
        if (ready > 0 && fds[1].revents) take_answer(t, a);
        if (ready > 0 && fds[0].revents & (POLLHUP | POLLERR)) break; /* the terminal has gone */
        take_keys(t);
    }
}

/* ---- the command ---- */

static int refuse(const args_t *args, const char *message, const char *hint)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s", message);
    error_hint(&error, "%s", hint);
    return cli_fail(&args->common, "top", &error);
}

static int on_screen(top_t *t, asking_t *a)
{
    pthread_t thread;
    setlocale(LC_CTYPE, "");
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen)
        return refuse(t->args, "this terminal is not known here (TERM)", "set TERM to one that is: xterm");
    cbreak();
    noecho();
    nodelay(stdscr, TRUE);
    keypad(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    int rc = thread_start("heddle-ask", ask_on, a, &thread);
    if (!rc) {
        cli_on_signal(on_signal, a);
        run(t, a);
        cli_on_signal(NULL, NULL);
        eventfd_write(a->end_fd, 1);
        heddle_admin_interrupt(a->admin);
        pthread_join(thread, NULL);
    }
    endwin();
    delscreen(screen);
    return rc ? refuse(t->args, "no thread can be started",
                       "free some, or raise this program's limits: ulimit -u")
              : cli_signal_exit();
}

int command_top(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "top", argc, argv, &args, NULL);
    if (end >= 0) return end;
    if (args.common.output == OUTPUT_JSON || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return refuse(&args, "heddle top draws on a terminal",
                      "`heddle workers --watch` prints one answer after the other");
    top_t t = {.args = &args};
    asking_t a = {.period_ms = args.period_ms > LEAST_MS ? args.period_ms : LEAST_MS,
                  .lock = PTHREAD_MUTEX_INITIALIZER};
    a.admin = cli_admin(&args.common, "top", &end);
    if (!a.admin) return end;
    a.changed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a.end_fd = eventfd(0, EFD_CLOEXEC);
    json_t *status, *workers;
    /* The first one must be answered, as of every command: a wrong address is said at once. */
    if (ask(a.admin, &status, &workers)) end = cli_fail(&args.common, "top", heddle_last_error());
    else {
        board_take(&t.board, status, workers);
        end = on_screen(&t, &a);
    }
    cli_admin_close(&a.admin);
    board_fini(&t.board);
    json_decref(a.status);
    json_decref(a.workers);
    close(a.changed_fd);
    close(a.end_fd);
    return end;
}

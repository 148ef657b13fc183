/* SPDX-License-Identifier: Apache-2.0 */
/* cli/board.h: what `heddle top` shows: state + key + answer -> state, and the rows that follow from it.
 *
 *   views: ADAPTERS; WORKERS, a row for each adapter of a worker; TRANSFERS, one for a version on its way
 *
 *     ADAPTERS  --open-->  WORKERS of that adapter  --open-->  one worker;  back the same way
 *     TRANSFERS --open-->  the worker that fetches
 *
 * The selection is of a row's name, so that it stays on it while others come and go.  A filter keeps the rows
 * that have its text in any cell, or in what a cell has no room for: a long reason, labels that are counted.
 * Texts of the answers were cleaned before (cli_clean_texts).
 *
 * PURE: the screen is the caller's; one thread at a time. */
#ifndef CLI_BOARD_H
#define CLI_BOARD_H

#include "core/bytes.h"
#include <heddle/types.h>
#include <jansson.h>

enum { BOARD_COLUMNS = 11, BOARD_CELL = 64, BOARD_KEY = 2 * (HEDDLE_NAME_MAX + 1) + 24, BOARD_FILTER = 64 };

typedef enum { BOARD_ADAPTERS, BOARD_WORKERS, BOARD_TRANSFERS, BOARD_VIEWS } board_view_t;

typedef struct {
    const char *name; /* NULL: there are no more columns */
    int width;        /* in characters, at most; of the last one the rest of the screen */
    bool is_number;   /* set to the right; sorted by its value, the greatest first */
    bool is_name;     /* as wide as its cells, up to `width`; wider where there is room */
    bool gives_way;   /* gives its place to the last one */
    bool is_optional; /* there only while a row has something in it */
} board_column_t;

typedef struct {
    char key[BOARD_KEY]; /* worker/adapter, or the adapter */
    char worker[HEDDLE_NAME_MAX + 1];
    char cells[BOARD_COLUMNS][BOARD_CELL];
    double values[BOARD_COLUMNS];
    bool is_found; /* the filter's text is in one of them, or in what a cell has no room for */
} board_row_t;

typedef struct {
    board_view_t view;
    int sort[BOARD_VIEWS]; /* the column */
    bool is_reversed[BOARD_VIEWS];
    char filter[BOARD_FILTER];
    bool is_typing; /* the filter */
    bool has_help, is_over;
    size_t help_scroll;                /* lines of the help that are above the screen */
    char adapter[HEDDLE_NAME_MAX + 1]; /* WORKERS: of this one; "": of all */
    char worker[HEDDLE_NAME_MAX + 1];  /* shown alone; "": none */
    size_t scroll;                     /* lines of it that are above the screen */
    /* made from these and the answers */
    board_row_t *rows;
    size_t count, at; /* at: the selected one */
    char selected[BOARD_KEY];
    json_t *status, *workers; /* the last answers; NULL: none yet */
} board_t;

/* Keys that are no characters. */
enum {
    BOARD_UP = 0x10000,
    BOARD_DOWN,
    BOARD_LEFT,
    BOARD_RIGHT,
    BOARD_PAGE_UP,
    BOARD_PAGE_DOWN,
    BOARD_HOME,
    BOARD_END,
    BOARD_ENTER,
    BOARD_ESCAPE,
    BOARD_BACKSPACE
};

void board_fini(board_t *b);
/* New answers, which it takes. */
void board_take(board_t *b, json_t *status, json_t *workers);
/* `page`: rows that the screen has. */
void board_key(board_t *b, int key, size_t page);
const board_column_t *board_columns(board_view_t view);
/* How wide each column is on a screen of so many; 0: it has no room. */
void board_widths(const board_t *b, int columns, int ret_widths[BOARD_COLUMNS]);
/* A cell of the column as it is shown.  A name that is too long keeps its end: those of one deployment differ
 * there.  Borrowed from `cell`, or it is `ret_text`. */
const char *board_fit(const board_column_t *column, const char *cell, int width, char ret_text[BOARD_CELL]);
const char *board_view_name(board_view_t view);
/* "2 adapters, 3 workers ready, 1 lost, 2 transfers  tcp://10.0.0.5:7700  20:14:06Z".  Where that has no
 * room, the address is shorter, or left out, and then the last counts: the time is whole, since it shows how
 * new the answer is. */
void board_head(const board_t *b, const char *where, const char *now, int columns, buf_t *out);
/* What needs a person, of the selected row: of a worker all that it says in its last column, WHY; of an
 * adapter its reasons of `heddle status --check`, and those of the broker.  Nothing where all is well, and in
 * TRANSFERS. */
void board_why(const board_t *b, buf_t *out);
/* The worker that is shown alone, as lines. */
void board_worker(const board_t *b, buf_t *out);

#endif

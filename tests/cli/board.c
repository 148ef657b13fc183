/* SPDX-License-Identifier: Apache-2.0 */
/* What `heddle top` makes of answers and keys. */
#include "cli/board.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char STATUS[] =
    "{\"count\":{\"adapters\":2,\"workers_ready\":3,\"workers_lost\":1},\"adapters\":["
    "{\"name\":\"draft\",\"active\":null,\"newest\":null,\"subscriber_count\":1,\"current_count\":0,\"max_"
    "lag\":1,"
    "\"held\":null,\"writer\":null},"
    "{\"name\":\"policy\",\"active\":{\"version\":7},\"newest\":{\"version\":8,\"state\":\"staging\"},"
    "\"subscriber_count\":2,\"current_count\":2,\"max_lag\":0,\"held\":{\"version\":7},"
    "\"writer\":{\"name\":\"trainer\"}}]}";
#define WORKER(name, beat, adapters)                                                                         \
    "{\"name\":\"" name "\",\"state\":\"ready\",\"heartbeat_age_ms\":" beat                                  \
    ",\"counters\":{\"bytes_in\":5},\"adapters\":[" adapters "]}"
#define SERVES(adapter, version, fetching)                                                                   \
    "{\"name\":\"" adapter "\",\"version\":" version                                                         \
    ",\"state\":\"active\",\"lag\":0,\"fetching\":" fetching "}"
#define FETCHES(done, rate)                                                                                  \
    "{\"version\":8,\"bytes_done\":" done ",\"data_bytes\":1000,\"rate_bytes\":" rate ",\"source\":\"w9\"}"
static const char WORKERS[] =
    "{\"workers\":[" WORKER("w1", "30", SERVES("policy", "7", FETCHES("250", "500"))) "," WORKER(
        "w10", "4",
        SERVES("policy", "7", FETCHES("900", "null"))) "," WORKER("w2", "200",
                                                                  SERVES("draft", "null", "null")) "]}";

static board_t board;

static void take(const char *status, const char *workers)
{
    json_t *s = json_loads(status, 0, NULL), *w = json_loads(workers, 0, NULL);
    cr_assert(s && w);
    board_take(&board, s, w);
}
static void begin(void) { take(STATUS, WORKERS); }
static void end(void) { board_fini(&board); }
TestSuite(board, .init = begin, .fini = end);

static void keys(const char *text)
{
    for (; *text; text++) board_key(&board, *text, 10);
}

/* The first cell of each row: "w1 w10 w2". */
static const char *first_cells(void)
{
    static char text[400];
    text[0] = 0;
    for (size_t i = 0; i < board.count; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s%s", i ? " " : "", i == board.at ? "*" : "",
                 board.rows[i].cells[0]);
    }
    return text;
}

Test(board, begins_with_the_adapters)
{
    cr_assert_str_eq(first_cells(), "*draft policy");
    const board_row_t *policy = &board.rows[1];
    static const char *const CELLS[] = {"policy", "7", "8", "staging", "2/2", "0", "7", "trainer"};
    for (size_t i = 0; i < sizeof CELLS / sizeof *CELLS; i++) cr_assert_str_eq(policy->cells[i], CELLS[i]);
    cr_assert_str_eq(board.rows[0].cells[1], "-", "nothing is active");
}

static const char *head(const char *where, int columns)
{
    static buf_t out;
    buf_clear(&out);
    board_head(&board, where, "20:14:06Z", columns, &out);
    return buf_text(&out);
}

Test(board, the_time_is_whole_in_the_head)
{
#define COUNTED "2 adapters, 3 workers ready, 1 lost, 2 transfers  "
    cr_assert_str_eq(head("tcp://10.0.0.5:7700", 80), COUNTED "tcp://10.0.0.5:7700  20:14:06Z");
    cr_assert_str_eq(head("tcp://10.0.0.5:7700", 79), COUNTED "..://10.0.0.5:7700  20:14:06Z");
    cr_assert_str_eq(head("tcp://10.0.0.5:7700", 72), COUNTED "20:14:06Z", "no room for an address");
    cr_assert_str_eq(head("a:1", 72), COUNTED "a:1  20:14:06Z", "but for a short one");
    cr_assert_str_eq(head("a:1", 59), COUNTED "20:14:06Z");
    cr_assert_str_eq(head("a:1", 58), "2 adapters, 3 workers ready, 1 lost  a:1  20:14:06Z",
                     "no room for a count");
    cr_assert_str_eq(head("tcp://10.0.0.5:7700", 40), "2 adapters, 3 workers ready  20:14:06Z");
    cr_assert_str_eq(head("a:1", 20), "2 adapters  20:14:06Z", "one count stays");
}

Test(board, a_transfer_has_its_part_rate_and_the_time_left)
{
    keys("3");
    cr_assert_str_eq(first_cells(), "*w1 w10");
    static const char *const CELLS[] = {"w1",     "policy",  "8",     "25 %", "250 B",
                                        "1.0 kB", "500 B/s", "1.5 s", "w9"};
    for (size_t i = 0; i < sizeof CELLS / sizeof *CELLS; i++)
        cr_assert_str_eq(board.rows[0].cells[i], CELLS[i], "%zu: %s", i, board.rows[0].cells[i]);
    cr_assert_str_eq(board.rows[1].cells[6], "-", "a rate that is not known");
    cr_assert_str_eq(board.rows[1].cells[7], "-");
}

Test(board, sorts_numbers_by_value_and_texts_by_letter)
{
    keys("2>>>>>>>>");
    cr_assert_str_eq(board_columns(board.view)[board.sort[board.view]].name, "HEARTBEAT");
    cr_assert_str_eq(first_cells(), "w2 *w1 w10", "the greatest first");
    keys("r");
    cr_assert_str_eq(first_cells(), "w10 *w1 w2");
    keys("<<<<<<<<");
    cr_assert_str_eq(first_cells(), "*w1 w10 w2");
    keys("<");
    cr_assert_str_eq(board_columns(board.view)[board.sort[board.view]].name, "WHY",
                     "round to the last column");
    keys("1");
    cr_assert_str_eq(board_columns(board.view)[board.sort[board.view]].name, "ADAPTER",
                     "each view has its own");
}

Test(board, the_selection_stays_on_its_row)
{
    keys("2j");
    cr_assert_str_eq(first_cells(), "w1 *w10 w2");
    take(STATUS,
         "{\"workers\":[" WORKER("w0", "1", SERVES("policy", "7", "null")) "," WORKER(
             "w00", "1", SERVES("policy", "7", "null")) "," WORKER("w10", "4",
                                                                   SERVES("policy", "7", "null")) "]}");
    cr_assert_str_eq(first_cells(), "w0 w00 *w10");
    take(STATUS, "{\"workers\":[" WORKER("w0", "1", SERVES("policy", "7", "null")) "]}");
    cr_assert_str_eq(first_cells(), "*w0", "where it has gone, on its place");
    take(STATUS, "{\"workers\":[]}");
    cr_assert_str_eq(first_cells(), "");
    keys("jkGg");
    board_key(&board, BOARD_ENTER, 10);
    cr_assert_eq(board.worker[0], 0, "there is nothing to open");
}

Test(board, moves_to_the_ends_and_no_further)
{
    keys("2G");
    cr_assert_str_eq(first_cells(), "w1 w10 *w2");
    keys("j");
    cr_assert_str_eq(first_cells(), "w1 w10 *w2");
    board_key(&board, BOARD_PAGE_UP, 1);
    cr_assert_str_eq(first_cells(), "w1 *w10 w2");
    keys("gk");
    cr_assert_str_eq(first_cells(), "*w1 w10 w2");
}

Test(board, a_filter_keeps_rows_that_have_the_text)
{
    keys("2/DRAF");
    cr_assert(board.is_typing);
    cr_assert_str_eq(first_cells(), "*w2");
    keys("q");
    cr_assert(!board.is_over, "it is a letter there");
    cr_assert_str_eq(first_cells(), "");
    board_key(&board, BOARD_BACKSPACE, 10);
    board_key(&board, BOARD_ENTER, 10);
    cr_assert(!board.is_typing);
    cr_assert_str_eq(first_cells(), "*w2");
    board_key(&board, BOARD_ESCAPE, 10);
    cr_assert_str_eq(first_cells(), "w1 w10 *w2");
    keys("/x");
    board_key(&board, BOARD_ESCAPE, 10);
    cr_assert(!board.is_typing && !board.filter[0]);
    for (int i = 0; i < 300; i++) keys(i ? "y" : "/");
    cr_assert(strlen(board.filter) < sizeof board.filter);
}

Test(board, an_adapter_opens_its_workers_and_a_worker_itself)
{
    keys("j");
    board_key(&board, BOARD_ENTER, 10);
    cr_assert_eq(board.view, BOARD_WORKERS);
    cr_assert_str_eq(first_cells(), "*w1 w10");
    keys("j");
    board_key(&board, BOARD_ENTER, 10);
    cr_assert_str_eq(board.worker, "w10");
    buf_t out = {0};
    board_worker(&board, &out);
    cr_assert(strstr(buf_text(&out), "worker      w10\n") && strstr(buf_text(&out), "version 8, 90 %"), "%s",
              buf_text(&out));
    take(STATUS, "{\"workers\":[" WORKER(
                     "w10", "4", "{\"name\":\"policy\",\"version\":7,\"note\":\"2.0 MB/s, its own\"}") "]}");
    buf_clear(&out);
    board_worker(&board, &out);
    cr_assert(strstr(buf_text(&out), "  why       2.0 MB/s, its own\n"), "%s", buf_text(&out));
    take(STATUS, "{\"workers\":[]}");
    buf_clear(&out);
    board_worker(&board, &out);
    cr_assert(strstr(buf_text(&out), "not listed any more"), "%s", buf_text(&out));
    buf_fini(&out);
    take(STATUS, WORKERS);
    board_key(&board, BOARD_ESCAPE, 10);
    cr_assert_str_eq(first_cells(), "*w1 w10");
    board_key(&board, BOARD_ESCAPE, 10);
    cr_assert_eq(board.view, BOARD_ADAPTERS);
    cr_assert_str_eq(first_cells(), "draft *policy", "back on the one that was opened");
}

Test(board, help_ends_at_any_key_and_q_ends_all)
{
    keys("?");
    cr_assert(board.has_help);
    keys("2");
    cr_assert(!board.has_help && board.view == BOARD_ADAPTERS, "which does nothing else");
    keys("hq");
    cr_assert(board.is_over);
}

/* A broker of another release, or one that lies: what cannot be read is not shown. */
Test(board, answers_of_any_form_are_taken)
{
    static const char *const ANY[] = {
        "{}", "[]", "{\"workers\":7,\"adapters\":{}}",
        "{\"workers\":[null,{},{\"adapters\":[{},3]}],\"adapters\":[null,{}]}",
        "{\"workers\":[{\"name\":7,\"adapters\":[{\"name\":[],\"fetching\":{}}]}]}"};
    for (size_t i = 0; i < sizeof ANY / sizeof *ANY; i++) {
        take(ANY[i], ANY[i]);
        keys("123\t?x/a");
        board_key(&board, BOARD_ENTER, 10);
        board_key(&board, BOARD_ENTER, 10);
        board_key(&board, BOARD_ESCAPE, 10);
        board_key(&board, BOARD_ESCAPE, 10);
        board_key(&board, BOARD_ESCAPE, 10);
    }
}

Test(board, ten_thousand_workers_are_rows)
{
    json_t *workers = json_array();
    for (int i = 0; i < 10000; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        json_array_append_new(workers, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "adapters", "name",
                                                 "policy", "version", i));
    }
    board_take(&board, json_loads(STATUS, 0, NULL), json_pack("{s:o}", "workers", workers));
    keys("2>>>G");
    cr_assert_eq(board.count, 10000);
    cr_assert_str_eq(board.rows[0].cells[0], "w9999");
    cr_assert_str_eq(board.rows[board.at].cells[0], "w0");
}

Test(board, what_is_wrong_has_room_on_a_narrow_screen)
{
    int widths[BOARD_COLUMNS];
    keys("2");
    board_widths(&board, 200, widths);
    cr_assert_eq(widths[0], 7, "WORKER+ and not 20");
    cr_assert_eq(widths[2], 8, "ADAPTER+");
    cr_assert(widths[5] == 5 && widths[8] == 10 && widths[9] == 0 && widths[10] > 60, "no labels, no column");
    board_widths(&board, 80, widths);
    cr_assert(widths[7] == 0 && widths[8] == 0, "FETCHED and HEARTBEAT make room");
    cr_assert_geq(widths[10], 20);
    board_widths(&board, 20, widths);
    cr_assert(widths[0] == 7 && widths[10] == 0);
    keys("3");
    board_widths(&board, 80, widths);
    cr_assert(widths[4] == 0 && widths[5] == 0 && widths[7] == 8 && widths[8] >= 12,
              "BYTES and OF make room for what is left, and the source");
    keys("2");
    keys("1");
    board_widths(&board, 80, widths);
    cr_assert(widths[1] == 8 && widths[7] > 0 && widths[8] == 0 && widths[9] == 0, "eight columns");
}

#define POD "rollout-deployment-7d9f8b6c54-"
#define SERVING(name) "{\"name\":\"" name "\",\"adapters\":[" SERVES("policy", "7", "null") "]}"

/* They differ after 30 characters. */
Test(board, names_are_told_apart_on_any_screen)
{
    int widths[BOARD_COLUMNS];
    char first[BOARD_CELL], second[BOARD_CELL];
    keys("2");
    take(STATUS, "{\"workers\":[" SERVING(POD "ccccc") "," SERVING(POD "ddddd") "]}");
    board_widths(&board, 200, widths);
    cr_assert_eq(widths[0], 35, "whole where there is room: %d", widths[0]);
    board_widths(&board, 80, widths);
    cr_assert_eq(widths[0], 20);
    const board_column_t *column = board_columns(board.view);
    cr_assert_str_eq(board_fit(column, POD "ccccc", 20, first), "..t-7d9f8b6c54-ccccc");
    cr_assert_str_neq(board_fit(column, POD "ccccc", 20, first), board_fit(column, POD "ddddd", 20, second));
    cr_assert_str_eq(board_fit(column, "w\xc3\xa4\xc3\xb6\xc3\xbc", 3, first), "..\xc3\xbc");
    cr_assert_str_eq(board_fit(column, "w123", 4, first), "w123");
}

#define LABELLED(name, labels)                                                                               \
    "{\"name\":\"" name "\",\"labels\":{" labels "},\"adapters\":[" SERVES("policy", "7", "null") "]}"

Test(board, labels_have_a_column_where_a_worker_has_some)
{
    int widths[BOARD_COLUMNS];
    buf_t out = {0};
    keys("2<<");
    cr_assert_str_eq(board_columns(board.view)[board.sort[board.view]].name, "HEARTBEAT",
                     "an order by what is not shown is passed over");
    take(STATUS, "{\"workers\":[" LABELLED("w1", "\"node\":\"gpu-7\",\"pod\":\"p2\"") "," LABELLED(
                     "w2", "\"node\":\"gpu-8\",\"a\\u001b\":\"x\",\"odd\":7") "," LABELLED("w3", "") "]}");
    keys(">");
    cr_assert_str_eq(board_columns(board.view)[board.sort[board.view]].name, "LABELS");
    board_widths(&board, 200, widths);
    cr_assert_eq(widths[9], 18, "as wide as its cells");
    board_widths(&board, 80, widths);
    cr_assert(widths[9] == 0 && widths[10] >= 20, "which makes room first");
    keys("/GPU-7");
    cr_assert_str_eq(first_cells(), "*w1", "a filter looks there");
    cr_assert_str_eq(board.rows[0].cells[9], "node=gpu-7 pod=p2");
    board_key(&board, BOARD_ENTER, 10);
    board_key(&board, BOARD_ENTER, 10);
    board_worker(&board, &out);
    cr_assert(strstr(buf_text(&out), "labels      node=gpu-7 pod=p2\n"), "%s", buf_text(&out));
    board_key(&board, BOARD_ESCAPE, 10);
    board_key(&board, BOARD_ESCAPE, 10);
    keys("/w2");
    cr_assert_str_eq(board.rows[0].cells[9], "node=gpu-8 a?=x +1",
                     "cleaned, and counted where it is no text");
    board_key(&board, BOARD_ENTER, 10);
    board_key(&board, BOARD_ENTER, 10);
    buf_clear(&out);
    board_worker(&board, &out);
    cr_assert(strstr(buf_text(&out), "labels      node=gpu-8 a?=x odd=7\n"), "%s", buf_text(&out));
    board_key(&board, BOARD_ESCAPE, 10);
    board_key(&board, BOARD_ESCAPE, 10);
    keys("/w3");
    board_key(&board, BOARD_ENTER, 10);
    cr_assert_str_eq(board.rows[0].cells[9], "-");
    board_key(&board, BOARD_ENTER, 10);
    buf_clear(&out);
    board_worker(&board, &out);
    cr_assert_not(strstr(buf_text(&out), "labels"), "%s", buf_text(&out));
    buf_fini(&out);
}

Test(board, the_selected_row_says_why_in_full)
{
    buf_t out = {0};
    board_why(&board, &out);
    cr_assert_eq(out.bytes, 0, "all is well");
    take("{\"adapters\":[{\"name\":\"draft\"},{\"name\":\"policy\"}],\"reasons\":[{\"adapter\":\"policy\","
         "\"name\":\"adapter.held\",\"message\":"
         "\"it is held\"},{\"adapter\":null,\"message\":\"the disk is "
         "full\"},{\"worker\":\"w1\",\"message\":\"lost\"}]}",
         WORKERS);
    board_why(&board, &out);
    cr_assert_str_eq(buf_text(&out), "the disk is full", "draft");
    buf_clear(&out);
    keys("j");
    board_why(&board, &out);
    cr_assert_str_eq(buf_text(&out), "it is held (`heddle resume policy` ends that); the disk is full");
    buf_clear(&out);
    take(STATUS, "{\"workers\":[" WORKER("w1", "4", SERVES("policy", "7", "null")) "," WORKER(
                     "w2", "4",
                     SERVES("draft", "1",
                            "null") ",{\"name\":\"policy\",\"code\":\"version_failed\",\"message\":"
                                    "\"the first of all the words of a long reason, and its last\"}") "]}");
    keys("2");
    board_why(&board, &out);
    cr_assert_eq(out.bytes, 0, "w1 is well");
    keys("jj");
    board_why(&board, &out);
    cr_assert_str_eq(buf_text(&out),
                     "version_failed: the first of all the words of a long reason, and its last");
    buf_clear(&out);
    take(STATUS, "{\"workers\":[]}");
    board_why(&board, &out);
    cr_assert_eq(out.bytes, 0);
    buf_fini(&out);
}

#define LONG_LABELS "\"node\":\"a-long-name-of-a-node\",\"pod\":\"a-long-name-of-a-pod\",\"zone\":\"east\""

Test(board, a_filter_sees_what_its_cell_cuts)
{
    char why[300], list[400];
    keys("2");
    take(STATUS, "{\"workers\":[" LABELLED("w1", LONG_LABELS) "," LABELLED("w2", "\"zone\":\"west\"") "]}");
    cr_assert_str_eq(board.rows[0].cells[9], "node=a-long-name-of-a-node +2");
    keys("/zone=east");
    cr_assert_str_eq(first_cells(), "*w1", "a label that is only counted");
    board_key(&board, BOARD_ESCAPE, 10);
    keys("/zone=");
    cr_assert_str_eq(first_cells(), "*w1 w2");
    board_key(&board, BOARD_ESCAPE, 10);
    keys("/labels");
    cr_assert_str_eq(first_cells(), "", "no word of ours");
    board_key(&board, BOARD_ESCAPE, 10);

    snprintf(why, sizeof why, "%0200d last words", 0);
    snprintf(list, sizeof list,
             "{\"workers\":[{\"name\":\"w3\",\"adapters\":[{\"code\":\"hook\",\"message\":\"%s\"}]}]}", why);
    take(STATUS, list);
    keys("/last words");
    cr_assert_str_eq(first_cells(), "*w3", "the end of a reason");
}

Test(board, the_help_scrolls_and_any_other_key_ends_it)
{
    keys("?jj");
    cr_assert(board.has_help);
    cr_assert_eq(board.help_scroll, 2);
    board_key(&board, BOARD_UP, 10);
    cr_assert(board.has_help && board.help_scroll == 1 && board.at == 0);
    keys("x");
    cr_assert_not(board.has_help);
    keys("h");
    cr_assert(board.has_help && board.help_scroll == 0, "from its first line");
    keys("q");
    cr_assert(board.is_over);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a version over the workers, from rows in any order. */
#include "cli/way.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "WORKER: SOURCE[!] BYTES[, SOURCE BYTES]; ..."; p is the publisher, "!" held in place, no bytes: the source
 * while it fetches. */
static json_t *rows_of(const char *text)
{
    json_t *rows = json_array();
    char copy[4096], *save;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *line = strtok_r(copy, ";", &save); line; line = strtok_r(NULL, ";", &save)) {
        char *colon = strchr(line, ':'), *more, *at;
        json_t *sources = json_array();
        *colon = 0;
        json_t *row = json_pack("{s:s, s:o}", "worker", line + strspn(line, " "), "sources", sources);
        for (at = strtok_r(colon + 1, ",", &more); at; at = strtok_r(NULL, ",", &more)) {
            char name[32];
            long long bytes = -1;
            int found = sscanf(at, " %31s %lld", name, &bytes);
            if (found < 2) {
                json_object_set_new(row, "source", json_string(name));
                continue;
            }
            bool is_held = name[strlen(name) - 1] == '!';
            if (is_held) name[strlen(name) - 1] = 0;
            json_array_append_new(sources,
                                  json_pack("{s:s, s:s, s:s, s:I}", "name", name, "kind",
                                            strcmp(name, "p") ? "worker" : "publisher", "way",
                                            is_held ? "host" : "network", "bytes", (json_int_t)bytes));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* "w2 1, w1 2, (w3) 1": the stops in order, a former one in brackets */
static const char *way_with(const char *text, const char *former_text)
{
    static char shown[4096];
    json_t *rows = rows_of(text), *former = rows_of(former_text);
    size_t n = 0, count = 0;
    way_stop_t *stops = way_stops(rows, former, &count);
    shown[0] = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_former = stops[i].is_former;
        n += (size_t)snprintf(shown + n, sizeof shown - n, "%s%s%s%s ", i ? ", " : "", is_former ? "(" : "",
                              stops[i].name, is_former ? ")" : "");
        n += stops[i].hop == WAY_UNKNOWN ? (size_t)snprintf(shown + n, sizeof shown - n, "-")
                                         : (size_t)snprintf(shown + n, sizeof shown - n, "%u", stops[i].hop);
    }
    free(stops);
    json_decref(rows);
    json_decref(former);
    return shown;
}
static const char *way_of(const char *text) { return way_with(text, ""); }

Test(way, a_star_is_by_name) { cr_assert_str_eq(way_of("w2: p 9; w1: p 9"), "w1 1, w2 1"); }

Test(way, a_chain_is_in_its_own_order)
{
    cr_assert_str_eq(way_of("w1: w2 9; w2: w3 9; w3: p 9"), "w3 1, w2 2, w1 3");
}

Test(way, what_is_held_is_as_far_as_its_memory)
{
    cr_assert_str_eq(way_of("a: b! 0; b: c! 0; c: d 9; d: p 9; e: p! 0"), "e 0, d 1, a 2, b 2, c 2");
}

Test(way, two_halves_by_two_trees)
{
    cr_assert_str_eq(way_of("w1: p 5, w2 5; w2: w1 5, w3 5; w3: p 5, w2 5; w4: w2 5, w3 5"),
                     "w1 1, w3 1, w2 2, w4 2");
}

Test(way, a_few_bytes_from_elsewhere_hide_nothing)
{
    cr_assert_str_eq(way_of("w1: p 100; w2: p 20, w1 80"), "w1 1, w2 2");
}

Test(way, while_bytes_come_the_source_of_the_last_ones_is_known)
{
    cr_assert_str_eq(way_of("w1: w2; w2: trainer; w3: w1"), "w2 1, w1 2, w3 3");
}

Test(way, a_circle_and_a_source_that_is_not_listed_are_unknown)
{
    cr_assert_str_eq(way_of("w1: w2 9; w2: w1 9; w3: w9 9; w4: p 9; w5:"), "w4 1, w1 -, w2 -, w3 -, w5 -");
}

Test(way, no_rows)
{
    json_t *none = json_array();
    size_t count = 0;
    cr_assert_null(way_stops(none, none, &count));
    cr_assert_null(way_stops(NULL, NULL, &count));
    json_decref(none);
}

/* wa was started again, and has its bytes from those that had them from it. */
Test(way, a_worker_that_was_started_again)
{
    cr_assert_str_eq(way_with("wa: wb2 9; wb: wa 9; wb2: wb! 0; wc: wb 9", "wa: p 9"),
                     "(wa) 1, wb 2, wb2 2, wa 3, wc 3");
    cr_assert_str_eq(way_with("wb: wa 9", "wa: p 9"), "(wa) 1, wb 2", "one that has left");
    cr_assert_str_eq(way_with("wa: wb 9; wb: wa 9", "wa: p 9; wa: wb 9"), "(wa) 1, wb 2, (wa) 3, wa 3",
                     "twice");
    cr_assert_str_eq(way_with("", "wa: p 9"), "(wa) 1");
}

/* "w1 10, w2 100": how long each fetch took */
static const char *through_of(const char *text, const char *times, const char *worker)
{
    static char found[64];
    json_t *rows = rows_of(text);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        const char *at = strstr(times, json_string_value(json_object_get(row, "worker")));
        json_object_set_new(row, "timing", json_pack("{s:f}", "fetch_ms", at ? atof(at + 3) : 0));
    }
    const char *slow = way_through(rows, NULL, worker);
    snprintf(found, sizeof found, "%s", slow ? slow : "-");
    json_decref(rows);
    return found;
}

Test(way, the_first_one_of_those_that_took_as_long)
{
    static const char CHAIN[] = "w1: p 9; w2: w1 9; w3: w2 9; w4: w3 9";
    cr_assert_str_eq(through_of(CHAIN, "w1 10, w2 100, w3 101, w4 102", "w4"), "w2");
    cr_assert_str_eq(through_of(CHAIN, "w1 10, w2 100, w3 101, w4 102", "w2"), "-", "it is itself");
    cr_assert_str_eq(through_of(CHAIN, "w1 10, w2 11, w3 12, w4 100", "w4"), "-");
    cr_assert_str_eq(through_of(CHAIN, "w1 97, w2 98, w3 99, w4 100", "w4"), "-", "all took as long");
    cr_assert_str_eq(through_of("w1: w2 9; w2: w1 9", "w1 10, w2 10", "w1"), "-", "a circle");
    cr_assert_str_eq(through_of(CHAIN, "w1 10", "w9"), "-");
}

/* What counts of a worker that was started again is the fetch of the rollout. */
Test(way, a_slow_fetch_of_one_that_was_started_again)
{
    json_t *rows = json_pack("[{s:s, s:{s:f}, s:[{s:s, s:s, s:i}]}, {s:s, s:{s:f}, s:[{s:s, s:s, s:i}]}]",
                             "worker", "wa", "timing", "fetch_ms", 1.0, "sources", "name", "wb", "kind",
                             "worker", "bytes", 9, "worker", "wb", "timing", "fetch_ms", 101.0, "sources",
                             "name", "wa", "kind", "worker", "bytes", 9);
    json_t *former = json_pack("[{s:s, s:f, s:[{s:s, s:s, s:i}]}]", "worker", "wa", "fetch_ms", 100.0,
                               "sources", "name", "wx", "kind", "worker", "bytes", 9);
    cr_assert_null(way_through(rows, NULL, "wb"));
    json_t *wx = json_pack("{s:s, s:f, s:[{s:s, s:s, s:i}]}", "worker", "wx", "fetch_ms", 10.0, "sources",
                           "name", "p", "kind", "publisher", "bytes", 9);
    json_array_append_new(former, wx);
    const char *slow = way_through(rows, former, "wb");
    cr_assert(slow && !strcmp(slow, "wa"));
    cr_assert_eq(way_row(rows, former, "wa"), json_array_get(former, 0));
    cr_assert_eq(way_row(rows, former, "wb"), json_array_get(rows, 1));
    json_decref(rows);
    json_decref(former);
}

static const char *text_with(const char *text, const char *former_text, int64_t former_count)
{
    static char shown[256];
    json_t *rows = rows_of(text), *former = rows_of(former_text);
    cr_assert_eq(way_text(rows, former, former_count, shown, sizeof shown), shown[0] != 0);
    json_decref(rows);
    json_decref(former);
    return shown;
}
static const char *text_of(const char *text) { return text_with(text, "", 0); }

Test(way, all_bytes_are_also_those_of_former_processes)
{
    cr_assert_str_eq(text_with("wa: wb 1000000; wb: wa 1000000", "wa: p 1000000", 1),
                     "3.0 MB over the network, 1.0 MB of it from the publisher");
    cr_assert_str_eq(
        text_with("wa: wb 1000000", "wa: p 1000000", 3),
        "at least 2.0 MB over the network, at least 1.0 MB of it from the publisher; the sources of "
        "2 workers are not known");
}

Test(way, all_bytes_together)
{
    cr_assert_str_eq(text_of("w1: p 1000000; w2: w1 900000, p 100000"),
                     "2.0 MB over the network, 1.1 MB of it from the publisher");
    cr_assert_str_eq(text_of("w1: p 1000000; w2: w1! 0"),
                     "1.0 MB over the network, 1.0 MB of it from the publisher; 1 worker in place");
    cr_assert_str_eq(text_of("w1: p! 0; w2: p! 0"), "2 workers in place, nothing was copied");
    cr_assert_str_eq(text_of("w1: p; w2:"), "");
}

Test(way, asks_that_moved)
{
    char text[192];
    json_t *moved = json_pack("{s:i, s:i, s:i, s:i}", "late", 0, "bad", 2, "slow", 0, "refused", 30);
    cr_assert_str_eq(way_moved(moved, text, sizeof text), " (32 asks moved: 30 refused, 2 bad)");
    json_object_clear(moved);
    cr_assert_str_eq(way_moved(moved, text, sizeof text), "");
    json_object_set_new(moved, "late", json_integer(1));
    cr_assert_str_eq(way_moved(moved, text, sizeof text), " (1 ask moved: late)");
    json_t *rows = rows_of("w1: p 1000000; w2: w1 1000000");
    for (size_t i = 0; i < 2; i++) {
        json_t *source = json_array_get(json_object_get(json_array_get(rows, i), "sources"), 0);
        json_object_set(source, "moved", moved);
    }
    cr_assert(way_text(rows, NULL, 0, text, sizeof text) && strstr(text, " (2 asks moved: late)"), "%s",
              text);
    json_decref(rows);
    json_decref(moved);
}

Test(way, a_broker_of_an_older_release_tells_less)
{
    json_t *held = json_pack("{s:s, s:i}", "name", "w1", "bytes", 0),
           *copied = json_pack("{s:s, s:i}", "name", "w1", "bytes", 5);
    cr_assert(way_is_in_place(held) && !way_is_in_place(copied));
    json_decref(held);
    json_decref(copied);
}

/* A worker that staged the version before the broker was restarted: from where is not known any more. */
Test(way, all_bytes_are_not_known)
{
    char text[256];
    json_t *rows = rows_of("w1: p 9; w2: w1 9");
    json_t *row = json_pack("{s:s, s:s, s:[], s:{s:f}}", "worker", "w3", "state", "active", "sources",
                            "timing", "fetch_ms", 3.0);
    json_array_append(rows, row);
    cr_assert(way_text(rows, NULL, 0, text, sizeof text));
    cr_assert(!strncmp(text, "at least 18 B over the network, at least 9 B of it from the publisher", 69) &&
                  strstr(text, "; the sources of 1 worker are not known"),
              "%s", text);
    json_decref(rows);
    rows = json_pack("[o]", row);
    cr_assert(way_text(rows, NULL, 0, text, sizeof text));
    cr_assert_str_eq(text, "the sources of 1 worker are not known");
    json_decref(rows);
}

/* Bytes came to a worker that failed after that, or was cut off by the deadline, and it did not say from where. */
Test(way, the_bytes_of_a_failed_worker_are_of_unknown_sources)
{
    char text[256];
    json_t *done = json_pack("[{s:s, s:s, s:[], s:i, s:{s:f}}]", "worker", "w1", "state", "failed", "sources",
                             "bytes_done", 9, "timing", "fetch_ms", 28.1),
           *cut = json_pack("[{s:s, s:n, s:[], s:i, s:{s:n}}]", "worker", "w1", "state", "sources",
                            "bytes_done", 9, "timing", "fetch_ms"),
           *none = json_pack("[{s:s, s:s, s:[], s:i, s:{s:n}}]", "worker", "w1", "state", "failed", "sources",
                             "bytes_done", 0, "timing", "fetch_ms"),
           *held = json_pack("[{s:s, s:s, s:[], s:i, s:{s:f}}]", "worker", "w1", "state", "failed", "sources",
                             "bytes_done", 9, "timing", "fetch_ms", 0.001),
           *comes = json_pack("[{s:s, s:s, s:[], s:i, s:{s:n}}]", "worker", "w1", "state", "fetching",
                              "sources", "bytes_done", 9, "timing", "fetch_ms");
    cr_assert(way_is_unknown(json_array_get(done, 0)) && way_is_unknown(json_array_get(cut, 0)));
    cr_assert_not(way_is_unknown(json_array_get(none, 0)));
    cr_assert_not(way_is_unknown(json_array_get(held, 0)), "it held them already");
    cr_assert_not(way_is_unknown(json_array_get(comes, 0)), "it is told when it has all");
    cr_assert(way_text(done, NULL, 0, text, sizeof text));
    cr_assert_str_eq(text, "the sources of 1 worker are not known");
    json_decref(done);
    json_decref(cut);
    json_decref(none);
    json_decref(held);
    json_decref(comes);
}

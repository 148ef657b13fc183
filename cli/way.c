/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/way.h"

#include "cli/cli.h"
#include "core/listing.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_THAT_COUNTS 0.25

/* ---- one source ---- */

/* A broker of an older release reports no way: its sources without bytes are held in their memory. */
bool way_is_in_place(const json_t *source)
{
    const char *way = cli_string(source, "way");
    return way ? !strcmp(way, "host") : !cli_integer(source, "bytes");
}

#define NO_FETCH_MS 0.01 /* a fetch that took less moved no bytes */

bool way_is_unknown(const json_t *row)
{
    static const char *const OVER[] = {"staged", "committed", "active", "kept", "stale", "failed"};
    const char *state = cli_string(row, "state");
    const json_t *fetch_ms = json_object_get(json_object_get(row, "timing"), "fetch_ms");
    bool is_over = !state; /* the version has ended */
    for (size_t i = 0; state && i < sizeof OVER / sizeof *OVER; i++) is_over |= !strcmp(state, OVER[i]);
    if (!is_over || json_array_size(json_object_get(row, "sources"))) return false;
    /* A worker that failed tells no sources, and one that was cut off no time either. */
    bool was_cut_off = !json_is_number(fetch_ms) && (!state || !strcmp(state, "failed"));
    return was_cut_off ? cli_integer(row, "bytes_done") > 0 : json_number_value(fetch_ms) > NO_FETCH_MS;
}

static bool is_publisher(const json_t *source)
{
    const char *kind = cli_string(source, "kind");
    return kind && !strcmp(kind, "publisher");
}

const char *way_moved(const json_t *moved, char *ret_text, size_t size)
{
    static const char *const WHY[] = {"late", "gone", "refused", "bad", "slow"};
    char reasons[160];
    listing_t list = {.text = reasons, .size = sizeof reasons};
    int64_t all = 0;
    for (size_t i = 0; i < sizeof WHY / sizeof *WHY; i++) all += cli_integer(moved, WHY[i]);
    for (size_t i = 0; i < sizeof WHY / sizeof *WHY; i++) {
        int64_t count = cli_integer(moved, WHY[i]);
        if (count && count == all) listing_add(&list, "%s", WHY[i]);
        else if (count) listing_add(&list, "%lld %s", (long long)count, WHY[i]);
    }
    ret_text[0] = 0;
    if (all)
        snprintf(ret_text, size, " (%lld ask%s moved: %s)", (long long)all, all == 1 ? "" : "s",
                 listing_text(&list));
    return ret_text;
}

/* ---- hops ---- */

/* All rows, by name until the hops are known. */
typedef struct {
    way_stop_t *stops;
    size_t count;
} stops_t;

static int by_name(const void *a, const void *b)
{
    const way_stop_t *one = a, *other = b;
    int order = strcmp(one->name, other->name);
    return order ? order : (int)other->is_former - (int)one->is_former;
}

static int by_hop(const void *a, const void *b)
{
    const way_stop_t *one = a, *other = b;
    return one->hop == other->hop ? by_name(a, b) : one->hop < other->hop ? -1 : 1;
}

static int by_name_alone(const void *name, const void *stop)
{
    return strcmp(name, ((const way_stop_t *)stop)->name);
}

/* Of the processes of that name the one that is nearest to the publisher, as far as is known.  NULL: none. */
static const way_stop_t *stop_of(const stops_t *all, const char *worker)
{
    const way_stop_t *stop = bsearch(worker, all->stops, all->count, sizeof *all->stops, by_name_alone);
    const way_stop_t *end = all->stops + all->count, *nearest = stop;
    while (stop && stop > all->stops && !strcmp(stop[-1].name, worker)) stop--;
    for (; stop && stop < end && !strcmp(stop->name, worker); stop++)
        if (stop->hop < nearest->hop) nearest = stop;
    return nearest;
}

/* The hop of bytes from this source.  WAY_UNKNOWN: the source's own hop is not known yet. */
static uint32_t hop_from(const stops_t *all, const json_t *source)
{
    const way_stop_t *from =
        is_publisher(source) ? NULL : stop_of(all, cli_text(source, "name", (char[64]){0}));
    if (!from && !is_publisher(source)) return WAY_UNKNOWN;
    uint32_t hop = from ? from->hop : 0;
    return hop == WAY_UNKNOWN ? WAY_UNKNOWN : hop + !way_is_in_place(source);
}

/* One of its sources that counts is right before this hop; while bytes come, that is the present source. */
static bool is_at(const stops_t *all, const json_t *row, uint32_t hop)
{
    const json_t *sources = json_object_get(row, "sources");
    const char *now = cli_string(row, "source");
    double bytes = 0;
    for (size_t i = 0; i < json_array_size(sources); i++)
        bytes += (double)cli_integer(json_array_get(sources, i), "bytes");
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const json_t *s = json_array_get(sources, i);
        double its = (double)cli_integer(s, "bytes");
        bool counts = way_is_in_place(s) || (its > 0 && its >= PART_THAT_COUNTS * bytes);
        if (counts && hop_from(all, s) == hop) return true;
    }
    if (json_array_size(sources) || !now) return false;
    const way_stop_t *from = stop_of(all, now); /* no row: the publisher */
    return (!from || from->hop != WAY_UNKNOWN) && (from ? from->hop : 0) + 1 == hop;
}

/* The rows that are at this hop, of those that are at none yet. */
static size_t find_at(const stops_t *all, uint32_t hop)
{
    size_t found = 0;
    for (size_t i = 0; i < all->count; i++) {
        way_stop_t *stop = &all->stops[i];
        if (stop->hop != WAY_UNKNOWN || !is_at(all, stop->row, hop)) continue;
        stop->hop = hop;
        found++;
    }
    return found;
}

/* From the publisher on, hop by hop.  Each hop is searched until it gets no more rows: a worker that holds
 * the memory of another one is at the same hop, and so is one that holds the memory of that. */
way_stop_t *way_stops(const json_t *rows, const json_t *former, size_t *ret_count)
{
    size_t there = json_array_size(rows);
    stops_t all = {.count = there + json_array_size(former)};
    all.stops = all.count ? calloc(all.count, sizeof *all.stops) : NULL;
    if (!all.stops) return NULL;
    for (size_t i = 0; i < all.count; i++) {
        const json_t *row = i < there ? json_array_get(rows, i) : json_array_get(former, i - there);
        const char *name = cli_string(row, "worker");
        all.stops[i] = (way_stop_t){name ? name : "", row, i >= there, WAY_UNKNOWN};
    }
    qsort(all.stops, all.count, sizeof *all.stops, by_name);
    bool has_more = true;
    for (uint32_t hop = 0; has_more; hop++) {
        has_more = hop == 0;
        while (find_at(&all, hop)) has_more = true;
    }
    qsort(all.stops, all.count, sizeof *all.stops, by_hop);
    *ret_count = all.count;
    return all.stops;
}

/* ---- the slowest source ---- */

#define AS_LONG 0.8 /* of another fetch's time: one that took at least this part of it took as long */

static const json_t *row_of(const json_t *rows, const char *worker)
{
    for (size_t i = 0; worker && i < json_array_size(rows); i++) {
        const char *name = cli_string(json_array_get(rows, i), "worker");
        if (name && !strcmp(name, worker)) return json_array_get(rows, i);
    }
    return NULL;
}

const json_t *way_row(const json_t *rows, const json_t *former, const char *worker)
{
    const json_t *first = row_of(former, worker);
    return first ? first : row_of(rows, worker);
}

static double fetch_ms(const json_t *row)
{
    const json_t *timing = json_object_get(row, "timing");
    return json_number_value(json_object_get(timing ? timing : row, "fetch_ms"));
}

const char *way_through(const json_t *rows, const json_t *former, const char *worker)
{
    const json_t *row = way_row(rows, former, worker), *source = row;
    for (size_t steps = json_array_size(rows) + json_array_size(former); row && steps > 0; steps--) {
        /* The row of the worker that most of its bytes came from.  NULL: there is none, or it is the
         * publisher. */
        const json_t *sources = json_object_get(row, "sources"), *most = NULL;
        for (size_t i = 0; i < json_array_size(sources); i++) {
            const json_t *s = json_array_get(sources, i);
            if (!most || cli_integer(s, "bytes") > cli_integer(most, "bytes")) most = s;
        }
        source = !most || is_publisher(most) ? NULL : way_row(rows, former, cli_string(most, "name"));
        if (!source || fetch_ms(source) < AS_LONG * fetch_ms(row)) break;
        row = source;
    }
    const char *slow = source && source != row ? cli_string(row, "worker") : NULL;
    return slow && strcmp(slow, worker) != 0 ? slow : NULL;
}

/* ---- all together ---- */

static void add_moved(json_t *sum, const json_t *moved)
{
    const char *why;
    json_t *count;
    json_object_foreach((json_t *)(uintptr_t)moved, why, count) /* jansson has no const iterator */
        json_object_set_new(sum, why, json_integer(cli_integer(sum, why) + json_integer_value(count)));
}

typedef struct {
    int64_t all, own, held;
    json_t *moved;
} way_sum_t;

static void add_up(way_sum_t *sum, const json_t *rows)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *sources = json_object_get(json_array_get(rows, i), "sources");
        for (size_t k = 0; k < json_array_size(sources); k++) {
            const json_t *s = json_array_get(sources, k);
            sum->all += cli_integer(s, "bytes");
            if (is_publisher(s)) sum->own += cli_integer(s, "bytes");
            sum->held += way_is_in_place(s);
            add_moved(sum->moved, json_object_get(s, "moved"));
        }
    }
}

bool way_text(const json_t *rows, const json_t *former, int64_t former_count, char *ret_text, size_t size)
{
    way_sum_t sum = {.moved = json_object()};
    int64_t unlisted = former_count - (int64_t)json_array_size(former), unknown = unlisted > 0 ? unlisted : 0;
    for (size_t i = 0; i < json_array_size(rows); i++) unknown += way_is_unknown(json_array_get(rows, i));
    add_up(&sum, rows);
    add_up(&sum, former);
    char bytes[2][16], count[64], place[80] = "", asks[192], more[96] = "";
    const char *least = unknown ? "at least " : "";
    units_bytes_text((uint64_t)sum.all, bytes[0]);
    units_bytes_text((uint64_t)sum.own, bytes[1]);
    way_moved(sum.moved, asks, sizeof asks);
    json_decref(sum.moved);
    ret_text[0] = 0;
    if (sum.held) snprintf(place, sizeof place, "%s in place", cli_count(sum.held, "worker", count));
    if (unknown)
        snprintf(more, sizeof more, "the sources of %s are not known", cli_count(unknown, "worker", count));
    if (sum.all)
        snprintf(ret_text, size, "%s%s over the network, %s%s of it from the publisher%s%s%s%s%s", least,
                 bytes[0], least, bytes[1], sum.held ? "; " : "", place, asks, unknown ? "; " : "", more);
    else if (sum.held) snprintf(ret_text, size, "%s, %s", place, unknown ? more : "nothing was copied");
    else snprintf(ret_text, size, "%s", more);
    return sum.all || sum.held || unknown;
}

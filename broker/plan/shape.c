/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/plan/shape.h"

#include "formats/manifest.h"

#include <string.h>

plan_row_t *plan_shape_head(const plan_station_t *station)
{
    for (size_t i = 0; i < station->count; i++)
        if (station->rows[i]->fetch == PLAN_FETCHING) return station->rows[i];
    return station->rows[0];
}

/* The stations of the trees: those of the publisher's place get the bytes without a network, and those with a
 * limited rate serve none of the others.  Returns how many. */
size_t plan_shape_stations(const plan_t *p, plan_station_t **ret_stations)
{
    size_t count = 0;
    for (size_t i = 0; i < p->station_count; i++) {
        plan_station_t *station = p->chain[i];
        if (plan_is_publishers_place(p, station->place) || plan_station_is_limited(station) ||
            plan_shape_head(station)->is_cut_off)
            continue;
        if (ret_stations) ret_stations[count] = station;
        count++;
    }
    return count;
}

/* They stand in the order of their zones. */
static bool has_zones(const plan_t *p)
{
    for (size_t i = 1; i < p->station_count; i++) {
        const char *text = p->chain[i]->key.text + 1, *before = p->chain[i - 1]->key.text + 1;
        size_t zone_bytes = (size_t)(strchr(text, '\x01') - text);
        if (strncmp(text, before, zone_bytes + 1) != 0) return true;
    }
    return false;
}

/* For N stations and n chunks a star takes N n τ + α, a chain (n + N - 1) τ + N α, and two trees (n + 2 d) τ
 * + (d + 1) α with d = log2 N, rounded down.  τ, the time of a chunk, is taken as on a fast link, by the
 * publisher's --max-rate, or by the rate of the version before; α is the time of a hop.  The chain is
 * left for trees only where they are a quarter better: on real links a chain took the time of its
 * estimate, and trees up to 15 % more, because each link is shared by two transfers (docs/benchmarks.md,
 * "Shaped links").  Nor is it left where there are several zones: it enters each of them once. */
plan_shape_t plan_shape_choose(const plan_t *p, size_t stations)
{
    bool may_be_trees = stations > 1 && p->publisher && !p->source_count;
    if (p->wanted == PLAN_TWO_TREE) return may_be_trees ? PLAN_TWO_TREE : PLAN_CHAIN;
    if (p->wanted != PLAN_AUTO) return p->wanted;
    uint64_t count = stations > 1 ? stations : 2, chunk = manifest_chunk_bytes(p->bytes), d = 0;
    while (count >> (d + 1)) d++;
    uint64_t star = count * p->bytes + p->hop_bytes;
    uint64_t chain = p->bytes + (count - 1) * chunk + count * p->hop_bytes;
    uint64_t trees = p->bytes + 2 * d * chunk + (d + 1) * p->hop_bytes;
    bool is_best = trees < star && trees * 5 < chain * 4;
    if (may_be_trees && is_best && !has_zones(p)) return PLAN_TWO_TREE;
    return chain < star ? PLAN_CHAIN : PLAN_STAR;
}

/* Number 0 stands for the publisher. */
static uint64_t token_at(const plan_t *p, plan_station_t **stations, size_t number)
{
    return number ? plan_shape_head(stations[number - 1])->token : p->publisher;
}

/* The parent of station k is k / 2 for the first half of the chunks, and for the second half the same counted
 * from the other end.  So a station has children in one of the trees alone. */
void plan_shape_lay(const plan_t *p, plan_station_t **stations, size_t count, size_t k)
{
    plan_row_t *row = plan_shape_head(stations[k - 1]);
    size_t mirrored = count + 1 - k;
    stations[k - 1]->number = k;
    uint64_t first = token_at(p, stations, k / 2);
    uint64_t second = token_at(p, stations, mirrored / 2 ? count + 1 - mirrored / 2 : 0);
    row->half = 2 * mirrored <= count ? 2 : 1;
    row->source_count = row->other_count = 1;
    row->sources[0] = row->half == 1 ? first : second;
    row->others[0] = row->half == 1 ? second : first;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/shape.h (PURE): the shape of a plan: a star, the chain, or two trees over its stations.
 *
 * In two trees, each half of the chunks goes down one of these.  The station with the number k of N gets the
 * first half from number k / 2, and the second half from the same number counted from the other end:
 *
 *   first half:   publisher ──► 1 ──► 2, 3   2 ──► 4, 5   3 ──► 6, 7
 *   second half:  publisher ──► 7 ──► 6, 5   6 ──► 4, 3   5 ──► 2, 1
 *
 * So a station sends one half to two others at most, and no uplink carries more than all bytes.  A head has a
 * list for each half.  The list begins with its parent and continues with the two grandparents: the parent's
 * parent in this tree, and in the other tree.  If a parent leaves, its two children go to different ones.
 *
 * Each tree has an order of its own, the turns: all sources in a list for a half have an earlier turn than
 * the station itself.  So whatever leaves the trees as they were laid, no stations wait for each other in a
 * circle.  Lists that were repaired may name stations of any turn, as these have room.  When one more leaves
 * then, some may wait for each other until the broker has repaired the lists.
 *
 * The turns are chosen such that of the two children of a parent one comes after the other grandparent.  Up
 * to 190 stations that is so for all parents.  Of more stations a few parents are left over: both of their
 * children go to the parent's parent, until the broker has repaired the lists.
 *
 * A later station gets both halves from those with room, and serves later ones alone.  So do those with a
 * limited rate, which count as stations that come later, in the order of the chain.  No station gets a half
 * from one below it in the tree of that half.  After other stations have left, a list may name such a station
 * near its end, until the broker has repaired the list.
 *
 * The shape is chosen when the first lists are made, for as long as the version lasts.  One thread, nothing
 * blocks. */
#ifndef BROKER_PLAN_SHAPE_H
#define BROKER_PLAN_SHAPE_H

#include "broker/plan/plan.h"

/* The row that fetches for its station, or would. */
plan_row_t *plan_shape_head(const plan_station_t *station);
/* The stations of the trees, in their order; ret_stations NULL: they are counted alone.  Returns how many. */
size_t plan_shape_stations(const plan_t *p, plan_station_t **ret_stations);
/* What takes the least time for so many stations, or what was asked for. */
plan_shape_t plan_shape_choose(const plan_t *p, size_t stations);
/* Numbers the stations of the trees, and gives them their turns.  Returns how many stations were looked at;
 * 0: no memory. */
uint64_t plan_shape_number(plan_station_t **stations, size_t count);
/* Gives station number k (from 1) of the trees its parents: the lists of its head. */
void plan_shape_lay(const plan_t *p, plan_station_t **stations, size_t count, size_t k);

#endif

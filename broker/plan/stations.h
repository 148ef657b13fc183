/* SPDX-License-Identifier: Apache-2.0 */
/* broker/plan/stations.h (PURE): the stations of a plan, in the order of the chain: ascending by key.
 *
 * They are in three lists: all of them (plan_t.chain), those of normal rank (normals), and those with a
 * place (places).  So one is found by its place, and so many of normal rank before it, without a look at
 * the others.
 *
 *   a station is  | its key changes
 *   --------------+--------------------------------------------------------------------------------------
 *   put           | where all are sorted again (a rollout begins anew, restored lists say the order), or
 *                 | none passes another one (those with a limited rate, behind two trees)
 *   taken         | to another wave or rank
 *
 * plan.c adds a station with its first row, and removes it with the last one.  After a restart the order is
 * unknown until restored.h has made it.  The plan owns the stations.  One thread, nothing blocks. */
#ifndef BROKER_PLAN_STATIONS_H
#define BROKER_PLAN_STATIONS_H

#include "broker/plan/plan.h"

/* NULL: no memory. */
plan_station_t *plan_station_add(plan_t *p, uint64_t place, const plan_key_t *key);
/* It has no rows; it is freed. */
void plan_station_remove(plan_t *p, plan_station_t *station);
void plan_station_free(plan_station_t *station);
/* Gives it another key, and puts it where that belongs.  False: no memory. */
bool plan_station_move(plan_t *p, plan_station_t *station, const plan_key_t *key);
/* Takes it out, so that its key may change or it may be blamed. */
void plan_station_take(plan_t *p, const plan_station_t *station);
/* Puts it where its key belongs. */
void plan_station_put(plan_t *p, plan_station_t *station);
/* Many keys have changed. */
void plan_stations_sort(plan_t *p);
/* It is behind all others from now on, once the rollout has begun, and lists that name it may be torn. */
void plan_station_to_tail(plan_t *p, plan_station_t *station);
/* It has rows that were woken, and is the last one in plan_t.woken from now on. */
void plan_station_note_woken(plan_t *p, plan_station_t *station);
/* It is not there any more. */
void plan_station_forget_woken(plan_t *p, plan_station_t *station);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* wire/peers.h: numbers for the routing ids that a ROUTER hands out.  A number is given at the first
 * frame and never again; the table is bounded, the peer that was silent for longest makes room.  No
 * thread may share one. */
#ifndef WIRE_PEERS_H
#define WIRE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct peers peers_t;

/* NULL when out of memory. */
peers_t *peers_new(uint32_t limit);
void peers_destroy(peers_t **peers);
/* The number of a routing id that was just heard, a new one if it has none; 0 when out of memory. */
uint64_t peers_heard(peers_t *p, uint32_t routing_id);
/* False when the number is not in the table. */
bool peers_find(const peers_t *p, uint64_t number, uint32_t *ret_routing_id);
/* The key that the connection was let in with, "" where none was noted; NULL when the number is not in the
 * table.  Borrowed until the entry goes. */
const char *peers_key(const peers_t *p, uint64_t number);
void peers_note_key(peers_t *p, uint64_t number, const char *key);
void peers_forget(peers_t *p, uint64_t number);
uint32_t peers_count(const peers_t *p);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* wire/peers.h: gives numbers to the routing ids of a ROUTER. A number is given at the first frame and
 * never given again, so that a reply for an old connection cannot reach a new one that has the same routing
 * id. The table is bounded: when it is full, the peer that was silent for longest loses its number. The
 * wire owns it; one thread at a time. */
#ifndef WIRE_PEERS_H
#define WIRE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct peers peers_t;

/* At most `limit` peers are in the table. NULL when out of memory. */
peers_t *peers_new(uint32_t limit);
void peers_destroy(peers_t **peers);
/* Call it for each frame. Returns the peer's number, a new one for a routing id without a number; 0 when
 * out of memory. */
uint64_t peers_received(peers_t *p, uint32_t routing_id);
/* False when the number is not in the table. */
bool peers_find(const peers_t *p, uint64_t number, uint32_t *ret_routing_id);
/* The public key that the connection proved, "" before one was noted; NULL when the number is not in the
 * table. Borrowed until the entry goes. */
const char *peers_key(const peers_t *p, uint64_t number);
void peers_note_key(peers_t *p, uint64_t number, const char *key);
void peers_forget(peers_t *p, uint64_t number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Two hash tables, by routing id and by number, over entries that are also in a list ordered by their last
 * frame. */
#include "wire/peers.h"

#include "wire/keyring.h"

#include <stdio.h>
#include <stdlib.h>

#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(peer) ((peer)->unfit = true)
#include <uthash.h>
#include <utlist.h>

typedef struct peer {
    uint64_t number;
    uint32_t routing_id;
    char key[KEY_TEXT];
    bool unfit;                   /* memory ran out while it was added */
    UT_hash_handle hh, by_number; /* hh: by routing id */
    struct peer *prev, *next;     /* ordered by the last frame, the latest at the end */
} peer_entry_t;

struct peers {
    peer_entry_t *by_routing, *by_number, *by_receipt;
    uint64_t last_number;
    uint32_t count, limit;
};

peers_t *peers_new(uint32_t limit)
{
    peers_t *p = calloc(1, sizeof *p);
    if (p) p->limit = limit;
    return p;
}

/* Only for entries that are in both tables: HASH_DELETE must not see one whose adding failed. */
static void unlink_entry(peers_t *p, peer_entry_t *e)
{
    HASH_DELETE(hh, p->by_routing, e);
    HASH_DELETE(by_number, p->by_number, e);
    DL_DELETE(p->by_receipt, e);
    p->count--;
    free(e);
}

void peers_destroy(peers_t **peers)
{
    peers_t *p = peers ? *peers : NULL;
    if (!p) return;
    *peers = NULL;
    while (p->by_receipt) unlink_entry(p, p->by_receipt);
    free(p);
}

static uint64_t add(peers_t *p, uint32_t routing_id)
{
    if (p->count >= p->limit) unlink_entry(p, p->by_receipt);
    peer_entry_t *e = calloc(1, sizeof *e);
    if (!e) return 0;
    e->routing_id = routing_id;
    e->number = p->last_number + 1;
    HASH_ADD(hh, p->by_routing, routing_id, sizeof e->routing_id, e);
    if (e->unfit) goto fail;
    HASH_ADD(by_number, p->by_number, number, sizeof e->number, e);
    if (e->unfit) {
        HASH_DELETE(hh, p->by_routing, e);
        goto fail;
    }
    DL_APPEND(p->by_receipt, e);
    p->count++;
    return p->last_number = e->number;
fail:
    free(e);
    return 0;
}

uint64_t peers_received(peers_t *p, uint32_t routing_id)
{
    peer_entry_t *e;
    HASH_FIND(hh, p->by_routing, &routing_id, sizeof routing_id, e);
    if (!e) return add(p, routing_id);
    DL_DELETE(p->by_receipt, e);
    DL_APPEND(p->by_receipt, e);
    return e->number;
}

static peer_entry_t *entry_of(const peers_t *p, uint64_t number)
{
    peer_entry_t *e;
    HASH_FIND(by_number, p->by_number, &number, sizeof number, e);
    return e;
}

bool peers_find(const peers_t *p, uint64_t number, uint32_t *ret_routing_id)
{
    const peer_entry_t *e = entry_of(p, number);
    if (e) *ret_routing_id = e->routing_id;
    return e != NULL;
}

const char *peers_key(const peers_t *p, uint64_t number)
{
    const peer_entry_t *e = entry_of(p, number);
    return e ? e->key : NULL;
}

void peers_note_key(peers_t *p, uint64_t number, const char *key)
{
    peer_entry_t *e = entry_of(p, number);
    if (e) snprintf(e->key, sizeof e->key, "%s", key);
}

void peers_forget(peers_t *p, uint64_t number)
{
    peer_entry_t *e = entry_of(p, number);
    if (e) unlink_entry(p, e);
}

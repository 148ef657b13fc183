/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/exchange.h: what a backend calls: the rows of its table that are the same for all, and the
 * upcalls of its carrier (transfer/carrier.h).  What the exchange is, and its state:
 * transfer/exchange_state.h.  The read requests of this process are in asks.c, what it serves in shares.c.
 *
 * Loop thread only; no call blocks. */
#ifndef TRANSFER_EXCHANGE_H
#define TRANSFER_EXCHANGE_H

#include "transfer/carrier.h"

/* Life.  `first_line` grows from one incarnation of a process to the next, or is random. */
int exchange_init(transfer_t *t, const carrier_ops_t *carrier, const transfer_opts_t *opts,
                  uint64_t first_line);
/* Ends every peer; no events.  Then: carrier progress until exchange_quiet, then exchange_fini. */
void exchange_shut(transfer_t *t);
bool exchange_quiet(transfer_t *t);
void exchange_fini(transfer_t *t);

/* A call from outside a turn: the time of the last turn may be long ago, and what is sent now would look as
 * if the peer had not taken it since. */
void exchange_enter(transfer_t *t);

/* Rows of every backend's table that are the same. */
int exchange_address(transfer_t *t, bytes_t *ret_address);
void exchange_set_token(transfer_t *t, uint64_t token);
void exchange_set_rate(transfer_t *t, uint64_t max_rate_bytes);
int exchange_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap);
uint64_t exchange_deadline(transfer_t *t);
void exchange_counters(transfer_t *t, tr_counters_t *ret_counters);
int exchange_greet(transfer_t *t, const peer_ref_t *peer);
void exchange_drop_peer(transfer_t *t, uint64_t token);
int exchange_map(transfer_t *t, region_t *r);
void exchange_unmap(transfer_t *t, region_t *r);
bool exchange_idle(transfer_t *t, const region_t *r);
int exchange_expect(transfer_t *t, share_key_t key);
int exchange_share(transfer_t *t, region_t *r, share_key_t key);
int exchange_extend(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes);
void exchange_unshare(transfer_t *t, share_key_t key);
int exchange_ask(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask);
void exchange_drop_ask(transfer_t *t, uint64_t id);
/* True when events() has something to do now. */
bool exchange_pending(const transfer_t *t);

/* Upcalls of the carrier. */
void exchange_frame(transfer_t *t, const frame_t *f); /* all kinds but DATA */
/* DATA begins, and its bytes come into their place BY_COPY, or the transport writes them BY_ITSELF at any
 * later time, perhaps after the read request was dropped.  Returns where these bytes go: `base` and `leaves`
 * are those of the first of them, and the sink is valid until exchange_arrived.  A carrier that copies also
 * digests them (digest_copy) into `leaves`, unless that is NULL.  NULL: the carrier discards the bytes,
 * because no read request waits for them, or they have another shape than it; where a request waited, it has
 * ended. */
typedef enum { BY_COPY, BY_ITSELF } placing_t;
const sink_t *exchange_place(transfer_t *t, const frame_t *f, size_t body_bytes, placing_t how);
/* The bytes of an exchange_place that was not NULL are there, or will never come (ok false). */
void exchange_arrived(transfer_t *t, uint64_t id, bool ok);
/* The send has ended, and failed unless `ok`. */
void exchange_sent(transfer_t *t, send_t *s, bool ok);
void exchange_broken(endpoint_t *e); /* the link failed */
void exchange_closed(endpoint_t *e); /* a disconnected link is no more */

/* Cuts those whose link `is_of`, live or ended, without BYE; where the carrier lingers for ever, live ones
 * end and what is in flight goes on. */
typedef bool (*exchange_test_t)(const endpoint_t *e, const void *arg);
void exchange_cut(transfer_t *t, exchange_test_t is_of, const void *arg);
/* One whose link `is_of` is left, live or ended. */
bool exchange_any(transfer_t *t, exchange_test_t is_of, const void *arg);

#endif

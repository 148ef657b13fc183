/* SPDX-License-Identifier: Apache-2.0 */
/* memory/mappings.h: regions of other processes of the host, as this process has them: offered, mapped in
 * advance, held, let go.
 *
 *   region     | event                                                      -> next
 *   -----------+-----------------------------------------------------------------------------------------
 *   (none)     | a source offers it, or its content is taken                -> wanted
 *   wanted     | its source is connected                                    -> asked, for the region alone
 *              | mappings_take                                              -> asked, for a content
 *   asked      | mappings_take of a later content, or of another source     -> asked, for that
 *              | its description came                                       -> mapped; locked, of a content
 *              | the region alone is refused, or the source ended           -> (none), or wanted again
 *              | the content is refused, or the source ended                -> refused
 *   refused    | mappings_take, which says so                               -> (none); wanted, if offered
 *              | mappings_take of a later content, or of another source     -> asked, for that
 *              | no mappings_take for MAPPINGS_ASK_US                       -> (none)
 *   mapped     | mappings_take                                              -> held
 *              | withdrawn, its source gone for MAPPINGS_GONE_US,
 *              | or not used by MAPPINGS_UNUSED takes from its source        -> leaving
 *   locked     | mappings_take                                              -> held
 *              | no mappings_take for MAPPINGS_ASK_US                       -> mapped; leaving, if no source
 *              |                                                               offers it
 *   held       | mappings_give                                              -> mapped; leaving, if no source
 *              |                                                               offers it
 *   leaving    | unmapped, a step at a time                                 -> (none), or aside if offered
 *   aside      | mappings_take                                              -> asked, for a content
 *
 * A mapping is a cache: it is made in the background, in steps, without a lock, and stays between two
 * contents of its region. So a warm version costs a lock and a look at the header, and no page tables.
 * Nothing that a source does ends a hold: what is held stays mapped until it is given back.
 *
 * A source is watched (memory/handover.h) under its socket's name, and is connected to again after it has
 * ended. It is gone while no list came over its connection: one that accepts connections and ends them is
 * gone, too.
 *
 * *Watch*: a connection over which a source sends the list of what it offers, again after each change.
 * *Meet*: to watch a source that no list names, while its process is there. *Forgo*: to watch a source no
 * longer than that, since no list names it any more.
 *
 * Threads: one, a loop's. Nothing blocks, but for page faults. The caller owns it. A forked child has neither
 * mappings nor descriptors. */
#ifndef MEMORY_MAPPINGS_H
#define MEMORY_MAPPINGS_H

#include "memory/handover.h"

#define MAPPINGS_GONE_US 2000000ull /* of a source: until what it offered is let go */
#define MAPPINGS_RETRY_US 200000ull /* until a source is connected to again */
#define MAPPINGS_ASK_US 2000000ull  /* for an answer to a request */
#define MAPPINGS_UNUSED 10u         /* contents of its source that were taken while a region was not used */
#define MAPPINGS_REGIONS_MAX 256u
#define MAPPINGS_SOURCES_MAX 64u

typedef struct mappings mappings_t;
/* A note that came from a source. Called within mappings_turn. NOTE_GONE: the source has ended; no id. */
typedef void (*mappings_received_t)(void *self, const char *source, note_t note, const content_id_t *id);

/* `directory`: as in memory/handover.h, borrowed; NULL: abstract names. `received`: NULL for none.
 * NO_MEMORY. */
int mappings_new(const char *directory, mappings_received_t received, void *self, mappings_t **ret_mappings,
                 heddle_error_t *error);
/* What is held then belongs to its taker, which ends it by hold_destroy. Accepts NULL. */
void mappings_destroy(mappings_t **m);

/* Readable when there is something to do. */
int mappings_fd(const mappings_t *m);
/* Does a part of it: messages, and one step of mapping or unmapping. Returns mappings_deadline. */
uint64_t mappings_turn(mappings_t *m, uint64_t now_us);
/* When a turn is due at the latest: 0 after a call that changed what is to do, the time of the last turn
 * while there are more steps. */
uint64_t mappings_deadline(const mappings_t *m);

/* Watches a source by the name of its socket; again: nothing changes. LIMIT: there are
 * MAPPINGS_SOURCES_MAX. */
int mappings_watch(mappings_t *m, const char *source, uint64_t now_us, heddle_error_t *error);
/* It is not connected to again once it has ended, and no longer watched once what it offered is let go;
 * nothing changes while it is there. */
void mappings_forgo(mappings_t *m, const char *source);
/* Watched while its process is there, as by mappings_watch and mappings_forgo; nothing changes for one that
 * is watched. False: it is not connected now. */
bool mappings_meet(mappings_t *m, const char *source, uint64_t now_us);
/* GONE: it is not connected now. */
int mappings_tell(mappings_t *m, const char *source, note_t note, const content_id_t *id,
                  heddle_error_t *error);

/* A hold of this content. OK: *ret_hold is in `mapped` (memory/hold.h), and stays until mappings_give. AGAIN:
 * it is on its way; call again when the descriptor was readable, or after a turn. Else as hold_take and
 * handover_ask: this source does not hand it over; NOT_FOUND also where a later generation of its region was
 * asked for. An answer is that of `source`: another one that is named is asked in place of the one before.
 * LIMIT: MAPPINGS_REGIONS_MAX are held. USAGE: it is held already. */
int mappings_take(mappings_t *m, const char *source, const content_id_t *id, uint64_t now_us,
                  hold_t **ret_hold, heddle_error_t *error);
/* Ends the hold; the mapping may stay. */
void mappings_give(mappings_t *m, hold_t **hold);

/* Bytes that are mapped now, and of these held. */
typedef struct {
    uint64_t mapped_bytes, held_bytes;
    uint32_t mapped, held;
} mappings_count_t;
mappings_count_t mappings_count(const mappings_t *m);

#endif

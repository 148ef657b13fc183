/* SPDX-License-Identifier: Apache-2.0 */
/* memory/handover.h: how a region comes to another process of the host: as a descriptor over a unix socket.
 *
 *   source: handover_listen                        receiver: handover_ask
 *     connection: same user?         <-- connect --     same user?
 *     finds the region               <-- request --   content
 *     new read-only description,
 *     shared lock on it, header is
 *     still what was asked for?      --- answer -->   the description: hold_new, hold_take
 *     closes its descriptor
 *
 * The source may be the owner or a holder. It never sends its own description: a lock belongs to a
 * description, and the receiver would end the source's lock with its own. The receiver alone owns the hold on
 * what it gets, from the moment at which it is sent; if either process dies, the kernel ends it.
 *
 * The socket has a name, which reaches the receiver by other means. By default it is an abstract one, which
 * belongs to a network namespace; with a directory it is a file there, whatever the namespaces are
 * (containers). Such a directory must have mode 0700 and belong to this user: what can change it can answer
 * in place of the source. The files of processes that were killed are removed by the next one that listens.
 *
 * A request for a region has one message each way, and then the connection ends. With generation 0 it asks
 * for the region alone, to be mapped in advance: such a description comes without a lock.
 *
 * A connection that watches lasts:
 *
 *     connection: same user?         <-- watch -----  handover_watch
 *                                    --- list ----->  all regions that are offered, also after each change
 *                                    <-- notes ---->  memory/rounds.h: which process verifies a content
 *
 * A list replaces the list before, so nothing has to be repeated for a process that was away. A watcher that
 * reads nothing is disconnected when its socket is full, and connects again.
 *
 * Both sides check the other's user, as the user namespace of each shows it. Users that have no number in a
 * namespace all appear there under one number: such a user shares nothing. A peer can send what it likes, or
 * nothing: until its request each connection has a deadline, there are at most LIMIT_HANDOVERS of them and
 * LIMIT_WATCHERS that watch, and descriptors that were not asked for are closed.
 *
 * Threads: one, a loop's. Nothing blocks. */
#ifndef MEMORY_HANDOVER_H
#define MEMORY_HANDOVER_H

#include "core/limits.h"
#include "memory/hold.h"
#include "memory/rounds.h"

#define HANDOVER_NAME_MAX 64u
/* Until a connection must have made its request. */
#define HANDOVER_QUIET_US 2000000ull
/* Without a descriptor for a new connection: until it is tried again. */
#define HANDOVER_RETRY_US 100000ull
/* The file of a socket that is as old and refuses connections is removed; a younger one may be about to
 * listen. */
#define HANDOVER_STALE_S 10

/* Two processes reach each other, and so may hold each other's regions, if this number is the same in both.
 * Its upper 32 bits are those of the boot of the host. The others are those of that boot and of the directory
 * (as above), or, without one (NULL), of the network namespace and the user. 0: it is not known, and no other
 * process is reached. */
uint64_t handover_place(const char *directory);
/* PURE: that number, from what it is made of. */
#define HANDOVER_BOOT_BYTES 40u /* the boot's id, as the kernel says it; zeros behind it */
typedef struct {
    char kind[8]; /* "net" "dir" */
    uint64_t device, file, user;
} handover_way_t;
uint64_t handover_place_of(const char boot_id[HANDOVER_BOOT_BYTES], const handover_way_t *way);
/* DENIED: the user of this process has no number in its user namespace, so that the process cannot tell its
 * user from others; handover_listen, ask and watch refuse it, too. USAGE, DENIED, NO_MEMORY: why such a
 * directory is refused (NULL: none). */
int handover_check(const char *directory, heddle_error_t *error);

/* ---- the source ---- */

typedef struct handover handover_t;
/* The descriptor of a region that has this content, which stays the source's: of memory_region_hand_over or
 * hold_hand_on; for generation 0 of the region alone, of memory_region_offer. NOT_FOUND: there is none;
 * INTERNAL: the kernel refuses, and the asker's error says so. */
typedef int (*handover_find_t)(void *self, const content_id_t *id);

/* `name`: [A-Za-z0-9._-], at most HANDOVER_NAME_MAX. USAGE, or DENIED: the directory is not this user's
 * alone; ADDRESS_IN_USE: another process listens there; NO_SPACE: its file system is full; NO_MEMORY: no
 * descriptor is left; INTERNAL. */
int handover_listen(const char *directory, const char *name, handover_find_t find, void *self,
                    handover_t **ret_handover, heddle_error_t *error);
/* Its socket can be found by others: the file in the directory was not removed since. */
bool handover_is_there(const handover_t *h);
/* Readable when there is something to do. */
int handover_fd(const handover_t *h);
/* Does it. Returns when to call again at the latest; CLOCK_NEVER: when the descriptor is readable. */
uint64_t handover_turn(handover_t *h, uint64_t now_us);
/* Ends all connections, and removes the file of the socket. Accepts NULL. */
void handover_destroy(handover_t **h);

/* What is offered from now on, at most LIMIT_OFFERED: sent to all that watch. A region is withdrawn by a list
 * without it. */
void handover_offer(handover_t *h, const region_name_t *regions, uint32_t count);

/* `watcher`: a number below LIMIT_WATCHERS, of another process after NOTE_GONE. Called within
 * handover_turn. */
typedef void (*handover_received_t)(void *self, uint32_t watcher, note_t note, const content_id_t *id);
void handover_on_note(handover_t *h, handover_received_t received);
/* A watcher that cannot take it is disconnected: NOTE_GONE comes in the next turn. */
void handover_tell(handover_t *h, uint32_t watcher, note_t note, const content_id_t *id);

/* ---- the receiver ---- */

typedef struct handover_ask handover_ask_t;

/* Connects and asks. NOT_FOUND: no process listens there. DENIED: a process of another user does, or the
 * directory is not this user's alone. UNAVAILABLE: it has too many connections now. NO_MEMORY: no descriptor
 * is left. */
int handover_ask(const char *directory, const char *name, const content_id_t *id, uint64_t deadline_us,
                 handover_ask_t **ret_ask, heddle_error_t *error);
/* Readable when there is an answer. */
int handover_ask_fd(const handover_ask_t *a);
/* AGAIN: no answer yet. OK: a hold whose lock is taken, to be entered by hold_take. NOT_FOUND: the source has
 * not that content, or not any more. DEADLINE. GONE: the source ended. PROTOCOL: it sent something else.
 * DENIED, NO_MEMORY. All but AGAIN end the question: destroy it. */
int handover_ask_take(handover_ask_t *a, uint64_t now_us, hold_t **ret_hold, heddle_error_t *error);
/* Accepts NULL. */
void handover_ask_destroy(handover_ask_t **a);

typedef struct handover_watch handover_watch_t;
typedef struct {
    bool is_list;
    uint32_t count; /* of a list */
    region_name_t offered[LIMIT_OFFERED];
    note_t note; /* of a note */
    content_id_t id;
} watch_event_t;

/* Connects. Errors as handover_ask. */
int handover_watch(const char *directory, const char *name, handover_watch_t **ret_watch,
                   heddle_error_t *error);
/* Readable when there is an event. */
int handover_watch_fd(const handover_watch_t *w);
/* OK: an event. AGAIN: none yet. GONE: the source has ended, or has disconnected this process; or it has too
 * many watchers. PROTOCOL: it sent something else. After the last two: destroy it. */
int handover_watch_take(handover_watch_t *w, watch_event_t *ret_event, heddle_error_t *error);
/* GONE: as above. */
int handover_watch_tell(handover_watch_t *w, note_t note, const content_id_t *id, heddle_error_t *error);
/* Accepts NULL. */
void handover_watch_destroy(handover_watch_t **w);

#endif

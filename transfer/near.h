/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/near.h: memory that processes of one host read from each other: one copy in place of four.
 *
 *   source     board   | proof | pin | pin | ...          a memfd of a few pages
 *              region  | bytes ...                        a memfd (transfer/region.h)
 *   receiver   read-only mappings of both, through /proc/PID/fd
 *
 * The kernel decides who may: the same user, in the same PID namespace (what a debugger may read).  The
 * proof shows that the process of that number is the one that told it.  Host, PID namespace and network
 * namespace must be the same: processes with networks of their own are hosts of their own, whose traffic is
 * to be seen, counted and limited there.
 *
 * What a pin covers: a connection.  It holds the connection's line from when that is made until one of its
 * ends gives it up, and is cleared before anything lent on it is written again.  Who copied looks at the
 * pin afterwards, so bytes copied for a connection that had ended by then never count.
 *
 * What it does not cover: a single loan.  While the connection lives, a region stays as it was only because
 * its source waits for TAKEN of every loan of it.  Bytes copied under a
 * loan that the receiver itself had called taken, or by a source that writes into what it lent, pass the
 * pin: the chunk's digest is what finds those (worker/download.h), as it does for bytes that travel.
 *
 * What is mapped cannot shrink (sealed) and is tmpfs, so that reading it raises no signal.  A region that
 * its source gave up stays mapped, without pages (transfer/region.h), until NEAR_MAPS others were used
 * after it.  Of one source no more is mapped than LIMIT_REGION_BYTES, whatever sizes it tells.
 *
 * One thread, which a crew helps to copy.  Nothing blocks but for page faults. */
#ifndef TRANSFER_NEAR_H
#define TRANSFER_NEAR_H

#include "core/crew.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEAR_PINS 1024u
#define NEAR_MAPS 8u /* regions of one source that stay mapped */

/* Ours.  Zeroed: closed (fd counts only where there are words). */
typedef struct {
    int fd;
    _Atomic uint64_t *words;
} near_board_t;
/* How to find it, as an address says it. */
typedef struct {
    uint64_t host, process, board, proof;
} near_id_t;
/* A range of a region that may be read while `pin` of the board holds `line`. */
typedef struct {
    uint64_t file, offset, line;
    uint32_t fd, pin, bytes;
} near_loan_t;

bool near_board_open(near_board_t *b);
void near_board_close(near_board_t *b);
/* All zero for a closed one: nobody finds it. */
near_id_t near_board_id(const near_board_t *b);
/* Number of a pin that holds `line` now; 0: none is free. */
uint32_t near_pin(near_board_t *b, uint64_t line);
/* What is written after this is not seen by who still finds the pin as it was.  0: nothing. */
void near_unpin(near_board_t *b, uint32_t pin);
/* The file of a region, as loans name it; 0: it has none. */
uint64_t near_file(int fd);

/* Another's. */
typedef struct near_view near_view_t;
/* NULL when it may not be read, or is not who it says. */
near_view_t *near_view_open(const near_id_t *who);
void near_view_close(near_view_t **view);
/* UNREADABLE: it cannot be mapped, or is out of range, or comes after one that is; the bytes may still
 * travel.  ENDED: the source has given up the connection.  In both cases what lies in `into` is nothing. */
typedef enum { NEAR_COPIED, NEAR_UNREADABLE, NEAR_ENDED } near_result_t;
typedef struct {
    near_loan_t loan;
    void *into;
    uint64_t *leaves;    /* of what lies there (core/digest.h), in the same pass; NULL: not wanted */
    const uint8_t *from; /* near_copy's own */
    near_result_t result;
} near_copy_t;
/* Loans of one region, into places apart from each other; with the crew's help (NULL: alone). */
void near_copy(near_view_t *view, near_copy_t *copies, uint32_t count, crew_t *crew);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/writer.h (PURE): which session may write to an adapter, at OPEN and at each PUBLISH.  One
 * at a time: a live writer keeps the adapter, except against its own process and against a takeover.
 *
 *   closed   OPEN                            -> open
 *   open     OPEN of the same process, takeover, or the holder is not live   -> open, for the new session
 *   open     OPEN of another process         -> WRITER_HELD
 *   open     the session ended               -> closed
 *   any      PUBLISH of another session      -> FENCED, PROTOCOL
 *
 * Reads the registry, and adds WRITER records to an outbox.  One thread, nothing blocks. */
#ifndef BROKER_WRITER_H
#define BROKER_WRITER_H

#include "broker/registry/registry.h"

/* OPEN: which process asks, and how the present writer stands (soft state that membership knows). */
typedef struct {
    uint64_t token, pid;
    const char *host;
    key16_t life;
    bool holder_is_live;
    bool is_of_before;         /* it opened before the broker's start, and sent no message since */
    uint64_t heartbeat_age_ms; /* or of that start */
} open_by_t;
/* May it?  LIMIT · UNSUPPORTED_FEATURE (another kind than the adapter's) · WRITER_HELD; by->token is not
 * looked at. */
int writer_check_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, heddle_error_t *error);
/* The same, and records ADAPTER? WRITER. */
int writer_decide_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, instant_t now,
                       outbox_t *out, heddle_error_t *error);
/* The session has opened the adapter and no other has taken it since.  `a` NULL: it was never opened. */
bool writer_is_session(const adapter_row_t *a, uint64_t token);
/* PUBLISH to `adapter`, whose row is `a`: may the session write it?  PROTOCOL: it did not open the adapter.
 * FENCED, without a text: the session has ended (token 0). */
int writer_check_publish(const adapter_row_t *a, uint64_t token, const char *adapter, heddle_error_t *error);
/* Closes the adapter's writer: record WRITER with token 0; and ADAPTER_DROP where nothing was published: its
 * name was mistyped, or its publisher failed before a first version, and would be listed for ever. */
void writer_decide_close(const adapter_row_t *a, instant_t now, outbox_t *out);

#endif

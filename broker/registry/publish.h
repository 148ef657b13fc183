/* SPDX-License-Identifier: Apache-2.0 */
/* broker/registry/publish.h (PURE): may this version be published?  Reads the registry, and adds the VERSION
 * record and the answer to an outbox.
 *
 * A request id stands for one version for as long as that version is listed: a repetition gets the same
 * answer, other bytes under the same id are refused.  The id is free again where its version failed because
 * its publisher ended.  One thread, nothing blocks. */
#ifndef BROKER_PUBLISH_H
#define BROKER_PUBLISH_H

#include "broker/registry/registry.h"

/* PUBLISH by the adapter's writer (writer_check_publish), with the newest live version
 * (track_newest_live, because which processes have its bytes is soft state). Answered first: an exact
 * replay of a request id (created=false "replayed"), then the same id with other bytes (REQUEST_CONFLICT);
 * the id is free where its version failed because its publisher ended (VERSION_LOST). Then
 * UNSUPPORTED_FEATURE (another kind than the adapter's), STEP_BACK,
 * UNCHANGED (UNAVAILABLE, retriable, while it is not known yet whether the same bytes are lost; OK where the
 * live version would be lost without these bytes: they complete it, created=false "unchanged"), and
 * UNAVAILABLE, not retriable, where no worker can reach the writer. On OK: records VERSION
 * STATE(superseded, of what waited)? and PUBLISHED to `peer`; *ret_published: the version that stands for
 * it, and whether it is new. */
typedef struct {
    instant_t now;
    const adapter_row_t *adapter; /* NULL: never opened */
    uint64_t peer;
    uint64_t token;     /* of the session that publishes; 0: it has ended */
    const char *writer; /* its name */
    key16_t share_key;
    const version_row_t *live;      /* what UNCHANGED compares with; NULL: nothing, each is new */
    bool is_live_whole;             /* a process has all of its bytes (track_is_whole) */
    const version_row_t *uncertain; /* after a start: of the same bytes (track_uncertain); NULL: none */
    const char *held;               /* summary_held_text; NULL: the adapter is not held */
    uint64_t held_version;          /* at which it is */
    size_t cut_off_count;           /* membership_cut_off: a new version would reach none of them */
    const char *addresses;          /* the writer's, for the refusal */
} publish_by_t;
typedef struct {
    uint64_t version;
    bool is_new;
} publish_answer_t;
int publish_decide(const msg_publish_t *m, const publish_by_t *by, outbox_t *out,
                   publish_answer_t *ret_published, heddle_error_t *error);

#endif

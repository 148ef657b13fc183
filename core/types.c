/* SPDX-License-Identifier: Apache-2.0 */
#include <heddle/types.h>
#include <heddle/version.h>

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bits;
} DTYPES[] = {
#define X(NAME, bits) {#NAME, bits},
    HEDDLE_DTYPES(X)
#undef X
};

const char *heddle_version(void) { return HEDDLE_VERSION; }
const char *heddle_dtype_name(int dtype)
{
    return dtype >= 0 && dtype < HEDDLE_DTYPE_COUNT ? DTYPES[dtype].name : NULL;
}
uint32_t heddle_dtype_bits(int dtype)
{
    return dtype >= 0 && dtype < HEDDLE_DTYPE_COUNT ? DTYPES[dtype].bits : 0;
}

int heddle_dtype_from_name(const char *name)
{
    for (int i = 0; name && i < HEDDLE_DTYPE_COUNT; i++)
        if (!strcmp(DTYPES[i].name, name)) return i;
    return -1;
}

/* These names are what `heddle events` and the log print, so that one word finds both. */
const char *heddle_event_name(int type)
{
    static const char *const NAMES[] = {
        [HEDDLE_EVENT_JOINED] = "worker.joined",      [HEDDLE_EVENT_LOST_BROKER] = "broker.lost",
        [HEDDLE_EVENT_REFUSED] = "worker.refused",    [HEDDLE_EVENT_FETCHING] = "stage.started",
        [HEDDLE_EVENT_ARRIVED] = "version.arrived",   [HEDDLE_EVENT_STAGED] = "stage.done",
        [HEDDLE_EVENT_COMMIT] = "version.commit",     [HEDDLE_EVENT_ACTIVE] = "activate.done",
        [HEDDLE_EVENT_STALE] = "activate.failed",     [HEDDLE_EVENT_FAILED] = "stage.failed",
        [HEDDLE_EVENT_RETIRED] = "version.retired",   [HEDDLE_EVENT_VERIFY] = "version.verify",
        [HEDDLE_EVENT_FENCED] = "worker.fenced",      [HEDDLE_EVENT_LEFT] = "worker.left",
        [HEDDLE_EVENT_PROGRESS] = "version.progress", [HEDDLE_EVENT_ROLLOUT] = "version.rollout",
        [HEDDLE_EVENT_RELEASED] = "version.released", [HEDDLE_EVENT_DRAINING] = "worker.draining",
        [HEDDLE_EVENT_STAYING] = "worker.staying",
    };
    return type > 0 && type < (int)(sizeof NAMES / sizeof *NAMES) ? NAMES[type] : "unknown";
}

void heddle_free(void *text) { free(text); }

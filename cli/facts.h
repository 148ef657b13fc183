/* SPDX-License-Identifier: Apache-2.0 */
/* cli/facts.h: what there is on this host and at the broker, as plain facts; what they mean is for
 * cli/diagnosis.h.
 *
 *   {"host","heddle","ucx":{},"data":{},"memory":{},"limits":{},"network":{},"key":{},
 *    "broker":{},"clock":{},"workers":[],"listen":{},"disks":[],"invitation":{}}
 *
 * A part that was not examined is null.  One that failed has "error", as every answer has it; docs/json.md
 * has all fields.
 *
 * Main thread; blocks for the broker at most so long as common->timeout_ms says, for each of its questions,
 * and as long again for workers that do not answer. */
#ifndef CLI_FACTS_H
#define CLI_FACTS_H

#include "cli/cli.h"

typedef struct {
    common_t common;
    const char *data_device, *host_share; /* as of a worker; NULL: not given */
    const char *listen, *data, *export_dir;
    bool insecure;
} facts_opts_t;

/* The caller owns what it returns.  NULL where the command was interrupted, or has no memory:
 * heddle_last_error() says which. */
json_t *facts_gather(const facts_opts_t *given);

#endif

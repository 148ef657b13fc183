/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/step.h (PURE): what one step of the rollouts reads, and where what follows from it goes: to
 * the soft state of the rollouts, to the events, and to the outbox.  A step lasts as long as one event, and
 * owns nothing.  One thread. */
#ifndef BROKER_STEP_H
#define BROKER_STEP_H

#include "broker/events.h"
#include "broker/rollout/track.h"

/* What is only read. */
typedef struct {
    const registry_t *registry;
    const membership_t *members;
    instant_t now;
} view_t;

typedef struct {
    rollout_t *ro;
    view_t v;
    events_t *ev;
    outbox_t *out;
} step_t;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "client/sharing.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(SHARING_NAME_BYTES <= HANDOVER_NAME_MAX + 1, "a name of a socket");
_Static_assert(sizeof(key16_t) == MEMORY_IDENTITY_BYTES, "messages name regions whole");

struct sharing {
    char *directory; /* NULL: none */
    uint64_t place;
    offer_t *offer;
    mappings_t *mappings;
    bool is_readable;                    /* since the last turn */
    key16_t peers[MAPPINGS_SOURCES_MAX]; /* that are watched */
    uint32_t peer_count;
};

/* ---- names ---- */

const char *sharing_name(const key16_t *life, char scratch[SHARING_NAME_BYTES])
{
    static const char DIGITS[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof life->b; i++) {
        scratch[2 * i] = DIGITS[life->b[i] >> 4];
        scratch[2 * i + 1] = DIGITS[life->b[i] & 15];
    }
    scratch[2 * sizeof life->b] = 0;
    return scratch;
}

content_id_t sharing_content(const msg_region_t *region, const digest_t *manifest)
{
    content_id_t id = {.generation = region->generation, .manifest = *manifest};
    memcpy(id.identity, region->identity.b, sizeof id.identity);
    return id;
}

msg_region_t sharing_region(const content_id_t *content)
{
    msg_region_t region = {.generation = content->generation};
    memcpy(region.identity.b, content->identity, sizeof content->identity);
    return region;
}

/* ---- made and closed ---- */

int sharing_new(const sharing_opts_t *opts, sharing_t **ret_sharing, heddle_error_t *error)
{
    char name[SHARING_NAME_BYTES];
    sharing_t *s = calloc(1, sizeof *s);
    if (s && opts->directory) s->directory = strdup(opts->directory);
    if (!s || (opts->directory && !s->directory)) {
        free(s);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to share versions with this host");
    }
    offer_opts_t offer = {.directory = s->directory,
                          .name = sharing_name(&opts->life, name),
                          .pool = opts->pool};
    int rc = handover_check(s->directory, error);
    if (!rc && opts->pool) rc = offer_new(&offer, &s->offer, error);
    if (!rc) rc = mappings_new(s->directory, opts->received, opts->self, &s->mappings, error);
    if (!rc && !(s->place = handover_place(s->directory)))
        rc = error_fail(error, HEDDLE_ERR_INTERNAL,
                        "it is not known which processes of this host can be reached: /proc cannot be read");
    if (rc) sharing_close(&s);
    else *ret_sharing = s;
    return rc;
}

void sharing_close(sharing_t **sharing)
{
    sharing_t *s = sharing ? *sharing : NULL;
    if (!s) return;
    *sharing = NULL;
    mappings_destroy(&s->mappings);
    offer_destroy(&s->offer);
    free(s->directory);
    free(s);
}

uint64_t sharing_place(const sharing_t *s) { return s->place; }
bool sharing_is_there(const sharing_t *s) { return !s->offer || offer_is_there(s->offer); }
offer_t *sharing_offer(sharing_t *s) { return s->offer; }
mappings_t *sharing_mappings(sharing_t *s) { return s->mappings; }

void sharing_fds(const sharing_t *s, int ret_fds[SHARING_FDS])
{
    ret_fds[0] = s->offer ? offer_fd(s->offer) : -1;
    ret_fds[1] = mappings_fd(s->mappings);
}

void sharing_readable(sharing_t *s)
{
    if (s) s->is_readable = true;
}

static uint64_t deadline(const sharing_t *s)
{
    uint64_t due_us = s->offer ? offer_deadline(s->offer) : CLOCK_NEVER;
    return clock_earlier(due_us, mappings_deadline(s->mappings));
}

uint64_t sharing_turn(sharing_t *s, uint64_t now_us)
{
    if (!s->is_readable && now_us < deadline(s)) return deadline(s);
    s->is_readable = false;
    if (s->offer) (void)offer_turn(s->offer, now_us);
    (void)mappings_turn(s->mappings, now_us);
    return deadline(s);
}

/* ---- peers ---- */

static bool has(const msg_peer_t *peers, uint32_t count, const key16_t *life)
{
    for (uint32_t i = 0; i < count; i++)
        if (!memcmp(&peers[i].life, life, sizeof *life)) return true;
    return false;
}

/* A publisher that lost its session is listed no more, and comes back under another one: its regions stay
 * mapped meanwhile. */
void sharing_peers(sharing_t *s, const msg_peer_t *peers, uint32_t count, uint64_t now_us)
{
    char name[SHARING_NAME_BYTES];
    for (uint32_t i = 0; i < s->peer_count; i++)
        if (!has(peers, count, &s->peers[i])) mappings_forgo(s->mappings, sharing_name(&s->peers[i], name));
    s->peer_count = 0;
    for (uint32_t i = 0; i < count && s->peer_count < MAPPINGS_SOURCES_MAX; i++)
        if (mappings_watch(s->mappings, sharing_name(&peers[i].life, name), now_us, NULL) == HEDDLE_OK)
            s->peers[s->peer_count++] = peers[i].life;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a hold offers, and what heddle_worker_open refuses before it starts anything. */
#include "core/errors.h"
#include "tests/unit/worker_arena.h"
#include "worker/slots.h"

#include <criterion/criterion.h>

static void nothing(void *self) { (void)self; }
static int map(void *self, region_t *r) { (void)self; (void)r; return HEDDLE_OK; }
static void unmap(void *self, region_t *r) { (void)self; (void)r; }

static slots_t *slots;
static test_arena_t arena;

static heddle_snapshot_t *snapshot(void)
{
    static const char *const NAMES[] = {"policy"};
    slot_t *slot = NULL, *held = NULL;
    manifest_t m;
    arena = arena_make(5, 12, 100);
    cr_assert_eq(slots_new(NAMES, 1, &(slots_ops_t){.wake = nothing, .map = map, .unmap = unmap}, &slots),
                 HEDDLE_OK);
    cr_assert_eq(slots_reserve(slots, 0, 0, arena.arena_bytes, &slot, NULL), HEDDLE_OK);
    memcpy(slot->region->base, arena.bytes, arena.arena_bytes);
    cr_assert_eq(
        manifest_decode(bytes_of((const uint8_t *)slot->region->view + manifest_offset(arena.region_bytes),
                                 arena.manifest_bytes),
                        &m, NULL),
        HEDDLE_OK);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = 5, .h1 = arena.h1, .step = 3, .manifest = &m}),
                 HEDDLE_OK);
    cr_assert_eq(slots_acquire(slots, 0, 5, &held), HEDDLE_OK);
    return held;
}

static void end(heddle_snapshot_t *s)
{
    heddle_snapshot_release(&s);
    heddle_snapshot_release(&s);
    heddle_snapshot_release(NULL);
    slots_close(&slots);
    free(arena.bytes);
}

Test(snapshot, tensors_in_order_of_name_with_their_bytes)
{
    heddle_snapshot_t *s = snapshot();
    char before[200] = "";
    for (uint32_t i = 0; i < heddle_snapshot_manifest(s)->tensor_count; i++) {
        heddle_tensor_t t = {0};
        cr_assert_eq(heddle_snapshot_tensor(s, i, &t), HEDDLE_OK);
        cr_assert_gt(strcmp(t.name, before), 0);
        snprintf(before, sizeof before, "%s", t.name);
        cr_assert(t.size == sizeof t && t.dtype == HEDDLE_DTYPE_F32 && t.ndim == 2 && t.dims[0] == 100 &&
                  t.dims[1] == 16 && t.data_bytes == 6400);
        uint64_t offset = (uint64_t)((const uint8_t *)t.data - (const uint8_t *)s->region->view);
        cr_assert_eq(offset % 4096, 0);
        for (uint64_t b = 0; b < t.data_bytes; b += 97)
            cr_assert_eq(((const uint8_t *)t.data)[b], arena_byte(5, offset + b));
    }
    heddle_tensor_t t;
    cr_assert_eq(heddle_snapshot_tensor(s, 12, &t), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(heddle_last_error()->expected, "0 to 11");
    end(s);
}

Test(snapshot, digest_is_of_the_bytes_as_they_are)
{
    heddle_snapshot_t *s = snapshot();
    char text[HEDDLE_DIGEST_TEXT];
    cr_assert_eq(heddle_snapshot_digest(s, text), HEDDLE_OK);
    cr_assert_str_eq(text, heddle_snapshot_manifest(s)->digest);
    ((uint8_t *)s->region->base)[9000] ^= 4;
    cr_assert_eq(heddle_snapshot_digest(s, text), HEDDLE_OK);
    cr_assert_str_neq(text, heddle_snapshot_manifest(s)->digest);
    end(s);
}

static int open_with(heddle_worker_opts_t opts, size_t size)
{
    heddle_worker_t *w = NULL;
    opts.size = size;
    int rc = heddle_worker_open(&opts, &w);
    cr_assert_null(w);
    cr_assert_eq(heddle_last_error()->code, rc);
    cr_assert(heddle_last_error()->message[0] != 0);
    return rc;
}

Test(worker, wrong_options_are_refused)
{
    static const char *const ONE[] = {"policy", NULL}, *const TWICE[] = {"a", "b", "a", NULL},
                             *const BAD[] = {"..", NULL}, *const NONE[] = {NULL};
    static const char *const LABEL[] = {"no-equals", NULL};
    const char *many[300], *labels[50];
    char names[300][16];
    for (int i = 0; i < 299; i++) {
        snprintf(names[i], sizeof names[i], "a%d", i);
        many[i] = names[i];
    }
    many[299] = NULL;
    for (int i = 0; i < 49; i++) labels[i] = "k=v";
    labels[49] = NULL;
    size_t all = sizeof(heddle_worker_opts_t);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE}, 0), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE}, all + 8), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){0}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = NONE}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = TWICE}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = many}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = BAD}, all), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .name = "a/b"}, all), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .labels = LABEL}, all),
                 HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .labels = labels}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .slots = 65}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .apply = 2}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .join_timeout_ms = -1}, all),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .broker = "tcp://10.1.2.3:7700"}, all),
                 HEDDLE_ERR_INSECURE_ADDRESS);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .broker = "nonsense"}, all),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_open(NULL, NULL), HEDDLE_ERR_USAGE);
    heddle_worker_close(NULL);
    heddle_worker_t *none = NULL;
    heddle_worker_close(&none);
}

/* The broker may be away, also at start. */
Test(worker, opens_without_a_broker_and_closes_at_once)
{
    static const char *const ONE[] = {"policy", NULL};
    heddle_worker_opts_t opts = {
        .size = sizeof opts, .adapters = ONE, .broker = "tcp://127.0.0.1:1", .name = "w1"};
    heddle_worker_t *w = NULL;
    heddle_event_t event;
    heddle_snapshot_t *s = NULL;
    char *text = NULL;
    cr_assert_eq(heddle_worker_open(&opts, &w), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_eq(heddle_worker_next_event(w, 0, &event), HEDDLE_ERR_AGAIN);
    heddle_worker_interrupt(w);
    cr_assert_eq(heddle_worker_next_event(w, -1, &event), HEDDLE_ERR_INTERRUPTED);
    cr_assert_eq(heddle_worker_acquire(w, "policy", 0, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_acquire(w, "policy", 3, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_acquire(w, "other", 0, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_null(s);
    cr_assert_eq(heddle_worker_staged(w, "policy", 1), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_activate(w, "policy", 1), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_reject(w, "policy", 1, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_verified(w, "policy", 1, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_verified(w, "policy", 1, "h1:xx"), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_transport(w, &text), HEDDLE_OK);
    cr_assert(strstr(text, "\"backend\":\"ucx\"") && strstr(text, "\"devices\":[\"lo\"]"));
    heddle_free(text);
    cr_assert_eq(heddle_worker_stats(w, &text), HEDDLE_OK);
    cr_assert_str_eq(text, "{\"bytes_in\":0,\"bytes_out\":0,\"chunks_bad\":0,\"retries\":0,\"fenced\":0}");
    heddle_free(text);
    heddle_worker_close(&w);
    cr_assert_null(w);
}

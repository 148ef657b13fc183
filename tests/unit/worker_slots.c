/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: states, holds, warm reuse, and what outlives close. */
#include "core/errors.h"
#include "tests/unit/other_thread.h"
#include "tests/unit/worker_content.h"
#include "tests/unit/worker_slot.h"
#include "worker/slots.h"

#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int wakes;
static void wake(void *self)
{
    (void)self;
    wakes++;
}
static const slots_ops_t OPS = {.io = &SLOT_IO, .wake = wake};

static slots_t *table(void)
{
    static const char *const NAMES[] = {"policy", "critic", "a", "tenant-42"};
    slots_t *s = NULL;
    cr_assert_eq(slots_new(NAMES, 4, &OPS, &s), HEDDLE_OK);
    return s;
}

/* Whole. */
static slot_t *take(slots_t *s, uint32_t adapter, uint32_t index, uint64_t bytes)
{
    slot_t *slot = NULL;
    int rc;
    while ((rc = slot_take(s, adapter, index, bytes, &slot, NULL)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK);
    return slot;
}

static slot_t *seal(slots_t *s, uint32_t index, uint64_t version)
{
    test_content_t a = content_make(version, 4, 100);
    slot_t *slot = take(s, 0, index, a.content_bytes);
    memcpy(slot->parts[0].region->base, a.bytes, a.content_bytes);
    manifest_t m;
    bytes_t encoded = bytes_of(
        (const uint8_t *)slot->parts[0].region->view + manifest_offset(a.payload_bytes), a.manifest_bytes);
    cr_assert_eq(manifest_decode(encoded, &m, NULL), HEDDLE_OK);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = version, .h1 = a.h1, .step = 100, .manifest = &m}),
                 HEDDLE_OK);
    free(a.bytes);
    return slot;
}

static void close_table(slots_t **s)
{
    slots_unmap_all(*s);
    slots_close(s);
}

Test(slots, adapters_are_found_by_name)
{
    slots_t *s = table();
    cr_assert_eq(slots_find(s, "policy"), 0);
    cr_assert_eq(slots_find(s, "critic"), 1);
    cr_assert_eq(slots_find(s, "a"), 2);
    cr_assert_eq(slots_find(s, "tenant-42"), 3);
    cr_assert_eq(slots_find(s, ""), -1);
    cr_assert_eq(slots_find(s, "zzz"), -1);
    cr_assert_str_eq(slots_adapter(s, 3), "tenant-42");
    close_table(&s);
    cr_assert_null(s);
    slots_close(&s);
    slots_close(NULL);
}

Test(slots, nothing_to_acquire_before_a_seal)
{
    slots_t *s = table();
    slot_t *held = NULL, *slot = NULL;
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(slot_take(s, 0, 0, 5000, &slot, NULL), HEDDLE_OK);
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(slots_acquire(s, 0, 7, &held), HEDDLE_ERR_NOT_FOUND);
    cr_assert_null(held);
    close_table(&s);
}

Test(slots, states_in_order)
{
    slots_t *s = table();
    slot_t *held = NULL, *one = seal(s, 0, 1), *two;
    cr_assert_eq(one->state, SLOT_SEALED);
    cr_assert_eq(slots_acquire(s, 0, 1, &held), HEDDLE_OK); /* by version, before it is active */
    slot_release(&held);
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_ERR_NOT_FOUND);
    cr_assert_null(slots_active(s, 0));
    slots_activate(s, one);
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_OK);
    cr_assert_eq(held, one);
    two = seal(s, 1, 2);
    cr_assert_eq(slots_active(s, 0), one);
    slots_activate(s, two);
    cr_assert(one->state == SLOT_SEALED && two->state == SLOT_SEALED && slots_active(s, 0) == two);
    cr_assert_eq(slot_readers(one), 1);
    slots_activate(s, two); /* again: nothing changes */
    cr_assert(one->state == SLOT_SEALED && two->state == SLOT_SEALED && slots_active(s, 0) == two);
    slot_release(&held);
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_OK);
    cr_assert_eq(held->view.version, 2);
    slot_release(&held);
    slots_activate(s, one); /* a rollback */
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_OK);
    cr_assert_eq(held->view.version, 1);
    slot_release(&held);
    close_table(&s);
}

Test(slots, view_tells_all)
{
    slots_t *s = table();
    slot_t *slot = seal(s, 0, 3);
    test_content_t a = content_make(3, 4, 100);
    char text[HEDDLE_DIGEST_TEXT];
    digest_text(&a.h1, text);
    cr_assert_str_eq(slot->view.digest, text);
    cr_assert_eq(strncmp(slot->view.tag, "policy@3:", 9), 0);
    cr_assert_str_eq(slot->view.adapter, "policy");
    cr_assert(slot->view.version == 3 && slot->view.step == 100 && slot->view.tensor_count == 4);
    cr_assert_eq(slot->view.data_bytes, 4 * 100 * 16 * 4);
    cr_assert(slot->view.config_bytes == strlen(CONTENT_CONFIG) &&
              !memcmp(slot->view.config, CONTENT_CONFIG, strlen(CONTENT_CONFIG)));
    cr_assert_str_eq(slot->names + slot->name_starts[1],
                     "base_model.model.layers.0.self_attn.q_proj.lora_B.weight");
    cr_assert(slot->dims[slot->parts[0].manifest.dim_starts[3]] == 100 &&
              slot->dims[slot->parts[0].manifest.dim_starts[3] + 1] == 16);
    free(a.bytes);
    close_table(&s);
}

Test(slots, dropped_slot_is_closed_to_new_readers_and_waits_for_the_old)
{
    slots_t *s = table();
    slot_t *a = NULL, *b = NULL, *c = NULL, *one = seal(s, 0, 1);
    slots_acquire(s, 0, 1, &a);
    slots_acquire(s, 0, 1, &b);
    slot_drop(one, 42);
    cr_assert(one->state == SLOT_LEAVING && one->leaving_us == 42);
    cr_assert_eq(slots_acquire(s, 0, 1, &c), HEDDLE_ERR_NOT_FOUND);
    cr_assert_not(slot_is_unread(one));
    slot_free(one); /* refused: it is read */
    cr_assert_eq(one->state, SLOT_LEAVING);
    cr_assert_eq(slot_take(s, 0, 0, 100, &c, NULL), HEDDLE_ERR_NO_SLOT);
    cr_assert_eq(((const uint8_t *)a->parts[0].region->view)[10], content_byte(1, 10));
    wakes = 0;
    slot_release(&a);
    cr_assert_eq(wakes, 0);
    slot_release(&b);
    cr_assert_eq(wakes, 1); /* the last one tells */
    cr_assert(slot_is_unread(one));
    slot_free(one);
    cr_assert_eq(one->state, SLOT_FREE);
    close_table(&s);
}

Test(slots, release_of_a_slot_that_nobody_wants_is_silent)
{
    slots_t *s = table();
    slot_t *held = NULL;
    slots_activate(s, seal(s, 0, 1));
    wakes = 0;
    slots_acquire(s, 0, 0, &held);
    slot_release(&held);
    slot_release(&held);
    slot_release(NULL);
    cr_assert_eq(wakes, 0);
    close_table(&s);
}

Test(slots, active_slot_cannot_be_dropped)
{
    slots_t *s = table();
    slot_t *one = seal(s, 0, 1), *held = NULL;
    slots_activate(s, one);
    slot_drop(one, 1);
    cr_assert(one->state == SLOT_SEALED && slots_active(s, 0) == one);
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_OK);
    slot_release(&held);
    close_table(&s);
}

Test(slots, memory_is_reused_while_it_is_large_enough)
{
    slots_t *s = table();
    slot_maps = slot_unmaps = 0;
    slot_t *slot = seal(s, 0, 1);
    const region_t *region = slot->parts[0].region;
    for (uint64_t v = 2; v < 50; v++) {
        slot_drop(slot, 0);
        slot_free(slot);
        cr_assert_null(slot->parts[0].region);
        cr_assert_eq(seal(s, 0, v), slot);
        cr_assert_eq(slot->parts[0].region, region);
    }
    cr_assert(slot_maps == 1 && slot_unmaps == 0);
    uint64_t more = region->bytes + 1;
    slot_drop(slot, 0);
    slot_free(slot);
    take(s, 0, 0, more);
    cr_assert(slot_maps == 2 && slot_unmaps == 0, "the smaller one is ahead of the next");
    close_table(&s);
    cr_assert_eq(slot_unmaps, 2);
}

Test(slots, adapters_share_what_is_free)
{
    slots_t *s = table();
    slot_maps = 0;
    for (uint32_t adapter = 0; adapter < 4; adapter++) {
        slot_t *slot = take(s, adapter, 0, 5000);
        slot_drop(slot, 0);
        slot_free(slot);
    }
    cr_assert_eq(slot_maps, 1);
    close_table(&s);
}

/* Until nothing is left to do at this time. Returns when there is more. */
static uint64_t work(slots_t *s, uint64_t now_us)
{
    for (int i = 0; slots_work(s, now_us); i++) cr_assert_lt(i, 1000);
    return slots_deadline(s);
}

Test(slots, one_of_the_size_of_what_is_held_is_kept_ahead)
{
    enum { LARGE = 8u << 20, SMALL = 2u << 20 };
    uint64_t now_us = 1;
    slots_t *s = table();
    cr_assert_eq(work(s, now_us), CLOCK_NEVER);
    slot_unmaps = 0;
    take(s, 0, 0, SMALL);
    for (uint32_t i = 1; i < 4; i++) take(s, 0, i, i == 3 ? LARGE : SMALL);
    cr_assert_eq(work(s, now_us), CLOCK_NEVER, "all are in use, and none is made ahead");
    for (uint32_t i = 1; i < 4; i++) slot_drop(slots_at(s, 0, i), 0);
    cr_assert_eq(work(s, now_us), CLOCK_NEVER, "what is leaving may still be read");
    for (uint32_t i = 1; i < 4; i++) slot_free(slots_at(s, 0, i));
    cr_assert_eq(work(s, now_us), now_us + POOL_SURPLUS_US);
    for (int i = 0; i < 3; i++) work(s, now_us += POOL_SURPLUS_US);
    cr_assert_eq(slot_unmaps, 2, "one that fits what is held stays");
    cr_assert_eq(work(s, now_us), CLOCK_NEVER);
    slot_maps = 0;
    take(s, 0, 1, SMALL);
    cr_assert_eq(slot_maps, 0);
    close_table(&s);
}

/* Begun for a version that was aborted meanwhile. */
Test(slots, memory_in_the_making_is_used_on)
{
    enum { LARGE = 8u << 20 };
    slots_t *s = table();
    slot_t *slot = NULL;
    slot_maps = 0;
    cr_assert_eq(slot_take(s, 0, 0, LARGE, &slot, NULL), HEDDLE_ERR_AGAIN);
    slot = slots_at(s, 0, 0);
    slot_drop(slot, 0);
    slot_free(slot);
    uint32_t pieces = 1;
    while (slot_take(s, 1, 0, LARGE, &slot, NULL) == HEDDLE_ERR_AGAIN) pieces++;
    cr_assert_eq(pieces, LARGE / MEMORY_STEP_BYTES - 1, "the memory comes with the last one");
    cr_assert(slot->parts[0].region->own->made_bytes == slot->parts[0].region->bytes && slot_maps == 1);
    memset(slot->parts[0].region->base, 7, LARGE);
    cr_assert_eq(((const uint8_t *)slot->parts[0].region->view)[LARGE - 1], 7);
    close_table(&s);
}

/* Another version with the content of `from`. */
static slot_t *adopt(slots_t *s, const slot_t *from, uint32_t index, uint64_t version)
{
    slot_t *slot = slots_at(s, 0, index);
    int rc = HEDDLE_OK;
    if (!slot || slot->state != SLOT_MAKING) rc = slots_begin(s, 0, index, &slot, NULL);
    cr_assert_eq(rc, HEDDLE_OK);
    cr_assert_eq(slot_adopt(slot, from->parts[0].region), HEDDLE_OK);
    cr_assert(slot->parts[0].region == from->parts[0].region && slot->parts[0].is_adopted &&
              slot->state == SLOT_RESERVED);
    test_content_t a = content_make(from->view.version, 4, 100);
    manifest_t m;
    const uint8_t *encoded = (const uint8_t *)slot->parts[0].region->view + manifest_offset(a.payload_bytes);
    cr_assert_eq(manifest_decode(bytes_of(encoded, a.manifest_bytes), &m, NULL), HEDDLE_OK);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = version, .h1 = a.h1, .manifest = &m}), HEDDLE_OK);
    free(a.bytes);
    return slot;
}

/* Begun for a version whose content was found in this process, or in another one, meanwhile. */
Test(slots, memory_in_the_making_is_not_kept_beside_what_is_adopted)
{
    enum { LARGE = 8u << 20 };
    slots_t *s = table();
    slot_t *one = seal(s, 0, 1), *slot = NULL;
    cr_assert_eq(slot_take(s, 0, 1, LARGE, &slot, NULL), HEDDLE_ERR_AGAIN);
    adopt(s, one, 1, 9);
    uint32_t pieces = 1;
    while (slot_take(s, 1, 0, LARGE, &slot, NULL) == HEDDLE_ERR_AGAIN) pieces++;
    cr_assert_eq(pieces, LARGE / MEMORY_STEP_BYTES - 1, "it is used on");
    close_table(&s);
}

static void drop_and_free(slot_t *slot)
{
    slot_drop(slot, 0);
    slot_free(slot);
    cr_assert_eq(slot->state, SLOT_FREE);
}

/* The region goes with the last slot that refers to it, whichever that is. */
Test(slots, two_versions_share_a_region)
{
    for (int first_goes = 0; first_goes <= 1; first_goes++) {
        slots_t *s = table();
        slot_t *one = seal(s, 0, 1), *held = NULL;
        slot_maps = slot_unmaps = 0;
        slot_t *nine = adopt(s, one, 1, 9);
        cr_assert_eq(slot_maps, 0, "no memory is made");
        cr_assert_eq(slots_acquire(s, 0, 9, &held), HEDDLE_OK);
        cr_assert(held == nine && held->view.version == 9 && !strncmp(held->tag, "policy@9:", 9));
        cr_assert_eq(atomic_load(&one->parts[0].region->refs), 2);
        slot_t *goes = first_goes ? one : nine, *stays = first_goes ? nine : one;
        if (goes == nine) slot_release(&held);
        drop_and_free(goes);
        cr_assert(!goes->parts[0].region && stays->parts[0].region &&
                  atomic_load(&stays->parts[0].region->refs) == 1);
        cr_assert_eq(((const uint8_t *)stays->parts[0].region->view)[10], content_byte(1, 10));
        slot_release(&held);
        seal(s, goes->index, 2); /* has memory of its own */
        cr_assert_neq(goes->parts[0].region, stays->parts[0].region);
        cr_assert_eq(((const uint8_t *)stays->parts[0].region->view)[10], content_byte(1, 10));
        const region_t *region = stays->parts[0].region;
        drop_and_free(stays);
        cr_assert_eq(seal(s, stays->index, 3)->parts[0].region, region, "it is warm");
        cr_assert(slot_maps == 1 && slot_unmaps == 0);
        close_table(&s);
        cr_assert_eq(slot_unmaps, 2);
    }
}

Test(slots, later_slot_makes_the_ones_before)
{
    slots_t *s = table();
    slot_t *slot = NULL;
    cr_assert_eq(slot_take(s, 1, 2, 100, &slot, NULL), HEDDLE_OK);
    cr_assert_not_null(slots_at(s, 1, 0));
    cr_assert_eq(slots_at(s, 1, 0)->state, SLOT_FREE);
    cr_assert_eq(slots_count(s, 1).used, 1);
    cr_assert_null(slots_at(s, 1, 3));
    close_table(&s);
}

Test(slots, impossible_size_is_an_error_and_leaves_the_slot_free)
{
    slots_t *s = table();
    slot_t *slot = NULL;
    heddle_error_t error;
    cr_assert_eq(slot_take(s, 0, 0, 1ull << 45, &slot, &error), HEDDLE_ERR_NO_MEMORY);
    cr_assert(error.message[0] != 0);
    cr_assert_eq(slots_count(s, 0).used, 0);
    cr_assert_eq(slot_take(s, 0, 0, 4096, &slot, NULL), HEDDLE_OK);
    close_table(&s);
}

/* A free slot may be trimmed, and a sealed one has readers: neither is written. */
Test(slots, only_a_slot_that_was_begun_gets_memory)
{
    slots_t *s = table();
    slot_t *one = seal(s, 0, 1), *two = seal(s, 1, 2);
    const region_t *region = one->parts[0].region;
    drop_and_free(two);
    cr_assert_eq(slot_reserve(one, 100, NULL), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(slot_adopt(one, two->parts[0].region), HEDDLE_ERR_INTERNAL);
    cr_assert(one->state == SLOT_SEALED && one->parts[0].region == region && one->view.version == 1);
    cr_assert_eq(slot_reserve(two, 100, NULL), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(slot_adopt(two, one->parts[0].region), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(two->state, SLOT_FREE);
    cr_assert_eq(slots_begin(s, 0, 1, &two, NULL), HEDDLE_OK);
    cr_assert_eq(slot_adopt(two, one->parts[0].region), HEDDLE_OK);
    cr_assert_eq(slot_adopt(two, one->parts[0].region), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(slot_reserve(two, 100, NULL), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(two->state, SLOT_RESERVED);
    close_table(&s);
}

Test(slots, seal_is_refused_twice)
{
    slots_t *s = table();
    slot_t *one = seal(s, 0, 1);
    manifest_t m = {0};
    cr_assert_eq(slot_seal(one, &(seal_t){.version = 2, .manifest = &m}), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(one->view.version, 1);
    close_table(&s);
}

Test(slots, counts)
{
    slots_t *s = table();
    slot_t *a = NULL, *b = NULL;
    seal(s, 0, 1);
    slots_activate(s, seal(s, 1, 2));
    slots_acquire(s, 0, 0, &a);
    slots_acquire(s, 0, 0, &b);
    cr_assert(slots_count(s, 0).used == 2 && slots_count(s, 0).held == 1);
    slot_release(&a);
    slot_release(&b);
    cr_assert(slots_count(s, 0).used == 2 && slots_count(s, 0).held == 0);
    close_table(&s);
}

Test(slots, holds_outlive_close)
{
    slots_t *s = table();
    slot_t *a = NULL, *b = NULL, *c = NULL;
    slots_activate(s, seal(s, 0, 1));
    seal(s, 1, 2);
    seal(s, 2, 3);
    slots_acquire(s, 0, 1, &a);
    slots_acquire(s, 0, 1, &b);
    slots_acquire(s, 0, 2, &c);
    slot_drop(c, 0);
    wakes = 0;
    close_table(&s);
    cr_assert_eq(((const uint8_t *)a->parts[0].region->view)[10], content_byte(1, 10));
    cr_assert_eq(((const uint8_t *)c->parts[0].region->view)[10], content_byte(2, 10));
    cr_assert_str_eq(a->view.adapter, "policy");
    slot_release(&a);
    cr_assert_eq(((const uint8_t *)b->parts[0].region->view)[10], content_byte(1, 10));
    slot_release(&c);
    slot_release(&b); /* the table goes here: the address sanitizer sees a leak or a use */
    cr_assert_eq(wakes, 0, "nobody is there to be woken");
}

/* ---- whose they are ---- */

static void acquire_and_release(void *s)
{
    slot_t *held = NULL;
    cr_assert_eq(slots_acquire(s, 0, 0, &held), HEDDLE_OK);
    slot_release(&held);
}
static void count_slots(void *s) { slots_count(s, 0); }

static slots_t *owned_table(owner_t *owner)
{
    static node_io_t io = {.tr = &SLOT_TRANSFER};
    static const char *const NAMES[] = {"policy"};
    slots_ops_t ops = OPS;
    io.owner = owner;
    ops.io = &io;
    slots_t *s = NULL;
    cr_assert_eq(slots_new(NAMES, 1, &ops, &s), HEDDLE_OK);
    slots_activate(s, seal(s, 0, 1));
    return s;
}

Test(slots, readers_may_be_on_any_thread)
{
    owner_t owner = {0};
    slots_t *s = owned_table(&owner);
    on_another_thread(acquire_and_release, s);
    close_table(&s);
}

/* From here on a system call ends the process, but for the one that ends it. */
static bool allow_no_system_call(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
#ifdef __SANITIZE_THREAD__ /* has calls of its own, at any access */
    filter = (struct sock_fprog){1, rules + 3};
#endif
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* In a process of its own: what it may not do, it may not do to its end. */
static _Noreturn void read_without_a_call(void)
{
    slots_t *s = table();
    slot_t *active = NULL, *named = NULL;
    heddle_tensor_t t = {.size = sizeof t};
    slots_activate(s, seal(s, 0, 1));
    seal(s, 1, 2);
    if (!allow_no_system_call()) _exit(2);
    uint32_t adapter = (uint32_t)slots_find(s, "policy");
    bool is_read = !slots_acquire(s, adapter, 0, &active) && heddle_snapshot_manifest(active)->version == 1 &&
                   !slots_acquire(s, adapter, 2, &named) && !heddle_snapshot_tensor(named, 3, &t);
    slot_release(&named);
    slot_release(&active);
    syscall(SYS_exit_group, is_read ? 0 : 1); /* before _exit the address sanitizer looks at the stack */
    abort();
}

/* A server acquires a version for each request. */
Test(slots, readers_make_no_system_call)
{
    int status;
    pid_t reader = fork();
    if (reader == 0) read_without_a_call();
    cr_assert_eq(waitpid(reader, &status, 0), reader);
    cr_assert_eq(status, 0, "%x", (unsigned)status);
}

Test(slots, what_the_loop_does_only_its_thread_may_do, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    on_another_thread(count_slots, owned_table(&owner));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Readers acquire and release, give back views that others took, and keep descriptors of what they have
 * released, while the loop flips, drops, rewrites and reuses slots; then close with holds still out. A reader
 * that sees bytes of another version than it holds, or bytes that change, fails the run.  Plain main: also
 * runs under the thread sanitizer.  worker_slots [SECONDS [READERS]] */
#include "tests/unit/worker_content.h"
#include "tests/unit/worker_slot.h"
#include "worker/slots.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 3, CONTENTS = 4, READERS_MAX = 16 };

static atomic_uint woken, torn, parked;
static atomic_bool stop, closing;
static atomic_ulong acquired, missed;
static test_content_t contents[CONTENTS];

static owner_t owner; /* of the thread that is the loop here */
static void wake(void *self)
{
    (void)self;
    atomic_fetch_add(&woken, 1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check(const slot_t *held, uint64_t at)
{
    const test_content_t *a = &contents[held->view.version % CONTENTS];
    const uint8_t *view = held->parts[0].region->view;
    if (view[at] != a->bytes[at] || !digest_equal(&held->h1, &a->h1)) atomic_fetch_add(&torn, 1);
}

static atomic_ulong newest;

/* A view that is another thread's to give back, and what it is of must not change before. */
typedef struct {
    struct DLManagedTensor *tensor;
    const slot_t *slot;
    uint64_t version;
} passed_t;
static _Atomic(passed_t *) passed;

static void give_back(passed_t *p)
{
    if (!p) return;
    if (p->slot->view.version != p->version) atomic_fetch_add(&torn, 1);
    check(p->slot, p->version * 131 % contents[0].payload_bytes);
    heddle_views_put(p->tensor);
    free(p);
}

/* One view for whoever comes next, who gives it back while another is taken here, or its views are given up. */
static void pass(const slot_t *held, uint64_t n)
{
    heddle_views_t *v;
    struct DLManagedTensor *own;
    passed_t *p = malloc(sizeof *p);
    uint32_t first = (uint32_t)n % held->parts[0].manifest.tensor_count, second = !first;
    *p = (passed_t){.slot = held, .version = held->view.version};
    if (heddle_snapshot_views(held, &v) || heddle_views_take(v, &first, 1, &p->tensor)) abort();
    give_back(atomic_exchange(&passed, p));
    if (heddle_views_take(v, &second, 1, &own)) abort();
    heddle_views_put(own);
    heddle_views_release(&v);
}

/* A descriptor holds the version after the reader has released it, as in another process. */
static void outlive(slot_t **held, uint64_t n)
{
    heddle_shared_t shared = {.size = sizeof shared};
    const test_content_t *a = &contents[(*held)->view.version % CONTENTS];
    uint64_t at = n * 131 % a->payload_bytes;
    uint8_t mark[HEDDLE_MARK_BYTES], byte;
    if (heddle_snapshot_fd(*held, &shared)) abort();
    slot_release(held);
    for (int turn = 0; turn < 4; turn++) {
        sched_yield();
        if (pread(shared.fd, &byte, 1, (off_t)(shared.offset + at)) != 1 || byte != a->bytes[at] ||
            pread(shared.fd, mark, sizeof mark, (off_t)shared.mark_offset) != (ssize_t)sizeof mark ||
            memcmp(mark, shared.mark, sizeof mark) != 0)
            atomic_fetch_add(&torn, 1);
    }
    close(shared.fd);
}

static void *reader(void *arg)
{
    slots_t *s = arg;
    uint64_t n = 0;
    slot_t *kept = NULL;
    while (!atomic_load(&stop)) {
        slot_t *held = NULL;
        uint64_t version = n % 3 == 0 ? atomic_load(&newest) - n % 2 : 0;
        if (slots_acquire(s, 0, version, &held)) {
            atomic_fetch_add(&missed, 1);
            continue;
        }
        atomic_fetch_add(&acquired, 1);
        if (version && held->view.version != version) atomic_fetch_add(&torn, 1);
        for (uint64_t i = 0; i < 8; i++) check(held, (n * 131 + i * 997) % contents[0].payload_bytes);
        if (n % 16 == 5) pass(held, n);
        if (++n % 64 == 0) { /* now and then one is held for long */
            slot_release(&kept);
            kept = held;
        } else if (n % 64 == 11) {
            outlive(&held, n);
        } else {
            slot_release(&held);
        }
        if (n % 16 == 0) sched_yield(); /* few cores: the loop must get its turn */
    }
    atomic_fetch_add(&parked, 1);
    while (!atomic_load(&closing)) {}
    if (kept)
        for (uint64_t i = 0; i < contents[0].payload_bytes; i += 61) check(kept, i);
    slot_release(&kept);
    return NULL;
}

static void write_version(slots_t *s, uint32_t index, uint64_t version)
{
    const test_content_t *a = &contents[version % CONTENTS];
    slot_t *slot = NULL;
    manifest_t m;
    if (slot_take(s, 0, index, a->content_bytes, &slot, NULL)) abort();
    memset(slot->parts[0].region->base, 0xee, a->payload_bytes);
    memcpy(slot->parts[0].region->base, a->bytes, a->content_bytes);
    const uint8_t *view = slot->parts[0].region->view;
    if (manifest_decode(bytes_of(view + manifest_offset(a->payload_bytes), a->manifest_bytes), &m, NULL))
        abort();
    slot_offer(slot, &a->manifest_digest, a->content_bytes);
    if (slot_seal(slot, &(seal_t){.version = version, .h1 = a->h1, .step = -1, .manifest = &m})) abort();
    slots_activate(s, slot);
    atomic_store(&newest, version);
}

static bool is_free(slots_t *s, uint32_t index)
{
    slot_t *slot = slots_at(s, 0, index);
    if (slot && slot_is_unread(slot)) slot_free(slot);
    return !slot || slot->state == SLOT_FREE;
}

/* The loop's part: one version more whenever a slot is free; what was kept is dropped. */
static uint64_t run(slots_t *s, double until)
{
    uint64_t version = 1;
    while (seconds() < until) {
        for (uint32_t i = 0; i < SLOTS; i++)
            if (is_free(s, i)) write_version(s, i, ++version);
        for (uint32_t i = 0; i < SLOTS; i++) {
            slot_t *slot = slots_at(s, 0, i);
            bool is_kept = slot && slot->state == SLOT_SEALED && slot != slots_active(s, 0);
            if (is_kept && slot->view.version + 1 < version) slot_drop(slot, 0);
        }
    }
    return version;
}

int main(int argc, char **argv)
{
    double duration = argc > 1 ? atof(argv[1]) : 2;
    int count = argc > 2 ? atoi(argv[2]) : 4;
    if (count < 1 || count > READERS_MAX) return 2;
    static const char *const NAMES[] = {"policy"};
    node_io_t io = {.tr = &SLOT_TRANSFER, .owner = &owner};
    slots_t *s = NULL;
    for (uint64_t i = 0; i < CONTENTS; i++) contents[i] = content_make(i, 2, 64);
    if (slots_new(NAMES, 1, &(slots_ops_t){.io = &io, .wake = wake}, &s)) return 9;
    write_version(s, 0, 1);
    pthread_t threads[READERS_MAX];
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, reader, s);
    uint64_t versions = run(s, seconds() + duration);
    atomic_store(&stop, true);
    /* Holds still out are released by their threads while and after the table is closed: acquire has ended
     * by then. */
    while (atomic_load(&parked) < (unsigned)count) {}
    atomic_store(&closing, true);
    slots_unmap_all(s);
    slots_close(&s);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    give_back(atomic_exchange(&passed, NULL));
    for (int i = 0; i < CONTENTS; i++) free(contents[i].bytes);
    printf("slots: %llu versions, %lu holds, %lu misses, %u wakes, %u torn\n", (unsigned long long)versions,
           atomic_load(&acquired), atomic_load(&missed), atomic_load(&woken), atomic_load(&torn));
    return atomic_load(&torn) || versions < 20 || atomic_load(&acquired) < 100;
}

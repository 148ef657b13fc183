/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that were destroyed are made again, with the linker's --wrap: a test of many worlds, one after the
 * other, spends most of its time in the kernel otherwise, where pages are made, mapped and given back. One that
 * is made again is idle, and no chunk of what it held is whole, so that what was not written in this world is
 * not there: as where a pool uses a region again, its bytes are not zero. But for its seal: one that was offered once is written through its mapping alone, as is each that a pool uses
 * again. */
#include "memory/file.h"
#include "memory/region.h"

#include "core/digest.h"
#include "core/limits.h"

#include <string.h>
#include <unistd.h>

int __real_memory_region_new(size_t bytes, memory_region_t **ret_region, heddle_error_t *error);
int __wrap_memory_region_new(size_t bytes, memory_region_t **ret_region, heddle_error_t *error);
void __real_memory_region_destroy(memory_region_t **region);
void __wrap_memory_region_destroy(memory_region_t **region);

enum { SPARE_MAX = 160 };
#define SPARE_BYTES ((size_t)768 << 20)

/* Far less than a chunk, and less than a manifest. */
#define SPOIL_STEP_BYTES 512

static memory_region_t *spare[SPARE_MAX];
static size_t spare_count, spare_bytes;

static void clear(memory_region_t *r)
{
    header_t *header = (header_t *)(void *)((uint8_t *)r->base + r->bytes);
    for (size_t at = 0; at < r->made_bytes; at += SPOIL_STEP_BYTES) ((uint8_t *)r->base)[at] ^= 0xff;
    memset(header, 0, LIMIT_PAGE_BYTES);
    random_bytes(header->identity, sizeof header->identity);
    header->layout = HEADER_LAYOUT;
    file_unlock(r->file.fd);
    r->made_bytes = 0;
    r->state = REGION_IDLE;
}

int __wrap_memory_region_new(size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    size_t whole = (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES * LIMIT_PAGE_BYTES;
    for (size_t i = 0; i < spare_count; i++) {
        memory_region_t *r = spare[i];
        if (r->bytes != whole || file_is_held(r->file.fd)) continue;
        spare[i] = spare[--spare_count];
        spare_bytes -= whole;
        clear(r);
        *ret_region = r;
        return HEDDLE_OK;
    }
    return __real_memory_region_new(bytes, ret_region, error);
}

void __wrap_memory_region_destroy(memory_region_t **region)
{
    memory_region_t *r = region ? *region : NULL;
    bool is_kept = r && r->process == getpid() && r->state != REGION_GONE && spare_count < SPARE_MAX &&
                   spare_bytes + r->bytes <= SPARE_BYTES;
    while (is_kept && memory_region_unguard(r)) {}
    if (!is_kept || r->guarded_bytes) {
        __real_memory_region_destroy(region);
        return;
    }
    spare[spare_count++] = r;
    spare_bytes += r->bytes;
    *region = NULL;
}

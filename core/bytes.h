/* SPDX-License-Identifier: Apache-2.0 */
/* core/bytes.h: views of memory, little-endian scalars, a growing buffer, and an arena. The caller owns
 * each of them; an object is used by one thread at a time. Nothing blocks. */
#ifndef CORE_BYTES_H
#define CORE_BYTES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A view of memory that the caller does not own: valid during the call that passed it, never stored past it.
 */
typedef struct {
    const void *data;
    size_t bytes;
} bytes_t;

static inline bytes_t bytes_of(const void *data, size_t bytes) { return (bytes_t){data, bytes}; }

/* Little-endian scalars at any alignment. */
static inline uint16_t le16_get(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t le32_get(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t le64_get(const void *p)
{
    return (uint64_t)le32_get(p) | (uint64_t)le32_get((const uint8_t *)p + 4) << 32;
}
static inline void le16_put(void *p, uint16_t v)
{
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}
static inline void le32_put(void *p, uint32_t v)
{
    le16_put(p, (uint16_t)v);
    le16_put((uint8_t *)p + 2, (uint16_t)(v >> 16));
}
static inline void le64_put(void *p, uint64_t v)
{
    le32_put(p, (uint32_t)v);
    le32_put((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

/* A growing buffer.  Running out of memory sets `failed` and makes every later append a no-op: check once at
 * the end. */
typedef struct {
    uint8_t *data;
    size_t bytes, capacity;
    bool failed;
} buf_t;
void buf_fini(buf_t *b);
void buf_clear(buf_t *b);               /* keeps the memory */
void *buf_grow(buf_t *b, size_t bytes); /* room for `bytes` more, counted as used; NULL
                                         * when failed */
void buf_add(buf_t *b, const void *data, size_t bytes);
void buf_add_text(buf_t *b, const char *text);
void buf_printf(buf_t *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_add_number(buf_t *b, uint64_t n); /* decimal */
const char *buf_text(buf_t *b);            /* NUL-terminated (the NUL is not counted); ""
                                            * when failed */
static inline bytes_t buf_view(const buf_t *b) { return bytes_of(b->data, b->bytes); }

/* snprintf for files that may not include stdio.h: formatting is no I/O. */
void text_printf(char *to, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
void text_vprintf(char *to, size_t size, const char *format, va_list args);
int text_order(const void *a, const void *b); /* qsort and bsearch of const char *: by bytes */

/* Memory of one decoded message: many small allocations, one free.  The limit bounds what a hostile message
 * can make the decoder allocate.  What fits in the owner's room lies there, and takes none of the heap. */
typedef struct arena_block arena_block_t;
typedef struct {
    arena_block_t *blocks;
    size_t used, limit; /* limit 0: none */
    uint8_t *room;      /* 16-byte aligned, used first; not moved while the arena is in use; NULL: none */
    size_t room_bytes;
} arena_t;
void arena_fini(arena_t *a);
void *arena_alloc(arena_t *a, size_t bytes);                  /* zeroed, 16-byte aligned; NULL when out of
                                                               * memory or limit */
char *arena_text(arena_t *a, const void *data, size_t bytes); /* NUL-terminated copy */
void *arena_copy(arena_t *a, const void *data, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer doubles, so that appending costs constant time; the arena links blocks and never moves one. */
#include "core/bytes.h"

#include <stdio.h>
#include <stdlib.h>

void buf_fini(buf_t *b)
{
    free(b->data);
    *b = (buf_t){0};
}

void buf_clear(buf_t *b)
{
    b->bytes = 0;
    b->failed = false;
}

/* A failure is kept until buf_clear, so that a writer of many parts checks once, at the end. */
static bool reserve(buf_t *b, size_t more)
{
    if (b->failed) return false;
    if (more > SIZE_MAX / 2 - b->bytes) {
        b->failed = true;
        return false;
    }
    size_t need = b->bytes + more;
    if (need <= b->capacity) return true;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity < need) capacity *= 2;
    uint8_t *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void *buf_grow(buf_t *b, size_t bytes)
{
    if (!reserve(b, bytes)) return NULL;
    void *at = b->data + b->bytes;
    b->bytes += bytes;
    return at;
}

void buf_add(buf_t *b, const void *data, size_t bytes)
{
    void *at = bytes ? buf_grow(b, bytes) : NULL;
    if (at) memcpy(at, data, bytes);
}

void buf_add_text(buf_t *b, const char *text) { buf_add(b, text, strlen(text)); }

/* Once where there is room, as there is nearly always; else again with what it takes. */
void buf_printf(buf_t *b, const char *format, ...)
{
    va_list args, again;
    size_t room = b->failed ? 0 : b->capacity - b->bytes;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(room ? (char *)b->data + b->bytes : NULL, room, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= room) {
        room = reserve(b, (size_t)n + 1) ? (size_t)n + 1 : 0;
        if (room) vsnprintf((char *)b->data + b->bytes, room, format, again);
    }
    if (n >= 0 && room) b->bytes += (size_t)n;
    va_end(again);
}

void buf_add_number(buf_t *b, uint64_t n)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    buf_add(b, digits + at, sizeof digits - at);
}

const char *buf_text(buf_t *b)
{
    if (!reserve(b, 1)) return "";
    b->data[b->bytes] = 0;
    return (const char *)b->data;
}

void text_printf(char *to, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vprintf(to, size, format, args);
    va_end(args);
}

void text_vprintf(char *to, size_t size, const char *format, va_list args)
{
    vsnprintf(to, size, format, args);
}

int text_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

struct arena_block {
    arena_block_t *next;
    size_t bytes, used;
    _Alignas(16) uint8_t data[];
};

void arena_fini(arena_t *a)
{
    for (arena_block_t *block = a->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *a = (arena_t){.limit = a->limit, .room = a->room, .room_bytes = a->room_bytes};
}

/* The limit bounds what a message of a peer can make this process allocate. Memory is zeroed, because fields
 * that a message leaves out must read as none. */
void *arena_alloc(arena_t *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t size = (bytes + 15) & ~(size_t)15;
    if (a->limit && (size > a->limit || a->used > a->limit - size)) return NULL;
    if (!a->blocks && a->room_bytes >= size && a->used <= a->room_bytes - size) {
        void *at = a->room + a->used;
        a->used += size;
        return memset(at, 0, size);
    }
    if (!a->blocks || a->blocks->bytes - a->blocks->used < size) {
        size_t room = size > 4096 ? size : 4096;
        arena_block_t *block = malloc(sizeof *block + room);
        if (!block) return NULL;
        *block = (arena_block_t){.next = a->blocks, .bytes = room};
        a->blocks = block;
    }
    void *at = a->blocks->data + a->blocks->used;
    a->blocks->used += size;
    a->used += size;
    return memset(at, 0, size);
}

void *arena_copy(arena_t *a, const void *data, size_t bytes)
{
    void *at = arena_alloc(a, bytes ? bytes : 1);
    if (at && bytes) memcpy(at, data, bytes);
    return at;
}

char *arena_text(arena_t *a, const void *data, size_t bytes)
{
    char *at = arena_alloc(a, bytes + 1);
    if (at && bytes) memcpy(at, data, bytes);
    return at;
}

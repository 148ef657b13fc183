/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/torture/alloc.h"

#include <errno.h>
#include <execinfo.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

bool (*alloc_hook)(void);
bool alloc_is_shown;

static struct {
    bool is_armed;
    uint64_t count, first, length, failed;
} alloc;

/* Addresses for addr2line -e PROGRAM -f. */
static void show(void)
{
    void *frames[24];
    alloc.is_armed = false; /* backtrace takes memory too */
    fprintf(stderr, "allocation %llu fails:\n", (unsigned long long)alloc.count);
    backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
    alloc.is_armed = true;
}

static bool refuse(void)
{
    if (!alloc.is_armed || (alloc_hook && !alloc_hook())) return false;
    alloc.count++;
    if (!alloc.first || alloc.count < alloc.first || alloc.count >= alloc.first + alloc.length) return false;
    if (alloc_is_shown) show();
    errno = ENOMEM;
    return ++alloc.failed > 0; /* counted where it is told: a run asks */
}

static void *take(size_t bytes) { return malloc(bytes); }
static void give_back(void *data) { free(data); }

/* What jansson (2.14) reads without memory it calls malformed, and sometimes it crashes: not ours to mend. */
json_t *__real_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    bool was = alloc.is_armed;
    alloc.is_armed = false;
    json_t *value = __real_json_loadb(text, bytes, flags, error);
    alloc.is_armed = was;
    return value;
}

json_t *__real_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error)
{
    bool was = alloc.is_armed;
    alloc.is_armed = false;
    json_t *value = __real_json_loads(text, flags, error);
    alloc.is_armed = was;
    return value;
}

void alloc_arm(uint64_t first, uint64_t length)
{
    json_set_alloc_funcs(take, give_back);
    alloc.is_armed = true;
    alloc.count = alloc.failed = 0;
    alloc.first = first;
    alloc.length = length;
}

uint64_t alloc_disarm(void)
{
    alloc.is_armed = false;
    return alloc.count;
}

uint64_t alloc_failed(void) { return alloc.failed; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
char *__real_strdup(const char *text);
int __real_memfd_create(const char *name, unsigned flags);
int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
char *__wrap_strdup(const char *text) { return refuse() ? NULL : __real_strdup(text); }
int __wrap_memfd_create(const char *name, unsigned flags)
{
    return refuse() ? -1 : __real_memfd_create(name, flags);
}
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    return refuse() ? -1 : __real_fallocate(fd, mode, at, bytes);
}
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return refuse() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}
int __wrap_asprintf(char **ret_text, const char *format, ...)
{
    if (refuse()) return -1;
    va_list args;
    va_start(args, format);
    int n = vasprintf(ret_text, format, args);
    va_end(args);
    return n;
}

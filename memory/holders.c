/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/holders.h"

#include "memory/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void holders_begin(holders_t *h, int fd)
{
    struct stat s;
    *h = (holders_t){.process = 0};
    if (fstat(fd, &s) == 0) h->processes = opendir("/proc");
    h->is_cut = !h->processes;
    if (!h->processes) return;
    h->device = s.st_dev;
    h->file = s.st_ino;
}

void holders_end(holders_t *h)
{
    if (h->files) closedir(h->files);
    if (h->processes) closedir(h->processes);
    h->files = h->processes = NULL;
}

/* Its directory of open files; NULL where it has ended, or is not ours to read. */
static DIR *open_files(pid_t process)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/fd", process);
    return opendir(path);
}

/* The first bytes of a small file of the kernel. */
static bool read_text(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, size - 1);
    if (fd >= 0) close(fd);
    to[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* "lock:\t1: OFDLCK  ADVISORY  READ -1 00:01:1034 0 EOF", a line for each lock of the description. */
static bool has_lock(pid_t process, const char *number)
{
    char path[300], text[1024];
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%s", process, number);
    return read_text(path, text, sizeof text) && strstr(text, "lock:\t") != NULL;
}

static void add(holders_t *h)
{
    char path[32];
    if (h->count < HOLDERS_NAMED_MAX) {
        holder_name_t *found = &h->named[h->count];
        snprintf(path, sizeof path, "/proc/%d/comm", h->process);
        if (!read_text(path, found->name, sizeof found->name)) snprintf(found->name, sizeof found->name, "?");
        found->name[strcspn(found->name, "\n")] = 0;
        found->process = h->process;
    }
    h->count++;
}

/* The next process, whose files stay NULL where they cannot be read: it has ended, or is of another user.
 * False: none is left. Its own are left out: a process knows what it holds itself. */
static bool open_next(holders_t *h)
{
    for (struct dirent *e; (e = readdir(h->processes));) {
        h->process = (pid_t)strtol(e->d_name, NULL, 10);
        if (h->process <= 0 || h->process == getpid()) continue;
        h->looked++;
        h->files = open_files(h->process);
        return true;
    }
    return false;
}

/* From its name alone, which the kernel has at hand: stat asks the file system, and a mount whose server does
 * not answer would block the loop. */
static bool may_be_region(int files, const char *number)
{
    static const char NAME[] = "/memfd:" MEMORY_REGION_FILE;
    char link[sizeof NAME - 1];
    ssize_t n = readlinkat(files, number, link, sizeof link);
    return n == (ssize_t)sizeof link && memcmp(link, NAME, sizeof link) == 0;
}

/* One open file; false: the process has no more, or is known to hold it. */
static bool look_at_next(holders_t *h)
{
    struct stat s;
    struct dirent *e = readdir(h->files);
    if (!e) return false;
    h->looked++;
    if (!may_be_region(dirfd(h->files), e->d_name) || fstatat(dirfd(h->files), e->d_name, &s, 0) < 0)
        return true;
    if (s.st_ino != h->file || s.st_dev != h->device || !has_lock(h->process, e->d_name)) return true;
    add(h);
    return false;
}

bool holders_step(holders_t *h)
{
    uint32_t end = h->looked + HOLDERS_STEP_FILES;
    while (h->processes && h->looked < end) {
        h->is_cut = h->looked >= HOLDERS_FILES_MAX;
        if (h->is_cut || (!h->files && !open_next(h))) {
            holders_end(h);
        } else if (h->files && !look_at_next(h)) {
            closedir(h->files);
            h->files = NULL;
        }
    }
    return h->processes != NULL;
}

void holders_find(holders_t *h, int fd, uint32_t steps)
{
    holders_begin(h, fd);
    while (steps > 0 && holders_step(h)) steps--;
    h->is_cut |= h->processes != NULL;
    holders_end(h);
}

const char *holders_text(const holders_t *h, char scratch[HOLDERS_TEXT])
{
    uint32_t named = h->count < HOLDERS_NAMED_MAX ? h->count : HOLDERS_NAMED_MAX;
    int n = 0;
    for (uint32_t i = 0; i < named; i++)
        n += snprintf(scratch + n, HOLDERS_TEXT - (size_t)n, "%s%s (pid %d)", i ? ", " : "", h->named[i].name,
                      (int)h->named[i].process);
    if (h->count > named) snprintf(scratch + n, HOLDERS_TEXT - (size_t)n, " and %u more", h->count - named);
    if (h->count == 0)
        snprintf(scratch, HOLDERS_TEXT, "%s",
                 h->is_cut ? "a process that is not among the first ones, in whose open files it was searched"
                           : "a process that cannot be seen from here, or a descriptor on its way to one");
    return scratch;
}

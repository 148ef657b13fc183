/* SPDX-License-Identifier: Apache-2.0 */
/* memory/holders.h: which processes hold a region, for errors and for `workers`: a search of /proc.
 *
 *   searching --(holders_step)--> searching --> over: no process is left, or HOLDERS_FILES_MAX were looked at
 *
 * The kernel names no process of an OFD lock (F_OFD_GETLK gives -1), but /proc/PID/fdinfo/FD lists the locks
 * of a description. No privilege is needed for processes of the same user. What cannot be seen is not named:
 * a process that is not dumpable or that has more capabilities, one of another PID namespace, a descriptor in
 * flight between two processes, and a mapping whose descriptor was closed.
 *
 * The answer is for people only: by the time it is read another process may hold the region. Whether the
 * memory may be written is decided by the lock (memory/region.h).
 *
 * Threads: one. A step looks at HOLDERS_STEP_FILES open files, which takes under a millisecond. The caller
 * owns it. */
#ifndef MEMORY_HOLDERS_H
#define MEMORY_HOLDERS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HOLDERS_STEP_FILES 256u
#define HOLDERS_FILES_MAX 65536u /* of one search: a host with thousands of processes of one user */
#define HOLDERS_NAMED_MAX 8u     /* others are counted */
#define HOLDERS_TEXT 512u

typedef struct {
    pid_t process;
    char name[16]; /* as in /proc/PID/comm */
} holder_name_t;

typedef struct {
    dev_t device;
    ino_t file;
    DIR *processes; /* NULL: the search is over */
    DIR *files;     /* of `process`; NULL: the next process is to be opened */
    pid_t process;
    uint32_t looked; /* open files, in all steps */
    uint32_t count;  /* processes that hold it, this one left out */
    bool is_cut;     /* HOLDERS_FILES_MAX were looked at: there may be more */
    holder_name_t named[HOLDERS_NAMED_MAX];
} holders_t;

/* Begins a search for the file of `fd`. Without a descriptor for /proc the search is over, and cut. */
void holders_begin(holders_t *h, int fd);
/* One step; true while there are more. */
bool holders_step(holders_t *h);
/* Ends a search at any time; what was found stays. */
void holders_end(holders_t *h);
/* All of it at once, at most `steps` steps. */
void holders_find(holders_t *h, int fd, uint32_t steps);
/* "python3 (pid 4711), vllm (pid 4712) and 3 more"; or that no process could be named. */
const char *holders_text(const holders_t *h, char scratch[HOLDERS_TEXT]);

#endif

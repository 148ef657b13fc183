/* SPDX-License-Identifier: Apache-2.0 */
/* broker/datadir.h: the directory that one broker keeps its data in.
 *
 *   absent -> made, mode 0700, its missing parents too, each synced into the directory above it
 *   locked by flock on DIR/lock, which holds the pid of the owner: the kernel lets go when that process is
 *   gone, so a lock is never stale and the file is never removed
 *   open: the word is in DIR/lock, with the owner's epoch, from when all its files are there until it has put
 *   them in order; a start that finds it follows a kill or a power cut
 *   closed: so is this one, from when they are in order until the next owner begins: there is nothing in the
 *   log then
 *   unparted: so is this one, of an owner that ended with files that are no pair and could not part them
 *   moved: while DIR/moved is there, no broker starts with it
 *
 * One thread.  Blocks on the disk.  Nothing in the directory is ever deleted here. */
#ifndef BROKER_DATADIR_H
#define BROKER_DATADIR_H

#include <heddle/error.h>
#include <stdbool.h>

typedef struct datadir {
    char *path;          /* owned: absolute, without links */
    int fd, lock_fd;     /* the directory, and DIR/lock */
    bool was_open;       /* the owner before did not come to its end */
    uint64_t open_epoch; /* and this was its epoch; 0: not known */
    bool was_closed;     /* the owner before put its files in order, and no other began since */
    bool is_unparted;    /* the owner before left a log and a registry that do not belong together */
} datadir_t;

/* DATA_LOCKED names the pid of the other broker · DATA_DIR: cannot be made, read or written: path, uid,
 * owner, mode, and what to do · NO_SPACE · NO_MEMORY.  On failure nothing is held; a directory that was made
 * stays. */
int datadir_open(const char *path, datadir_t *ret_dir, heddle_error_t *error);
/* On disk when they return OK.  DATA_DIR · NO_SPACE. */
int datadir_mark_open(const datadir_t *dir, uint64_t epoch, heddle_error_t *error);
/* From here on the files are written to; what was said before counts no more. */
int datadir_mark_begun(datadir_t *dir, heddle_error_t *error);
int datadir_mark_closed(const datadir_t *dir, heddle_error_t *error);
/* Beside what was said before: the next owner has to refuse the files (store_files.h). */
int datadir_mark_unparted(const datadir_t *dir, bool is_open, uint64_t epoch, heddle_error_t *error);
/* The data go on elsewhere from here on.  On disk when it returns OK.  DATA_DIR · NO_SPACE. */
int datadir_mark_moved(const datadir_t *dir, heddle_error_t *error);
/* DATA_DIR: it has that mark, or it cannot be seen. */
int datadir_check_moved(const datadir_t *dir, heddle_error_t *error);
/* Lets go of the lock.  Zeroed ones are allowed. */
void datadir_close(datadir_t *dir);
/* Makes new entries of the directory survive a crash. */
int datadir_sync(const datadir_t *dir, heddle_error_t *error);

/* Fills `error` for a failure of the system at `path` while doing `what` ("make the directory"): DATA_DIR
 * with uid, owner and mode, or NO_SPACE, or NO_MEMORY, as `number` (an errno) says; returns the code. */
int datadir_refuse(const char *path, const char *what, int number, heddle_error_t *error);

#endif

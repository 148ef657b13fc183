/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/store_files.h: the files of the registry as the system shows them, DIR/registry.db and
 * its log, DIR/registry.db-wal: what SQLite takes without a word, and with which acknowledged records
 * would be gone. For store.c alone; SQLite's file formats, not SQLite.
 *
 *   before it is opened   after an end that was none (datadir.h) both files must be there; the log may break
 *                         off, as a power cut leaves it, but nothing whole may lie behind what is damaged
 *   while it is open      the files are those that were opened, and no other process wrote to registry.db
 *   when it is closed     a log and a registry that do not belong together are not left side by side
 *
 * A damage in the last transaction of the log cannot be told from a power cut.  One thread; blocks on the
 * disk. */
#ifndef BROKER_STORE_FILES_H
#define BROKER_STORE_FILES_H

#include "broker/datadir.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define STORE_APPLICATION_ID 0x4845444c /* "HEDL", in SQLite's application_id */

typedef struct {
    char *main, *log;                /* paths; owned */
    struct stat main_seen, log_seen; /* st_ino 0: not yet */
} store_files_t;

/* NO_MEMORY. */
int store_files_init(store_files_t *f, const datadir_t *dir, heddle_error_t *error);
void store_files_fini(store_files_t *f);
/* Before SQLite sees them: DATA_DIR · NO_MEMORY.  Nothing is changed. */
int store_files_check(const store_files_t *f, const datadir_t *dir, heddle_error_t *error);
/* They are as they should be now: opened, or written to by us. */
void store_files_note(store_files_t *f);
/* DATA_DIR: a file was removed, moved or replaced, or registry.db was written to by another process; or
 * the files cannot be looked at. */
int store_files_in_place(const store_files_t *f, heddle_error_t *error);
bool store_files_own_main(const store_files_t *f);
/* Renames a log that does not belong to the registry beside it: registry.db-wal.EPOCH, or .EPOCH.2 and so on
 * where that is taken.  Returns 0, or the errno.  After an error they lie side by side still, and no start
 * may take them for a pair (datadir_mark_unparted). */
int store_files_part(const store_files_t *f, uint64_t epoch);

#endif

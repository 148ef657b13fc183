/* SPDX-License-Identifier: Apache-2.0 */
/* tests/torture/files.h: what a row of torture_files is made of. */
#ifndef TESTS_TORTURE_FILES_H
#define TESTS_TORTURE_FILES_H

#include <stdbool.h>

/* `before` makes what is there, in files_root; `act` is where calls fail, in a process of its own: what it says when none
 * does is OK; `after` judges what lies there and goes on, on a disk that is well. */
typedef struct {
    const char *name;
    void (*before)(void);
    int (*act)(void);
    void (*after)(void);
    bool
        is_once; /* one call fails, and not all from there on: with those nobody could do what is to be done */
} files_row_t;

extern char files_root[64];
/* In `act`, for what somebody else does meanwhile: no call fails, or is counted.  Says what was before. */
bool files_arm(bool is_armed);

/* tests/torture/datadir.c */
enum { DATADIR_ROWS = 7 };
extern const files_row_t DATADIR[DATADIR_ROWS];

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* cli/way.h: the way of a version's bytes, from the publisher over the workers, as the rows of
 * `heddle versions NAME@V -o json` tell it.
 *
 * A stop is one worker's row.  Its hop is over how many links of the network its bytes came, at least: 1 from
 * the publisher, 2 from a worker of hop 1, and so on.  A worker that holds the memory of another process is
 * at the hop of that process (0: the publisher).  Only sources of a quarter of its bytes or more count: the
 * last bytes may come from elsewhere, and must not hide the way of the others.  While bytes come, the source
 * of the last ones is the only one known.  `former` has rows of what workers fetched before they were started
 * again, left, or dropped the version: others have their bytes from there.
 *
 * Rows are borrowed.  Main thread; nothing blocks. */
#ifndef CLI_WAY_H
#define CLI_WAY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define WAY_UNKNOWN UINT32_MAX
typedef struct {
    const char *name;
    const json_t *row;
    bool is_former;
    uint32_t hop; /* WAY_UNKNOWN: no source of it is known, or none of theirs */
} way_stop_t;

/* One for each row of both lists, by hop, then by name, a former one first; to be freed.  NULL: no rows, or
 * no memory. */
way_stop_t *way_stops(const json_t *rows, const json_t *former, size_t *ret_count);

/* The worker has the bytes, and a broker that was restarted since does not know from where. */
bool way_is_unknown(const json_t *row);
/* "640.0 MB over the network, 40.0 MB of it from the publisher; 48 workers in place (64 asks moved: 60 late,
 * 4 gone)"; "at least" where the sources of some are not known, such as those that are not listed of
 * `former_count`.  False, and "": no bytes came. */
bool way_text(const json_t *rows, const json_t *former, int64_t former_count, char *ret_text, size_t size);

/* Of a worker whose fetch took long: the first one, along the sources of most bytes towards the publisher,
 * whose fetch took as long, and whose own source was faster.  NULL: it is the worker itself, or all up to the
 * publisher took as long, or it is not known. */
const char *way_through(const json_t *rows, const json_t *former, const char *worker);
/* The row of what it fetched first: that is what counted in the rollout.  NULL: there is none. */
const json_t *way_row(const json_t *rows, const json_t *former, const char *worker);

/* Of a source: the version is held in its memory, and nothing was copied. */
bool way_is_in_place(const json_t *source);
/* Read requests that went to another source instead, of a member `moved`: " (32 asks moved: 30 late, 2 bad)";
 * "" for none. */
const char *way_moved(const json_t *moved, char *ret_text, size_t size);

#endif

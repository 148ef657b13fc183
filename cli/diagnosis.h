/* SPDX-License-Identifier: Apache-2.0 */
/* cli/diagnosis.h: what the facts of a host and its cluster (cli/facts.h) mean: findings, each with what is
 * wrong, why it matters, and how to mend it.
 *
 *   critical  a program would not start here, or no bytes can come or go
 *   warning   it works, and not as well as it could, or not for long
 *   note      worth knowing, or not examined
 *
 * The checks are one table.  A fact that is absent or null leads to no finding.
 *
 * PURE: the facts are borrowed; any thread. */
#ifndef CLI_DIAGNOSIS_H
#define CLI_DIAGNOSIS_H

#include <jansson.h>
#include <stddef.h>

/* The numbers are the exit statuses, those of `heddle check`; a note ends with 0, too. */
typedef enum { DIAGNOSIS_OK, DIAGNOSIS_WARNING, DIAGNOSIS_CRITICAL } diagnosis_level_t;

/* [{"level","name","worker","what","why","mend"}], the worst first; the caller owns it.  NULL: no memory. */
json_t *diagnosis_of(const json_t *facts);
diagnosis_level_t diagnosis_level(const json_t *findings);
const char *diagnosis_level_name(diagnosis_level_t level); /* ok, warning, critical */
/* The names of the checks that had something to look at, in the order of the table; the caller owns it. */
json_t *diagnosis_checks(const json_t *facts);

#endif

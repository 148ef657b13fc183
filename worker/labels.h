/* SPDX-License-Identifier: Apache-2.0 */
/* worker/labels.h (PURE): the labels of a worker: those that its options name, and those of the environment.
 *
 *   HEDDLE_LABEL_POD=trainer-7   is the label pod=trainer-7, unless the options have one with that key
 *
 * A variable without a value is no label: a template may set all that it knows of.  No state. */
#ifndef WORKER_LABELS_H
#define WORKER_LABELS_H

#include <heddle/error.h>

#define LABELS_VARIABLE "HEDDLE_LABEL_"

/* A list of its own, which ends with NULL and is freed by labels_free; the options' first, then those of
 * `environment` ("NAME=value", ends with NULL; may be NULL) in its order.  USAGE, BAD_NAME (as label_check,
 * and naming the variable), NO_MEMORY. */
int labels_gather(const char *const *options, char *const *environment, char ***ret_labels,
                  heddle_error_t *error);
void labels_free(char **labels); /* accepts NULL */

#endif

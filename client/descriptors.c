/* SPDX-License-Identifier: Apache-2.0 */
#include "client/descriptors.h"

#include "core/descriptors.h"
#include "core/errors.h"
#include "core/log.h"

#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_US = 100000 };

/* The error is NO_MEMORY: descriptors are a resource that an operator can raise. */
int descriptors_check(int wanted, heddle_error_t *error)
{
    int count = descriptors_count(wanted);
    if (count == wanted) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "too few descriptors are left for files and connections");
    error_expected(error, "at least %d", wanted);
    error_found(error, "%d", count);
    error_hint(error, "raise the limit of open files (ulimit -n)");
    return HEDDLE_ERR_NO_MEMORY;
}

/* The reserve is given up while descriptors are short, so that UCX finds some, and is taken again when
 * there are enough for both. */
void descriptors_look(descriptors_keep_t *k, uint64_t now_us)
{
    if (now_us < k->look_us) return;
    k->look_us = now_us + LOOK_US;
    if (k->count && descriptors_count(DESCRIPTORS_LOW) < DESCRIPTORS_LOW) {
        descriptors_fini(k);
        char scratch[REPEAT_TEXT];
        uint64_t times = repeat_note(&k->low, 0, now_us);
        if (times)
            log_emit(LOG_WARN, "descriptors.low", "the limit of open files is near: raise it (ulimit -n)%s",
                     repeat_text(times, scratch));
    } else if (!k->count &&
               descriptors_count(DESCRIPTORS_KEPT + DESCRIPTORS_LOW) == DESCRIPTORS_KEPT + DESCRIPTORS_LOW) {
        while (k->count < DESCRIPTORS_KEPT && (k->fds[k->count] = eventfd(0, EFD_CLOEXEC)) >= 0) k->count++;
        if (repeat_over(&k->low)) log_emit(LOG_WARN, "descriptors.again", "descriptors are free again");
    }
}

void descriptors_fini(descriptors_keep_t *k)
{
    while (k->count > 0) close(k->fds[--k->count]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A broker process with a directory of its own, and the adapter that the tests of the library publish. */
#ifndef TESTS_API_BROKER_H
#define TESTS_API_BROKER_H

#include "tests/process/child.h"

#include <criterion/criterion.h>
#include <heddle/heddle.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000 };

#define OK(call) cr_assert_eq(call, HEDDLE_OK, "%s: %s", #call, heddle_last_error()->message)
#define FAILS(code, call) cr_assert_eq(call, code, "%s: %s", #call, heddle_last_error()->message)

static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16}";
static const uint64_t DIMS[] = {8, 4096};

static char dir[64], endpoint[160];
static child_t broker;

static inline void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/heddle-api-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static inline void start_broker(const char *listen)
{
    char line[4096], data[80];
    snprintf(data, sizeof data, "%s/data", dir);
    const char *argv[] = {"heddle-broker", "--listen", listen, "--lease", "2s", "--data", data, NULL};
    child_start(&broker, argv, NULL);
    if (!child_line(&broker, line, sizeof line, PATIENCE_MS)) {
        child_end(&broker, 0);
        cr_assert_fail("no ready line: %s", broker.err);
    }
    const char *at = strstr(line, "\"endpoint\":\"");
    cr_assert(at && sscanf(at, "\"endpoint\":\"%127[^\"]", endpoint) == 1, "%s", line);
}

/* Last in each test, not a teardown: what fails there is only printed. */
static inline void end_broker(void)
{
    char command[96];
    child_signal(&broker, SIGTERM);
    int status = child_end(&broker, PATIENCE_MS);
    cr_assert_eq(status, 0, "the broker ended with %d: %s", status, broker.err);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

/* `values`: the bytes of each tensor.  The library's result. */
static inline int publish_values(heddle_publisher_t *p, const int values[2],
                                 const heddle_publish_opts_t *opts, heddle_published_t *ret)
{
    heddle_tensor_t tensors[] = {{.size = sizeof *tensors,
                                  .name = "l.lora_A.weight",
                                  .dtype = HEDDLE_DTYPE_F32,
                                  .ndim = 2,
                                  .dims = DIMS},
                                 {.size = sizeof *tensors,
                                  .name = "l.lora_B.weight",
                                  .dtype = HEDDLE_DTYPE_F32,
                                  .ndim = 2,
                                  .dims = DIMS}};
    heddle_publication_t *pub;
    int rc = heddle_publication_begin(p, tensors, 2, CONFIG, sizeof CONFIG - 1, NULL, &pub);
    if (rc) return rc;
    for (uint32_t i = 0; i < 2; i++) memset(heddle_publication_tensor(pub, i), values[i], 8 * 4096 * 4);
    *ret = (heddle_published_t){.size = sizeof *ret};
    rc = heddle_publication_commit(&pub, opts, ret);
    cr_assert_null(pub);
    return rc;
}

static inline int wait_active(heddle_publisher_t *p, uint64_t version, int timeout_ms,
                              heddle_report_t *report)
{
    heddle_quorum_t all = {HEDDLE_QUORUM_ALL, 0};
    *report = (heddle_report_t){.size = sizeof *report};
    return heddle_publisher_wait(p, version, HEDDLE_PHASE_ACTIVE, all, timeout_ms, report);
}

#endif

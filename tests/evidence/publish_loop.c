/* SPDX-License-Identifier: Apache-2.0 */
/* publish-loop BROKER ADAPTER COUNT EVERY [HALF]: publishes COUNT versions of a tiny adapter, each active
 * everywhere before the next one. After every EVERY of them it says how many there were and waits for
 * a line, so that a test may look at the processes. With HALF it kills itself when half of that version is
 * written. How long the slowest begin took is said on stderr at the end. */
#include "bench/model.h"
#include "core/clock.h"

#include <heddle/heddle.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t slowest_us; /* of all begins */

static int fail(const char *what)
{
    fprintf(stderr, "publish-loop: %s: %s (%s)\n", what, heddle_last_error()->message,
            heddle_last_error()->hint);
    return 1;
}

static int publish(heddle_publisher_t *p, model_t *m, bool is_to_die)
{
    static heddle_report_t report;
    heddle_publication_t *pub = NULL;
    heddle_published_t done = {.size = sizeof done};
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1};
    model_change(m);
    uint64_t before_us = clock_now(clock_system());
    if (heddle_publication_begin(p, m->table.rows, m->table.count, m->config.data, m->config.bytes, NULL,
                                 &pub))
        return fail("begin");
    uint64_t took_us = clock_now(clock_system()) - before_us;
    if (took_us > slowest_us) slowest_us = took_us;
    for (uint32_t i = 0; i < m->table.count; i++) {
        if (is_to_die && i == m->table.count / 2) raise(SIGKILL);
        memcpy(heddle_publication_tensor(pub, i), m->data[i], m->table.rows[i].data_bytes);
    }
    if (heddle_publication_commit(&pub, &opts, &done)) return fail("commit");
    report = (heddle_report_t){.size = sizeof report};
    heddle_quorum_t all = {HEDDLE_QUORUM_ALL, 0};
    return heddle_publisher_wait(p, done.version, HEDDLE_PHASE_ACTIVE, all, 30000, &report) ? fail("wait")
                                                                                            : 0;
}

static void pause_here(int count)
{
    printf("%d\n", count);
    fflush(stdout);
    for (int c; (c = getchar()) != EOF && c != '\n';) continue;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6)
        return fputs("usage: publish-loop BROKER ADAPTER COUNT EVERY [HALF]\n", stderr), 2;
    heddle_error_t error = {0};
    model_t *model = NULL;
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = argv[1],
                                    .adapter = argv[2],
                                    .takeover = 1};
    int count = atoi(argv[3]), every = atoi(argv[4]), half = argc == 6 ? atoi(argv[5]) : 0;
    int rc = model_new("tiny", 16, &model, &error) != HEDDLE_OK;
    if (!rc && heddle_publisher_open(&opts, &p)) rc = fail("open");
    for (int i = 1; !rc && i <= count; i++) {
        rc = publish(p, model, i == half);
        if (!rc && every > 0 && i % every == 0) pause_here(i);
    }
    heddle_publisher_close(&p);
    model_destroy(&model);
    fprintf(stderr, "publish-loop: the slowest begin took %llu us\n", (unsigned long long)slowest_us);
    return rc;
}

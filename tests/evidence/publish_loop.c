/* SPDX-License-Identifier: Apache-2.0 */
/* publish-loop BROKER ADAPTER COUNT EVERY [HALF [RANK]]: publishes COUNT versions of a tiny adapter, each
 * active everywhere before the next one. After every EVERY of them it says how many there were and waits for
 * a line, so that a test may look at the processes. With HALF it kills itself when half of that version is
 * written; 0: it does not. RANK (16) decides the size, 4 KiB each. */
#include "bench/model.h"

#include <heddle/heddle.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

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
    if (heddle_publication_begin(p, m->table.rows, m->table.count, m->config.data, m->config.bytes, NULL,
                                 &pub))
        return fail("begin");
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
    if (argc < 5 || argc > 7)
        return fputs("usage: publish-loop BROKER ADAPTER COUNT EVERY [HALF [RANK]]\n", stderr), 2;
    heddle_error_t error = {0};
    model_t *model = NULL;
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = argv[1],
                                    .adapter = argv[2],
                                    .takeover = 1};
    int count = atoi(argv[3]), every = atoi(argv[4]), half = argc > 5 ? atoi(argv[5]) : 0,
        rank = argc > 6 ? atoi(argv[6]) : 16;
    int rc = model_new("tiny", (uint32_t)rank, &model, &error) != HEDDLE_OK;
    if (!rc && heddle_publisher_open(&opts, &p)) rc = fail("open");
    for (int i = 1; !rc && i <= count; i++) {
        rc = publish(p, model, i == half);
        if (!rc && every > 0 && i % every == 0) pause_here(i);
    }
    heddle_publisher_close(&p);
    model_destroy(&model);
    return rc;
}

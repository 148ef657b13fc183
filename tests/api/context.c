/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that are opened without a broker's address take that of the user's context. */
#include "core/contexts.h"
#include "tests/api/broker.h"

/* The context `here`, which is in use, names the broker of this test. */
static void start(void)
{
    char config[96];
    contexts_t c;
    heddle_error_t error;
    make_dir();
    start_broker("tcp://127.0.0.1:*");
    snprintf(config, sizeof config, "%s/config", dir);
    setenv("XDG_CONFIG_HOME", config, 1);
    unsetenv("HEDDLE_BROKER");
    unsetenv("HEDDLE_CONTEXT");
    cr_assert(!contexts_read(&c, &error) &&
              !contexts_put(&c, &(context_t){"here", endpoint, NULL, NULL}, &error) &&
              !contexts_put(&c, &(context_t){"away", "tcp://127.0.0.1:1", NULL, NULL}, &error) &&
              !contexts_use(&c, "here", &error) && !contexts_write(&c, &error));
    contexts_fini(&c);
}

TestSuite(context, .init = start, .timeout = 120);

static int ask(const char *named)
{
    heddle_admin_t *admin = NULL;
    char *json = NULL;
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = named, .timeout_ms = named ? 5000 : 2000};
    int rc = heddle_admin_open(&opts, &admin);
    if (!rc) rc = heddle_admin_status(admin, &json);
    heddle_free(json);
    heddle_admin_close(&admin);
    return rc;
}

Test(context, names_the_broker_of_every_handle)
{
    static const char *const ADAPTERS[] = {"policy", NULL};
    heddle_publisher_t *publisher;
    heddle_worker_t *worker;
    heddle_event_t e = {.size = sizeof e};
    OK(ask(NULL));
    heddle_publisher_opts_t opts = {.size = sizeof opts, .adapter = "policy"};
    OK(heddle_publisher_open(&opts, &publisher));
    heddle_worker_opts_t of_worker = {.size = sizeof of_worker, .adapters = ADAPTERS};
    OK(heddle_worker_open(&of_worker, &worker));
    do OK(heddle_worker_next_event(worker, PATIENCE_MS, &e));
    while (e.type != HEDDLE_EVENT_JOINED);
    heddle_worker_close(&worker);
    heddle_publisher_close(&publisher);
    end_broker();
}

Test(context, a_broker_that_is_named_has_precedence)
{
    setenv("HEDDLE_CONTEXT", "away", 1);
    FAILS(HEDDLE_ERR_UNAVAILABLE, ask(NULL));
    OK(ask(endpoint));
    setenv("HEDDLE_BROKER", endpoint, 1);
    OK(ask(NULL));
    unsetenv("HEDDLE_BROKER");
    setenv("HEDDLE_CONTEXT", "none", 1);
    FAILS(HEDDLE_ERR_NOT_FOUND, ask(NULL));
    end_broker();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* heddle-broker: options, the ready line, and how it ends.  What it does between the two is in main_daemon.c,
 * and `heddle registry`, which needs a broker's stores, is in main_registry.c. */
#include "broker/main_daemon.h"
#include "broker/main_registry.h"
#include "broker/registry/registry.h"

#include "core/errors.h"
#include "core/log.h"
#include "core/notify.h"
#include "core/option.h"
#include "core/process.h"
#include "proto/value.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEASE_MIN_MS = 100, LEASE_MAX_MS = 3600000, STORE_LEASE_MIN_MS = 2000, STORE_LEASE_MAX_MS = 600000 };

/* In the environment of a process that begins anew; people do not set it. */
#define LED "HEDDLE_LED_CLUSTER"

typedef enum { OUTPUT_TABLE, OUTPUT_JSON } output_t;

typedef struct {
    const char *listen, *data, *store, *store_cluster, *advertise;
    main_store_access_t store_access;
    uint32_t lease_ms, timeout_ms, store_lease_ms;
    int64_t keep;
    bool insecure, quiet;
    const char *keys, **admin_keys;
    service_opts_t http;
    int output, log_level, log_format, plan;
} args_t;

#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"listen", 0, OPTION_TEXT, "EP", NULL, "tcp://127.0.0.1:7700",
     "where clients connect; :* takes any free port", AT(listen)},
    {"data", 0, OPTION_TEXT, "DIR", NULL, NULL, "what must survive a crash; default $XDG_STATE_HOME/heddle",
     AT(data)},
    {"store", 0, OPTION_TEXT, "URL", NULL, NULL,
     "keep the registry there, and not in --data: etcd://HOST:PORT[,HOST:PORT...]/PREFIX, or etcds:// for "
     "TLS; "
     "of the brokers of a prefix one serves",
     AT(store)},
    MAIN_STORE_OPTIONS(AT(store_access)),
    {"store-cluster", 0, OPTION_TEXT, "ID", NULL, NULL,
     "refuse a --store that is empty or has another cluster id", AT(store_cluster)},
    {"store-lease", 0, OPTION_DURATION, "DUR", NULL, "5s",
     "with --store: a broker that etcd does not hear for so long is succeeded; whole seconds",
     AT(store_lease_ms)},
    {"advertise", 0, OPTION_TEXT, "EP", NULL, NULL,
     "with --store: where clients reach this broker, as standbys name it to them; default: --listen, with "
     "this host's name in place of *",
     AT(advertise)},
    {"lease", 0, OPTION_DURATION, "DUR", NULL, "4s", "a member silent for so long is lost", AT(lease_ms)},
    {"keep", 0, OPTION_INTEGER, "N", NULL, "3", "versions kept besides the active one, to go back to",
     AT(keep)},
    {"plan", 0, OPTION_CHOICE, "auto|star|chain|two-tree", NULL, "auto",
     "chain, two-tree: hosts fetch a version from each other; star: from the publisher; auto: what is faster",
     AT(plan)},
    {"keys", 0, OPTION_TEXT, "DIR", "HEDDLE_KEYS", NULL,
     "the broker's key and this user's, made where missing; default ~/.config/heddle/keys", AT(keys)},
    {"admin-key", 0, OPTION_LIST, "KEY|FILE", NULL, NULL,
     "let this new public key administer, besides those that may; may be given again", AT(admin_keys)},
    SERVICE_OPTIONS(
        AT(http), "also answer over HTTP there, reads only: a page for a browser, /livez, /readyz, /metrics, "
                  "/api/v1/...; HOST: 127.0.0.1"),
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL,
     "no keys: every client that reaches the address may do everything", AT(insecure)},
    {0}};
static const option_t COMMON[] = {
    {"timeout", 0, OPTION_DURATION, "DUR", NULL, "5s",
     "drop a connection that has not introduced itself by then", AT(timeout_ms)},
    {"output", 'o', OPTION_CHOICE, "table|json", NULL, "table", "json: a failure is an object on stdout too",
     AT(output)},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "log only what is wrong", AT(quiet)},
    {"log-level", 0, OPTION_CHOICE, "error|warn|info|debug", NULL, "info", "what is logged on stderr",
     AT(log_level)},
    {"log-format", 0, OPTION_CHOICE, LOG_FORMATS, NULL, "text",
     "how: for people, as an object on each line, or with the priority in front for systemd's journal",
     AT(log_format)},
    {0}};
static option_set_t SET =
    {/* program: as it was typed */
     "heddle-broker",
     "[OPTION...]",
     "Tracks adapter versions and workers.  The bytes of adapters never pass through it.",
     "Prints one line of JSON on stdout once clients can connect, and a standby one more when it leads;\n"
     "ends with 0 on SIGTERM and SIGINT.\n"
     "DUR: 500ms, 30s, 5m; a bare number is seconds.",
     OPTIONS,
     COMMON,
     NULL,
     0,
     "Exit status: 0 ok, ended by SIGTERM or SIGINT; 2 usage, or an address that others could reach "
     "without keys;\n"
     "4 another broker has the data directory; 6 etcd refuses the user, or a certificate is not taken;\n"
     "7 no etcd answers; 9 this machine: the directory, the port, no room, or data of a newer release.\n\n"
     "Environment:\n"
     "  XDG_STATE_HOME  the data directory is heddle below it, unless --data is given [~/.local/state]\n"
     "  NOTIFY_SOCKET   a service manager, notified when it serves and when it ends\n\n"
     "Examples:\n"
     "  heddle broker\n"
     "  heddle broker --listen 'tcp://127.0.0.1:*' | jq -r .endpoint    any free port, and which it is\n"
     "  heddle broker --listen 'tcp://*:7700' --data /srv/heddle    for other hosts, when keys were put in "
     "place\n"
     "  heddle broker --store etcd://e0:2379,e1:2379,e2:2379/heddle/prod    on two hosts: one stands by"};

/* ---- what goes to stdout and stderr ---------------------------------------------------------- */

static void print_line(json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    if (text) process_print(text);
    free(text);
    json_decref(object);
}

/* ---- the process ----------------------------------------------------------------------------- */

/* A standby has no cluster and no epoch yet: it prints its line once more when it leads. */
static void print_ready(const daemon_facts_t *f)
{
    json_t *epoch = f->leads ? json_integer((json_int_t)f->epoch) : NULL;
    print_line(json_pack(
        "{s:s, s:s, s:b, s:s, s:b, s:s*, s:I, s:s, s:s*, s:o*, s:s, s:{s:i, s:i}, s:s, s:s?, s:s?}", "schema",
        "heddle/1", "kind", "ready", "ok", 1, "role", "broker", "leads", (int)f->leads, "leader", f->leader,
        "pid", (json_int_t)getpid(), "endpoint", f->endpoint, "cluster", f->cluster, "epoch", epoch,
        "data_dir", f->data_dir, "wire", "min", (int)WIRE_VERSION_MIN, "max", (int)WIRE_VERSION_MAX, "heddle",
        heddle_version(), "public_key", f->public_key, "http", f->http));
}

/* `ret_cluster`, of a broker that led: the id of its registry. */
static int serve(const args_t *args, char ret_cluster[HEDDLE_NAME_MAX + 1], heddle_error_t *error)
{
    daemon_opts_t opts = {.listen = args->listen,
                          .data = args->data,
                          .store = args->store,
                          .store_cluster = args->store_cluster,
                          .store_led = getenv(LED),
                          .store_access = args->store_access,
                          .store_lease_ms = args->store_lease_ms,
                          .advertise = args->advertise,
                          .lease_ms = args->lease_ms,
                          .timeout_ms = args->timeout_ms,
                          .keep = (uint64_t)args->keep,
                          .plan = args->plan,
                          .insecure = args->insecure,
                          .keys = args->keys,
                          .http = args->http,
                          .admin_keys = args->admin_keys,
                          .on_standby = print_ready};
    daemon_t *d = NULL;
    int rc = daemon_open(&opts, &d, error);
    if (rc) return rc;
    daemon_facts_t facts;
    daemon_facts(d, &facts);
    print_ready(&facts);
    notify_ready(facts.endpoint);
    snprintf(ret_cluster, HEDDLE_NAME_MAX + 1, "%s", facts.cluster);
    rc = daemon_run(d, error);
    if (rc != HEDDLE_ERR_FENCED || !args->store) notify_stopping(); /* else it goes on as a standby */
    daemon_close(&d);
    return rc;
}

/* A broker that does not lead any more is a standby again, and its members find the one that leads.  The same
 * program begins anew in this process, which goes on for its service manager: ZeroMQ releases the address of
 * the check of keys only some time after a listener is closed.  LED tells it the registry that it led
 * (`cluster`; "": it had none yet), so that it makes no other one where etcd has lost that.  Returns when it
 * cannot begin. */
static int start_anew(char **argv, const char *cluster, heddle_error_t *error)
{
    log_emit(LOG_WARN, "broker.fenced", "%s", error->message);
    if (!*cluster || !setenv(LED, cluster, 1)) execv("/proc/self/exe", argv);
    error_hint(error, "it could not start anew as a standby (%s): start it again", strerror(errno));
    return error->code;
}

int main(int argc, char **argv)
{
    args_t args = {.http = {.program = "broker", .has_api = true}};
    heddle_error_t error = {0};
    char data[4096], range[64], cluster[HEDDLE_NAME_MAX + 1] = "";
    if (argc > 1 && !strcmp(argv[1], "registry")) return main_registry(argc - 1, argv + 1);
    process_take_log_format(argc, argv);
    int rc = process_begin(&error);
    SET.program = process_name(argv[0], "heddle-broker");
    if (!rc) rc = option_parse(&SET, argc, argv, &args, NULL, &error);
    if (rc == 1) return process_end(0);
    if (rc) args.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE;
    else if (args.lease_ms < LEASE_MIN_MS || args.lease_ms > LEASE_MAX_MS) {
        snprintf(range, sizeof range, "%d to %d ms", LEASE_MIN_MS, LEASE_MAX_MS);
        rc = option_refuse(&SET, "--lease", range, args.lease_ms, &error);
    } else if (args.timeout_ms == 0) {
        rc = option_refuse(&SET, "--timeout", "more than 0", 0, &error);
    } else if (args.keep < 0 || args.keep > REGISTRY_KEEP_MAX) {
        snprintf(range, sizeof range, "0 to %u", REGISTRY_KEEP_MAX);
        rc = option_refuse(&SET, "--keep", range, args.keep, &error);
    }
    const char *without = args.store           ? NULL
                          : args.store_cluster ? "--store-cluster"
                          : args.advertise     ? "--advertise"
                                               : NULL;
    if (!rc && without) rc = main_store_without(without, &error);
    if (!rc && !args.store) rc = main_store_no_access(&args.store_access, &error);
    if (!rc && (args.store_lease_ms < STORE_LEASE_MIN_MS || args.store_lease_ms > STORE_LEASE_MAX_MS)) {
        snprintf(range, sizeof range, "%d to %d ms", STORE_LEASE_MIN_MS, STORE_LEASE_MAX_MS);
        rc = option_refuse(&SET, "--store-lease", range, args.store_lease_ms, &error);
    }
    if (!rc && !args.store && !args.data) {
        rc = main_store_default_dir(data, sizeof data, &error);
        args.data = data;
    }
    if (!rc) {
        log_set_format((log_format_t)args.log_format);
        log_set_level(args.quiet && args.log_level > LOG_WARN ? LOG_WARN : (log_level_t)args.log_level);
        /* Before any thread is started, because threads inherit the mask.  The loop reads the signals from
         * a descriptor. */
        sigset_t mine;
        sigemptyset(&mine);
        sigaddset(&mine, SIGTERM);
        sigaddset(&mine, SIGINT);
        sigprocmask(SIG_BLOCK, &mine, NULL);
        umask(077);
        rc = serve(&args, cluster, &error);
        if (rc == HEDDLE_ERR_FENCED && args.store) rc = start_anew(argv, cluster, &error);
        if (rc == HEDDLE_ERR_INTERRUPTED && args.store) rc = HEDDLE_OK; /* a standby that was ended */
    }
    /* Scripts read the failure from stdout, people from stderr. */
    if (rc && args.output == OUTPUT_JSON)
        print_line(json_pack("{s:s, s:s, s:b, s:o}", "schema", "heddle/1", "kind", "broker", "ok", 0, "error",
                             value_from_error(&error)));
    int end = rc ? process_fail(SET.program, &error) : 0;
    option_fini(&SET, &args);
    return end;
}

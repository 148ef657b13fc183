/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_host_probe: what a worker would run on here.  Each part is made as a worker makes it, so that it
 * fails where a worker fails, and for the same reason.  heddle_host_listen does so for a broker's address. */
#include <heddle/admin.h>

#include "client/broker_address.h"
#include "client/opening.h"
#include "client/sharing.h"
#include "client/shell.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/sized.h"
#include "core/utf8.h"
#include "memory/available.h"
#include "proto/value.h"
#include "transfer/device.h"

#include <stdlib.h>
#include <string.h>

static json_t *error_or_null(int rc, const heddle_error_t *error)
{
    return rc ? value_from_error(error) : json_null();
}

/* "10.0.0.5,fd00::5": a list of them. */
static json_t *list_of(const char *commas)
{
    json_t *list = json_array();
    for (const char *at = commas; *at; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        json_array_append_new(list, json_stringn(at, n));
        at += n;
    }
    return list;
}

static json_t *look_at_ucx(bool *ret_loaded)
{
    heddle_error_t error;
    const transfer_ops_t *ops = NULL;
    transfer_place_t place = {0};
    opening_begin();
    int rc = transfer_ucx_load_from(NULL, &ops, &place, &error);
    opening_end();
    *ret_loaded = !rc;
    return json_pack("{s:o, s:o, s:o, s:o}", "version", utf8_json_or_null(rc ? NULL : ops->version()),
                     "library", utf8_json_or_null(place.ucx), "plugin", utf8_json_or_null(place.plugin),
                     "error", error_or_null(rc, &error));
}

/* Other hosts have to reach this one where the broker is on another: so loopback is worth a word then. */
static bool is_elsewhere(const char *broker)
{
    char host[WIRE_HOST_BYTES];
    const char *rest = broker_address(broker);
    return wire_check_endpoints(rest, NULL, NULL) == HEDDLE_OK && wire_next_host(&rest, host);
}

static json_t *look_at_data(const heddle_host_opts_t *opts)
{
    heddle_error_t error;
    tr_where_t where = {0};
    char devices[64] = "";
    const char *transports = getenv("UCX_TLS");
    shell_opts_t shell = {.broker = opts->broker,
                          .transfer = true,
                          .data_device = opts->data_device,
                          .insecure = opts->insecure != 0,
                          .keys = {.broker_key = opts->broker_key, .key = opts->key, .makes_no_file = true}};
    node_io_t io = {.clock = clock_system()};
    int rc = shell_open_transfer(&shell, &io, &error);
    if (!rc) {
        io.tr->where(io.t, &where);
        io.tr->devices(io.t, devices, sizeof devices);
        io.tr->close(&io.t);
    }
    return json_pack("{s:o, s:o, s:o, s:b, s:b, s:o}", "device", utf8_json_or_null(devices), "addresses",
                     list_of(where.addresses), "transports",
                     list_of(transports && transports[0] ? transports : "tcp,self"), "loopback",
                     !rc && device_is_loopback(devices), "elsewhere", is_elsewhere(opts->broker), "error",
                     error_or_null(rc, &error));
}

static json_t *look_at_memory(const heddle_host_opts_t *opts)
{
    heddle_error_t error;
    sharing_t *sharing = NULL;
    sharing_opts_t with = {.directory = opts->host_share};
    random_bytes(&with.life, sizeof with.life);
    int rc = sharing_new(&with, &sharing, &error);
    sharing_close(&sharing);
    uint64_t available = memory_available("");
    return json_pack("{s:s, s:o, s:o, s:o}", "way", rc ? "own" : "shared", "host_share",
                     utf8_json_or_null(opts->host_share), "available_bytes",
                     available == UINT64_MAX ? json_null() : json_integer((json_int_t)available), "error",
                     error_or_null(rc, &error));
}

static json_t *probe(const heddle_host_opts_t *opts)
{
    bool is_loaded = false;
    json_t *ucx = look_at_ucx(&is_loaded);
    return json_pack("{s:o, s:o, s:o}", "ucx", ucx, "data", is_loaded ? look_at_data(opts) : json_null(),
                     "memory", look_at_memory(opts));
}

int heddle_host_listen(const char *endpoint)
{
    heddle_error_t error;
    int rc = endpoint ? wire_try_listen(endpoint, &error)
                      : error_fail(&error, HEDDLE_ERR_USAGE, "heddle_host_listen: an address is needed");
    return rc ? error_publish(&error) : HEDDLE_OK;
}

int heddle_host_probe(const heddle_host_opts_t *given, char **ret_json)
{
    static const heddle_host_opts_t none = {.size = sizeof none};
    heddle_host_opts_t opts;
    contexts_t contexts;
    if (!ret_json)
        return error_fail(error_last(), HEDDLE_ERR_USAGE,
                          "heddle_host_probe: a place for the answer is "
                          "needed");
    int rc = sized_take(&opts, sizeof opts, given ? given : &none, "the struct of options", error_last());
    if (rc) return rc;
    if (opts.host_share && !opts.host_share[0]) opts.host_share = NULL;
    rc = opening_context(&opts.broker, &opts.broker_key, &opts.key, &contexts, error_last());
    json_t *found = rc ? NULL : probe(&opts);
    contexts_fini(&contexts);
    if (rc) return rc;
    *ret_json = found ? json_dumps(found, JSON_COMPACT) : NULL;
    json_decref(found);
    return *ret_json ? HEDDLE_OK
                     : error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for what was found");
}

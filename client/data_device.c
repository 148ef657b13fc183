/* SPDX-License-Identifier: Apache-2.0 */
#include "client/data_device.h"

#include "core/errors.h"
#include "core/log.h"
#include "wire/wire.h"

#include <stdio.h>

/* A data plane on loopback cannot be reached from other hosts. That would only show as a deadline much
 * later, so it is logged here. */
int data_device_choose(const char *named, const char *broker, device_reach_t reach,
                       char ret_device[DATA_DEVICE_BYTES], heddle_error_t *error)
{
    char host[WIRE_HOST_BYTES], device[IF_NAMESIZE];
    const char *rest = broker;
    bool is_named = named && named[0], is_elsewhere = wire_next_host(&rest, host);
    int rc = HEDDLE_OK;
    if (is_named) {
        error_text(ret_device, DATA_DEVICE_BYTES, named);
    } else if (is_elsewhere) {
        /* The first host of the list that can be reached decides: all brokers of a cluster are on its
         * network. */
        char next[WIRE_HOST_BYTES];
        rc = device_towards(host, device, error);
        while (rc == HEDDLE_ERR_UNAVAILABLE && wire_next_host(&rest, next))
            rc = device_towards(next, device, error);
        if (!rc) snprintf(ret_device, DATA_DEVICE_BYTES, "%s", device);
    } else {
        snprintf(ret_device, DATA_DEVICE_BYTES, "lo");
    }
    if (!rc) rc = device_check(ret_device, reach, error);
    if (rc || !is_elsewhere) return rc;
    if (device_is_loopback(ret_device)) /* else only a deadline would tell that nothing arrives */
        log_emit(LOG_WARN, "data.loopback",
                 "the broker is at %s, and bulk data goes over %s: other hosts cannot reach this program; "
                 "name the interface that they can (opts.data_device)",
                 broker, ret_device);
    else if (!is_named) {
        device_addresses_t addresses;
        char text[DEVICE_ADDRESSES_TEXT];
        device_addresses(ret_device, &addresses);
        device_addresses_text(&addresses, text);
        log_emit(LOG_INFO, "data.device",
                 "the data plane is on %s (%s), which reaches the broker at %s; "
                 "opts.data_device names another interface",
                 ret_device, text, broker);
    }
    return HEDDLE_OK;
}

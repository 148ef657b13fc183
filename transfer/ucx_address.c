/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/limits.h"

#include <stdio.h>

/* "UCX" | u8 format | u16 major | u16 minor | u64 leaf digest of all that follows | u8 count | offers
 * An offer: u8 family, 4 or 6 | u16 bytes | 16 bytes IP address | worker address. */
#define FORMAT 1u
#define ENVELOPE_BYTES 16u
#define OFFER_BYTES 19u

/* Another release of UCX has other addresses, and aborts on those of this one. */
static void put_head(uint8_t head[8])
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    memcpy(head, "UCX", 3);
    head[3] = FORMAT;
    le16_put(head + 4, (uint16_t)major);
    le16_put(head + 6, (uint16_t)minor);
}

/* A damaged address would make UCX abort, so that it is checked before UCX sees it. */
static uint64_t check_of(const void *address, size_t bytes)
{
    uint64_t leaf = 0;
    if (bytes <= LIMIT_PAGE_BYTES) digest_leaves(address, bytes, &leaf);
    return leaf;
}

/* The limit of an address is checked here, because UCX decides how long its own part is. */
static ucs_status_t put_offer(envelope_t *e, const plane_t *plane)
{
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(plane->in, &address, &bytes);
    if (status != UCS_OK) return status;
    uint8_t *at = e->data + e->bytes;
    if (e->bytes + OFFER_BYTES + bytes <= sizeof e->data) {
        at[0] = plane->at.family == AF_INET ? 4 : 6;
        le16_put(at + 1, (uint16_t)bytes);
        memcpy(at + 3, plane->at.bytes, sizeof plane->at.bytes);
        memcpy(at + OFFER_BYTES, address, bytes);
        e->bytes += OFFER_BYTES + bytes;
        e->data[ENVELOPE_BYTES]++;
    } else {
        status = UCS_ERR_EXCEEDS_LIMIT;
    }
    ucp_worker_release_address(plane->in, address);
    return status;
}

/* The digest covers all that follows it, so that a damaged address is not used. */
ucs_status_t ucx_address_make(plane_t *const planes[DEVICE_FAMILIES], envelope_t *ret)
{
    ucs_status_t status = UCS_OK;
    *ret = (envelope_t){.bytes = ENVELOPE_BYTES + 1};
    for (int f = 0; f < DEVICE_FAMILIES && status == UCS_OK; f++)
        if (planes[f]) status = put_offer(ret, planes[f]);
    put_head(ret->data);
    le64_put(ret->data + 8, check_of(ret->data + ENVELOPE_BYTES, ret->bytes - ENVELOPE_BYTES));
    return status;
}

/* Reads one offer of at most `left` bytes. Returns how many it took; 0: it is malformed. */
static size_t get_offer(const uint8_t *at, size_t left, offers_t *ret_offers)
{
    if (left < OFFER_BYTES || (at[0] != 4 && at[0] != 6)) return 0;
    size_t bytes = le16_get(at + 1);
    if (bytes == 0 || bytes > left - OFFER_BYTES) return 0;
    device_family_t f = at[0] == 4 ? DEVICE_INET : DEVICE_INET6;
    ret_offers->of[f].at.family = at[0] == 4 ? AF_INET : AF_INET6;
    memcpy(ret_offers->of[f].at.bytes, at + 3, f == DEVICE_INET ? 4 : 16);
    ret_offers->of[f].worker = (const ucp_address_t *)(at + OFFER_BYTES);
    return OFFER_BYTES + bytes;
}

/* Every length is checked, since the envelope comes from the network. Nothing may follow that this
 * release does not know. */
bool ucx_address_open(bytes_t envelope, offers_t *ret_offers)
{
    const uint8_t *at = envelope.data;
    uint8_t head[8];
    put_head(head);
    *ret_offers = (offers_t){0};
    if (envelope.bytes <= ENVELOPE_BYTES + 1 || memcmp(at, head, sizeof head) != 0) return false;
    if (le64_get(at + 8) != check_of(at + ENVELOPE_BYTES, envelope.bytes - ENVELOPE_BYTES)) return false;
    size_t used = ENVELOPE_BYTES + 1;
    for (uint8_t left = at[ENVELOPE_BYTES]; left > 0; left--) {
        size_t took = get_offer(at + used, envelope.bytes - used, ret_offers);
        if (!took) return false;
        used += took;
    }
    return used == envelope.bytes && used > ENVELOPE_BYTES + 1;
}

void ucx_addresses(const ucx_t *u, device_addresses_t *ret_addresses)
{
    *ret_addresses = (device_addresses_t){0};
    for (int f = 0; f < DEVICE_FAMILIES; f++)
        if (u->planes[f]) ret_addresses->of[f] = u->planes[f]->at;
}

/* "IPv6 alone (fd00::5)" */
static void tell_families(const device_addresses_t *a, char *ret_text, size_t size)
{
    char addresses[DEVICE_ADDRESSES_TEXT];
    bool has_four = a->of[DEVICE_INET].family, has_six = a->of[DEVICE_INET6].family;
    device_addresses_text(a, addresses);
    const char *which = has_four && has_six ? "IPv4 and IPv6" : has_four ? "IPv4 alone" : "IPv6 alone";
    snprintf(ret_text, size, "%s (%s)", which, addresses);
}

static bool is_loopback(const device_addresses_t *a)
{
    return device_address_is_loopback(&a->of[DEVICE_INET]) && !a->of[DEVICE_INET6].family;
}

/* The usual reasons why two hosts cannot connect, in the order in which an operator should check them. */
void ucx_address_explain(const ucx_t *u, bytes_t envelope, char *ret_text, size_t size)
{
    offers_t offers;
    device_addresses_t ours, theirs = {0};
    char our_text[DEVICE_ADDRESSES_TEXT + 16], their_text[DEVICE_ADDRESSES_TEXT + 16];
    ret_text[0] = 0;
    if (!ucx_address_open(envelope, &offers)) return;
    ucx_addresses(u, &ours);
    bool has_common = false;
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        theirs.of[f] = offers.of[f].at;
        has_common |= theirs.of[f].family && ours.of[f].family;
    }
    device_address_text(&theirs.of[DEVICE_INET], their_text);
    device_address_text(&ours.of[DEVICE_INET], our_text);
    if (is_loopback(&theirs) && is_loopback(&ours)) return; /* on one host, as a rule: it has ended */
    if (is_loopback(&theirs)) {
        snprintf(ret_text, size, "its data plane is on loopback (%s)", their_text);
    } else if (is_loopback(&ours)) {
        snprintf(ret_text, size, "the data plane of this worker is on loopback (%s)", our_text);
    } else if (!has_common) {
        tell_families(&theirs, their_text, sizeof their_text);
        tell_families(&ours, our_text, sizeof our_text);
        snprintf(ret_text, size, "it has %s, and this host has %s", their_text, our_text);
    }
}

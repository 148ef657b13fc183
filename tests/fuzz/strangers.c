/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 which | bytes |: what is read of somebody before he is known: a listener's greeting, in pieces; the
 * envelope of a peer's address, as it comes, and with head and digest as they should be. */
#include "core/digest.h"
#include "tests/fuzz/fuzz.h"
#include "transfer/ucx.h"
#include "wire/greeting.h"

enum { HEAD = 16, OFFER = 19 };

static void check_greeting(input_t *in)
{
    greeting_answer_t heard = {0}, whole = {0};
    char mechanism[GREETING_MECHANISM + 1], again[GREETING_MECHANISM + 1];
    bool more = true;
    while (more && in->left) {
        bytes_t part = input_bytes(in, 1 + input_byte(in) % 40u);
        more = greeting_take(&heard, part);
    }
    MUST(heard.bytes <= sizeof heard.at && more == (heard.bytes < sizeof heard.at));
    greeting_read(&heard, mechanism);
    MUST(greeting_take(&whole, bytes_of(heard.at, heard.bytes)) == more); /* pieces make no difference */
    greeting_read(&whole, again);
    MUST(!memcmp(mechanism, again, sizeof again) && strlen(mechanism) <= GREETING_MECHANISM);
    MUST(!more || !mechanism[0]);
}

static void check_address(bytes_t envelope)
{
    offers_t offers;
    const uint8_t *at = envelope.data, *end = at + envelope.bytes;
    uint32_t count = 0;
    if (!ucx_address_open(envelope, &offers)) return;
    MUST(envelope.bytes > HEAD + 1 && !memcmp(at, "UCX\1", 4));
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        const uint8_t *worker = (const uint8_t *)offers.of[f].worker;
        int family = f == DEVICE_INET ? AF_INET : AF_INET6;
        if (!worker) continue;
        count++;
        MUST(worker >= at + HEAD + 1 + OFFER && worker < end && offers.of[f].at.family == family);
    }
    MUST(count > 0);
}

/* No made-up bytes come past the digest. */
static void check_sound_address(bytes_t inside)
{
    unsigned major, minor, release;
    uint8_t *envelope = malloc(HEAD + inside.bytes);
    uint64_t digest = 0;
    MUST(envelope);
    ucp_get_version(&major, &minor, &release);
    memcpy(envelope, "UCX\1", 4);
    le16_put(envelope + 4, (uint16_t)major);
    le16_put(envelope + 6, (uint16_t)minor);
    if (inside.bytes) memcpy(envelope + HEAD, inside.data, inside.bytes);
    digest_leaves(envelope + HEAD, inside.bytes, &digest);
    le64_put(envelope + 8, digest);
    check_address(bytes_of(envelope, HEAD + inside.bytes));
    free(envelope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    switch (input_byte(&in) % 3) {
    case 0: check_greeting(&in); break;
    case 1: check_address(input_bytes(&in, in.left)); break;
    default: check_sound_address(input_bytes(&in, in.left));
    }
    return 0;
}

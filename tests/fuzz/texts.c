/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 which | text |: what people and environments write: names, references, labels, digests,
 * durations, sizes, quorums, endpoints; and what cuts or cleans foreign text. */
#include "tests/lib/bytes_equal.h"
#include "core/errors.h"
#include "core/names.h"
#include "core/units.h"
#include "core/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "wire/wire.h"

static void check_ref(const char *text)
{
    ref_t ref, again;
    heddle_error_t error;
    char written[HEDDLE_NAME_MAX + 32 + DIGEST_HEAD];
    if (ref_parse(text, &ref, &error)) {
        MUST(error.code && error.message[0] && error.expected[0]);
        return;
    }
    MUST(name_is_valid(ref.name));
    if (ref.version)
        snprintf(written, sizeof written, "%s@%llu%s%s", ref.name, (unsigned long long)ref.version,
                 ref.head[0] ? ":" : "", ref.head);
    else snprintf(written, sizeof written, "%s", ref.name);
    MUST(ref_parse(written, &again, &error) == HEDDLE_OK);
    MUST(!strcmp(ref.name, again.name) && ref.version == again.version && !strcmp(ref.head, again.head));
}

static void check_name(const char *text)
{
    heddle_error_t error = {0};
    bool valid = name_is_valid(text);
    MUST(valid == (name_check("adapter", text, &error) == HEDDLE_OK));
    MUST(!valid || (strlen(text) <= HEDDLE_NAME_MAX && !strpbrk(text, "/ \n\\") && text[0] != '.'));
    if (label_check(text, &error) == HEDDLE_OK) MUST(strchr(text, '='));
}

static void check_digest(const char *text)
{
    digest_t digest;
    char written[HEDDLE_DIGEST_TEXT], tag[HEDDLE_TAG_TEXT];
    if (!digest_parse(text, &digest)) return;
    digest_text(&digest, written);
    MUST(!strcmp(written, text));
    tag_text("policy", UINT64_MAX, &digest, tag);
    MUST(strlen(tag) < sizeof tag);
}

static void check_units(const char *text)
{
    uint32_t ms;
    uint64_t bytes;
    heddle_quorum_t quorum;
    char shown[16] = "-";
    if (units_parse_duration(text, &ms)) {
        units_ms_text(ms, shown);
        MUST(ms <= INT32_MAX && shown[0]);
    }
    if (units_parse_size(text, &bytes)) {
        units_bytes_text(bytes, shown);
        MUST(bytes < 1ull << 53 && shown[0]);
    }
    if (!units_parse_quorum(text, &quorum)) return;
    uint32_t need = units_quorum_need(quorum, 7, 1);
    MUST(need >= 1 && (need <= 7 || (quorum.kind == HEDDLE_QUORUM_COUNT && need == quorum.n)));
}

static void check_endpoint(const char *text)
{
    heddle_error_t error;
    bool loopback = false, all = false;
    if (wire_check_endpoint(text, true, &loopback, &error) == HEDDLE_OK) MUST(strlen(text) < 256);
    else MUST(error.code && error.message[0]);
    if (wire_check_endpoint(text, false, &loopback, &error) == HEDDLE_OK && !strchr(text, ',')) {
        MUST(wire_check_endpoints(text, &all, &error) == HEDDLE_OK && all == loopback);
        MUST(!loopback || !strncmp(text, "ipc://", 6) || strstr(text, "127.") ||
             strcasestr(text, "localhost") || strchr(text, '['));
    }
    if (wire_check_endpoints(text, &all, &error)) MUST(error.code && error.message[0]);
}

static void check_foreign(const char *text)
{
    heddle_error_t error;
    buf_t clean = {0};
    error_fail(&error, HEDDLE_ERR_INTERNAL, "%s", text);
    error_contrast(&error, text, text);
    error_where(&error, text, 1, text, text);
    error_hint(&error, "%s", text);
    MUST(strlen(error.message) < sizeof error.message && strlen(error.phase) < sizeof error.phase);
    utf8_add_clean(&clean, text, strlen(text));
    MUST(clean.bytes == strlen(text) && utf8_is_valid(clean.data, clean.bytes));
    if (utf8_is_valid(text, strlen(text))) {
        MUST(utf8_is_valid(error.found, strlen(error.found)) &&
             utf8_is_valid(error.adapter, strlen(error.adapter)));
        MUST(bytes_equal(buf_view(&clean), bytes_of(text, strlen(text))));
    }
    MUST(heddle_err_from_name(text) != HEDDLE_OK || !strcmp(text, "ok"));
    MUST(heddle_dtype_from_name(text) < 0 || !strcmp(heddle_dtype_name(heddle_dtype_from_name(text)), text));
    buf_fini(&clean);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const CHECKS[])(const char *) = {check_ref,   check_name,     check_digest,
                                                   check_units, check_endpoint, check_foreign};
    input_t in = {data, size};
    uint8_t which = input_byte(&in) % (sizeof CHECKS / sizeof *CHECKS);
    char *text = input_text(&in, in.left);
    CHECKS[which](text);
    free(text);
    return 0;
}

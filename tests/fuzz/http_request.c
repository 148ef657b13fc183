/* SPDX-License-Identifier: Apache-2.0 */
/* | method | 0 | target | 0 | value of Host, or Last-Event-ID |: what comes over HTTP.  What is taken has names that are names and
 * numbers that JSON holds; what is not has a status and words. */
#include "core/limits.h"
#include "http/request.h"
#include "tests/fuzz/fuzz.h"

static char *take_text(input_t *in)
{
    const uint8_t *end = memchr(in->at, 0, in->left);
    char *text = input_text(in, end ? (size_t)(end - in->at) : in->left);
    input_byte(in);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    char *method = take_text(&in), *target = take_text(&in), *host = take_text(&in);
    request_t r = {0};
    heddle_error_t error = {0};
    msg_query_t q;
    buf_t frame = {0};
    int status = request_parse(method, target, &r, &error);
    MUST(status == 200 || status == 400 || status == 404 || status == 405);
    MUST((status == 200) == (error.code == HEDDLE_OK));
    MUST(status == 200 || error.message[0]);
    if (status == 200) request_resume(&r, host);
    if (status == 200 && r.kind == REQUEST_API) {
        request_query(&r, &q);
        MUST(!r.ref.name[0] || name_is_valid(r.ref.name));
        MUST(!r.worker[0] || name_is_valid(r.worker));
        MUST(q.after <= LIMIT_EXACT && q.epoch <= LIMIT_EXACT && q.limit <= REQUEST_EVENTS_MAX);
        MUST(q.version <= LIMIT_EXACT);
        MUST(!strcmp(q.op, "events") == (q.limit > 0)); /* the others end by themselves */
        MUST(msg_encode(&(msg_t){.type = MSG_QUERY, .query = q}, &frame) == HEDDLE_OK);
    }
    request_is_of_address(host);
    buf_fini(&frame);
    free(method);
    free(target);
    free(host);
    return 0;
}

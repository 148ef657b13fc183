/* SPDX-License-Identifier: Apache-2.0 */
/* The fields that an answer of each kind always has. In an answer that is only a failure they are null, so
 * that a script can read them without a check. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#define WAIT_FIELDS \
    "adapter version digest decision phase need_count have_count eligible_count elapsed_ms workers missing"
static const struct { const char *kind, *fields;
} KINDS[] = {
    {"publish", "adapter version tag digest created reason state step request_id data_bytes tensor_count "
                "chunk_count features "
                "rollout timing"},
    {"status", "broker warnings count adapters"},
    {"adapters", "adapters"},
    {"versions", "adapter versions"},
    {"workers", "settling_ms workers"},
    {"wait", WAIT_FIELDS},
    {"activate", WAIT_FIELDS " from to changed held bytes_moved"},
    {"rollback", WAIT_FIELDS " from to changed held bytes_moved"},
    {"resume", WAIT_FIELDS " from to changed held bytes_moved"},
    {"pull", "adapter version tag digest state step data_bytes tensor_count path elapsed_ms sources"},
    {"keygen", "public_key file created"},
    {"verify", "adapter version expected elapsed_ms workers"},
};

static const char *fields_of(const char *kind)
{
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(KINDS[i].kind, kind)) return KINDS[i].fields;
    return "";
}

void cli_null_fields(const char *kind, json_t *object)
{
    char text[256], *state = NULL;
    snprintf(text, sizeof text, "%s", fields_of(kind));
    for (char *name = strtok_r(text, " ", &state); name; name = strtok_r(NULL, " ", &state))
        if (!json_object_get(object, name)) json_object_set_new(object, name, json_null());
}

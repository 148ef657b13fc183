/* SPDX-License-Identifier: Apache-2.0 */
/* What a directory looked like when it was right: which looks are remembered, and what they are taken for. */
#include "sidecar/fingerprint.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static int root_fd;

static void put(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/policy@1/%s", root, name);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/heddle-fingerprint.XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    root_fd = open(root, O_RDONLY | O_DIRECTORY);
    cr_assert_eq(mkdirat(root_fd, "policy@1", 0700), 0);
    put("adapter_config.json", "{}");
    put("adapter_model.safetensors", "tensors");
}

static void teardown(void)
{
    char command[100];
    close(root_fd);
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(fingerprint, .init = setup, .fini = teardown);

Test(fingerprint, what_was_not_touched_is_the_same)
{
    noted_t noted;
    fingerprint_t look = fingerprint_take(root_fd, "policy@1"), none = {0};
    cr_assert(look.is_there);
    fingerprint_note(&noted, 1, "h1:a", &look, &look);
    look = fingerprint_take(root_fd, "policy@1");
    cr_assert(fingerprint_is_noted(&noted, 1, "h1:a", &look));
    cr_assert_not(fingerprint_is_noted(&noted, 2, "h1:a", &look));
    cr_assert_not(fingerprint_is_noted(&noted, 1, "h1:a", &none));
    fingerprint_note(&noted, 1, "h1:a", &none, &look); /* it was written, and is seen from then on */
    cr_assert(fingerprint_is_noted(&noted, 1, "h1:a", &look));
    put("adapter_model.safetensors", "longer tensors");
    look = fingerprint_take(root_fd, "policy@1");
    cr_assert(look.is_there && !fingerprint_is_noted(&noted, 1, "h1:a", &look));
}

/* Another cluster's policy@1, or the number given anew after the broker lost it. */
Test(fingerprint, another_digest_is_another_version)
{
    noted_t noted;
    fingerprint_t look = fingerprint_take(root_fd, "policy@1");
    fingerprint_note(&noted, 1, "h1:a", &look, &look);
    cr_assert_not(fingerprint_is_noted(&noted, 1, "h1:b", &look));
}

Test(fingerprint, what_was_written_to_while_it_was_read_is_not_seen)
{
    noted_t noted;
    fingerprint_t before = fingerprint_take(root_fd, "policy@1");
    put("adapter_config.json", "{\"r\": 8}");
    fingerprint_t now = fingerprint_take(root_fd, "policy@1");
    fingerprint_note(&noted, 1, "h1:a", &before, &now);
    cr_assert_eq(noted.version, 0);
    cr_assert_not(fingerprint_is_noted(&noted, 1, "h1:a", &now));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a directory looked like when it was right: which looks are remembered, and what they are taken for. */
#include "sidecar/seen.h"

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
    snprintf(root, sizeof root, "/tmp/heddle-seen.XXXXXX");
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

TestSuite(seen, .init = setup, .fini = teardown);

Test(seen, what_was_not_touched_is_the_same)
{
    seen_t seen;
    seen_look_t look = seen_look(root_fd, "policy@1"), none = {0};
    cr_assert(look.is_there);
    seen_note(&seen, 1, "h1:a", &look, &look);
    look = seen_look(root_fd, "policy@1");
    cr_assert(seen_is_same(&seen, 1, "h1:a", &look));
    cr_assert_not(seen_is_same(&seen, 2, "h1:a", &look));
    cr_assert_not(seen_is_same(&seen, 1, "h1:a", &none));
    seen_note(&seen, 1, "h1:a", &none, &look);    /* it was written, and is seen from then on */
    cr_assert(seen_is_same(&seen, 1, "h1:a", &look));
    put("adapter_model.safetensors", "longer tensors");
    look = seen_look(root_fd, "policy@1");
    cr_assert(look.is_there && !seen_is_same(&seen, 1, "h1:a", &look));
}

/* Another cluster's policy@1, or the number given anew after the broker lost it. */
Test(seen, another_digest_is_another_version)
{
    seen_t seen;
    seen_look_t look = seen_look(root_fd, "policy@1");
    seen_note(&seen, 1, "h1:a", &look, &look);
    cr_assert_not(seen_is_same(&seen, 1, "h1:b", &look));
}

Test(seen, what_was_written_to_while_it_was_read_is_not_seen)
{
    seen_t seen;
    seen_look_t before = seen_look(root_fd, "policy@1");
    put("adapter_config.json", "{\"r\": 8}");
    seen_look_t now = seen_look(root_fd, "policy@1");
    seen_note(&seen, 1, "h1:a", &before, &now);
    cr_assert_eq(seen.version, 0);
    cr_assert_not(seen_is_same(&seen, 1, "h1:a", &now));
}

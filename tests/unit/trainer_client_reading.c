/* SPDX-License-Identifier: Apache-2.0 */
/* A directory into a region: what lies there, what was read ahead, and what ends it. */
#include "trainer_client/reading.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROW_BYTES = 5000 * 1000 }; /* longer than between two looks at the clock; no whole pages */

static char dir[] = "/tmp/heddle-reading-XXXXXX";

static void write_file(const char *name, const void *first, size_t first_bytes, const void *rest,
                       size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fwrite(first, 1, first_bytes, f) == first_bytes && fwrite(rest, 1, bytes, f) == bytes);
    cr_assert_eq(fclose(f), 0);
}

static void save(int seed)
{
    static uint8_t data[2 * ROW_BYTES];
    uint8_t head[512];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 31 + (i >> 8) + (unsigned)seed);
    int n = snprintf((char *)head + 8, sizeof head - 8,
                     "{\"x.lora_B.weight\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
                     "\"x.lora_A.weight\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                     ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, 2 * ROW_BYTES);
    le64_put(head, (uint64_t)n);
    write_file("adapter_model.safetensors", head, 8 + (size_t)n, data, sizeof data);
    static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":4}";
    write_file("adapter_config.json", CONFIG, sizeof CONFIG - 1, "", 0);
}

static void make_dir(void)
{
    cr_assert(mkdtemp(dir));
    save(1);
}

static void drop_dir(void)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s' '%s.old'", dir, dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(reading, .init = make_dir, .fini = drop_dir);

/* The digest of what lies in the region, and of the directory as another reads it. */
static void check_digest(reading_t *r, const memory_region_t *region)
{
    heddle_error_t e = {0};
    sealed_t sealed;
    heddle_adapter_info_t info = {.size = sizeof info};
    char text[HEDDLE_DIGEST_TEXT];
    uint64_t bytes = r->pack->layout.payload_bytes,
             *leaves = malloc(bytes / LIMIT_PAGE_BYTES * sizeof *leaves);
    digest_leaves(region->base, bytes, leaves);
    cr_assert_arr_eq(leaves, r->pack->leaves, bytes / LIMIT_PAGE_BYTES * sizeof *leaves);
    free(leaves);
    cr_assert_eq(pack_seal(r->pack, &sealed, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(peft_digest(dir, &info, &e), HEDDLE_OK, "%s", e.message);
    digest_text(&sealed.digest, text);
    cr_assert_str_eq(text, info.digest);
    cr_assert_eq(region->made_bytes, region->bytes);
}

Test(reading, a_new_region_and_one_with_other_bytes_hold_the_same)
{
    heddle_error_t e = {0};
    reading_t r;
    memory_region_t *region = NULL;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(reading_open(&r, dir, &e), HEDDLE_OK, "%s", e.message);
        if (i) memset(region->base, 0xee, region->bytes);
        else cr_assert_eq(memory_region_new(pack_bytes(r.pack), &region, &e), HEDDLE_OK, "%s", e.message);
        if (!i) cr_assert_eq(memory_region_begin(region, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(reading_into(&r, region, &e), HEDDLE_OK, "%s", e.message);
        check_digest(&r, region);
        reading_close(&r);
    }
    memory_region_destroy(&region);
}

static int go_on(const stop_t *stop, heddle_error_t *error)
{
    (void)stop, (void)error;
    return HEDDLE_OK;
}
static const stop_t NEVER = {go_on};

/* Files that were written a moment ago are not given: the times cannot tell yet. */
static void read_when_settled(reading_t *ret_reading, memory_region_t **ret_region)
{
    heddle_error_t e = {0};
    int rc = HEDDLE_ERR_BAD_ADAPTER;
    for (int tries = 0; rc == HEDDLE_ERR_BAD_ADAPTER && tries < 2000; tries++) {
        ahead_t *a = reading_ahead(dir, &NEVER);
        cr_assert(reading_is_of(a, dir));
        cr_assert_not(reading_is_of(a, "/elsewhere"));
        rc = reading_join(&a, ret_reading, ret_region, &e);
        cr_assert_null(a);
    }
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
}

Test(reading, what_was_read_ahead_is_given)
{
    reading_t r = {0};
    memory_region_t *region = NULL;
    cr_assert_not(reading_is_of(NULL, dir));
    read_when_settled(&r, &region);
    check_digest(&r, region);
    reading_close(&r);
    memory_region_destroy(&region);
}

/* The thread is named as soon as it is made. */
static bool is_reading(void)
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    cr_assert(tasks);
    for (struct dirent *d; (d = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f)) found |= !strcmp(name, READING_THREAD "\n");
        if (f) fclose(f);
    }
    closedir(tasks);
    return found;
}

static void refuses_after(void (*change)(void))
{
    heddle_error_t e = {0};
    reading_t r = {0};
    memory_region_t *region = NULL;
    read_when_settled(&r, &region);
    reading_close(&r);
    memory_region_destroy(&region);
    ahead_t *a = reading_ahead(dir, &NEVER);
    while (is_reading()) usleep(100); /* until it has been read */
    change();
    cr_assert_eq(reading_join(&a, &r, &region, &e), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert(strstr(e.message, "changed"), "%s", e.message);
    cr_assert(!r.dir && !r.pack && !region && !a);
}

static void save_anew(void) { save(2); }
Test(reading, what_changed_after_it_was_read_is_not_given) { refuses_after(save_anew); }

/* As the documents advise: a whole new directory, which takes the name. */
static void exchange(void)
{
    char old[PATH_MAX];
    snprintf(old, sizeof old, "%s.old", dir);
    cr_assert_eq(rename(dir, old), 0);
    cr_assert_eq(mkdir(dir, 0755), 0);
    save(2);
}
Test(reading, another_directory_under_that_name_is_not_given_for_it) { refuses_after(exchange); }

static int refuse(const stop_t *stop, heddle_error_t *error)
{
    (void)stop;
    return error_fail(error, HEDDLE_ERR_INTERRUPTED, "enough");
}
static const stop_t AT_ONCE = {refuse};

Test(reading, it_ends_early_and_leaves_nothing)
{
    heddle_error_t e = {0};
    reading_t r = {0};
    memory_region_t *region = NULL;
    ahead_t *a = reading_ahead(dir, &AT_ONCE);
    cr_assert_eq(reading_join(&a, &r, &region, &e), HEDDLE_ERR_INTERRUPTED);
    cr_assert_str_eq(e.message, "enough");
    cr_assert(!r.dir && !r.pack && !region);
    a = reading_ahead("/nowhere", &NEVER);
    cr_assert_eq(reading_join(&a, &r, &region, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(!r.dir && !r.pack && !region);
}

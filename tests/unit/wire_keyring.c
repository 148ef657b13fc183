/* SPDX-License-Identifier: Apache-2.0 */
/* Key files, rings, and wires with keys: who gets in, who does not, and what either side is told. */
#include "core/failpoint.h"
#include "tests/lib/temp_dir.h"
#include "tests/unit/loop_until.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <ctype.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

static loop_t *loop;
static heddle_error_t error;

static void setup(void)
{
    make_dir();
    cr_assert_eq(loop_new(clock_system(), &loop), 0);
}
static void teardown(void)
{
    loop_destroy(&loop);
    remove_dir();
}
TestSuite(keys, .init = setup, .fini = teardown, .timeout = 30);

static const char *path_of(const char *name)
{
    static char paths[4][256];
    static int at;
    at = (at + 1) % 4;
    snprintf(paths[at], sizeof paths[at], "%s/%s", dir, name);
    return paths[at];
}
static void put(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}
/* Not by key_make, which makes thousands of pairs until one is a word.  Begins as a word all the same. */
static key_pair_t made(void)
{
    key_pair_t pair;
    do cr_assert_eq(zmq_curve_keypair(pair.public_key, pair.secret_key), 0);
    while (!isalnum((unsigned char)pair.public_key[0]));
    return pair;
}

/* ---- files ---- */

Test(keys, file_holds_what_was_written_and_is_private)
{
    key_pair_t pair = made(), back;
    struct stat st;
    cr_assert_eq(key_write(path_of("a.key"), &pair, &error), 0, "%s", error.message);
    cr_assert_eq(key_read(path_of("a.key"), &back, &error), 0, "%s", error.message);
    cr_assert(!memcmp(&pair, &back, sizeof pair));
    cr_assert(stat(path_of("a.key"), &st) == 0 && (st.st_mode & 07777) == 0600);
}

Test(keys, a_made_key_needs_no_quotes_in_a_shell)
{
    char command[128], said[64] = "";
    key_pair_t pair;
    cr_assert_eq(key_make(&pair, &error), 0, "%s", error.message);
    cr_assert(key_is_valid(pair.public_key) && key_is_word(pair.public_key), "%s", pair.public_key);
    snprintf(command, sizeof command, "set -e; echo %s", pair.public_key);
    FILE *shell = popen(command, "r");
    cr_assert(shell && fgets(said, sizeof said, shell) && pclose(shell) == 0);
    said[strcspn(said, "\n")] = 0;
    cr_assert_str_eq(said, pair.public_key);
}

Test(keys, a_word_has_no_characters_of_a_shell_and_begins_as_no_path_or_option)
{
    static const char INTERPRETED[] = "!*?&<>()[]{}$#^%";
    char text[KEY_TEXT] = "0aZ.-:+=/@0aZ.-:+=/@0aZ.-:+=/@0aZ.-:+=/@";
    cr_assert(key_is_word(text));
    for (size_t at = 0; at < KEY_TEXT - 1; at++)
        for (const char *c = INTERPRETED; *c; c++) {
            char was = text[at];
            text[at] = *c;
            cr_assert_not(key_is_word(text), "%s", text);
            text[at] = was;
        }
    for (const char *c = ".-:+=/@"; *c; c++) {
        text[0] = *c;
        cr_assert_not(key_is_word(text), "%s", text);
    }
}

Test(keys, file_is_never_overwritten)
{
    key_pair_t first = made(), second = made(), back;
    cr_assert_eq(key_write(path_of("a.key"), &first, &error), 0);
    cr_assert_eq(key_write(path_of("a.key"), &second, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.hint, "never overwritten"));
    cr_assert_eq(key_read(path_of("a.key"), &back, &error), 0);
    cr_assert_str_eq(back.public_key, first.public_key);
    cr_assert_eq(key_write(path_of("none/a.key"), &first, &error), HEDDLE_ERR_DATA_DIR);
}

Test(keys, damaged_files_are_refused)
{
    static const char *const BAD[] = {
        "",
        "public\n",
        "public short\n",
        "secret only\n",
        "public \"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\n",
        "public ########################################\n"};
    key_pair_t pair = {"as before", ""}, one = made(), other = made();
    char text[256];
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        put("bad.key", BAD[i]);
        cr_assert_eq(key_read(path_of("bad.key"), &pair, &error), HEDDLE_ERR_DATA_DIR, "%zu", i);
    }
    snprintf(text, sizeof text, "public %s\nsecret %s\n", one.public_key, other.secret_key);
    put("bad.key", text);
    cr_assert_eq(key_read(path_of("bad.key"), &pair, &error), HEDDLE_ERR_DATA_DIR, "keys of two pairs");
    cr_assert_str_eq(pair.public_key, "as before");
    cr_assert_eq(key_read(path_of("nothing"), &pair, &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(error.hint, "keygen"), "%s", error.hint);
    cr_assert_eq(key_read(dir, &pair, &error), HEDDLE_ERR_DATA_DIR, "a directory");
    cr_assert_eq(mkfifo(path_of("fifo"), 0600), 0);
    cr_assert_eq(key_read(path_of("fifo"), &pair, &error), HEDDLE_ERR_DATA_DIR,
                 "a FIFO that nobody writes to");
    cr_assert_eq(truncate(path_of("bad.key"), 1 << 20), 0);
    cr_assert_eq(key_read(path_of("bad.key"), &pair, &error), HEDDLE_ERR_DATA_DIR, "far too long");
}

static void names_no_secret(const heddle_error_t *e, const char *secret)
{
    const char *const FIELDS[] = {e->message, e->expected, e->found, e->hint};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        cr_assert_null(strstr(FIELDS[i], secret), "%s", FIELDS[i]);
}

Test(keys, a_secret_in_place_of_a_file_is_not_repeated)
{
    key_pair_t pair = made(), back;
    char key[KEY_TEXT], lines[2][160];
    snprintf(lines[0], sizeof lines[0], "secret %s", pair.secret_key);
    snprintf(lines[1], sizeof lines[1], "public %s\nsecret %s\n", pair.public_key, pair.secret_key);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(key_take(lines[i], key, &error), HEDDLE_ERR_NOT_FOUND);
        cr_assert_str_eq(error.message, "this is the line of a secret key, not a public key or a file");
        names_no_secret(&error, pair.secret_key);
        cr_assert_eq(key_read(lines[i], &back, &error), HEDDLE_ERR_NOT_FOUND);
        cr_assert_str_eq(error.message, "this is the line of a secret key, not a key file");
        names_no_secret(&error, pair.secret_key);
    }
    /* A key alone is not told apart from a secret one: a file was asked for.  A path is told by its start. */
    const char *key_alone = "pZy!Xq)7<0123456789abcdefghijklmnopqrst-";
    cr_assert_eq(key_read(key_alone, &back, &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert_str_eq(error.message, "this is the text of a key, not a key file");
    names_no_secret(&error, key_alone);
    const char *path = "/none/ann/.config/heddle/keys/client.key";
    cr_assert(key_is_valid(path));
    cr_assert_eq(key_read(path, &back, &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(error.message, path), "%s", error.message);
}

/* The last bit of a public key is 0, and that of a secret one is as likely 1. */
Test(keys, what_cannot_be_a_public_key_is_taken_for_a_secret_one)
{
    char key[KEY_TEXT] = "", text[64];
    int refused = 0;
    for (int i = 0; i < 64; i++) { /* key_make would choose among thousands for each */
        key_pair_t pair = {{0}};
        cr_assert_eq(zmq_curve_keypair(pair.public_key, pair.secret_key), 0);
        if (strchr("/.", pair.public_key[0]) || strchr("/.", pair.secret_key[0])) continue; /* a path */
        cr_assert_eq(key_take(pair.public_key, key, &error), 0, "%s", error.message);
        if (key_take(pair.secret_key, key, &error) == 0) continue;
        cr_assert_eq(error.code, HEDDLE_ERR_USAGE);
        names_no_secret(&error, pair.secret_key);
        snprintf(text, sizeof text, "%s\n", pair.secret_key);
        put("printed.pub", text);
        cr_assert_eq(key_take(path_of("printed.pub"), key, &error), HEDDLE_ERR_USAGE);
        names_no_secret(&error, pair.secret_key);
        refused++;
    }
    cr_assert(refused >= 8 && refused <= 56, "%d of 64", refused);
}

Test(keys, key_is_taken_as_text_or_from_a_file)
{
    key_pair_t pair = made();
    char key[KEY_TEXT] = "", text[128];
    cr_assert_eq(key_take(pair.public_key, key, &error), 0);
    cr_assert_str_eq(key, pair.public_key);
    snprintf(text, sizeof text, "# of somebody else\npublic %s\n", pair.public_key);
    put("his.pub", text);
    key[0] = 0;
    cr_assert_eq(key_take(path_of("his.pub"), key, &error), 0, "%s", error.message);
    cr_assert_str_eq(key, pair.public_key);
    snprintf(text, sizeof text, "%s\n", pair.public_key); /* `heddle keygen >printed.pub` */
    put("printed.pub", text);
    key[0] = 0;
    cr_assert_eq(key_take(path_of("printed.pub"), key, &error), 0, "%s", error.message);
    cr_assert_str_eq(key, pair.public_key);
    cr_assert_eq(key_read(path_of("printed.pub"), &pair, &error), HEDDLE_ERR_DATA_DIR, "no key of one's own");
    snprintf(text, sizeof text, "%s\n%s\n", pair.public_key, pair.public_key);
    put("printed.pub", text);
    cr_assert_eq(key_take(path_of("printed.pub"), key, &error), HEDDLE_ERR_DATA_DIR, "two lines");
    snprintf(text, sizeof text, "# of somebody else\npublic %s\n", pair.public_key);
    cr_assert_eq(key_take("nonsense", key, &error), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(chdir(dir), 0);
    char path[] = "./keys.of-brokers.that-have-forty.letter";
    cr_assert(key_is_valid(path) && key_is_valid(path + 2) == false);
    cr_assert_eq(key_take(path, key, &error), HEDDLE_ERR_NOT_FOUND, "a path that is not there is no key");
    put(path + 2, text);
    key[0] = 0;
    cr_assert_eq(key_take(path, key, &error), 0, "%s", error.message);
    cr_assert_str_eq(key, pair.public_key);
    put("key-or-file.of-exactly-forty-characters.", text);
    cr_assert_eq(key_take("key-or-file.of-exactly-forty-characters.", key, &error), HEDDLE_ERR_USAGE);
    cr_assert(strstr(error.message, "the name of a file") && strstr(error.hint, "./key-or-file"));
}

/* ---- the ring ---- */

Test(keys, ring_is_where_it_is_said_to_be)
{
    keyring_t ring;
    bool chosen;
    setenv("HEDDLE_KEYS", "/k", 1);
    cr_assert(keyring_find("/given", &ring, &chosen, &error) == 0 && chosen && !strcmp(ring.dir, "/given"));
    cr_assert(keyring_find(NULL, &ring, &chosen, &error) == 0 && chosen && !strcmp(ring.dir, "/k"));
    unsetenv("HEDDLE_KEYS");
    setenv("XDG_CONFIG_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    cr_assert(keyring_find("", &ring, &chosen, &error) == 0 && !chosen &&
              !strcmp(ring.dir, "/x/heddle/keys"));
    setenv("XDG_CONFIG_HOME", "relative", 1);
    cr_assert(keyring_find(NULL, &ring, NULL, &error) == 0 && !strcmp(ring.dir, "/h/.config/heddle/keys"));
    setenv("HOME", "relative", 1);
    cr_assert_eq(keyring_find(NULL, &ring, NULL, &error), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(ring.dir, "");
    unsetenv("HOME"); /* the password file knows */
    cr_assert(keyring_find(NULL, &ring, NULL, &error) == 0 && strstr(ring.dir, "/.config/heddle/keys"));
}

static keyring_t ring_at(const char *name)
{
    keyring_t ring;
    cr_assert_eq(keyring_find(path_of(name), &ring, NULL, &error), 0);
    return ring;
}

Test(keys, ring_makes_a_pair_once)
{
    keyring_t ring = ring_at("deep/down/ring");
    key_pair_t one, two;
    struct stat st;
    cr_assert_eq(keyring_pair(&ring, "broker.key", &one, &error), 0, "%s", error.message);
    cr_assert_eq(keyring_pair(&ring, "broker.key", &two, &error), 0);
    cr_assert(!memcmp(&one, &two, sizeof one));
    cr_assert_eq(keyring_pair(&ring, "client.key", &two, &error), 0);
    cr_assert_str_neq(one.public_key, two.public_key);
    cr_assert(stat(ring.dir, &st) == 0 && (st.st_mode & 0777) == 0700);
    put("file", "");
    keyring_t in_a_file = ring_at("file/ring");
    cr_assert_eq(keyring_pair(&in_a_file, "broker.key", &one, &error), HEDDLE_ERR_DATA_DIR);
}

/* What cannot be there is told from what is there and of no use. */
Test(keys, barred_is_who_may_have_no_ring)
{
    key_pair_t pair;
    bool barred = false;
    put("file", "");
    keyring_t in_a_file = ring_at("file/ring"), ring = ring_at("ring");
    cr_assert_eq(keyring_pair_unless(&in_a_file, "broker.key", &pair, &barred, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(barred);
    cr_assert_eq(keyring_pair_unless(&ring, "broker.key", &pair, &barred, &error), 0);
    cr_assert(!barred);
    put("ring/broker.key", "public x\n");
    cr_assert_eq(keyring_pair_unless(&ring, "broker.key", &pair, &barred, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(!barred, "damaged");
    cr_assert(unlink(path_of("ring/broker.key")) == 0 && mkdir(path_of("ring/broker.key"), 0700) == 0);
    cr_assert_eq(keyring_pair_unless(&ring, "broker.key", &pair, &barred, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(!barred, "no file");
    cr_assert(rmdir(path_of("ring/broker.key")) == 0 &&
              symlink("nowhere/at/all", path_of("ring/broker.key")) == 0);
    cr_assert_neq(keyring_pair_unless(&ring, "broker.key", &pair, &barred, &error), HEDDLE_OK);
    cr_assert(!barred, "it leads nowhere");
}

static void fill(const char *name)
{
    static const char ZEROS[4096];
    int fd = open(name, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    while (write(fd, ZEROS, sizeof ZEROS) > 0) {}
    close(fd);
}

Test(keys, home_without_links_has_keys_all_the_same)
{
    static const char *const WITHOUT[] = {"wire.link", "wire.rename"};
    for (int i = 0; i < 2; i++) {
        key_pair_t pair = made(), other = made(), read = {{0}};
        struct stat st;
        failpoint_arm(WITHOUT[i], 1);
        cr_assert_eq(key_write(path_of(WITHOUT[i]), &pair, &error), 0, "%s", error.message);
        cr_assert(failpoint_has_failed());
        failpoint_arm(WITHOUT[i], 1);
        cr_assert_eq(key_write(path_of(WITHOUT[i]), &other, &error), HEDDLE_ERR_DATA_DIR);
        failpoint_disarm();
        cr_assert(strstr(error.hint, "never overwritten"), "%s", error.hint);
        cr_assert_eq(key_read(path_of(WITHOUT[i]), &read, &error), 0, "%s", error.message);
        cr_assert_str_eq(read.secret_key, pair.secret_key);
        cr_assert(stat(path_of(WITHOUT[i]), &st) == 0 && (st.st_mode & 0777) == 0600 && st.st_nlink == 1);
    }
    char command[160];
    snprintf(command, sizeof command, "test $(ls -A '%s' | wc -l) = 2", dir);
    cr_assert_eq(system(command), 0, "nothing else is left");
}

/* What is there is enough on a full disk; what is not cannot be made, for want of room. */
Test(keys, full_disk_of_a_ring_is_no_space_and_stops_nobody_who_has_keys)
{
    keyring_t ring;
    key_pair_t pair = made(), other = made(), read;
    bool is_barred = true;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, "size=256k"))
        cr_skip_test("needs root and a mount namespace");
    snprintf(ring.dir, sizeof ring.dir, "%s", dir);
    cr_assert_eq(keyring_pair(&ring, "broker.key", &read, &error), 0, "%s", error.message);
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:1", pair.public_key, &error), 0);
    fill(path_of("filler"));
    cr_assert_eq(keyring_pair(&ring, "broker.key", &read, &error), 0, "%s", error.message);
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:1", pair.public_key, &error), 0, "%s",
                 error.message);
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:1", other.public_key, &error),
                 HEDDLE_ERR_NO_SPACE, "%s", error.message);
    cr_assert(strstr(error.hint, "make room"), "%s", error.hint);
    cr_assert_eq(keyring_pair_unless(&ring, "client.key", &read, &is_barred, &error), HEDDLE_ERR_NO_SPACE);
    cr_assert(!is_barred && strstr(error.hint, "make room"), "%s", error.hint);
    umount(dir);
}

Test(keys, of_many_known_brokers_the_oldest_go)
{
    enum { MANY = 1024 };
    keyring_t ring = ring_at("ring");
    key_pair_t pair = made();
    char name[128], key[KEY_TEXT];
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:1", pair.public_key, &error), 0);
    for (int i = 2; i <= MANY + 3; i++) {
        snprintf(name, sizeof name, "ring/brokers/tcp___127.0.0.1_%d.pub", i);
        snprintf(key, sizeof key, "x");
        put(name, key);
        struct timespec at[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        cr_assert_eq(utimensat(AT_FDCWD, path_of(name), at, 0), 0);
    }
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:9000", pair.public_key, &error), 0);
    int kept = 0;
    for (int i = 2; i <= MANY + 3; i++) {
        snprintf(name, sizeof name, "ring/brokers/tcp___127.0.0.1_%d.pub", i);
        bool is_there = access(path_of(name), F_OK) == 0;
        cr_assert(is_there || i < 7, "%d", i);
        kept += is_there;
    }
    cr_assert_eq(kept, MANY - 2);
    cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:1", key, &error), 0);
    cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:9000", key, &error), 0);
}

Test(keys, the_broker_that_was_told_last_is_named)
{
    keyring_t ring = ring_at("ring"), none = {""};
    key_pair_t pair = made();
    char other[KEYRING_OTHERS_MAX][KEYRING_ENDPOINT];
    struct timespec at[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    const char *asked = "tcp://127.0.0.1:7700";
    cr_assert_eq(keyring_other_brokers(&ring, asked, other, 2), 0, "there is no ring yet");
    cr_assert_eq(keyring_other_brokers(&none, asked, other, 2), 0);
    cr_assert_eq(keyring_register_broker(&ring, "tcp://10.0.0.4:7700", pair.public_key, &error), 0);
    cr_assert_eq(utimensat(AT_FDCWD, path_of("ring/brokers/tcp___10.0.0.4_7700.pub"), at, 0), 0);
    cr_assert_eq(keyring_register_broker(&ring, "tcp://10.0.0.5:7700", pair.public_key, &error), 0);
    cr_assert_eq(keyring_other_brokers(&ring, asked, other, 2), 2);
    cr_assert_str_eq(other[0], "tcp://10.0.0.5:7700");
    cr_assert_str_eq(other[1], "tcp://10.0.0.4:7700");
    cr_assert_eq(keyring_other_brokers(&ring, asked, other, 1), 1);
    cr_assert_str_eq(other[0], "tcp://10.0.0.5:7700");
    cr_assert_eq(keyring_other_brokers(&ring, "tcp://10.0.0.5:7700", other, 2), 1);
    cr_assert_str_eq(other[0], "tcp://10.0.0.4:7700", "other than the one that was asked");
    put("ring/brokers/tcp___10.0.0.6_7700.pub", "damaged");
    cr_assert_eq(keyring_other_brokers(&ring, asked, other, 2), 2);
    cr_assert_str_eq(other[0], "tcp://10.0.0.5:7700");
}

Test(keys, of_many_brokers_the_last_ones_are_named)
{
    keyring_t ring = ring_at("ring");
    key_pair_t pair = made();
    char other[KEYRING_OTHERS_MAX][KEYRING_ENDPOINT], endpoint[64], name[96];
    for (int i = 0; i < 40; i++) {
        int age = i * 7 % 40; /* in no order */
        struct timespec at[2] = {{.tv_sec = 1000 - age}, {.tv_sec = 1000 - age}};
        snprintf(endpoint, sizeof endpoint, "tcp://10.0.0.4:%d", 7000 + age);
        snprintf(name, sizeof name, "ring/brokers/tcp___10.0.0.4_%d.pub", 7000 + age);
        cr_assert_eq(keyring_register_broker(&ring, endpoint, pair.public_key, &error), 0);
        cr_assert_eq(utimensat(AT_FDCWD, path_of(name), at, 0), 0);
    }
    cr_assert_eq(keyring_other_brokers(&ring, "tcp://127.0.0.1:7700", other, 100), KEYRING_OTHERS_MAX);
    for (unsigned i = 0; i < KEYRING_OTHERS_MAX; i++) {
        snprintf(endpoint, sizeof endpoint, "tcp://10.0.0.4:%u", 7000 + i);
        cr_assert_str_eq(other[i], endpoint);
    }
}

Test(keys, known_brokers_come_and_go)
{
    keyring_t ring = ring_at("ring"), none = {""};
    key_pair_t one = made(), two = made();
    char key[KEY_TEXT];
    cr_assert(keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, NULL));
    cr_assert_eq(keyring_register_broker(&ring, "tcp://0.0.0.0:7700", one.public_key, &error), 0, "%s",
                 error.message);
    cr_assert(!keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, NULL) &&
              !strcmp(key, one.public_key));
    cr_assert(!keyring_known_broker(&ring, "tcp://localhost:7700", key, NULL));
    cr_assert(keyring_known_broker(&ring, "tcp://127.0.0.1:7701", key, NULL));
    cr_assert(keyring_known_broker(&none, "tcp://127.0.0.1:7700", key, NULL));
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:7700", two.public_key, &error), 0);
    cr_assert(!keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, NULL) &&
              !strcmp(key, two.public_key));
    keyring_forget_broker(&ring, "tcp://127.0.0.1:7700");
    cr_assert(keyring_known_broker(&ring, "tcp://localhost:7700", key, NULL));
    /* Who listens everywhere is met at each address of this machine, and at no other. */
    cr_assert_eq(keyring_register_broker(&ring, "tcp://[::]:7702", one.public_key, &error), 0);
    cr_assert(!keyring_known_broker(&ring, "tcp://127.0.0.1:7702", key, NULL) &&
              !strcmp(key, one.public_key));
    cr_assert(keyring_known_broker(&ring, "tcp://192.0.2.1:7702", key, NULL));
    cr_assert(keyring_known_broker(&ring, "tcp://[2001:db8::1]:7702", key, NULL));
    cr_assert(keyring_known_broker(&ring, "tcp://127.0.0.1:7703", key, NULL));
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:7702", two.public_key, &error), 0);
    cr_assert(!keyring_known_broker(&ring, "tcp://127.0.0.1:7702", key, NULL) &&
              !strcmp(key, two.public_key));
    keyring_forget_broker(&ring, "tcp://127.0.0.1:7702");
    cr_assert(keyring_known_broker(&ring, "tcp://127.0.0.1:7702", key, NULL), "it is forgotten everywhere");
    /* One file name, two endpoints: the second does not get the first one's key. */
    cr_assert_eq(keyring_register_broker(&ring, "ipc:///tmp/a/b", one.public_key, &error), 0);
    cr_assert(keyring_known_broker(&ring, "ipc:///tmp/a_b", key, NULL));
    cr_assert(!keyring_known_broker(&ring, "ipc:///tmp/a/b", key, NULL));
    /* Names have no capitals. */
    cr_assert_eq(keyring_register_broker(&ring, "tcp://Broker.Example:7700", one.public_key, &error), 0);
    cr_assert_eq(keyring_known_broker(&ring, "tcp://broker.example:7700", key, NULL), HEDDLE_OK);
    /* A file that is there and tells nothing is not the same as none. */
    put("ring/brokers/tcp___broker.example_7700.pub", "");
    cr_assert_eq(keyring_known_broker(&ring, "tcp://broker.example:7700", key, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, "broker.example") && strstr(error.hint, "opts.broker_key"));
}

/* Each of these was a broker's file once: none of them is a broker that nobody knows. */
Test(keys, known_broker_of_a_file_without_its_endpoint_is_no_stranger)
{
    static const char *const CUT[] = {"", "endpoint", "endpoint \n", "endpoint tcp://127.0.0.1:77\n", "end"};
    keyring_t ring = ring_at("ring");
    key_pair_t pair = made();
    char text[256], key[KEY_TEXT] = "as before";
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:7700", pair.public_key, &error), 0);
    for (size_t i = 0; i < sizeof CUT / sizeof *CUT; i++) {
        snprintf(text, sizeof text, "public %s\n%s", pair.public_key, CUT[i]);
        put("ring/brokers/tcp___127.0.0.1_7700.pub", text);
        cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, &error), HEDDLE_ERR_DATA_DIR,
                     "%zu", i);
        cr_assert(strstr(error.hint, "opts.broker_key"));
        cr_assert(strstr(error.expected, "endpoint tcp://127.0.0.1:7700"));
    }
    cr_assert_str_eq(key, "as before");
}

Test(keys, known_broker_that_cannot_be_looked_at_is_no_stranger)
{
    keyring_t ring = ring_at("ring");
    key_pair_t pair = made();
    char key[KEY_TEXT];
    const char *file = "ring/brokers/tcp___127.0.0.1_7700.pub";
    cr_assert_eq(keyring_register_broker(&ring, "tcp://127.0.0.1:7700", pair.public_key, &error), 0);
    cr_assert_eq(chmod(path_of("ring/brokers"), 0), 0);
    uid_t was = geteuid();
    cr_assert(was || seteuid(65534) == 0); /* root looks at everything */
    int rc = keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, &error);
    cr_assert(was || seteuid(0) == 0);
    cr_assert_eq(rc, HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.hint, "HEDDLE_KEYS"));
    cr_assert_eq(chmod(path_of("ring/brokers"), 0700), 0);
    cr_assert(!unlink(path_of(file)) && !symlink("nowhere", path_of(file)));
    cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, &error), HEDDLE_ERR_DATA_DIR,
                 "it leads nowhere");
    cr_assert(!unlink(path_of(file)) && !rmdir(path_of("ring/brokers")) &&
              !symlink("brokers", path_of("ring/brokers")));
    cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, &error), HEDDLE_ERR_DATA_DIR,
                 "it leads to itself");
    cr_assert(!unlink(path_of("ring/brokers")));
    put("ring/brokers", "");
    cr_assert_eq(keyring_known_broker(&ring, "tcp://127.0.0.1:7700", key, &error), HEDDLE_ERR_NOT_FOUND,
                 "no directory");
}

/* ---- wires ---- */

typedef struct {
    wire_t *wire;
    int frames, bad, ups, refusals;
    bool up;
    peer_t from;
    heddle_error_t why;
    char allowed[KEY_TEXT]; /* listen: the one key that is let in; "": every one */
} end_t;

static void on_frame(void *self, peer_t from, bytes_t frame)
{
    end_t *e = self;
    (void)frame;
    e->frames++;
    e->from = from;
}
static void on_connection(void *self, bool up)
{
    end_t *e = self;
    e->up = up;
    e->ups += up;
}
static void on_bad(void *self, peer_t from, const char *why)
{
    (void)from, (void)why;
    ((end_t *)self)->bad++;
}
static void on_refused(void *self, const heddle_error_t *why)
{
    end_t *e = self;
    e->refusals++;
    e->why = *why;
}
static bool allow(void *self, const char *key)
{
    end_t *e = self;
    return !e->allowed[0] || !strcmp(e->allowed, key);
}
static const wire_sink_t SINK = {on_frame, on_connection, on_bad, on_refused};

static void listen_with(end_t *e, const char *endpoint, const key_pair_t *pair)
{
    wire_keys_t keys = {.allow = allow};
    if (pair) keys.own = *pair;
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_US;
    int rc;
    do rc = wire_listen(loop, endpoint, pair ? &keys : NULL, &SINK, e, &e->wire, &error);
    while ((rc == HEDDLE_ERR_ADDRESS_IN_USE || rc == HEDDLE_ERR_UNAVAILABLE) &&
           clock_now(clock_system()) < end_us);
    cr_assert_eq(rc, 0, "%s", error.message);
}
static void dial_with(end_t *e, const char *endpoint, const key_pair_t *own, const char *broker_key)
{
    wire_keys_t keys = {.own = *own};
    snprintf(keys.broker_key, sizeof keys.broker_key, "%s", broker_key);
    cr_assert_eq(wire_dial(loop, endpoint, &keys, &SINK, e, &e->wire, &error), 0, "%s", error.message);
}
static void say(end_t *e) { cr_assert_eq(wire_send(e->wire, 0, bytes_of("hello", 5)), 0); }

Test(keys, known_key_gets_in_and_is_named)
{
    key_pair_t broker = made(), mine = made();
    end_t server = {0}, client = {0};
    memcpy(server.allowed, mine.public_key, KEY_TEXT);
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    dial_with(&client, wire_endpoint(server.wire), &mine, broker.public_key);
    UNTIL(client.up);
    say(&client);
    UNTIL(server.frames == 1);
    cr_assert_str_eq(wire_peer_key(server.wire, server.from), mine.public_key);
    cr_assert_null(wire_peer_key(server.wire, server.from + 1));
    peer_t first = server.from;
    wire_forget(server.wire, first); /* the connection stays: under a new number, with the same key */
    say(&client);
    UNTIL(server.frames == 2);
    cr_assert(server.from != first);
    cr_assert_str_eq(wire_peer_key(server.wire, server.from), mine.public_key);
    cr_assert_eq(wire_send(server.wire, server.from, bytes_of("welcome", 7)), 0);
    UNTIL(client.frames == 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(keys, unknown_key_is_refused_until_it_is_known)
{
    key_pair_t broker = made(), mine = made(), other = made();
    end_t server = {0}, client = {0};
    memcpy(server.allowed, other.public_key, KEY_TEXT);
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    dial_with(&client, wire_endpoint(server.wire), &mine, broker.public_key);
    UNTIL(client.refusals >= 2); /* libzmq gives up at the first; the wire does not */
    cr_assert_eq(client.why.code, HEDDLE_ERR_DENIED);
    cr_assert_eq(client.why.retriable, 0);
    cr_assert(strstr(client.why.message, mine.public_key) && strstr(client.why.hint, mine.public_key));
    cr_assert(!client.ups && !server.frames && !server.bad);
    memcpy(server.allowed, mine.public_key, KEY_TEXT);
    UNTIL(client.up);
    say(&client);
    UNTIL(server.frames == 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(keys, plain_does_not_meet_keys)
{
    key_pair_t broker = made(), mine = made();
    end_t server = {0}, plain = {0}, client = {0};
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    dial_with(&plain, wire_endpoint(server.wire), &mine, "");
    UNTIL(plain.refusals);
    cr_assert_eq(plain.why.code, HEDDLE_ERR_DENIED);
    cr_assert(strstr(plain.why.hint, "opts.broker_key"));
    cr_assert(!plain.ups && !server.frames);
    wire_close(&plain.wire);
    wire_close(&server.wire);
    listen_with(&server, "tcp://127.0.0.1:*", NULL);
    dial_with(&client, wire_endpoint(server.wire), &mine, broker.public_key);
    UNTIL(client.refusals >= 2);
    cr_assert_eq(client.why.code, HEDDLE_ERR_DENIED);
    cr_assert(strstr(client.why.hint, "--insecure"));
    cr_assert(!client.ups && !server.frames, "no frame goes out in the clear");
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* A process has one listener with keys: each broker is there after the one before. */
Test(keys, a_broker_that_was_told_is_met_with_its_own_key)
{
    key_pair_t first = made(), second = made(), third = made(), mine = made();
    end_t server = {0}, client = {0};
    char a[256], b[256], c[256];
    listen_with(&server, "tcp://127.0.0.1:*", &first);
    snprintf(a, sizeof a, "%s", wire_endpoint(server.wire));
    dial_with(&client, a, &mine, first.public_key);
    UNTIL(client.ups == 1);
    wire_close(&server.wire);
    listen_with(&server, "tcp://127.0.0.1:*", &second);
    snprintf(b, sizeof b, "%s", wire_endpoint(server.wire));
    wire_broker_t told[] = {{a, first.public_key}, {"tcp://127.0.0.1:1", "no key"}, {b, second.public_key}};
    wire_told(client.wire, told, 3);
    UNTIL(client.ups == 2);
    cr_assert_str_eq(wire_endpoint(client.wire), b);
    wire_close(&server.wire);
    listen_with(&server, "tcp://127.0.0.1:*", &third);
    snprintf(c, sizeof c, "%s", wire_endpoint(server.wire));
    wire_redial_to(client.wire, c, third.public_key);
    UNTIL(client.ups == 3);
    cr_assert_str_eq(wire_endpoint(client.wire), c);
    /* The keys of these stay with their addresses: at its own address the first one is expected. */
    wire_told(client.wire, NULL, 0);
    wire_close(&server.wire);
    listen_with(&server, a, &first);
    UNTIL(client.ups == 4);
    cr_assert_str_eq(wire_endpoint(client.wire), a);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* What a plain connection says is not proved: no key is taken from it. */
Test(keys, a_plain_connection_takes_no_key_that_it_was_told)
{
    key_pair_t second = made(), mine = made();
    end_t server = {0}, client = {0};
    listen_with(&server, "tcp://127.0.0.1:*", NULL);
    char a[256], b[256];
    snprintf(a, sizeof a, "%s", wire_endpoint(server.wire));
    dial_with(&client, a, &mine, "");
    UNTIL(client.ups == 1);
    wire_close(&server.wire);
    listen_with(&server, "tcp://127.0.0.1:*", &second);
    snprintf(b, sizeof b, "%s", wire_endpoint(server.wire));
    wire_redial_to(client.wire, b, second.public_key);
    UNTIL(client.refusals);
    cr_assert_eq(client.ups, 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* A stranger listens at the broker's address before the broker does, and names addresses of its own.  They
 * are forgotten when the broker is met with its key, so that none is dialled when that broker is away.  The
 * second address of the list refuses keys: each pass over the list ends with a refusal, and those that were
 * told would come after it. */
Test(keys, what_a_stranger_told_before_the_key_was_found_is_forgotten)
{
    key_pair_t broker = made(), evil = made();
    wire_keys_t keys = {.own = made(), .ring = ring_at("ring")};
    end_t server = {0}, other = {0}, client = {0};
    char a[256], b[256], c[256], list[520];
    listen_with(&server, "tcp://127.0.0.1:*", &evil);
    snprintf(b, sizeof b, "%s", wire_endpoint(server.wire));
    wire_close(&server.wire);
    listen_with(&other, "tcp://127.0.0.1:*", NULL);
    snprintf(c, sizeof c, "%s", wire_endpoint(other.wire));
    wire_close(&other.wire);
    listen_with(&server, "tcp://127.0.0.1:*", NULL);
    snprintf(a, sizeof a, "%s", wire_endpoint(server.wire));
    snprintf(list, sizeof list, "%s,%s", a, c);
    cr_assert_eq(wire_dial(loop, list, &keys, &SINK, &client, &client.wire, &error), 0);
    UNTIL(client.up);
    wire_broker_t told[] = {{b, evil.public_key}, {b, ""}};
    wire_told(client.wire, told, 2);
    cr_assert_eq(keyring_register_broker(&keys.ring, a, broker.public_key, &error), 0);
    wire_close(&server.wire);
    UNTIL(!client.up);
    listen_with(&server, a, &broker);
    UNTIL(client.up);
    cr_assert_eq(client.ups, 2);
    listen_with(&other, c, NULL);
    wire_close(&server.wire);
    listen_with(&server, b, &evil);
    bool is_tried = false;
    int before = client.refusals;
    UNTIL((is_tried = is_tried || !strcmp(wire_endpoint(client.wire), b)) || client.refusals >= before + 3);
    cr_assert_not(is_tried);
    cr_assert_eq(client.ups, 2);
    wire_close(&client.wire);
    wire_close(&other.wire);
    wire_close(&server.wire);
}

Test(keys, another_broker_is_not_believed)
{
    key_pair_t broker = made(), expected = made(), mine = made();
    end_t server = {0}, client = {0};
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    dial_with(&client, wire_endpoint(server.wire), &mine, expected.public_key);
    UNTIL(client.refusals);
    cr_assert_eq(client.why.code, HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(client.why.expected, expected.public_key));
    cr_assert(!client.ups && !server.frames);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(keys, broker_that_comes_with_its_key_later_is_found)
{
    key_pair_t broker = made();
    wire_keys_t keys = {.own = made(), .ring = ring_at("ring")};
    end_t server = {0}, client = {0};
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    cr_assert_eq(wire_dial(loop, wire_endpoint(server.wire), &keys, &SINK, &client, &client.wire, &error), 0);
    UNTIL(client.refusals);
    cr_assert_eq(client.why.retriable, 1);
    cr_assert_eq(keyring_register_broker(&keys.ring, wire_endpoint(server.wire), broker.public_key, &error),
                 0);
    UNTIL(client.up);
    /* And once it has been met so, never in the clear again. */
    char endpoint[256];
    snprintf(endpoint, sizeof endpoint, "%s", wire_endpoint(server.wire));
    keyring_forget_broker(&keys.ring, endpoint);
    wire_close(&server.wire);
    UNTIL(!client.up);
    listen_with(&server, endpoint, NULL);
    int before = client.refusals;
    UNTIL(client.refusals > before);
    cr_assert(!client.up && !server.frames);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* The member was started first and dials plain; the broker then puts its key into the ring and listens. */
Test(keys, broker_that_starts_after_its_member_is_no_refusal)
{
    key_pair_t broker = made();
    wire_keys_t keys = {.own = made(), .ring = ring_at("ring")};
    end_t server = {0}, client = {0};
    char endpoint[256];
    listen_with(&server, "tcp://127.0.0.1:*", NULL);
    snprintf(endpoint, sizeof endpoint, "%s", wire_endpoint(server.wire));
    cr_assert_eq(wire_dial(loop, endpoint, &keys, &SINK, &client, &client.wire, &error), 0);
    UNTIL(client.up);
    wire_close(&server.wire);
    UNTIL(!client.up);
    cr_assert_eq(keyring_register_broker(&keys.ring, endpoint, broker.public_key, &error), 0);
    listen_with(&server, endpoint, &broker);
    UNTIL(client.up);
    cr_assert_eq(client.refusals, 0);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* The key comes into the ring after the plain dial: the endpoint that failed is dialled again, not the next. */
Test(keys, of_a_list_the_endpoint_whose_key_was_found_is_dialled_again)
{
    key_pair_t broker = made();
    wire_keys_t keys = {.own = made(), .ring = ring_at("ring")};
    end_t server = {0}, other = {0}, client = {0};
    char list[512];
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    listen_with(&other, "tcp://127.0.0.1:*", NULL);
    snprintf(list, sizeof list, "%s,%s", wire_endpoint(server.wire), wire_endpoint(other.wire));
    cr_assert_eq(wire_dial(loop, list, &keys, &SINK, &client, &client.wire, &error), 0);
    cr_assert_eq(keyring_register_broker(&keys.ring, wire_endpoint(server.wire), broker.public_key, &error),
                 0);
    UNTIL(client.up);
    cr_assert_str_eq(wire_endpoint(client.wire), wire_endpoint(server.wire));
    cr_assert_eq(client.refusals, 0);
    wire_close(&client.wire);
    wire_close(&other.wire);
    wire_close(&server.wire);
}

/* libzmq tries the old key again by itself, sooner than the pause that grows ends. */
Test(keys, broker_whose_key_is_known_after_several_refusals_is_met)
{
    key_pair_t broker = made(), former = made();
    wire_keys_t keys = {.own = made(), .ring = ring_at("ring")};
    end_t server = {0}, client = {0};
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    const char *endpoint = wire_endpoint(server.wire);
    cr_assert_eq(keyring_register_broker(&keys.ring, endpoint, former.public_key, &error), 0);
    cr_assert_eq(wire_dial(loop, endpoint, &keys, &SINK, &client, &client.wire, &error), 0);
    UNTIL(client.refusals >= 5);
    cr_assert_eq(keyring_register_broker(&keys.ring, endpoint, broker.public_key, &error), 0);
    UNTIL(client.up);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* A listener that breaks off each handshake: what a broker with keys may look like to a plain dial. */
static int open_port(char endpoint[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 64));
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &(socklen_t){sizeof at}), 0);
    snprintf(endpoint, 64, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}
static int break_off(int port)
{
    int n = 0;
    for (int fd; (fd = accept(port, NULL, NULL)) >= 0; n++) close(fd);
    return n;
}

/* A listener with keys in the worst case: it ends a connection that told its mechanism before it tells its own
 * (which who holds his back hears).  Greetings are 64 bytes, the mechanism from the 13th on. */
typedef struct {
    int port, fds[8], count, told;
    const char *mechanism;
} hasty_t;

static void greet(hasty_t *h, int *fd)
{
    uint8_t ours[64] = {0xff, [8] = 1, 0x7f, 3, 0}, theirs[64];
    memcpy(ours + 12, h->mechanism, strlen(h->mechanism));
    ssize_t n = recv(*fd, theirs, sizeof theirs, MSG_PEEK | MSG_DONTWAIT);
    if (n == 12 && send(*fd, ours + 11, 53, MSG_NOSIGNAL) == 53) {
        recv(*fd, theirs, 12, 0);
        h->told++;
    } else if (n == 0 || n > 12) {
        close(*fd);
        *fd = -1;
    }
}
static bool end_early(hasty_t *h)
{
    static const uint8_t BEGINNING[11] = {0xff, [8] = 1, 0x7f, 3};
    for (int fd; h->count < 8 && (fd = accept(h->port, NULL, NULL)) >= 0;) {
        cr_assert_eq(send(fd, BEGINNING, 11, MSG_NOSIGNAL), 11);
        h->fds[h->count++] = fd;
    }
    for (int i = 0; i < h->count; i++)
        if (h->fds[i] >= 0) greet(h, &h->fds[i]);
    return false;
}
static void expect_told(const char *mechanism, const char *broker_key, int code, const char *hint)
{
    char endpoint[64];
    hasty_t hasty = {.port = open_port(endpoint), .mechanism = mechanism};
    key_pair_t mine = made();
    end_t client = {0};
    dial_with(&client, endpoint, &mine, broker_key);
    UNTIL(client.refusals || end_early(&hasty));
    cr_assert_eq(client.why.code, code, "%s: %s", mechanism, client.why.message);
    cr_assert(strstr(client.why.hint, hint), "%s: %s", mechanism, client.why.hint);
    cr_assert_eq(hasty.told, 1, "it was asked once");
    wire_close(&client.wire);
    for (int i = 0; i < hasty.count; i++)
        if (hasty.fds[i] >= 0) close(hasty.fds[i]);
    close(hasty.port);
}

Test(keys, who_closes_before_its_greeting_was_read_is_asked_for_it)
{
    key_pair_t broker = made();
    expect_told("CURVE", "", HEDDLE_ERR_DENIED, "opts.broker_key");
    expect_told("NULL", broker.public_key, HEDDLE_ERR_DENIED, "--insecure");
    expect_told("CURVE", broker.public_key, HEDDLE_ERR_UNAVAILABLE, "another user's");
    expect_told("NULL", "", HEDDLE_ERR_UNAVAILABLE, "another address");
}

/* It holds the connection that asks, and ends the others: that is no reason to be silent. */
Test(keys, a_peer_that_never_greets_is_not_waited_for)
{
    char endpoint[64];
    int port = open_port(endpoint), held = -1, ended = 0;
    key_pair_t mine = made();
    end_t client = {0};
    dial_with(&client, endpoint, &mine, "");
    UNTIL(ended >= 3 || ((ended += break_off(port)) && 0));
    UNTIL(client.refusals || (held < 0 ? (held = accept(port, NULL, NULL)) && 0 : break_off(port) && 0));
    cr_assert_eq(client.why.code, HEDDLE_ERR_UNAVAILABLE);
    wire_close(&client.wire);
    close(held);
    close(port);
}

/* A broker that stands still: its kernel takes the connections, and nothing answers on them.  That says
 * nothing of its keys. */
Test(keys, a_handshake_without_an_answer_is_not_refused)
{
    char endpoint[64];
    int port = open_port(endpoint), held[9], count = 0;
    key_pair_t broker = made(), mine = made();
    end_t client = {0};
    wire_set_handshake(100);
    dial_with(&client, endpoint, &mine, broker.public_key);
    UNTIL(count == 9 || ((held[count] = accept(port, NULL, NULL)) >= 0 && ++count && 0));
    cr_assert_eq(client.refusals, 0, "%s", client.why.message);
    cr_assert(wire_is_reached(client.wire));
    wire_close(&client.wire);
    for (int i = 0; i < count; i++) close(held[i]);
    close(port);
}

/* Bound, and no listener: nobody else is given the port, and who asks for it by number has it. */
static int keep_port(char endpoint[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at));
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &(socklen_t){sizeof at}), 0);
    snprintf(endpoint, 64, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    return fd;
}

static int listen_at(const char *endpoint)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 64));
    return fd;
}

/* A proxy whose broker is not up yet: the line that libzmq makes of itself is not replaced when our pause ends. */
Test(keys, line_that_came_up_by_itself_stays)
{
    char endpoint[64];
    int kept = keep_port(endpoint), port = listen_at(endpoint);
    end_t server = {0}, client = {0};
    cr_assert_eq(wire_dial(loop, endpoint, NULL, &SINK, &client, &client.wire, &error), 0);
    UNTIL(client.refusals >= 4 || (break_off(port) && 0));
    close(port);
    listen_with(&server, endpoint, NULL);
    UNTIL(client.up);
    uint64_t end_us = clock_now(clock_system()) + 1500000; /* the fourth pause is over after 1 s */
    while (clock_now(clock_system()) < end_us) loop_turn(loop, end_us);
    cr_assert(client.up && client.ups == 1, "%d lines", client.ups);
    wire_close(&client.wire);
    wire_close(&server.wire);
    close(kept);
}

/* Where a key is known to be, a file that tells none is no leave to go plain; nor is a key of our own that is damaged. */
typedef enum { HIS_FILE, HIS_ENDPOINT, HIS_DIRECTORY, OUR_KEY } spoilt_t;

/* To `ret_file`, of the directory of the test, what is to be removed again. */
static void spoil(spoilt_t what, const char *ring, const char *endpoint, const char *key, char ret_file[128])
{
    char his[128], text[128] = "public x\n";
    snprintf(his, sizeof his, "%s/brokers/tcp___%s.pub", ring, endpoint + 6);
    for (char *c = his; *c; c++)
        if (*c == ':') *c = '_';
    if (what == OUR_KEY) snprintf(ret_file, 128, "%s/client.key", ring);
    else if (what == HIS_DIRECTORY) snprintf(ret_file, 128, "%s/brokers", ring);
    else snprintf(ret_file, 128, "%s", his);
    if (what == HIS_ENDPOINT) snprintf(text, sizeof text, "public %s\n", key); /* what followed was lost */
    if (what == HIS_DIRECTORY)
        cr_assert(!unlink(path_of(his)) && !rmdir(path_of(ret_file)) &&
                  !symlink("brokers", path_of(ret_file)));
    else put(ret_file, text);
}

static void expect_no_plain_dial(const char *ring, spoilt_t what, bool is_up_first)
{
    wire_keys_t keys = {.ring = ring_at(ring)};
    key_pair_t broker = made();
    end_t client = {0};
    char endpoint[64], file[128];
    int port = open_port(endpoint), dials = 0;
    if (is_up_first) {
        cr_assert_eq(wire_dial(loop, endpoint, &keys, &SINK, &client, &client.wire, &error), 0);
        UNTIL((dials += break_off(port)) > 0);
    }
    cr_assert_eq(keyring_register_broker(&keys.ring, endpoint, broker.public_key, &error), 0);
    spoil(what, ring, endpoint, broker.public_key, file);
    if (!is_up_first) cr_assert_eq(wire_dial(loop, endpoint, &keys, &SINK, &client, &client.wire, &error), 0);
    UNTIL(((void)break_off(port), client.refusals));
    cr_assert_eq(client.why.code, HEDDLE_ERR_DATA_DIR, "%s", client.why.message);
    cr_assert(strstr(client.why.message, file));
    cr_assert_eq(client.why.retriable, 1, "it is looked at again: nobody is to give up for it");
    dials = break_off(port);
    int before = client.refusals;
    uint64_t began_us = clock_now(clock_system());
    UNTIL((dials += break_off(port), client.refusals >= before + 2));
    cr_assert_eq(dials, 0, "nothing is dialled");
    cr_assert(clock_now(clock_system()) - began_us > 150000, "and there is a pause before each try");
    cr_assert_eq(unlink(path_of(file)), 0);
    cr_assert_eq(keyring_register_broker(&keys.ring, endpoint, broker.public_key, &error), 0);
    UNTIL((dials += break_off(port)) > 0); /* mended: dialled again, with keys */
    wire_close(&client.wire);
    close(port);
}

Test(keys, damaged_file_of_a_known_broker_is_no_leave_to_go_plain)
{
    expect_no_plain_dial("one", HIS_FILE, false);
    expect_no_plain_dial("two", HIS_FILE, true);
}

Test(keys, file_of_a_known_broker_that_was_cut_is_no_leave_to_go_plain)
{
    expect_no_plain_dial("one", HIS_ENDPOINT, false);
    expect_no_plain_dial("two", HIS_ENDPOINT, true);
}

Test(keys, known_brokers_that_cannot_be_looked_at_are_no_leave_to_go_plain)
{
    expect_no_plain_dial("one", HIS_DIRECTORY, false);
    expect_no_plain_dial("two", HIS_DIRECTORY, true);
}

Test(keys, own_key_that_is_damaged_is_no_leave_to_go_plain)
{
    expect_no_plain_dial("one", OUR_KEY, false);
    expect_no_plain_dial("two", OUR_KEY, true);
}

Test(keys, one_listener_with_keys_a_process)
{
    key_pair_t broker = made();
    wire_keys_t keys = {.own = broker, .allow = allow};
    end_t server = {0}, second = {0};
    listen_with(&server, "tcp://127.0.0.1:*", &broker);
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", &keys, &SINK, &second, &second.wire, &error),
                 HEDDLE_ERR_UNAVAILABLE);
    cr_assert_null(second.wire);
    wire_close(&server.wire);
}

/* A process without a socket left says so; CZMQ would abort it. */
Test(keys, a_socket_that_cannot_be_made_is_an_error)
{
    key_pair_t broker = made();
    wire_keys_t keys = {.own = broker, .allow = allow};
    end_t end = {0};
    for (unsigned nth = 1; nth <= 3; nth++) { /* who may connect, the listener, the tale of it */
        int rc;
        do { /* the last one's address is free a moment later: ZeroMQ closes it on a thread of its own */
            failpoint_arm("wire.socket", nth);
            rc = wire_listen(loop, "tcp://127.0.0.1:*", &keys, &SINK, &end, &end.wire, &error);
        } while (rc == HEDDLE_ERR_UNAVAILABLE);
        cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY, "%u", nth);
        cr_assert(failpoint_has_failed() && !end.wire && error.hint[0]);
    }
    for (unsigned nth = 1; nth <= 2; nth++) {
        failpoint_arm("wire.socket", nth);
        cr_assert_eq(wire_dial(loop, "tcp://127.0.0.1:9", NULL, &SINK, &end, &end.wire, &error),
                     HEDDLE_ERR_NO_MEMORY);
        cr_assert(failpoint_has_failed() && !end.wire);
    }
    failpoint_disarm();
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, &end, &end.wire, &error), 0);
    wire_close(&end.wire);
}

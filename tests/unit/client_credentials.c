/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys a client dials with: what is given, the environment, the ring; and what is refused. */
#include "client/credentials.h"
#include "client/opening.h"
#include "tests/lib/temp_dir.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <heddle/keys.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define EP "tcp://127.0.0.1:7700"

static keyring_t ring;
static key_pair_t broker, mine;
static wire_keys_t keys;
static bool is_secure;
static heddle_error_t error;

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}
static void setup(void)
{
    make_dir();
    setenv("HEDDLE_KEYS", path_of("ring"), 1);
    unsetenv("HEDDLE_BROKER_KEY");
    unsetenv("HEDDLE_KEY");
    cr_assert_eq(keyring_find(NULL, &ring, NULL, &error), 0);
    cr_assert(!key_make(&broker, &error) && !key_make(&mine, &error));
    cr_assert_eq(key_write(path_of("mine.key"), &mine, &error), 0);
}

TestSuite(credentials, .init = setup, .fini = remove_dir);

static int take(const char *broker_key, const char *key, const char *endpoints)
{
    credentials_t c = {.broker_key = broker_key, .key = key};
    return credentials_take(&c, endpoints, &keys, &is_secure, &error);
}
static bool ring_has_a_key(void) { return access(path_of("ring/client.key"), F_OK) == 0; }

Test(credentials, a_key_that_is_missing_may_stay_so)
{
    credentials_t c = {.broker_key = broker.public_key, .makes_no_file = true};
    cr_assert_eq(credentials_take(&c, EP, &keys, &is_secure, &error), 0, "%s", error.message);
    cr_assert(is_secure && keys.own.secret_key[0] && !ring_has_a_key());
    cr_assert_neq(access(path_of("ring"), F_OK), 0);
    key_pair_t first = keys.own;
    cr_assert_eq(take(broker.public_key, NULL, EP), 0);
    cr_assert(ring_has_a_key());
    mine = keys.own;
    cr_assert_str_neq(mine.public_key, first.public_key);
    cr_assert_eq(credentials_take(&c, EP, &keys, &is_secure, &error), 0);
    cr_assert_str_eq(keys.own.public_key, mine.public_key, "one that is there is used");
    setenv("HEDDLE_KEYS", path_of("mine.key/ring"), 1); /* below a file */
    cr_assert_eq(credentials_take(&c, EP, &keys, &is_secure, &error), HEDDLE_ERR_DATA_DIR);
}

Test(credentials, none_known_is_plain_and_makes_nothing)
{
    cr_assert_eq(take(NULL, NULL, EP), 0);
    cr_assert(!is_secure && !keys.is_fixed && !keys.broker_key[0] && !keys.own.secret_key[0]);
    cr_assert_str_eq(keys.ring.dir, ring.dir, "so that a broker that comes later is found");
    cr_assert(!ring_has_a_key());
}

Test(credentials, a_ring_that_was_named_and_is_none_is_an_error)
{
    setenv("HEDDLE_KEYS", "/dev/null", 1);
    cr_assert_eq(take(NULL, NULL, EP), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, "/dev/null") && error.hint[0]);
}

Test(credentials, known_broker_is_met_with_the_rings_own_key)
{
    char made[KEY_TEXT];
    cr_assert_eq(keyring_register_broker(&ring, EP, broker.public_key, &error), 0);
    cr_assert_eq(take("", "", "tcp://localhost:7700"), 0);
    cr_assert(is_secure && !keys.is_fixed && !strcmp(keys.broker_key, broker.public_key));
    cr_assert(ring_has_a_key() && keys.own.secret_key[0]);
    memcpy(made, keys.own.public_key, sizeof made);
    cr_assert_eq(take(NULL, NULL, EP), 0);
    cr_assert_str_eq(keys.own.public_key, made, "made once");
    cr_assert_eq(take(NULL, NULL, EP ",tcp://10.0.0.9:7700"), 0);
    cr_assert(!is_secure, "one of the two is not known");
}

Test(credentials, what_is_given_goes_before_the_environment_before_the_ring)
{
    key_pair_t other;
    cr_assert_eq(key_make(&other, &error), 0);
    cr_assert_eq(keyring_register_broker(&ring, EP, other.public_key, &error), 0);
    setenv("HEDDLE_BROKER_KEY", other.public_key, 1);
    setenv("HEDDLE_KEY", "/nowhere", 1);
    cr_assert_eq(take(broker.public_key, path_of("mine.key"), EP), 0, "%s", error.message);
    cr_assert(is_secure && keys.is_fixed && !strcmp(keys.broker_key, broker.public_key));
    cr_assert_str_eq(keys.own.secret_key, mine.secret_key);
    cr_assert(!ring_has_a_key());
    setenv("HEDDLE_KEY", path_of("mine.key"), 1);
    cr_assert_eq(take(NULL, NULL, "tcp://10.0.0.9:1"), 0);
    cr_assert(is_secure && keys.is_fixed && !strcmp(keys.broker_key, other.public_key));
    cr_assert_str_eq(keys.own.secret_key, mine.secret_key);
}

static void ignore_frame(void *self, peer_t from, bytes_t frame)
{
    (void)self;
    (void)from;
    (void)frame;
}

/* libzmq closes a listener in the background. */
static void close_and_wait(wire_t **wire, const char *endpoint)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    wire_close(wire);
    uint64_t until_us = clock_now(clock_system()) + 10000000;
    for (bool is_there = true; is_there;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        is_there = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
        close(fd);
        cr_assert_lt(clock_now(clock_system()), until_us, "%s still listens", endpoint);
    }
}

/* The ring keeps the address of a broker that has ended, and that was started later. */
Test(credentials, a_hint_names_a_broker_that_answers)
{
    static const wire_sink_t SINK = {.on_frame = ignore_frame};
    loop_t *loop;
    wire_t *running = NULL, *ended = NULL;
    char its_address[300], gone[300], hint[64] = "start one";
    cr_assert_eq(loop_new(clock_system(), &loop), 0);
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, NULL, &running, &error), 0);
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, NULL, &ended, &error), 0);
    snprintf(its_address, sizeof its_address, "%s", wire_endpoint(running));
    snprintf(gone, sizeof gone, "%s", wire_endpoint(ended));
    cr_assert_eq(keyring_register_broker(&ring, its_address, broker.public_key, &error), 0);
    cr_assert_eq(keyring_register_broker(&ring, gone, broker.public_key, &error), 0);
    close_and_wait(&ended, gone);
    credentials_hint_elsewhere(EP, hint, &error);
    cr_assert(strstr(error.hint, its_address) && !strstr(error.hint, gone), "%s", error.hint);
    close_and_wait(&running, its_address);
    credentials_hint_elsewhere(EP, hint, &error);
    cr_assert_str_eq(error.hint, hint, "none of them is there");
    loop_destroy(&loop);
}

Test(credentials, what_is_no_key_is_refused)
{
    char text[128];
    cr_assert_eq(take("nonsense", NULL, EP), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(take(NULL, "/nowhere", EP), HEDDLE_ERR_NOT_FOUND);
    FILE *f = fopen(path_of("his.pub"), "w");
    snprintf(text, sizeof text, "public %s\n", mine.public_key);
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    cr_assert_eq(take(NULL, path_of("his.pub"), EP), HEDDLE_ERR_DATA_DIR, "there is no secret in it");
    setenv("HEDDLE_KEYS", "/dev/null/ring", 1);
    cr_assert_eq(take(broker.public_key, NULL, EP), HEDDLE_ERR_DATA_DIR, "nor can one be made");
    cr_assert_eq(take(NULL, NULL, EP), 0, "plain needs none");
}

/* Half of all secret keys look like public ones, and some like a path; one's own is known all the same. */
Test(credentials, ones_own_secret_is_no_key_of_a_broker)
{
    static const int LOOKS[] = {HEDDLE_ERR_USAGE, HEDDLE_OK, HEDDLE_ERR_NOT_FOUND};
    for (unsigned look = 0; look < sizeof LOOKS / sizeof *LOOKS;) {
        char key[KEY_TEXT];
        /* Any pair will do here: a public key that is a word takes a tenth of a second. */
        do cr_assert_eq(zmq_curve_keypair(mine.public_key, mine.secret_key), 0);
        while (key_take(mine.secret_key, key, &error) != LOOKS[look]);
        cr_assert_eq(unlink(path_of("mine.key")), 0);
        cr_assert_eq(key_write(path_of("mine.key"), &mine, &error), 0);
        cr_assert_eq(take(mine.secret_key, path_of("mine.key"), EP), HEDDLE_ERR_USAGE);
        cr_assert_str_eq(error.message, "this is a secret key, not a public one");
        cr_assert_null(strstr(error.hint, mine.secret_key));
        cr_assert_null(strstr(error.message, mine.secret_key));
        setenv("HEDDLE_KEY", path_of("mine.key"), 1);
        cr_assert(credentials_is_own_secret(NULL, mine.secret_key));
        cr_assert(!credentials_is_own_secret(NULL, mine.public_key));
        unsetenv("HEDDLE_KEY");
        look++;
    }
    cr_assert(!credentials_is_own_secret(NULL, mine.secret_key), "the ring has another");
}

Test(credentials, named_is_what_somebody_gave_or_set)
{
    cr_assert(credentials_are_named(&(credentials_t){0}), "HEDDLE_KEYS");
    unsetenv("HEDDLE_KEYS");
    cr_assert(!credentials_are_named(&(credentials_t){0}), "the user's own, that made itself");
    cr_assert(!credentials_are_named(&(credentials_t){.broker_key = "", .key = ""}));
    cr_assert(credentials_are_named(&(credentials_t){.broker_key = "x"}));
    cr_assert(credentials_are_named(&(credentials_t){.key = "x"}));
    setenv("HEDDLE_BROKER_KEY", "x", 1);
    cr_assert(credentials_are_named(&(credentials_t){0}));
    unsetenv("HEDDLE_BROKER_KEY");
    setenv("HEDDLE_KEY", "x", 1);
    cr_assert(credentials_are_named(&(credentials_t){0}));
}

/* ---- a ring is looked for while no handle is opened ---- */

static _Atomic int asker; /* its thread */
static atomic_bool has_answer;

static void *ask_public(void *ret_code)
{
    char text[HEDDLE_KEY_TEXT];
    asker = gettid();
    *(int *)ret_code = heddle_key_public(NULL, text, NULL);
    has_answer = true;
    return NULL;
}

static bool is_asleep(int thread)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *f = thread ? fopen(path, "r") : NULL;
    bool is_read = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
    if (f) fclose(f);
    return is_read && state == 'S';
}

/* Who opens one sets the environment: it is read before or after that, here after. */
Test(credentials, a_ring_is_looked_for_while_nothing_is_opened)
{
    char text[HEDDLE_KEY_TEXT];
    pthread_t thread;
    int rc = -1;
    setenv("HEDDLE_KEYS", path_of("other"), 1);
    cr_assert_eq(heddle_key_generate(NULL, text, NULL), 0);
    setenv("HEDDLE_KEYS", ring.dir, 1);
    opening_begin();
    cr_assert_eq(pthread_create(&thread, NULL, ask_public, &rc), 0);
    while (!has_answer && !is_asleep(asker)) sched_yield();
    setenv("HEDDLE_KEYS", path_of("other"), 1);
    opening_end();
    pthread_join(thread, NULL);
    cr_assert_eq(rc, 0, "%s has no key", ring.dir);
}

static int checked(const char *address, const char *broker_key, const char *key)
{
    int rc = heddle_broker_check(address, broker_key, key);
    if (rc) error = *heddle_last_error();
    return rc;
}

/* What `heddle context add` is given: no broker is there, and none is asked. */
Test(credentials, what_a_client_could_not_connect_with_is_said_in_advance)
{
    char public_file[128], own[128];
    snprintf(own, sizeof own, "%s", path_of("mine.key"));
    snprintf(public_file, sizeof public_file, "%s", path_of("mine.pub"));
    FILE *f = fopen(public_file, "w");
    cr_assert(f && fprintf(f, "public %s\n", mine.public_key) > 0 && fclose(f) == 0);
    cr_assert_eq(checked(EP ",ipc:///x", broker.public_key, own), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(checked(EP, public_file, NULL), HEDDLE_OK, "a file has a public key, too");
    cr_assert_eq(checked(NULL, NULL, NULL), HEDDLE_OK, "what is not given is not checked");
    cr_assert_eq(checked("policy", NULL, NULL), HEDDLE_ERR_USAGE);
    cr_assert_eq(checked(EP ",tcp://h", NULL, NULL), HEDDLE_ERR_USAGE, "each of them");
    cr_assert_eq(checked(EP, "nonsense", NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(checked(EP, mine.secret_key, own), HEDDLE_ERR_USAGE, "its secret");
    cr_assert(!strstr(error.message, mine.secret_key) && !strstr(error.found, mine.secret_key));
    cr_assert_eq(checked(EP, NULL, path_of("none.key")), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(checked(EP, NULL, public_file), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, "has no secret line"), "%s", error.message);
    static const char *const STRINGS[] = {"heddle-join-1:c2VjcmV0c2VjcmV0",
                                          "tcp://h:1,heddle-join-2:c2VjcmV0"};
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(checked(STRINGS[i], NULL, NULL), HEDDLE_ERR_USAGE);
        cr_assert(strstr(error.message, "is a join string") && error.hint[0], "%s", error.message);
        cr_assert(!strstr(error.message, "c2Vj") && !strstr(error.found, "c2Vj"));
    }
    cr_assert_neq(access(path_of("ring"), F_OK), 0, "nothing is made");
}

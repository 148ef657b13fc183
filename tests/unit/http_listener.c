/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses for HTTP, as they are written. */
#include "http/listener.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

Test(listener, an_address_is_a_port_or_a_number_and_a_port)
{
    static const struct {
        const char *text, *host;
        unsigned port;
        bool is_loopback;
    } ROWS[] = {{"9700", "127.0.0.1", 9700, true},          {"*", "127.0.0.1", 0, true},
                {"127.0.0.1:1", "127.0.0.1", 1, true},      {"127.9.9.9:65535", "127.9.9.9", 65535, true},
                {"[::1]:9700", "::1", 9700, true},          {"*:9700", "*", 9700, false},
                {"0.0.0.0:9700", "0.0.0.0", 9700, false},   {"10.0.0.7:*", "10.0.0.7", 0, false},
                {"[fd00::1]:9700", "fd00::1", 9700, false}, {"[::]:9700", "::", 9700, false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        listener_address_t a;
        heddle_error_t error;
        cr_assert_eq(listener_parse(ROWS[i].text, &a, &error), HEDDLE_OK, "%s", ROWS[i].text);
        cr_expect_str_eq(a.host, ROWS[i].host);
        cr_expect(a.port == ROWS[i].port && a.is_loopback == ROWS[i].is_loopback, "%s", ROWS[i].text);
    }
}

Test(listener, all_else_is_none)
{
    static const char *const BAD[] = {"",
                                      ":",
                                      ":9700",
                                      "0",
                                      "65536",
                                      "-1",
                                      "+1",
                                      "1x",
                                      "localhost:9700",
                                      "::1:9700",
                                      "[::1]",
                                      "[::1]9700",
                                      "[127.0.0.1]:1",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "1.2.3:4",
                                      "tcp://127.0.0.1:1",
                                      "127.0.0.1:1 ",
                                      "[fe80::1%lo]:1"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        listener_address_t a;
        heddle_error_t error;
        cr_expect_eq(listener_parse(BAD[i], &a, &error), HEDDLE_ERR_USAGE, "%s", BAD[i]);
    }
}

Test(listener, a_taken_port_is_named)
{
    listener_address_t a;
    heddle_error_t error;
    char url[96], taken[96];
    int fd = -1, second = -1;
    cr_assert_eq(listener_parse("*", &a, &error), HEDDLE_OK);
    cr_assert_eq(listener_open(&a, false, &fd, url, &error), HEDDLE_OK);
    cr_expect_eq(strncmp(url, "http://127.0.0.1:", 17), 0, "%s", url);
    snprintf(taken, sizeof taken, "%s", url + 7);
    cr_assert_eq(listener_parse(taken, &a, &error), HEDDLE_OK);
    cr_expect_eq(listener_open(&a, false, &second, url, &error), HEDDLE_ERR_ADDRESS_IN_USE);
    cr_expect(strstr(error.message, url) && error.hint[0]);
    cr_assert_eq(listener_parse("203.0.113.7:1", &a, &error), HEDDLE_OK);
    cr_expect_eq(listener_open(&a, false, &second, url, &error), HEDDLE_ERR_INTERNAL,
                 "not an address of this host");
    close(fd);
}

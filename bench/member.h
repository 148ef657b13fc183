/* SPDX-License-Identifier: Apache-2.0 */
/* bench/member.h: the processes of a measurement: the program heddle-bench itself, in another role.
 *
 *   heddle-bench --as program PATH ARG...            runs PATH; ends with its parent
 *   heddle-bench --as worker BROKER KEY NAME auto|app shared|own
 *   heddle-bench --as receiver PORT                  bench/socket.h
 *   heddle-bench --as tap HOST:PORT                  bench/tap.h
 *
 * They are controlled by lines on stdin and report by lines on stdout.  A worker reports, with times in ns of
 * CLOCK_MONOTONIC, which all processes of a host share:
 *   joined TRANSPORT (JSON)
 *   active VERSION AT SWITCHED      how long the call that switched took; 0 with auto
 *   retired VERSION
 * and answers `count` with `counted BYTES_IN BYTES_OUT`. */
#ifndef BENCH_MEMBER_H
#define BENCH_MEMBER_H

#define MEMBER_ADAPTER "bench"
#define MEMBER_LINE 512u

/* argv[2..]: the role and its arguments.  Returns the exit status. */
int member_main(int argc, char **argv);

#endif

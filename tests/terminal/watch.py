# SPDX-License-Identifier: Apache-2.0
"""heddle status, workers, adapters and versions --watch on a terminal: drawn in place, cut at its borders; a
broker that ends and comes back; Ctrl-C."""
import os
import re

from screen import WORK, Screen, ask, check, start, until

broker, ready = start("heddle-broker", "--listen", "tcp://127.0.0.1:*", "--data", str(WORK / "data"),
                      "--lease", "1s")
address = ready["endpoint"]
os.environ["HEDDLE_BROKER"] = address
start("heddle-worker", "--adapter", "policy", "--name", "w1")
for seed in (1, 2):
    os.system(f"{os.environ['HEDDLE_BIN_DIR']}/mkadapter --shape tiny --seed {seed} {WORK}/v{seed} >/dev/null")
check(ask("publish", f"{WORK}/v1", "--adapter", "policy").returncode == 0, "a version is there")

s = Screen("adapters", "--watch=200ms", "--timeout", "500ms")
s.shows("policy")
check(s.lines[0].endswith("heddle adapters, every 200 ms"), "the first line says what and how often", s)
check(s.lines[1].startswith("ADAPTER"), "the table is below", s)
first = s.lines[0]
until(lambda: s.lines[0] != first, "it is drawn again")
check(s.lines[1].startswith("ADAPTER") and s.text.count("ADAPTER") == 1, "in place", s)
check(s.raw.count(b"\x1b[2J") == 1, "the screen is cleared once, and does not flicker")
ask("publish", f"{WORK}/v2", "--adapter", "policy")
until(lambda: any(line.split()[:2] == ["policy", "2"] for line in s.lines), "what has changed is shown")

s.resize(3, 30)
until(lambda: s.lines[2].startswith("policy") and all(len(line) <= 30 for line in s.lines),
      "a small terminal has what fits")
s.resize(24, 100)
until(lambda: len(s.lines[0]) > 30 and s.text.count("ADAPTER") == 1, "a larger one has all again")

broker.kill()
broker.wait()
s.shows(f"the broker at {address} does not answer; waiting for it", "a lost broker is said")
check(any(line.startswith("policy") for line in s.lines), "and what it last said stays", s)
start("heddle-broker", "--listen", address, "--data", str(WORK / "data"), "--lease", "1s")
s.shows("heddle adapters, every", "it goes on when the broker is back")
s.keys("\x03")
check(s.ends() == 130, "Ctrl-C ends it")
check("interrupted" not in s.text, "without a word", s)

start("heddle-worker", "--adapter", "policy", "--name", "w2", "--on-stage",
      "echo 'the first of all the words of a long reason and its last word' >&2; exit 9")
os.system(f"{os.environ['HEDDLE_BIN_DIR']}/mkadapter --shape tiny --seed 3 {WORK}/v3 >/dev/null")
ask("publish", f"{WORK}/v3", "--adapter", "policy", "--deadline", "3s")
for command in (("workers",), ("versions", "policy"), ("versions", "policy@3")):
    for columns in (80, 150, 220):
        s = Screen(*command, "--watch=200ms", rows=40, columns=columns)
        until(lambda: "its last word" in " ".join(s.text.split()),
              f"heddle {' '.join(command)} has the whole reason in {columns} columns")
        s.keys("\x03")
        s.ends()

s = Screen("workers", "--watch=200ms", rows=24, columns=80)
until(lambda: any(line.startswith("WORKER") for line in s.lines), "80 columns have the table")
heading = next(line for line in s.lines if line.startswith("WORKER"))
check({"FETCHING", "STATE", "VERSION"} <= set(heading.split()), "with what is served and what comes", s)
check(set(heading.split()) <= {"WORKER", "SESSION", "CURRENT", "ADAPTER", "VERSION", "STATE", "SINCE", "DIGEST",
                               "FETCHING", "HEARTBEAT", "FETCHED", "OWN", "HELD", "WHY"}, "in whole columns", s)
start("heddle-worker", "--adapter", "policy", "--name", "rollout-deployment-7d9f8b6c54-of-the-a-pool")
until(lambda: any(re.match(r"\.\.\S+-the-a-pool +ready +yes +policy +\d+ +active ", line) for line in s.lines),
      "a long name loses its beginning, and the state is whole")
s.keys("\x03")
s.ends()

s = Screen("workers", "--watch=200ms", rows=24, columns=60, term="dumb")
s.shows("w1")
check(b"\x1b" not in s.raw, "a dumb terminal gets no escape sequences")
s.keys("\x03")
s.ends()

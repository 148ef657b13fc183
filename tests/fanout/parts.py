#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of the rig that need neither root nor the programs: a peer on loopback, one that is not installed,
reports, and the pictures of one.  Prints what does not hold and exits with 1.  With "report FACTOR" it prints
one, of a cluster that is slower by that factor, for tests/bench/run."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

sys.dont_write_bytecode = True
import report

HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parents[1] / "bench/peers"
BYTES, RECEIVERS, ROUNDS = 1 << 20, 2, 3
HOST = f"127.9.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"    # ports of a peer are fixed
NOT_THERE = """import peer
peer.main(lambda: peer.lacks("a_module_that_is_not_there"), None, None)
"""
wrong = []


def check(holds, text):
    wrong.append(text) if not holds else None


def start(name, *words):
    return subprocess.Popen([sys.executable, "-B", PEERS / f"{name}.py", *map(str, words)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def a_peer():
    sender = start("http_get", "send", BYTES, HOST, RECEIVERS)
    receivers = [start("http_get", "receive", BYTES, HOST, RECEIVERS, HOST, rank)
                 for rank in range(1, RECEIVERS + 1)]
    all_ = [sender, *receivers]
    check(all(p.stdout.readline() == "ready\n" for p in all_), "each process of a peer says that it is ready")
    for _ in range(ROUNDS):
        for program in reversed(all_):
            program.stdin.write("go\n")
            program.stdin.flush()
        begun = float(sender.stdout.readline())
        check(all(float(r.stdout.readline()) > begun for r in receivers), "bytes come after they are sent")
    for program in all_:
        program.stdin.close()
    check([p.wait(30) for p in all_] == [0] * len(all_), "a peer ends with its stdin")


def what_is_not_installed(work):
    path = work / "missing_one.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(PEERS)!r})\n{NOT_THERE}")
    told = subprocess.run([sys.executable, "-B", path, "check"], capture_output=True, text=True)
    check(told.returncode == 77, f"a peer that is not installed is skipped: {told.returncode}")
    check("a_module_that_is_not_there" in told.stdout, f"and says what is missing: {told.stdout!r}")


def rows(slower=1):
    """Of 1 and 4 workers; the cluster takes 1.1 M/B on each, the star N of them, in five repetitions."""
    found = []
    for workers in (1, 4):
        row = report.Row("wave", 4e6, 37.5e6, workers, workers - 1, 4000000)
        for i in range(5):
            noise = 1 + (i % 3 - 1) / 1000
            row.figure("active", "ms", 1.1 * row.link_ms * slower * noise)
            row.figure("publisher_out", "bytes", 4100000)
            row.figure("worker_in", "bytes", 4200000)
            row.turn(report.SELF, 0.8 if i == 0 else 0.3)
            row.reference("star", "ms", 1.046 * workers * row.link_ms)
            row.reference("star_out", "bytes", workers * 4100000)
            row.turn("star", 0.1)
        found.append(row)
    found[1].over_time[report.SELF] = {
        "seconds": [0.05, 0.1, 0.15], "bytes": [[0, 2000000 - 1000 * w, 4000000] for w in range(4)]}
    return found


def made(slower=1, missed=()):
    return report.encode(report.machine_facts("cubic"), rows(slower), missed)


def reports():
    row = made()["rows"][1]
    check(row["name"] == "fanout/wave/4MB/300Mbit/4" and row["repeat_count"] == 5, f"a row: {row['name']}")
    active, out, into = row["figures"]
    check(abs(active["ratio"]["link"] - 1.1) < 1e-9, f"a time has its M/B: {active['ratio']}")
    check(abs(active["ratio"]["star"] - 1.1 / 4.184) < 1e-9, "and its ratio to the star")
    check(out["ratio"] == {"adapter": 1.025, "star_out": 0.25}, f"bytes have theirs: {out['ratio']}")
    check(active["worst"] > active["median"] and len(into["samples"]) == 5, "and all repetitions")
    check(made(missed=["a", "b"])["ok"] is False, "one that missed a condition did not end well")
    text = io.StringIO()
    report.print_table(made(), 5, text)
    line = [t.split() for t in text.getvalue().splitlines() if t.startswith(row["name"])][0]
    check(line[1:] == ["active", "117", "117", "1.100", "1.127", "1.025", "1.050", "30%", "1"], f"{line}")


def lines_of(path, kind):
    """The points of each line of that kind, in the order of the file."""
    found = [e for e in tree.parse(path).iter() if e.tag.endswith("polyline") and e.get("class") == kind]
    return [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in found]


def pictures(work):
    (work / "report.json").write_text(json.dumps(made()))
    told = subprocess.run([sys.executable, HERE / "picture", work / "report.json", "--into", work / "out"],
                          capture_output=True, text=True)
    check(told.returncode == 0, f"pictures are made: {told.stderr}")
    drawn = sorted(p.name for p in (work / "out").iterdir())
    check(drawn == ["against-n-wave-4MB-300Mbit.svg", "over-time-wave-4MB-300Mbit-4-heddle.svg"],
          f"one of a case and one of a row: {drawn}")
    heddle, star = lines_of(work / "out" / drawn[0], "line")
    check(heddle[0][1] == heddle[1][1], "what takes as long for any number is level")
    check(star[1][1] < star[0][1] and star[1][1] < heddle[1][1], "and what takes longer is above it")
    receivers = lines_of(work / "out" / drawn[1], "thin")
    check(len(receivers) == 4 and all(len(r) == 4 for r in receivers), "a line for each receiver, from 0 on")
    check(all(r == sorted(r, key=lambda p: (p[0], -p[1])) for r in receivers), "bytes only grow")
    check(receivers[0][2][1] < receivers[3][2][1], "more bytes are higher")


if sys.argv[1:2] == ["report"]:
    report.print_json(made(float(sys.argv[2])), sys.stdout)
    sys.exit(0)
with tempfile.TemporaryDirectory(prefix="heddle-parts.") as folder:
    a_peer()
    reports()
    what_is_not_installed(pathlib.Path(folder))
    pictures(pathlib.Path(folder))
print("\n".join(wrong) if wrong else "fanout parts: all hold")
sys.exit(1 if wrong else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of the rig that need neither root nor the programs: a peer on loopback, one that is not installed,
and the pictures of a report.  Prints what does not hold and exits with 1."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

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


def report():
    rows = []
    for workers in (1, 4):
        for by, multiple in ("heddle", 1.1), ("star", 1.046 * workers):
            rows.append({"case": "wave", "by": by, "workers": workers, "bytes": 4000000, "multiple": multiple,
                         "void": 0})
    rows[2]["over_time"] = {"seconds": [0.05, 0.1, 0.15], "bytes": [[0, 2000000 - 1000 * w, 4000000]
                                                                   for w in range(4)]}
    return {"kind": "fanout", "rate_bytes": 37500000, "congestion": "cubic", "rows": rows}


def lines_of(path, kind):
    """The points of each line of that kind, in the order of the file."""
    found = [e for e in tree.parse(path).iter() if e.tag.endswith("polyline") and e.get("class") == kind]
    return [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in found]


def pictures(work):
    (work / "report.json").write_text(json.dumps(report()))
    told = subprocess.run([sys.executable, HERE / "picture", work / "report.json", "--into", work / "out"],
                          capture_output=True, text=True)
    check(told.returncode == 0, f"pictures are made: {told.stderr}")
    made = sorted(p.name for p in (work / "out").iterdir())
    check(made == ["against-n-wave.svg", "over-time-wave-4-heddle.svg"],
          f"one of a case and one of a row: {made}")
    heddle, star = lines_of(work / "out" / made[0], "line")
    check(heddle[0][1] == heddle[1][1], "what takes as long for any number is level")
    check(star[1][1] < star[0][1] and star[1][1] < heddle[1][1], "and what takes longer is above it")
    receivers = lines_of(work / "out" / made[1], "thin")
    check(len(receivers) == 4 and all(len(r) == 4 for r in receivers), "a line for each receiver, from 0 on")
    check(all(r == sorted(r, key=lambda p: (p[0], -p[1])) for r in receivers), "bytes only grow")
    check(receivers[0][2][1] < receivers[3][2][1], "more bytes are higher")


with tempfile.TemporaryDirectory(prefix="heddle-parts.") as folder:
    a_peer()
    what_is_not_installed(pathlib.Path(folder))
    pictures(pathlib.Path(folder))
print("\n".join(wrong) if wrong else "fanout parts: all hold")
sys.exit(1 if wrong else 0)

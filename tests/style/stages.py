#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/lib/stages.py: a run passes only when each stage has run and passed, the first failure ends it, and
skips are printed at the end.  And tests/run names every runner of the tree; a stage there stands behind those
that it needs."""
import io
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/lib"))
from stages import Stage, run                            # noqa: E402

RUNNERS = """tools/build ctest tests/threads/run tests/python/run tests/coverage tests/fuzz/run
             tests/fuzz/mutants tests/mutants/run examples/demo/demo.sh tests/engines/run tests/large/run
             tests/fanout/run tests/rl/run tests/install/deb tests/kill/run
             tests/containers/run tests/containers/manifests tests/evidence/warm
             tests/evidence/counted tests/evidence/bounded tests/evidence/no_bytes_through_broker
             tests/evidence/no_shared_disk""".split()


def sh(text):
    return ["sh", "-c", text]


def outcome(stages, lanes=2):
    """-> (exit status, what was printed)"""
    with tempfile.TemporaryDirectory() as folder:
        out = io.StringIO()
        return run(stages, lanes, folder, out), out.getvalue()


def check(condition, what, printed=""):
    if not condition:
        sys.exit(f"stages: {what}\n{printed}")


def passes():
    code, said = outcome([Stage("a", [sh("echo one"), sh("echo two")]),
                          Stage("b", [sh("echo three")], after=("a",)),
                          Stage("net", [sh("echo four")], lanes=0)])
    check(code == 0 and "all 3 stages passed" in said, "stages that pass", said)
    check(re.search(r"== a \(.*\)\none\ntwo\n", said), "the output of a stage is in one piece", said)
    check(said.index("== a ") < said.index("-- b: started"), "b comes after a", said)
    check(re.search(r"^ +\d+ s, +\d+ s of CPU  a$", said, re.M), "the time of each stage is at the end", said)


def counts():
    busy = sh("(ulimit -t 1; while :; do :; done) 2>/dev/null; true")
    code, said = outcome([Stage("busy", [busy, sh("true")]), Stage("idle", [sh("sleep 1")])])
    said_so = (r"[12] s of CPU  busy$", r" 0 s of CPU  idle$", r"passed in \d+ s, [12] s of CPU$")
    check(code == 0 and all(re.search(line, said, re.M) for line in said_so), "CPU time of each stage", said)


def fails():
    with tempfile.TemporaryDirectory() as folder:
        end = pathlib.Path(folder, "end")
        code, said = outcome([Stage("long", [["sh", "-c", "sleep 100 & sleep 100; touch \"$0\"", end]]),
                              Stage("bad", [sh("echo why; exit 3"), sh("echo no")]),
                              Stage("later", [sh("echo later")], after=("bad",))])
        check(code == 1 and "FAILED, exit status 3" in said and "why" in said, "a failure is shown", said)
        check(not re.search("passed in|later|^no", said, re.M), "a failure is the last", said)
        check(not end.exists(), "a failure ends what runs", said)


def repeats():
    """What failed stands among the last lines; once where it stands there already."""
    many = "i=0; while [ $i -lt 40 ]; do echo line; i=$((i + 1)); done; "
    for text, count in ((f"echo one FAILED; {many} exit 1", 2), (f"{many} echo one FAILED; exit 1", 1),
                        (f"echo one FAILED; {many} echo two FAILED; exit 1", 1),
                        (f"echo one FAILED; {many} exit 0", 1), (f"{many} exit 1", 0)):
        code, said = outcome([Stage("a", [sh(text)])])
        check(said.count("one FAILED") == count, f"{text}: said {count} times", said)
        check(count < 2 or "one FAILED" in said.splitlines()[-5:], "at the end", said)


def ends_servers():
    """Of a session of their own: what a failure ends, and what a stage that passed has left."""
    is_there = "until [ -s \"$0\" ]; do sleep 0.05; done; "
    start = "setsid sh -c 'echo $$ >\"$0\"; exec sleep 100' \"$0\" & " + is_there
    with tempfile.TemporaryDirectory() as folder:
        of_one_that_runs, of_one_that_ended = f"{folder}/a", f"{folder}/b"
        code, said = outcome([Stage("left", [["sh", "-c", start, of_one_that_ended]]),
                              Stage("serves", [["sh", "-c", start + "sleep 100", of_one_that_runs]]),
                              Stage("bad", [["sh", "-c", is_there + "exit 3", of_one_that_runs]],
                                    after=("left",))])
        check(code == 1, "a stage that fails ends the run", said)
        for pid in map(int, (pathlib.Path(f).read_text() for f in (of_one_that_runs, of_one_that_ended))):
            state = pathlib.Path(f"/proc/{pid}/stat")
            check(not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z",
                  f"server {pid} has ended", said)


def dies():
    code, said = outcome([Stage("killed", [sh("kill -9 $$")])])
    check(code == 1, "a stage that is killed has failed", said)


def skips():
    code, said = outcome([Stage("a", [sh("echo 'skipped: no zsh'; exit 77"), sh("echo ran")]),
                          Stage("b", [sh("exit 77")]),
                          Stage("c", [sh("echo '   7 - case (Skipped)'; echo '   8 - off (Disabled)'")])])
    end = said[said.index("all 3 stages passed"):]
    check(code == 0 and "but:" in end and "ran" in said, "a skip is no failure", said)
    check(end.count("skipped:") == 3 and "a: skipped: no zsh" in end and "b: skipped: sh ended with 77" in end
          and "c: skipped: case" in end, "skips are printed at the end", said)


def lanes():
    mark = "mkdir \"$0\" || exit 5; sleep 0.3; rmdir \"$0\""
    with tempfile.TemporaryDirectory() as folder:
        alone = ["sh", "-c", mark, f"{folder}/x"]
        code, said = outcome([Stage("a", [alone], lanes=2), Stage("b", [alone]),
                              Stage("c", [alone], lanes=2)])
        check(code == 0, "a stage of all lanes runs by itself", said)
        meet = "touch \"$0/$1\"; while [ ! -e \"$0/$2\" ]; do sleep 0.05; done"
        code, said = outcome([Stage("a", [["sh", "-c", meet, folder, "p", "q"]]),
                              Stage("b", [["sh", "-c", meet, folder, "q", "p"]])])
        check(code == 0, "two stages of one lane run side by side", said)


def waits():
    """Beside both lanes, one at a time, and never beside a stage of all lanes."""
    with tempfile.TemporaryDirectory() as folder:
        meet = ("touch \"$0/$1\"; i=0; until [ -e \"$0/p\" ] && [ -e \"$0/q\" ] && [ -e \"$0/r\" ]; do "
                "i=$((i + 1)); [ $i -lt 400 ] || exit 4; sleep 0.05; done")
        stages = [Stage(name, [["sh", "-c", meet, folder, name]], waits=name == "r") for name in "pqr"]
        code, said = outcome(stages)
        check(code == 0, "a stage that waits runs beside those of the lanes", said)
    with tempfile.TemporaryDirectory() as folder:
        alone = ["sh", "-c", "mkdir \"$0\" || exit 5; sleep 0.3; rmdir \"$0\"", f"{folder}/x"]
        code, said = outcome([Stage("a", [alone], waits=True), Stage("b", [alone], waits=True),
                              Stage("c", [alone], lanes=2), Stage("d", [alone], waits=True)])
        check(code == 0, "one that waits at a time, and none beside a stage of all lanes", said)


def priorities():
    """Of processes, and of sessions where those have shares of the processors: after a moment then."""
    share = "sed 's/.* //' /proc/self/autogroup"
    probe = subprocess.run(["sh", "-c", f"echo 7 >/proc/self/autogroup && [ \"$({share})\" = 7 ]"],
                           start_new_session=True, stderr=subprocess.DEVNULL)
    has_share = ("i=0; until [ \"$(%s)\" = %d ]; do i=$((i + 1)); [ $i -lt 400 ] || exit 4; sleep 0.05; done"
                 if probe.returncode == 0 else "true %s %d")
    mine = os.nice(0)
    for options, nice, of_session in (({}, 0, 0), ({"lanes": 0}, 10, 3), ({"nice": 5}, 0, 5)):
        command = sh(f"[ $(nice) = {min(mine + nice, 19)} ] || exit 3; " + has_share % (share, of_session))
        code, said = outcome([Stage("a", [command, command], **options)])
        check(code == 0, f"{options}: the priority of a stage is {nice}, of its session {of_session}", said)
    code, said = outcome([Stage("a", [sh("true")], nice=-5)])
    check(code == 0, "a stage runs where it may have no higher priority", said)


def refuses():
    true = [sh("true")]
    for stages in ([], [Stage("a", [])], [Stage("a", true, after=("b",))], [Stage("a", true)] * 2):
        try:
            code, said = outcome(stages)
        except ValueError:
            continue
        check(False, f"{stages} is taken for a list of stages: {code}", said)
    code, said = outcome([Stage("a", [sh("true")], after=("b",)), Stage("b", [sh("true")], after=("a",))])
    check(code == 1 and "wait for one another" in said, "a circle is a failure", said)


def stands_behind():
    names = []
    for stage in runpy.run_path(str(ROOT / "tests/run"))["STAGES"]:
        early = set(stage.after) - set(names)
        check(not early, f"tests/run: {stage.name} stands before {', '.join(early)}, which it needs: "
              "run by its name it would lack what that needs")
        names.append(stage.name)


for case in (passes, counts, fails, repeats, ends_servers, dies, skips, lanes, waits,
             priorities, refuses, stands_behind):
    case()
table = (ROOT / "tests/run").read_text()
missing = [runner for runner in RUNNERS if f'"{runner}"' not in table]
check(not missing, f"tests/run does not run {', '.join(missing)}")
print(f"stages: 12 cases, {len(RUNNERS)} runners in tests/run")

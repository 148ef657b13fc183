# SPDX-License-Identifier: Apache-2.0
"""inside_long.py [--kind vllm[@RELEASE]] [offline|tp|dp...]: heddle.vllm where it takes longer than in
inside.py.  Prints one line a check, and exits with 1 when one fails.

offline   an LLM and an AsyncLLM without a server (inside_offline.py)
tp, dp    a server with two ranks, as processes of the CPU: --tensor-parallel-size 2, --data-parallel-size 2.
          A failpoint (a plugin of vLLM that is in this test's environment alone) lets rank 1 refuse one
          version: it is served nowhere, `heddle publish` says rank and words, and the next version is exact
files     strace of all processes of a server, from the publication of a version to the answer: no file is
          opened to be written to
many      500 versions through one server: after the first 50 no process grows by more than 2 %, or has more
          descriptors, and the process of the model maps the versions that are served alone
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import inside
from stream import PATIENCE, PLAIN, ROOT

OFFLINE = ROOT / "tests/engines/inside_offline.py"
REFUSED = 2                             # the version that rank 1 does not take
FAILPOINT = '''
from heddle import _ranks
from heddle.vllm import loading

rank = None
connect, stage = _ranks.connect, loading.Builder.stage


def noted(name, hello):
    global rank
    rank = hello["rank"]
    return connect(name, hello)


def refusing(self, tag, slot, fields):
    if rank == 1 and tag.startswith("policy@%d:"):
        slot.close()
        raise RuntimeError("the failpoint says no")
    stage(self, tag, slot, fields)


def register():
    _ranks.connect, loading.Builder.stage = noted, refusing
''' % REFUSED


def add_failpoint(_, site):
    (site / "heddle_failpoint.py").write_text(FAILPOINT)
    info = site / "heddle_failpoint-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heddle-failpoint\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfailpoint = heddle_failpoint:register\n")


class TwoRanks(inside.Trial):
    plugins = "heddle,failpoint"

    def run(self):
        # a rank spins while it waits for another one, so each of them has a core
        os.environ.update(VLLM_CPU_OMP_THREADS_BIND="0|1", VLLM_HOST_IP="127.0.0.1")
        self.start()
        self.check("two ranks", [rank["rank"] for rank in self.told()[1]["ranks"]], [0, 1])
        self.publish(1)
        self.exact("the first version")
        before = self.status()[1]
        why = (self.publish(2, 1)["rollout"]["missing"] or [{}])[0]
        self.check("a version that rank 1 refuses fails with the rank and its words",
                   why.get("message"), "rank 1: the failpoint says no")
        self.check("and nothing of it is kept", self.status()[1], before)
        self.check("nor served", self.status_of(f"policy@{REFUSED}"), 404)
        self.exact("the one before it")
        self.check("a path that is not here is not found", self.post("load_lora_adapter", "yours",
                                                                     lora_path="heddle://policy@999"), 404)
        for n in (3, 4, 1):
            self.publish(n)
            self.exact("the next version")
        wrong = [self.wrong(f"policy@{version}", among=[version]) for version in self.served() * 2]
        self.check("four versions in turn, with places for two: exact", wrong, [None] * 8)
        self.end()

    def exact(self, what):
        """Eight requests at once: every replica has some."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            wrong = list(pool.map(lambda n: self.wrong("policy", n % 4, n % 2 == 0, [self.done]), range(8)))
        self.check(f"{what}: exact", wrong, [None] * 8)


class Offline(inside.Trial):
    def run(self):
        self.start_broker("tcp://127.0.0.1:*")
        python = ROOT / "build/engines" / self.kind / "bin/python"
        with (self.stage.folder / "offline.log").open("w") as log:
            done = subprocess.run([python, OFFLINE, self.models, self.broker], stdout=subprocess.PIPE,
                                  stderr=log, text=True, timeout=3 * PATIENCE, cwd=ROOT,
                                  env={**os.environ, "VLLM_PLUGINS": "heddle"})
        found = self.stage.tail("offline")
        if done.returncode == 0:
            found = json.loads(done.stdout.splitlines()[-1])
        self.check("without a server: versions come between calls, exact; full is a rejection", found, [])
        self.stage.end("broker")


class Files(inside.Trial):
    """Memory that has no name in a file system (memfd_create) is no file."""

    def run(self):
        if shutil.which("strace") is None:
            print("skipped: files: strace is not installed", flush=True)
            return
        self.start()
        self.publish(1)                         # and what is opened once
        self.wrong("policy")
        log = self.stage.folder / "strace.log"
        server = self.stage.running[self.kind].pid
        self.stage.start("strace", "strace", "-f", "-qq", "-o", log, "-e", "trace=%file,recvmsg",
                         *(word for pid in tree(server) for word in ("-p", pid)), is_read=False)
        self.until(lambda: all(is_traced(pid) for pid in tree(server)))
        for n in (2, 3):
            self.publish(n)
            self.check("traced: exact", [self.wrong("policy", prompt=p) for p in range(4)], [None] * 4)
        self.stage.end("strace", signal.SIGINT)
        calls = [line.partition(" ")[2].strip() for line in log.read_text(errors="replace").splitlines()]
        handed = [call for call in calls if "heddle-ranks-" in call and "SCM_RIGHTS" in call]
        self.check("the trace has the memory that the rank was handed, twice", len(handed), 2)
        self.check("no process of the server opens a file to write, makes, moves or removes one",
                   [call for call in calls if MAKES.search(call) and not FREE.search(call)], [])
        self.end()


# of strace's lines
MAKES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|^(creat|mkdir|mknod|rename|link|symlink|unlink|truncate)")
FREE = re.compile(r'"/dev/null"|= -1 E')


def tree(pid):
    """A process and all that descend from it."""
    found = [pid]
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += tree(int(child))
    return found


def is_traced(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return not re.search(r"^TracerPid:\s+0$", status, re.M)


class Many(inside.Trial):
    COUNT, FIRST = 500, 50

    def run(self):
        self.start()
        for n in range(self.COUNT):
            self.publish(n % PLAIN + 1)
            why = self.wrong("policy", prompt=n % 4, is_stream=n % 2 == 0, among=[self.done])
            if why:
                self.check(f"version {self.done}", why, None)
            if n + 1 == self.FIRST:
                before = self.measured()
        self.until(lambda: not self.status()[1]["leaving"])
        after = self.measured()
        for pid, (name, rss, descriptors) in before.items():
            now = after[pid]
            print(f"  {name}: {rss} kB after {self.FIRST} versions, {now[1]} kB after {self.COUNT}; "
                  f"{descriptors} and {now[2]} descriptors", flush=True)
            self.check(f"{name}: its memory does not grow by 2 %", now[1] <= 1.02 * rss, True)
            self.check(f"{name}: nor do its descriptors", now[2] <= descriptors, True)
        self.check("the process of the model holds the versions that are served, and no other",
                   self.held_by_ranks(), inside.KEEP + 1)
        self.end()

    def measured(self):
        """pid -> its name, kB in memory that are not shared with others, descriptors"""
        found = {}
        for pid in tree(self.stage.running[self.kind].pid):
            path = pathlib.Path("/proc", str(pid))
            status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
            found[pid] = (status["Name"].strip(), int(status["RssAnon"].split()[0]),
                          len(list((path / "fd").iterdir())))
        return found


PARTS = {"files": (Files,), "many": (Many,), "offline": (Offline,),
         "tp": (TwoRanks, "--tensor-parallel-size", "2"),
         "dp": (TwoRanks, "--data-parallel-size", "2")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    asked = parser.parse_args()

    def trials(stage, models, expected):
        for make, *options in (PARTS[part] for part in asked.parts or PARTS):
            yield make(stage, models, expected, asked.kind, *options)
    return inside.run(trials, add_failpoint)


if __name__ == "__main__":
    sys.exit(main())

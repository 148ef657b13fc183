# SPDX-License-Identifier: Apache-2.0
"""inside_long.py [--kind vllm[@RELEASE]|sglang] [PART...]: heddle.vllm and heddle.sglang where it takes
longer than in inside.py and inside_sglang.py.  Prints one line a check, and exits with 1 when one fails.

offline   an LLM and an AsyncLLM without a server (inside_offline.py)
tp, dp    a server with two ranks, as processes of the CPU: --tensor-parallel-size 2 (--tp-size 2),
          --data-parallel-size 2.
          Rank 1 refuses one version: it is served nowhere, `heddle publish` says rank and words, and the next
          version is exact
files     strace of all processes of a server, from the publication of a version to the answer: no file is
          opened to be written to
kills     two servers, of which one starts late, is killed while it stages a version, and starts again; a
          publisher that is killed while its version is staged; a broker that is killed.  The other server
          answers exactly all the time
targets   a server that has LoRA of some modules (--lora-target-modules): an adapter of others is refused
experts   a model with experts (MoE), LoRA of its attention, rsLoRA too: exact
many      500 versions (--count) through one server: after the first 50 no process grows by more than 2 %, or
          has more descriptors, and the process of the model maps the versions that are served alone

Ranks refuse and wait by a failpoint: a plugin of the engine that is in this test's environment alone.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import inside
import inside_sglang
from stream import BIN, EMBEDDINGS, HEAD, PATIENCE, PLAIN, ROOT, Stage, make_models

OFFLINE = ROOT / "tests/engines/inside_offline.py"
REFUSED = 2                             # the version that rank 1 does not take
CLIENTS = 4
FAILPOINT = '''
import os

from heddle import _ranks
from heddle.KIND import loading

rank = None
connect, stage = _ranks.connect, loading.Builder.stage


def noted(name, hello):
    global rank
    rank = hello["rank"]
    return connect(name, hello)


def refusing(self, tag, slot, fields):
    if rank == 1 and tag.startswith("policy@REFUSED:"):
        slot.close()
        raise RuntimeError("the failpoint says no")
    gate = os.environ.get("HEDDLE_TEST_GATE", "")
    if os.path.exists(gate):
        with open(gate) as fifo:            # until the test has opened and closed its other end
            fifo.read()
    stage(self, tag, slot, fields)


def register():
    _ranks.connect, loading.Builder.stage = noted, refusing
'''
GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}


def add_failpoint(site, engine):
    text = FAILPOINT.replace("KIND", engine).replace("REFUSED", str(REFUSED))
    (site / "heddle_failpoint.py").write_text(text)
    info = site / "heddle_failpoint-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heddle-failpoint\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUPS[engine]}]\nfailpoint = heddle_failpoint:register\n")


class TwoRanks:
    plugins = "heddle,failpoint"                # vLLM's list of them

    def run(self):
        # a rank spins while it waits for another one, so each of them has a core
        os.environ.update(VLLM_CPU_OMP_THREADS_BIND="0|1", SGLANG_CPU_OMP_THREADS_BIND="0|1",
                          VLLM_HOST_IP="127.0.0.1")
        self.start()
        self.check("two ranks", [rank["rank"] for rank in self.told()[1]["ranks"]], [0, 1])
        self.publish(1)
        self.exact("the first version")
        before = self.status()[1]
        why = (self.publish(2, 1)["rollout"]["missing"] or [{}])[0]
        self.check("a version that rank 1 refuses fails with the rank and its words",
                   why.get("message"), "rank 1: the failpoint says no")
        self.check("and nothing of it is kept", self.status()[1], before)
        self.check("nor served", self.status_of(f"policy@{REFUSED}"), self.gone)
        self.exact("the one before it")
        if self.kind != "sglang":               # which takes no path of Heddle's
            self.check("a path that is not here is not found",
                       self.post("load_lora_adapter", "yours", lora_path="heddle://policy@999"), 404)
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


class Offline:
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


class Files:
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


class Many:
    FIRST = 50

    def run(self):
        self.start()
        for n in range(self.count):
            self.publish(n % PLAIN + 1)
            why = self.wrong("policy", prompt=n % 4, is_stream=n % 2 == 0, among=[self.done])
            if why:
                self.check(f"version {self.done}", why, None)
            if n + 1 == self.FIRST:
                before = self.measured()
        self.until(lambda: not self.status()[1]["leaving"] and self.held_by_ranks() <= inside.KEEP + 1)
        after = self.measured()
        for pid, (name, rss, descriptors) in before.items():
            now = after[pid]
            print(f"  {name}: {rss} kB after {self.FIRST} versions, {now[1]} kB after {self.count}; "
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


class Experts:
    """Of a model with experts, LoRA of its attention."""

    def run(self):
        self.models = self.stage.folder / "experts"
        make_models(self.models, "experts")
        self.expected = json.loads((self.models / "expected.json").read_text())
        self.start()
        for adapter in range(1, PLAIN + 2):
            self.publish(adapter)
            self.check("a model with experts: exact" if adapter <= PLAIN else "rsLoRA: exact",
                       [self.wrong("policy", prompt=n, among=[self.done]) for n in range(4)], [None] * 4)
        self.end()


class Targets:
    def run(self):
        self.start()
        self.publish(HEAD)
        self.check("LoRA of the modules that a server has: exact",
                   [self.wrong("policy", prompt=n, among=[self.done]) for n in range(4)], [None] * 4)
        for adapter, module in ((1, "mlp.down_proj"), (EMBEDDINGS, "embed_tokens")):
            why = self.publish(adapter, 1)["rollout"]["missing"][0]
            self.check(f"LoRA of {module}, which it would read over, is refused", why.get("code"),
                       "version_failed")
            self.check("in words", [word in why["message"] for word in (module, "--lora-target-modules")],
                       [True, True])
        self.check("and the active version answers", self.wrong("policy", among=[self.done]), None)
        self.end()


class Kills:
    """`self` is the server that lives."""

    plugins = "heddle,failpoint"

    def run(self):
        self.start()
        self.publish(1)
        with self.asked(CLIENTS, "at a server beside others that are killed"):
            with self.other("late") as other:
                self.killed_while_it_stages(other, 2)
            with self.other("again") as other:
                self.publisher_killed(other, 3)
                self.broker_killed_for(other, 4)
            self.publish(1)
        self.stage.end(self.kind, signal.SIGKILL)
        self.stage.end("broker")

    @contextlib.contextmanager
    def other(self, name):
        """A server of the same broker that starts now, and is killed at the end, if it was not before."""
        folder = self.stage.folder / name
        folder.mkdir()
        other = type(self)(Stage(folder), self.models, self.expected, self.kind, *self.options)
        other.adapters, other.tags, other.broker = self.adapters, self.tags, self.broker
        other.gate = folder / "gate"
        os.environ["HEDDLE_TEST_GATE"] = str(other.gate)
        try:
            other.start_server()
            told, wrong = other.first_answer(self.done)
            self.check(f"a server that starts {name} is ready with the active version, and answers exactly",
                       (told, wrong), (self.tags[self.done], None))
            yield other
        finally:
            for process in list(other.stage.running):
                other.stage.end(process, signal.SIGKILL)

    def first_answer(self, version):
        """(what is active when it is ready for the first time, what is wrong with its answer)"""
        self.begun = self.done = version
        found = {}

        def is_ready():
            code, found["status"] = self.status()
            return code == 200
        self.until(is_ready)
        return found["status"]["active"], self.wrong("policy", among=[version])

    def begin(self, adapter):
        self.begun += 1
        return subprocess.Popen([BIN / "heddle", "publish", self.models / f"lora{adapter}", "--adapter",
                                 "policy", "--broker", self.broker, "--deadline", "120s", "-o", "json"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def rank_waits(self, other):
        """-> a descriptor.  The rank is staging a version, until that is closed."""
        end = None

        def is_open():
            nonlocal end
            try:
                end = os.open(other.gate, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:                     # no process reads from it yet
                return False
            return True
        self.until(is_open)
        other.gate.unlink()
        return end

    def killed_while_it_stages(self, other, adapter):
        os.mkfifo(other.gate)
        publication = self.begin(adapter)
        end = self.rank_waits(other)
        self.check("while a server stages it, a version is not active", publication.poll(), None)
        other.stage.end(self.kind, signal.SIGKILL)
        os.close(end)
        told = json.loads(publication.communicate(timeout=PATIENCE)[0])
        self.came(told["version"], adapter, told["tag"])
        self.check("when that server is killed, it is lost, and the version is active without it",
                   (told["ok"], [missing["code"] for missing in told["rollout"]["missing"]]),
                   (True, ["unavailable"]))
        self.done = told["version"]
        self.check("and exact", self.wrong("policy", among=[self.done]), None)

    def came(self, version, adapter, tag):
        self.adapters[version] = adapter        # before its tag, which clients wait for
        self.tags[version] = tag

    def publisher_killed(self, other, adapter):
        os.mkfifo(other.gate)
        publication = self.begin(adapter)
        end = self.rank_waits(other)
        publication.kill()
        publication.wait()
        known = subprocess.run([BIN / "heddle", "versions", "policy", "--broker", self.broker, "-o", "json"],
                               capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        version, tag = max((row["version"], row["tag"]) for row in json.loads(known)["versions"])
        self.came(version, adapter, tag)
        os.close(end)
        self.both_have(other, version, "a publisher was killed while its version was staged")

    def both_have(self, other, version, when):
        for server in (self, other):
            self.until(lambda server=server: server.status()[1]["active"] == self.tags[version])
        self.done = other.done = other.begun = version
        self.check(f"{when}: both servers serve it, exactly",
                   [server.wrong("policy", among=[version]) for server in (self, other)], [None, None])

    def broker_killed_for(self, other, adapter):
        self.stage.end("broker", signal.SIGKILL)
        self.check("without a broker: exact", [server.wrong("policy", among=[self.done])
                                               for server in (self, other)], [None, None])
        self.start_broker(self.broker)
        self.both_have(other, self.publish(adapter)["version"], "a version came after a broker was killed")


TENSOR_PARALLEL = "of the engine"
PARTS = {"files": (Files,), "kills": (Kills,), "many": (Many,), "offline": (Offline,),
         "experts": (Experts, "--lora-target-modules", "q_proj", "k_proj", "v_proj", "o_proj"),
         "targets": (Targets, "--lora-target-modules", "q_proj", "v_proj", "lm_head"),
         "tp": (TwoRanks, TENSOR_PARALLEL, "2"),
         "dp": (TwoRanks, "--data-parallel-size", "2")}
ENGINES = {"vllm": (inside.Trial, ("files", "kills", "many", "offline", "targets", "tp", "dp"),
                    "--tensor-parallel-size"),
           "sglang": (inside_sglang.Trial, ("experts", "files", "kills", "many", "tp"), "--tp-size")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    asked = parser.parse_args()
    engine = asked.kind.partition("@")[0]
    trial, parts, tensor_parallel = ENGINES[engine]

    def trials(stage, models, expected):
        for make, *options in (PARTS[part] for part in asked.parts or parts):
            options = [tensor_parallel if option is TENSOR_PARALLEL else option for option in options]
            made = type(make.__name__, (make, trial), {"count": asked.count})
            yield made(stage, models, expected, asked.kind, *options)
    return inside.run(trials, lambda _, site: add_failpoint(site, engine))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""inside_long.py [--kind vllm[@RELEASE]|sglang] [PART...]: heddle.vllm and heddle.sglang where it takes
longer than in inside.py and inside_sglang.py.  Prints one line a check, and exits with 1 when one fails.

offline   an LLM and an AsyncLLM without a server (inside_offline.py)
tp, dp    a server with two ranks, as processes of the CPU: --tensor-parallel-size 2 (--tp-size 2),
          --data-parallel-size 2 (--api-server-count 1).
          Rank 1 refuses one version: it is served nowhere, `heddle publish` says rank and words, and the next
          version is exact
files     strace of all processes of a server, from the publication of a version to the answer: no file is
          opened to be written to; and inotify on /dev/shm and the server's temporary directory is silent, of
          any process of the machine
kills     two servers, of which one starts late, is killed while it stages a version, and starts again; a
          publisher that is killed while its version is staged; a broker that is killed.  The other server
          answers exactly all the time
kept      a server that starts late gets the kept versions at their first requests, from a worker of another
          process: exact, also where they come in turn, and gone with the version
targets   a server that has LoRA of some modules (--lora-target-modules): an adapter of others is refused
experts   a model with experts (MoE), LoRA of its attention, rsLoRA too: exact
two       20 versions through two servers, while eight streams and eight other requests run at them: exact;
          and none names a version that one of the two servers has and the other one has not yet
off       servers where the plugin is off, for a variable, the release or a name, and for two API processes
          (--api-server-count, --tokenizer-worker-num): they start and answer
many      500 versions (--count) through one server: after the first 50 no process grows by more than 2 %, or
          has more descriptors or maps more versions, and the process of the model maps the versions that are
          served alone

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
from stream import ASK, BIN, EMBEDDINGS, HEAD, PATIENCE, PLAIN, ROOT, Stage, make_models
from watch import Watch

OFFLINE = ROOT / "tests/engines/inside_offline.py"
REFUSED = 2                             # the version that rank 1 does not take
CLIENTS = 4
FAILPOINT = '''
import os

from heddle import _ranks
from heddle._inside.seams import Global
from heddle.KIND import loading, plugin, seams

without = os.environ.get("HEDDLE_TEST_OFF")     # of the engine, before the plugin is asked to turn on
if without == "release":
    plugin.release = lambda: "9.9.9"
elif without == "name":
    seams.SEAMS = (*seams.SEAMS, Global("KIND", "no_such_name"))

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
        temporary = self.stage.folder / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        self.start()
        del os.environ["TMPDIR"]
        self.publish(1)                         # and what is opened once
        self.wrong("policy")
        log = self.stage.folder / "strace.log"
        server = self.stage.running[self.kind].pid
        self.stage.start("strace", "strace", "-f", "-qq", "-o", log, "-e", "trace=%file,recvmsg",
                         *(word for pid in tree(server) for word in ("-p", pid)), is_read=False)
        self.until(lambda: all(is_traced(pid) for pid in tree(server)))
        folders = [temporary, pathlib.Path("/dev/shm")]
        watch = Watch(*folders)
        for n in (2, 3):
            self.publish(n)
            self.check("traced: exact", [self.wrong("policy", prompt=p) for p in range(4)], [None] * 4)
        mine = [folder / f"heddle-inside-{os.getpid()}" for folder in folders]
        for path in mine:                       # what proves that the watch sees
            path.touch()
            path.unlink()
        self.check("inotify: in temporary directories no process makes, writes, moves or removes anything",
                   watch.end(), sorted(map(str, mine)))
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


ENDED = (FileNotFoundError, ProcessLookupError)         # of /proc: a process or a thread that was there


def tree(pid):
    """A process and all that descend from it, of those that have not ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except ENDED:
        return []
    found = [pid]
    for thread in threads:
        with contextlib.suppress(*ENDED):
            children = pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
            found += [of for child in children for of in tree(int(child))]
    return found


def status_of_process(pid):
    """The fields of /proc/PID/status; none: it has ended, if its parent was not yet told, too."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except ENDED:
        return {}
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {} if status["State"][0] in "ZX" else status


def is_traced(pid):
    """Or it has ended."""
    return status_of_process(pid).get("TracerPid") != "0"


class Many:
    FIRST = 50
    UNITS = ("kB in memory", "kB that are not shared", "descriptors", "regions of versions")

    def run(self):
        self.start()
        for n in range(self.count):
            self.publish(n % PLAIN + 1)
            why = self.wrong("policy", prompt=n % 4, is_stream=n % 2 == 0, among=[self.done])
            if why:
                self.check(f"version {self.done}", why, None)
            if n + 1 == self.FIRST:
                before = self.measured()
        after = self.measured()
        stay = [self.stage.running[self.kind].pid, *(rank["pid"] for rank in self.told()[1]["ranks"])]
        self.check("the server and its ranks are measured from the first to the last version",
                   [pid for pid in stay if pid not in before or pid not in after], [])
        for pid in before.keys() & after.keys():        # a helper of the server may have ended
            (name, *was), (_, *now) = before[pid], after[pid]
            print(f"  {name}: after {self.FIRST} and after {self.count} versions, " + ", ".join(
                f"{a} and {b} {unit}" for a, b, unit in zip(was, now, self.UNITS, strict=True)), flush=True)
            self.check(f"{name}: its memory does not grow by 2 %",
                       [b <= 1.02 * a for a, b in zip(was[:2], now[:2], strict=True)], [True, True])
            self.check(f"{name}: nor has it more descriptors, or more versions",
                       [b <= a for a, b in zip(was[2:], now[2:], strict=True)], [True, True])
        self.comes("the process of the model holds the versions that are served, and no other",
                   self.held_by_ranks, inside.KEEP + 1)
        self.end()

    def measured(self):
        """When what was retired has gone: pid -> its name, and of each of UNITS"""
        self.until(lambda: not self.status()[1]["leaving"] and self.held_by_ranks() <= inside.KEEP + 1)
        found = {}
        for pid in tree(self.stage.running[self.kind].pid):
            status = status_of_process(pid)
            with contextlib.suppress(*ENDED):
                if status:
                    found[pid] = (status["Name"], *(int(status[kind].split()[0]) for kind in
                                                    ("VmRSS", "RssAnon")),
                                  len(os.listdir(f"/proc/{pid}/fd")), inside.regions_of(pid))
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


class Kept:
    """Versions 1 to 4 were published before the server was started."""

    ROUNDS = 10

    def run(self):
        self.start_broker("tcp://127.0.0.1:*")
        self.stage.start("worker", BIN / "heddle-worker", "--adapter", "policy", "--broker", self.broker)
        self.stage.line("worker")
        for n in range(1, inside.KEEP + 2):
            self.publish(n)
        self.start_server()
        self.until(lambda: self.status()[0] == 200)
        self.check("a server that starts late has the active version alone", self.served(), [self.done])
        others = list(range(1, self.done))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            wrong = list(pool.map(lambda n: self.wrong(f"policy@{others[-1]}", n % 4, n % 2 == 0,
                                                       [others[-1]]), range(8)))
        self.check("eight requests at once for a version that is kept elsewhere: exact", wrong, [None] * 8)
        if self.kind != "sglang":               # which takes no path of Heddle's
            self.check("another one by its path", (
                self.post("load_lora_adapter", "mine", lora_path="heddle://policy@2"),
                self.wrong("mine", among=[2]), self.post("unload_lora_adapter", "mine")), (200, None, 200))
        wrong = [why for turn in range(self.ROUNDS) for version in others
                 if (why := self.wrong(f"policy@{version}", prompt=turn % 4, is_stream=turn % 2 == 0,
                                       among=[version]))]
        self.check(f"all that are kept, in turn, {self.ROUNDS} times: exact", wrong, [])
        self.check("the active one is that which was", self.wrong("policy", among=[self.done]), None)
        served = sorted([*others, self.done])
        self.comes("the process of the model holds what is served",
                   lambda: (self.served(), self.held_by_ranks()), (served, len(served)))
        for name in ("policy@999", "policy@x", "policy@07"):
            self.check(f"{name} is not found", self.status_of(name), self.gone)
        self.publish(1)
        self.until(lambda: self.status_of("policy@1") == self.gone)
        self.until(lambda: not self.status()[1]["leaving"])
        self.comes("what is no longer kept has gone, and its memory",
                   lambda: (self.served(), self.held_by_ranks()), ([2, 3, 4, 5], 4))
        self.check("and the others are exact", [self.wrong(f"policy@{n}", among=[n]) for n in (2, 3, 4, 5)],
                   [None] * 4)
        self.stage.end("broker", signal.SIGKILL)
        self.check("without a broker: exact", [self.wrong(f"policy@{n}", among=[n]) for n in (2, 5)],
                   [None] * 2)
        self.check("and what is not here cannot be had", self.status_of("policy@6"),
                   400 if self.kind == "sglang" else 503)
        self.start_broker(self.broker)
        self.publish(2)
        self.check("when it is back: exact", self.wrong("policy", among=[self.done]), None)
        self.stage.end("worker")
        self.stage.end(self.kind)
        self.stage.end("broker")


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


class Beside:
    """A server, and others of the same broker."""

    plugins = "heddle,failpoint"

    @contextlib.contextmanager
    def other(self, name):
        """A server of the same broker that starts now, and is killed at the end, if it was not before."""
        folder = self.stage.folder / name
        folder.mkdir()
        other = type(self)(Stage(folder), self.models, self.expected, self.kind, *self.options)
        other.adapters, other.tags, other.broker = self.adapters, self.tags, self.broker
        other.check, other.gate = self.check, folder / "gate"
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

    def came(self, version, adapter, tag):
        self.adapters[version] = adapter        # before its tag, which clients wait for
        self.tags[version] = tag

    def both_have(self, other, version, when):
        for server in (self, other):
            self.until(lambda server=server: server.status()[1]["active"] == self.tags[version])
        self.done = other.done = other.begun = version
        self.check(f"{when}: both servers serve it, exactly",
                   [server.wrong("policy", among=[version]) for server in (self, other)], [None, None])


class Kills(Beside):
    """`self` is the server that lives."""

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

    def broker_killed_for(self, other, adapter):
        self.stage.end("broker", signal.SIGKILL)
        self.check("without a broker: exact", [server.wrong("policy", among=[self.done])
                                               for server in (self, other)], [None, None])
        self.start_broker(self.broker)
        self.both_have(other, self.publish(adapter)["version"], "a version came after a broker was killed")


class Two(Beside):
    beside = None

    def run(self):
        self.start()
        self.publish(1)
        with self.other("beside") as self.beside:
            with (self.asked(inside.STREAMS, "while versions come to two servers"),
                  self.beside.asked(inside.STREAMS, "while versions come to two servers")):
                for n in range(1, inside.VERSIONS):
                    self.publish(n % PLAIN + 1)
                self.one_is_late(inside.VERSIONS % PLAIN + 1)
            served = [self.done - n for n in range(inside.KEEP, -1, -1)]
            self.comes("both serve the same versions", lambda: self.at_both(lambda server: server.served()),
                       [served] * 2)
            self.check("and what was retired at none",
                       self.at_both(lambda server: server.status_of("policy@1")), [self.gone] * 2)
        self.stage.end(self.kind, signal.SIGKILL)
        self.stage.end("broker")

    def publish(self, adapter, wants=0):
        """Versions that an answer may name are those of either server."""
        if self.beside is None:
            return super().publish(adapter, wants)
        self.beside.begun += 1
        told = super().publish(adapter, wants)
        self.beside.done = self.done
        return told

    def one_is_late(self, adapter):
        """The active version is the one before as long as a server has not staged the new one."""
        os.mkfifo(self.beside.gate)
        self.beside.begun += 1
        publication = self.begin(adapter)
        end = self.rank_waits(self.beside)
        self.until(lambda: self.status()[1]["staged"])
        name = self.status()[1]["staged"][0].partition(":")[0]
        self.check("a version that one server has and the other stages is active at neither",
                   self.at_both(lambda server: [server.wrong("policy", n, n % 2 == 0, [self.done])
                                                for n in range(4)]), [[None] * 4] * 2)
        self.check("and is not there under its own name",
                   self.at_both(lambda server: server.status_of(name)), [self.gone] * 2)
        os.close(end)
        told = json.loads(publication.communicate(timeout=PATIENCE)[0])
        self.came(told["version"], adapter, told["tag"])
        self.both_have(self.beside, told["version"], "a version came late to one")

    def at_both(self, what):
        return [what(server) for server in (self, self.beside)]


class Off:
    """The engine without the plugin."""

    plugins = "heddle,failpoint"
    WHY = {"variable": "HEDDLE_ADAPTERS names no adapter", "release": "9.9.9 is not a release",
           "name": "has no no_such_name"}
    PROCESSES = {"vllm": ("--api-server-count", "it needs one: --api-server-count 1"),
                 "sglang": ("--tokenizer-worker-num", "not proven with --tokenizer-worker-num")}

    def run(self):
        self.start_broker("tcp://127.0.0.1:*")
        log, seen = self.stage.folder / f"{self.kind}.log", 0
        self.processes, why = self.PROCESSES[self.kind.partition("@")[0]]
        for self.without, why in (self.WHY | {"process": why}).items():
            os.environ["HEDDLE_TEST_OFF"] = self.without
            self.start_server()
            del os.environ["HEDDLE_TEST_OFF"]
            base = None if self.kind == "sglang" else "base"
            found = [ASK[self.kind](self.url, base, prompt, self.expected["length"])[1]
                     for prompt in self.expected["prompts"]]
            self.check(f"off for the {self.without}: the server starts and answers", found,
                       self.expected["answers"]["base"])
            self.check("without an adapter of Heddle's, and without a status",
                       (self.status_of("policy"), self.told()[0]), (self.gone, 404))
            self.stage.end(self.kind)
            text = log.read_text(errors="replace")
            lines = [line for line in text[seen:].splitlines() if "heddle: the plugin is off" in line]
            seen = len(text)
            self.check("and one line of its log says why, and names the plug",
                       [(why in line, "python -m heddle.engine" in line) for line in lines], [(True, True)])
        self.check("none of them joined the broker",
                   [event for event in self.events() if event.startswith("worker.")], [])
        self.stage.end("broker")

    def serve(self, *options):
        if self.without == "variable":
            del os.environ["HEDDLE_ADAPTERS"]
        if self.without == "process":
            os.environ.update(VLLM_ALLOW_RUNTIME_LORA_UPDATING="0",     # else vLLM does not start
                              SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT=str(int(PATIENCE)))
            options = (*options, self.processes, "2")
        super().serve(*options)
        os.environ.pop("VLLM_ALLOW_RUNTIME_LORA_UPDATING", None)


TENSOR_PARALLEL, PLACES = "ranks", "adapters that are loaded"      # options that each engine calls otherwise
PARTS = {"files": (Files,), "kills": (Kills,), "many": (Many,), "off": (Off,),
         "offline": (Offline,), "two": (Two,),
         "kept": (Kept, PLACES, "5"),
         "experts": (Experts, "--lora-target-modules", "q_proj", "k_proj", "v_proj", "o_proj"),
         "targets": (Targets, "--lora-target-modules", "q_proj", "v_proj", "lm_head"),
         "tp": (TwoRanks, TENSOR_PARALLEL, "2"),
         "dp": (TwoRanks, "--data-parallel-size", "2", "--api-server-count", "1")}
ENGINES = {"vllm": (inside.Trial, ("files", "kept", "kills", "many", "off", "offline", "targets", "two", "tp",
                                   "dp"),
                    {TENSOR_PARALLEL: "--tensor-parallel-size", PLACES: "--max-cpu-loras"}),
           "sglang": (inside_sglang.Trial, ("experts", "files", "kept", "kills", "many", "off", "two", "tp"),
                      {TENSOR_PARALLEL: "--tp-size", PLACES: "--max-loaded-loras"})}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    asked = parser.parse_args()
    engine = asked.kind.partition("@")[0]
    trial, parts, called = ENGINES[engine]

    def trials(stage, models, expected):
        for make, *options in (PARTS[part] for part in asked.parts or parts):
            options = [called.get(option, option) for option in options]
            made = type(make.__name__, (make, trial), {"count": asked.count})
            yield made(stage, models, expected, asked.kind, *options)
    return inside.run(trials, lambda _, site: add_failpoint(site, engine))


if __name__ == "__main__":
    sys.exit(main())

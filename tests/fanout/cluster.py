# SPDX-License-Identifier: Apache-2.0
"""A cluster over links with a rate: broker, publisher and workers are real processes, each host a network
namespace of its own.  Beside it, on the same hosts, a star and a chain of bare sockets, and other systems."""
import datetime
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from net import Net, remove_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
BARE = pathlib.Path(__file__).with_name("bare.py")
PEERS = {path.stem: path for path in sorted((ROOT / "bench/peers").glob("*_*.py"))}
TENSORS, PAGE, CHUNK = 64, 4096, 65536
WAIT_S = 120            # for a line of a program
POLL_S = 0.01           # between two looks at the counters of links, for a moment in a version
LOOK_S = 0.02           # between two, for --over-time
FOLDER = "heddle-fanout."
ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Failed(Exception):
    """The run cannot go on."""


class Program:
    """A process that is talked to by lines; what it logs goes to a file."""

    def __init__(self, cluster, name, host, *command):
        self.name, self.host, self.log = name, host, cluster.work / f"{name}.log"
        words = [*host.inside(), "setpriv", "--pdeathsig", "KILL", *map(str, command)]
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(words, env=cluster.env, stdin=subprocess.PIPE, text=True,
                                          stdout=subprocess.PIPE, stderr=log,
                                          start_new_session=True)    # a Ctrl-C is the rig's, and not theirs
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()
        cluster.programs.append(self)

    def read(self):
        """All that it prints, at once: a worker does not wait for a reader."""
        for line in self.popen.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def line(self, wait_s=WAIT_S):
        try:
            text = self.lines.get(timeout=wait_s)
        except queue.Empty:
            raise Failed(f"{self.name}: no answer within {wait_s:.0f} s: {self.logged()}") from None
        if text is None:
            raise Failed(f"{self.name} ended: {self.logged()}")
        return text

    def logged(self):
        return self.log.read_text(errors="replace")[-600:]

    def say(self, text):
        try:
            self.popen.stdin.write(text + "\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name} ended: {self.logged()}") from None

    def send(self, number):
        """A signal; the process of Popen becomes the program."""
        self.popen.send_signal(number)

    def end(self):
        try:
            self.popen.stdin.close()
        except BrokenPipeError:
            pass
        for number in (signal.SIGTERM, signal.SIGCONT):
            self.send(number)

    def wait(self):
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def seconds_of(at):
    """Of RFC 3339, since 1970."""
    return datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


class Worker(Program):
    def when(self, type_, version):
        """Waits for its own line about that, and returns the time in it."""
        while True:
            event = json.loads(self.line())
            if event.get("type") == type_ and event["version"] == version:
                return seconds_of(event["at"])


def busy_and_all():
    """Ticks of all cores since the machine started."""
    ticks = [int(t) for t in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Turn:
    """What links and cores have done since a repetition began."""

    def __init__(self, source, hosts):
        self.source, self.version = source, 0
        self.sent = {h: h.sent() for h in (source, *hosts)}
        self.received = {h: h.received() for h in hosts}
        self.ticks = busy_and_all()

    def out(self, host=None):
        """Bytes that it sent; None: the publisher's host."""
        host = host or self.source
        return host.sent() - self.sent[host]

    def into(self, host):
        return host.received() - self.received[host]

    def busy(self):
        """The part of the cores' time in which they were not idle."""
        busy, all_ = (b - a for a, b in zip(self.ticks, busy_and_all()))
        return busy / max(1, all_)

    def wait_for(self, what):
        """Looks at the counters until what() is true, and returns that."""
        end = time.monotonic() + WAIT_S
        while not (found := what()):
            if time.monotonic() > end:
                raise Failed(f"the links do not get there within {WAIT_S} s")
            time.sleep(POLL_S)
        return found


class Look(threading.Thread):
    """What each host has received while a repetition runs, from the counters of its link."""

    def __init__(self, hosts):
        super().__init__(daemon=True)
        self.hosts, self.over = hosts, threading.Event()
        self.seconds, self.received = [], [[] for _ in hosts]
        self.begun, self.first = time.monotonic(), [h.received() for h in hosts]

    def run(self):
        while True:
            is_last = self.over.wait(LOOK_S)
            self.seconds.append(round(time.monotonic() - self.begun, 4))
            for received, host, first in zip(self.received, self.hosts, self.first):
                received.append(host.received() - first)
            if is_last:
                return

    def end(self):
        self.over.set()
        self.join()
        return {"seconds": self.seconds, "bytes": self.received}


class Cluster:
    """`hosts` of them have `per_host` workers each; `spare` more have none, and their links are as fast."""

    def __init__(self, args, rate, size, hosts, per_host=1, spare=0, publish=()):
        self.args, self.rate, self.per_host, self.publish_options = args, rate, per_host, publish
        self.counts = hosts, spare
        self.tensor_bytes = max(1, size // TENSORS // PAGE) * PAGE
        self.bytes = TENSORS * self.tensor_bytes
        self.unit_s = self.bytes / rate
        self.work = pathlib.Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}."))
        self.env = dict(os.environ, HEDDLE_KEYS=str(self.work / "keys"))
        for name in ("HEDDLE_BROKER", "HEDDLE_BROKER_KEY", "HEDDLE_KEY", "HEDDLE_FAILPOINTS"):
            self.env.pop(name, None)
        self.programs, self.version = [], 0

    def open(self):
        net, (count, spare) = Net(self.args.congestion), self.counts
        self.broker_host = net.host("b")
        self.source = net.host("p", self.rate)
        hosts = [net.host(f"w{i}", self.rate) for i in range(1, count + spare + 1)]
        self.hosts, self.spare = hosts[:count], hosts[count:]
        self.endpoint = f"tcp://{self.broker_host.address}:7700"
        Program(self, "broker", self.broker_host, self.args.bin / "heddle-broker", "--listen", self.endpoint,
                "--data", self.work / "registry", "--keep", "0", "--plan", self.args.plan).line()
        self.workers = [self.worker(f"w{i}-{k}", host) for i, host in enumerate(self.hosts, 1)
                        for k in range(1, self.per_host + 1)]
        for worker in self.workers:
            worker.line()
        self.publisher = Program(self, "publisher", self.source, self.args.bin / "large-publish", "--broker",
                                 self.endpoint, "--count", 1 << 20, "--every", 1, "--tensors", TENSORS,
                                 "--tensor-bytes", self.tensor_bytes, *self.publish_options)

    def worker(self, name, host):
        """Starts one; its first line says that it has joined."""
        return Worker(self, name, host, self.args.bin / "heddle-worker", "--broker", self.endpoint, "--name",
                      name, "--adapter", "policy", "-q")

    def again(self, worker):
        """A new process in place of one that has ended."""
        new = self.worker(worker.name, worker.host)
        self.workers[self.workers.index(worker)] = new
        new.line()
        return new

    def ask(self, *command):
        """-> the object that `heddle COMMAND` prints, on the broker's host."""
        words = [*self.broker_host.inside(), self.args.bin / "heddle", *command, "--broker", self.endpoint,
                 "-o", "json"]
        told = subprocess.run(list(map(str, words)), env=self.env, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True)
        if told.returncode:
            raise Failed(f"heddle {' '.join(command)}: {told.stderr.strip()}")
        return json.loads(told.stdout)

    def publish(self):
        """Begins a version.  The publisher's first one needs no word to begin."""
        turn = Turn(self.source, [*self.hosts, *self.spare])
        self.publisher.say("") if self.version else None
        self.version += 1
        turn.version = self.version
        return turn

    def published(self):
        """What the publisher says of it, when the version is active on all workers that it waits for."""
        told = json.loads(self.publisher.line())
        if told["version"] != self.version:
            raise Failed(f"the publisher is at version {told['version']}, and not at {self.version}")
        return told

    def close(self):
        """-> names of what could not be removed.  A Ctrl-C does not stop it."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
        for program in self.programs:
            program.end()
        for program in self.programs:
            program.wait()
        left = remove_all()
        shutil.rmtree(self.work, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)
        return left


def star_s(cluster):
    """For how long a star is waited for."""
    return WAIT_S + 2 * len(cluster.hosts) * cluster.unit_s


class Bare:
    """A star and a chain of bare sockets, with one receiver on each host."""

    def __init__(self, cluster):
        self.wait_s = star_s(cluster)
        self.receivers = [Program(cluster, f"receiver{i}", host, sys.executable, BARE, "receive",
                                  cluster.bytes) for i, host in enumerate(cluster.hosts, 1)]
        for receiver in self.receivers:
            receiver.line()
        for receiver, following in zip(self.receivers, cluster.hosts[1:]):
            receiver.say(f"connect {following.address}")
        self.receivers[-1].say("connect")
        self.sender = Program(cluster, "sender", cluster.source, sys.executable, BARE, "send", cluster.bytes,
                              *(h.address for h in cluster.hosts))
        for program in [self.sender, *self.receivers]:
            program.line()

    def seconds(self, how):
        for program in [*self.receivers, self.sender]:
            program.say(how)
        start = float(self.sender.line())
        return max(float(r.line(self.wait_s)) for r in self.receivers) - start


class Peer:
    """Another system, on the same hosts (bench/peers)."""

    def __init__(self, cluster, name):
        python, path, count = cluster.args.python, PEERS[name], len(cluster.hosts)
        self.wait_s = star_s(cluster)
        self.sender = Program(cluster, name, cluster.source, python, "-B", path, "send", cluster.bytes,
                              cluster.source.address, count)
        self.receivers = [Program(cluster, f"{name}{i}", host, python, "-B", path, "receive", cluster.bytes,
                                  host.address, count, cluster.source.address, i)
                          for i, host in enumerate(cluster.hosts, 1)]

    def open(self):
        """-> why it cannot run; None: it is ready."""
        try:
            for program in [self.sender, *self.receivers]:
                program.line()
        except Failed as why:
            for program in [self.sender, *self.receivers]:
                program.end()
            return str(why)

    def seconds(self):
        for program in [*self.receivers, self.sender]:
            program.say("go")
        start, *end = map(float, self.sender.line(self.wait_s).split())
        return (end[0] if end else max(float(r.line(self.wait_s)) for r in self.receivers)) - start


def forget_killed():
    """Folders of runs that were killed; Net forgets their networks."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        if not pathlib.Path("/proc", folder.name.split(".")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)

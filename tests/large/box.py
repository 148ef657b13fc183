# SPDX-License-Identifier: Apache-2.0
"""One box with a cluster in it: processes, questions, what they cost, and what is held against them."""
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

READY_S = 60
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failed(Exception):
    """The case cannot go on."""


class Skipped(Exception):
    """This machine is too small for the case."""


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def memory_available():
    """Bytes."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Process:
    """What it prints goes to a file: two hundred of them need no thread here."""

    def __init__(self, name, command, env, folder, ends_with_input=False):
        self.ends_with_input = ends_with_input
        self.name, self.out, self.err = name, folder / f"{name}.out", folder / f"{name}.err"
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.from_byte = out.tell()
            self.popen = subprocess.Popen([str(c) for c in command], env=env, stdin=subprocess.PIPE,
                                          stdout=out, stderr=err, preexec_fn=die_with_parent)

    @property
    def pid(self):
        return self.popen.pid

    def lines(self):
        """What this process said (not one before it of the same name), whole lines only."""
        with open(self.out, "rb") as out:
            out.seek(self.from_byte)
            text = out.read()
        return [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]

    def said(self, count=1, within=READY_S):
        """Its line number `count`; waits for it."""
        end = time.monotonic() + within
        while True:
            dead = self.popen.poll() is not None  # looked at first: what it said before its end counts
            lines = self.lines()
            if len(lines) >= count:
                return lines[count - 1]
            if dead or time.monotonic() > end:
                tail = self.err.read_text(errors="replace")[-600:]
                what = f"ended with {self.popen.returncode}" if dead else "said nothing more"
                raise Failed(f"{self.name} {what}: {tail}")
            time.sleep(0.01)

    def go_on(self):
        self.popen.stdin.write(b"\n")
        self.popen.stdin.flush()

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def end(self, within=30):
        """-> its exit status; what does not end is killed, and that is a status too.  A publisher of ours
        ends with its input."""
        if self.popen.poll() is None:
            self.popen.stdin.close()
            self.popen.terminate() if not self.ends_with_input else None
            try:
                self.popen.wait(within)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.popen.wait()

    def resident(self):
        """Bytes, and what of it is its own (the rest: programs and libraries, memory of regions)."""
        fields = dict(line.split(":", 1)
                      for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
                      if ":" in line)
        return int(fields["RssAnon"].split()[0]) * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def descriptors_beside_regions(self):
        """Those of shared memory come and go with the versions that are held (tests/evidence/bounded)."""
        return sum(not to.startswith("/memfd:heddle-region") for to in self.descriptor_targets())

    def regions(self):
        return sum(to.startswith("/memfd:heddle-region") for to in self.descriptor_targets())

    def descriptor_targets(self):
        for entry in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                yield os.readlink(entry)
            except FileNotFoundError:
                pass        # it was closed meanwhile

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Box:
    def __init__(self, bin_dir, case, lease="4s"):
        self.bin, self.case, self.lease = bin_dir, case, lease
        self.work = pathlib.Path(tempfile.mkdtemp(prefix=f"heddle-large.{case}."))
        self.env = dict(os.environ, HEDDLE_KEYS=str(self.work / "keys"))
        for name in ("HEDDLE_BROKER", "HEDDLE_BROKER_KEY", "HEDDLE_KEY", "HEDDLE_FAILPOINTS"):
            self.env.pop(name, None)
        self.endpoint, self.processes, self.checks, self.failures = "tcp://127.0.0.1:*", {}, 0, 0
        self.ticks = self.work / "ticks"
        self.clock = subprocess.Popen([ROOT / "tests/lib/machine_time", self.ticks],
                                      preexec_fn=die_with_parent)

    # ---- processes ----

    def start(self, name, *command, ends_with_input=False):
        self.processes[name] = process = Process(name, [self.bin / command[0], *command[1:]], self.env,
                                                 self.work, ends_with_input)
        return process

    def start_broker(self, *options):
        broker = self.start("broker", "heddle-broker", "--listen", self.endpoint, "--data",
                            self.work / "registry", "--lease", self.lease, "--log-level", "warn", *options)
        self.endpoint = broker.said()["endpoint"]
        return broker

    def start_worker(self, name, *adapters, options=()):
        asked = [word for adapter in adapters for word in ("--adapter", adapter)]
        return self.start(name, "heddle-worker", "--broker", self.endpoint, "--name", name, "-q", *asked,
                          *options)

    def start_publisher(self, name, *options):
        return self.start(name, "large-publish", "--broker", self.endpoint, *options, ends_with_input=True)

    def close(self):
        """-> how each of them ended, the broker last."""
        members = [p for n, p in self.processes.items() if n != "broker"]
        for p in members:  # all at once: each waits a little for the others
            if p.popen.poll() is None and not p.ends_with_input:
                p.popen.terminate()
        ends = {p.name: p.end(60) for p in members}
        if "broker" in self.processes:
            ends["broker"] = self.processes["broker"].end()
        return ends

    def remove(self):
        for p in self.processes.values():
            if p.popen.poll() is None:
                p.kill()
        self.clock.kill()
        self.clock.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    # ---- questions ----

    def ask(self, *args, within=120):
        """The answer, an object; its "exit" is the command's status."""
        done = subprocess.run([str(self.bin / "heddle"), *map(str, args), "--broker", self.endpoint,
                               "--timeout", "30s", "-o", "json"],
                              env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=within)
        answer = json.loads(done.stdout) if done.stdout.strip() else {}
        answer["exit"] = done.returncode
        return answer

    def given_s(self):
        """What the machine has given: the wall would also count moments at which it stands still."""
        return self.ticks.stat().st_size * 0.005 if self.ticks.exists() else 0.0

    def timed(self, *args):
        start = self.given_s()
        answer = self.ask(*args)
        return answer, self.given_s() - start

    def until(self, within, what, holds):
        """Waits for a condition -> how long it took, in seconds."""
        start = time.monotonic()
        while not holds():
            if time.monotonic() - start > within:
                raise Failed(f"not within {within} s: {what}")
            time.sleep(0.05)
        return time.monotonic() - start

    def ready_count(self):
        return self.ask("status")["count"]["workers_ready"]

    # ---- judgement ----

    def check(self, holds, text):
        self.checks += 1
        self.failures += 0 if holds else 1
        print(f"  {'ok  ' if holds else 'FAIL'} {text}", flush=True)
        return holds

    def note(self, text):
        print(f"       {text}", flush=True)


def mb(count):
    return f"{count / 1e6:.1f} MB"

# SPDX-License-Identifier: Apache-2.0
"""Real processes for the tests: a broker each test module, programs of this Python, and adapters of
tests/fixtures.
"""
from __future__ import annotations

import contextlib
import inspect
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

# A shell starts what it puts into the background with SIGINT ignored, and programs pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("HEDDLE_BIN_DIR", ROOT / "build" / "bin"))
FIXTURES = ROOT / "tests" / "fixtures"
PATIENCE = 60.0


class Process:
    """A program whose lines are read with a deadline."""

    def __init__(self, argv, **how):
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, bufsize=0, **how)
        self.rest = b""

    @property
    def pid(self):
        return self.process.pid

    def line(self, timeout=PATIENCE):
        """The next line of its stdout, without the newline."""
        end = time.monotonic() + timeout
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"no line from {self.process.args} within {timeout} s; so far "
                                     f"{self.rest!r}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise AssertionError(f"{self.process.args} ended with {self.process.wait()}; so far "
                                     f"{self.rest!r}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def json(self, timeout=PATIENCE):
        return json.loads(self.line(timeout))

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")

    def end(self, sign=signal.SIGTERM, timeout=PATIENCE):
        """Ends it, if it has not ended, and returns its status."""
        if self.process.poll() is None and sign is not None:
            self.process.send_signal(sign)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self.process.stdin.close()


class Broker(Process):
    def __init__(self, folder, *args, listen="tcp://127.0.0.1:*"):
        self.args = [str(BIN / "heddle-broker"), "--listen", listen, "--data", str(folder / "data"), *args]
        super().__init__(self.args, stderr=(folder / "broker.log").open("ab"))
        self.endpoint = self.json()["endpoint"]


def machine_time():
    """The seconds that the machine has given: a byte of that file is 5 ms (tests/lib/machine_time)."""
    return os.stat(os.environ["HEDDLE_TICKS"]).st_size * 0.005


# what a program of the tests begins with
PROGRAM = "import json, os, sys, time\n" + inspect.getsource(machine_time)


@contextlib.contextmanager
def at_most(seconds, what=""):
    """Fails where the body takes longer, by the clock of what the machine gives: the wall's would also count
    moments at which the machine stands still.
    """
    start = machine_time()
    yield
    took = machine_time() - start
    assert took < seconds, f"{what}: {took:.3f} s, at most {seconds} s"


@pytest.fixture(scope="session", autouse=True)
def ticks(tmp_path_factory):
    os.environ["HEDDLE_TICKS"] = str(tmp_path_factory.mktemp("ticks") / "ticks")
    it = subprocess.Popen([ROOT / "tests/lib/machine_time", os.environ["HEDDLE_TICKS"]])
    until(lambda: pathlib.Path(os.environ["HEDDLE_TICKS"]).exists() and machine_time(), "the clock ticks")
    yield
    it.kill()
    it.wait()


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory):
    """Never the user's own key ring, nor a broker of the user's."""
    os.environ["HEDDLE_KEYS"] = str(tmp_path_factory.mktemp("keys"))
    for name in ("HEDDLE_KEY", "HEDDLE_BROKER_KEY", "HEDDLE_BROKER"):
        os.environ.pop(name, None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory, own_keys):
    """One broker for the tests of a module; each test takes an adapter of its own."""
    it = Broker(tmp_path_factory.mktemp("broker"), "--lease", "2s", "--keep", "1")
    os.environ["HEDDLE_BROKER"] = it.endpoint
    yield it
    os.environ.pop("HEDDLE_BROKER", None)
    assert it.end() == 0


@pytest.fixture
def adapter(request):
    """A name that no other test uses."""
    return "a-" + "".join(c if c.isalnum() else "-"
                          for c in request.node.name)[:90].strip("-") + f"-{time.monotonic_ns() % 10**9}"


@pytest.fixture
def program(tmp_path):
    """program("code", args...): a Python program as a process; its stderr is in the test's folder."""
    started = []

    def start(code, *args, **how):
        path = tmp_path / f"program-{len(started)}.py"
        path.write_text(PROGRAM + textwrap.dedent(code))
        log = (tmp_path / f"program-{len(started)}.log").open("wb")
        it = Process([sys.executable, "-X", "faulthandler", "-W", "default", str(path), *map(str, args)],
                     stderr=log, **how)
        it.log = pathlib.Path(log.name)
        started.append(it)
        return it
    yield start
    for it in started:
        if it.process.poll() is None:
            it.process.kill()
            it.process.wait()


def until(condition, what, timeout=PATIENCE):
    """Waits for a condition of another process or thread."""
    end = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.005)

# SPDX-License-Identifier: Apache-2.0
"""A program behind a real pseudo-terminal, and the screen that a terminal makes of what it prints."""
import atexit
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

try:
    import pyte
except ImportError:
    print("skipped: pyte is not there (tools/setup test installs it)")
    sys.exit(77)

BIN = pathlib.Path(os.environ["HEDDLE_BIN_DIR"])
WORK = pathlib.Path(tempfile.mkdtemp(prefix="heddle-terminal-"))
os.environ["HEDDLE_KEYS"] = str(WORK / "keys")
for name in ("HEDDLE_BROKER", "HEDDLE_BROKER_KEY", "HEDDLE_KEY", "HEDDLE_CONTEXT"):
    os.environ.pop(name, None)
os.environ["XDG_CONFIG_HOME"] = str(WORK / "config")
_started = []


@atexit.register
def _end():
    for process in _started:
        process.kill()
        process.wait()
    shutil.rmtree(WORK, ignore_errors=True)


def until(condition, what, seconds=30):
    """Waits for the condition; the machine may be busy."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"not ok - {what}")
        time.sleep(0.02)
    print(f"ok - {what}", flush=True)


def start(*command):
    """A daemon, with its ready line."""
    process = subprocess.Popen([str(BIN / command[0]), *command[1:]], stdout=subprocess.PIPE,
                               stderr=open(WORK / "log", "a"), text=True)
    _started.append(process)
    line = process.stdout.readline()
    if not line:
        sys.exit(f"not ok - {command[0]} did not start: {(WORK / 'log').read_text()[-600:]}")
    return process, json.loads(line)


def ask(*command):
    return subprocess.run([str(BIN / "heddle"), *command], capture_output=True, text=True, timeout=60)


class Screen:
    """The program `command` on a terminal of that size."""

    def __init__(self, *command, rows=24, columns=100, term="xterm-256color"):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = term
            os.environ["LANG"] = os.environ["LC_ALL"] = "C.UTF-8"
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execv(BIN / "heddle", ["heddle", *command])
        self.status = None
        self.raw = b""

    def read(self):
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:      # it has ended
                return
            if not data:
                return
            self.raw += data
            self.stream.feed(data)

    @property
    def lines(self):
        self.read()
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def shows(self, words, what=None, seconds=30):
        until(lambda: words in self.text, f"{what or words}", seconds) if self._wait(words, seconds) else \
            sys.exit(f"not ok - {what or words}; the screen:\n{self.text}")

    def _wait(self, words, seconds):
        end = time.monotonic() + seconds
        while words not in self.text and time.monotonic() < end:
            time.sleep(0.02)
        return words in self.text

    def keys(self, text):
        os.write(self.fd, text.encode())

    def resize(self, rows, columns):
        self.read()
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def ends(self):
        """Its exit status, of a signal the negative number."""
        def has_ended():
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            return bool(pid)
        until(has_ended, "it ends")
        self.read()
        return self.status


def check(condition, what, screen=None):
    if not condition:
        sys.exit(f"not ok - {what}" + (f"; the screen:\n{screen.text}" if screen else ""))
    print(f"ok - {what}", flush=True)

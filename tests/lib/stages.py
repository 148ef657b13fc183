# SPDX-License-Identifier: Apache-2.0
"""A stage is a named list of commands of a long run, one after the other.

run() starts stages in their order as lanes become free: a stage takes one lane, or all of them, or none (it
waits for a network and runs at a low priority).  A stage that `waits` most of its time, for clocks and other
processes, takes none either: it runs beside the others, one such stage at a time, and never beside one that
takes all lanes.  A stage starts when the stages in its `after` have passed.

A stage is a session.  Linux gives each session an equal share of the processors (autogroup), and a priority
of a process counts within its session only: so a stage that waits for a network has half a share.

The output of a stage goes to a file, and is printed in one piece when the stage ends.  The first stage that
fails ends the others, and the run, with every process that a stage started, in whatever session.  Where the
end of its output does not name the failure, the lines that do are repeated: some readers see the end only.

A command that ends with 77 is a skip.  Skips are printed once more at the end: those commands, lines that
begin with "skipped:", cases that say so, and tests that ctest did not run, except disabled ones."""
import ctypes
import dataclasses
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

SKIPPED = 77
SAID = re.compile(r"^ *(skipped:.*)|^\s*\d+ - (.*) \(Skipped\)$", re.I)
FAILURE = re.compile(r"\bFAIL|\bSURVIVED\b|\*\*\*|\berror:|Error\b|does not hold")
LAST_LINES = 15
GRACE_S = 10
HALF = 3


@dataclasses.dataclass
class Stage:
    name: str
    commands: list          # each a list of words
    lanes: int = 1          # 0: it waits for a network
    after: tuple = ()       # names of stages
    waits: bool = False     # most of its time, on the machine
    nice: int = 0           # of its session: at -5 it has three times the share, for root only


def names_of_failure(lines):
    """-> the lines that name it, the last ones, where none stands at the end."""
    early, end = lines[:-LAST_LINES], lines[-LAST_LINES:]
    named = [] if any(map(FAILURE.search, end)) else list(filter(FAILURE.search, early))
    return ["-- what failed, from the lines above:", *named[-LAST_LINES:]] if named else []


def cpu_of_children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def set_share(pid, nice):
    """Of the session that `pid` leads.  Where there are none, or only root may, it stays as it is."""
    end = time.monotonic() + 1
    while nice != 0 and time.monotonic() < end:
        try:
            pathlib.Path(f"/proc/{pid}/autogroup").write_text(str(nice))
            return
        except BlockingIOError:     # ten such changes a second, of all users but root together
            time.sleep(0.02)
        except OSError:
            return


class Running:
    """A stage that has begun: the child process of its present command, and the file of its output."""

    def __init__(self, stage, folder):
        self.stage, self.start, self.next, self.skips = stage, time.monotonic(), 0, []
        self.log = folder / (re.sub(r"\W+", "-", stage.name).strip("-") + ".log")
        self.log.unlink(missing_ok=True)
        self.code, self.cpu_s = None, 0.0
        self.begin_next()

    def begin_next(self):
        low = ["nice", "-n", "10"] if self.stage.lanes == 0 else []
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(low + self.stage.commands[self.next], stdin=subprocess.DEVNULL,
                                          stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        set_share(self.child.pid, HALF if self.stage.lanes == 0 else self.stage.nice)

    def note_skips(self, code):
        text = self.log.read_bytes()[self.mark:].decode(errors="replace")
        found = [m.groups() for m in map(SAID.match, text.splitlines()) if m]
        said = [line or f"skipped: {case}" for line, case in found]
        if code == SKIPPED and not said:
            said = [f"skipped: {self.stage.commands[self.next][0]} ended with {SKIPPED}"]
        self.skips += said

    def has_ended(self):
        """Begins the next command where one has passed.  When it returns true, `code` is the stage's."""
        before_s = cpu_of_children_s()
        code = self.child.poll()
        if code is None:
            return False
        self.cpu_s += cpu_of_children_s() - before_s    # of this child, with all that it waited for
        self.note_skips(code)
        self.next += 1
        if code in (0, SKIPPED) and self.next < len(self.stage.commands):
            self.begin_next()
            return False
        self.code = 0 if code == SKIPPED else code
        self.took_s = time.monotonic() - self.start
        return True


def keep_orphans():
    """From here on a process whose parent has ended becomes a child of this one."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1)      # PR_SET_CHILD_SUBREAPER


def descendants():
    """The processes that this one started, and those that they started."""
    children = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue            # it has ended meanwhile
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return found


def end_descendants():
    """Ends them, whatever session they are in: first they are asked to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + GRACE_S
        for pid in descendants():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        while descendants() and time.monotonic() < end:
            time.sleep(0.05)


class Run:
    def __init__(self, stages, lanes, folder, out):
        self.waiting, self.running, self.done = list(stages), [], []
        self.lanes, self.folder, self.out, self.start = lanes, folder, out, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, text=""):
        print(text, file=self.out, flush=True)

    def elapsed(self):
        return time.monotonic() - self.start

    def weight(self, stage):
        return 0 if stage.waits else min(stage.lanes, self.lanes)

    def takes_all(self, stage):
        return self.weight(stage) == self.lanes

    def may_start(self, stage):
        running = [r.stage for r in self.running]
        one_waits = any(s.waits for s in running)
        if stage.waits:
            is_held = one_waits or any(map(self.takes_all, running))
        else:
            is_full = sum(map(self.weight, [stage, *running])) > self.lanes
            is_held = is_full or (one_waits and self.takes_all(stage))
        return not is_held and set(stage.after) <= {r.stage.name for r in self.done}

    def start_what_may(self):
        """In their order.  A stage of all lanes holds up those behind it, or its turn would never come."""
        passed = {r.stage.name for r in self.done}
        for stage in list(self.waiting):
            if self.may_start(stage):
                self.waiting.remove(stage)
                self.say(f"-- {stage.name}: started after {self.elapsed():.0f} s")
                self.running.append(Running(stage, self.folder))
            elif self.takes_all(stage) and set(stage.after) <= passed:
                return

    def report(self, r):
        verdict = "passed" if r.code == 0 else f"FAILED, exit status {r.code}"
        self.say(f"\n== {r.stage.name} ({r.took_s:.0f} s, {verdict})")
        text = r.log.read_text(errors="replace").rstrip("\n")
        self.say(text)
        for line in names_of_failure(text.splitlines()) if r.code != 0 else []:
            self.say(line)

    def step(self):
        """-> whether all is well so far."""
        for r in [r for r in self.running if r.has_ended()]:
            self.running.remove(r)
            self.done.append(r)
            self.report(r)
            if r.code != 0:
                return False
        self.start_what_may()
        return True

    def closing(self):
        for r in self.done:
            self.say(f"  {r.took_s:5.0f} s, {r.cpu_s:5.0f} s of CPU  {r.stage.name}")
        cpu_s = sum(r.cpu_s for r in self.done)
        skips = [f"{r.stage.name}: {skip}" for r in self.done for skip in r.skips]
        self.say(f"all {len(self.done)} stages passed in {self.elapsed():.0f} s, {cpu_s:.0f} s of CPU"
                 f"{', but:' if skips else ''}")
        for skip in skips:
            self.say(f"  {skip}")


def check(stages):
    names = [s.name for s in stages]
    unknown = [a for s in stages for a in s.after if a not in names]
    if not stages or unknown or len(set(names)) != len(names) or not all(s.commands for s in stages):
        raise ValueError(f"not a list of stages: {names}, unknown {unknown}")


def run(stages, lanes, folder, out=sys.stdout):
    """-> exit status: 0 only when each of the stages has run and passed."""
    check(stages)
    it = Run(stages, lanes, pathlib.Path(folder), out)
    keep_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)    # ends what was started, as Ctrl-C does
    try:
        while it.waiting or it.running:
            if not it.step():
                failed = it.done[-1]
                it.say(f"\nFAILED after {it.elapsed():.0f} s: {failed.stage.name}; the output: {failed.log}")
                return 1
            if it.waiting and not it.running:
                names = ", ".join(s.name for s in it.waiting)
                it.say(f"\nFAILED: these stages wait for one another: {names}")
                return 1
            time.sleep(0.1)
    except KeyboardInterrupt:
        it.say("\ninterrupted: ending what was started")
        return 130
    finally:
        end_descendants()
    it.say()
    it.closing()
    return 0 if len(it.done) == len(stages) else 1

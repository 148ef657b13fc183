#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same policy twice, with workers that receive every version and with workers frozen at version 1,
and compares.

Each run has a broker, a trainer and rollout workers as processes of their own.  One worker joins late, one
generates a group with a version that is too old, one is killed (SIGKILL) with a group in its hands. Ends with
0 only if every check at the end holds.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

import plot

HERE = pathlib.Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
ROUNDING = 1e-3         # of log-probabilities: one token at a time with a cache, and all at once
NEAR_END = 0.2          # the last part of a run, whose rewards are compared


@dataclass(frozen=True)
class Plan:
    steps: int
    join_at: int
    kill_at: int
    margin: float           # by which the reward must rise over that of the frozen run
    max_lag: int
    seed: int
    say_every: int


FULL = Plan(steps=150, join_at=45, kill_at=90, margin=0.5, max_lag=1, seed=1, say_every=15)
QUICK = Plan(steps=60, join_at=20, kill_at=40, margin=0.2, max_lag=1, seed=1, say_every=10)


class Failed(Exception):
    """A process ended that should not have."""


@dataclass
class Run:
    """One training run and its processes.  `rows`: what the trainer wrote down, a step each."""
    name: str
    frozen: bool
    plan: Plan
    folder: pathlib.Path
    bin_dir: str
    rows: list[dict] = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    killed_pid: int | None = None

    def __post_init__(self) -> None:
        self._processes: dict[str, subprocess.Popen] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._record = self.folder / "record.jsonl"
        self._record.unlink(missing_ok=True)
        self._record.touch()

    # -- processes -------------------------------------------------------------------------------------------

    def _start(self, name: str, command: list[str], **how) -> subprocess.Popen:
        """Its output goes to a log of its own; it is killed when this process is.  The user's brokers and
        keys are none of its business."""
        env = {key: value for key, value in os.environ.items()
               if key not in ("HEDDLE_BROKER", "HEDDLE_BROKER_KEY", "HEDDLE_KEY")}
        env["HEDDLE_KEYS"] = str(self._work / "keys")
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(command, env=env, preexec_fn=die_with_parent,
                                       **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **how})
        self._processes[name] = process
        return process

    def start(self, work: pathlib.Path) -> None:
        """`work`: for files that are not needed afterwards, and a path short enough for a Unix socket."""
        self._work = work
        broker = self._start("broker",
                             [f"{self.bin_dir}/heddle-broker", "--listen", "tcp://127.0.0.1:*", "--data",
                              str(self._work / "registry"),
                                        "--lease", "2s"], stdout=subprocess.PIPE, text=True)
        ready = broker.stdout.readline()
        if not ready:
            raise Failed(f"the broker did not start: see {self.folder / 'broker.log'}")
        self._broker = json.loads(ready)["endpoint"]
        with socket.socket(socket.AF_UNIX) as board:
            board.bind(str(self._work / "board"))
            board.listen()
            command = ["--broker", self._broker, "--board-fd", str(board.fileno()), "--record",
                       str(self._record), "--output",
                       str(self._work / "trl"), "--steps", str(self.plan.steps), "--max-lag",
                       str(self.plan.max_lag), "--seed", str(self.plan.seed)]
            self._start("trainer",
                        [sys.executable, str(HERE / "trainer.py"), *command,
                         *(["--frozen"] if self.frozen else [])],
                        pass_fds=[board.fileno()])
        self._start("w1", [*self._worker("w1"), "--mortal"], stdin=subprocess.PIPE)
        self._start("w2", [*self._worker("w2"), "--lags"])
        self._start("w3", [*self._worker("w3"), "--late"], stdin=subprocess.PIPE)

    def _worker(self, name: str) -> list[str]:
        return [sys.executable, str(HERE / "rollout.py"), "--broker", self._broker, "--name", name, "--board",
                str(self._work / "board")]

    def stop(self) -> None:
        """Asks the processes that are left to end, then makes them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    # -- the run ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Until the trainer is done; brings the late worker and the kill when their steps have come."""
        due = {self.plan.join_at: self._join, self.plan.kill_at: self._kill}
        with open(self._record) as lines:
            while True:
                is_over = self._processes["trainer"].poll() is not None
                for row in map(json.loads, iter_whole(lines)):
                    if "step" not in row:
                        self.facts.update(row)
                        continue
                    self.rows.append(row)
                    due.pop(row["step"], lambda: None)()
                    if row["step"] % self.plan.say_every == 0 or row["step"] == self.plan.steps - 1:
                        say(f"{self.name:6} {progress(row, self.plan)}")
                if is_over:
                    break
                self._look_after_children()
                time.sleep(0.05)                # the record is a file: nothing wakes a reader of it
        if self._processes["trainer"].returncode:
            raise Failed(f"the trainer ended with "
                         f"{self._processes['trainer'].returncode}:\n{tail(self.folder / 'trainer.log')}")
        for name in sorted(self._processes.keys() - {"broker", "trainer"}):
            self._processes[name].wait(30)
        self._look_after_children()

    def _look_after_children(self) -> None:
        """A worker ends with 0 when the trainer has closed the board."""
        for name, process in self._processes.items():
            if name != "trainer" and process.poll() is not None and (process.returncode or name == "broker"):
                raise Failed(f"{name} ended with {process.returncode}:\n{tail(self.folder / f'{name}.log')}")

    def _join(self) -> None:
        """The process was started with the others: loading torch takes longer than many steps.  Heddle hears
        of it now."""
        self._tell("w3")
        say(f"{self.name:6} step {self.plan.join_at:4}  w3 joins (pid {self._processes['w3'].pid})")

    def _kill(self) -> None:
        """By its own hand, when it has the next group: so that there is one to be done again."""
        process = self._tell("w1")
        if process.wait(30) != -signal.SIGKILL:
            raise Failed(f"w1 ended with {process.returncode}:\n{tail(self.folder / 'w1.log')}")
        self.killed_pid = self._processes.pop("w1").pid
        say(f"{self.name:6} step {self.plan.kill_at:4}  w1 is killed (pid {self.killed_pid}, SIGKILL)")

    def _tell(self, name: str) -> subprocess.Popen:
        with self._processes[name].stdin as told:
            told.write(b"now\n")
        return self._processes[name]

    # -- what came of it -------------------------------------------------------------------------------------

    def reward_near_end(self) -> float:
        last = self.rows[-max(1, int(len(self.rows) * NEAR_END)):]
        return sum(row["reward"] for row in last) / len(last)

    def count(self, what: str) -> Counter:
        total: Counter = Counter()
        for row in self.rows:
            total.update(row[what])
        return total

    def steps_of(self, worker: str) -> list[int]:
        return [row["step"] for row in self.rows if worker in row["served"]]

    def samples_of(self, worker: str) -> Counter:
        """How many of each version were used."""
        total: Counter = Counter()
        for row in self.rows:
            total.update({int(version): count for version, count in row["served"].get(worker, {}).items()})
        return total


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def iter_whole(lines):
    """The lines that are complete by now."""
    while True:
        at = lines.tell()
        line = lines.readline()
        if not line.endswith("\n"):
            lines.seek(at)
            return
        yield line


def tail(path: pathlib.Path, count: int = 15) -> str:
    return "\n".join("    " + line for line in path.read_text(errors="replace").splitlines()[-count:])


def say(line: str) -> None:
    print(line, flush=True)


def progress(row: dict, plan: Plan) -> str:
    bar = "#" * round(row["reward"] * 20)
    lags = " ".join(f"{lag}:{count}" for lag, count in sorted(row["lag"].items()))
    served = " ".join(f"{worker}:{sum(versions.values())}"
                      for worker, versions in sorted(row["served"].items()))
    dropped = sum(row["dropped"].values())
    return (f"step {row['step']:4}/{plan.steps}  {row['tag']:24} reward {row['reward']:.2f} {bar:20}  lag "
            f"{lags:12} dropped {dropped:3}  "
            f"{served:20} {row['at_s']:5.0f} s")


def checks(live: Run, frozen: Run, plan: Plan) -> list[tuple[bool, str]]:
    gain = live.reward_near_end() - frozen.reward_near_end()
    skill = live.facts["trained"] - frozen.facts["trained"]
    behind = max(map(int, live.count("lag")))
    late = live.samples_of("w3")
    compared, surprise = sum(row["compared"] for row in live.rows[1:]), max(row["surprise"]
                                                                            for row in live.rows)
    dropped, redone = live.count("dropped").total(), live.facts["redone"]
    last_of_killed, killed = max(live.steps_of("w1"), default=-1), live.killed_pid is not None
    return [
        (gain >= plan.margin, f"reward of the samples, last {NEAR_END:.0%} of the steps: "
                              f"{live.reward_near_end():.3f} with live versions, "
                              f"{frozen.reward_near_end():.3f} frozen at version 1: {gain:+.3f} (at least "
                              f"{plan.margin:+.2f})"),
        (skill >= plan.margin, f"reward of the trained policy itself: {live.facts['trained']:.3f} against "
                               f"{frozen.facts['trained']:.3f}: {skill:+.3f} "
                               f"(at least {plan.margin:+.2f}); untrained {live.facts['untrained']:.3f}"),
        (compared > 0 and surprise < ROUNDING,
         f"{compared} samples of the newest version have the log-probabilities of the trainer's own weights "
                                              f"(off by {surprise:.1e} at most)"),
        (behind <= plan.max_lag and dropped > 0,
         f"no sample that was used is more than {plan.max_lag} version behind: "
         f"{dict(sorted(live.count('lag').items()))}, {dropped} dropped (w2 made a group too late)"),
        (late.total() > 0 and min(late) >= plan.join_at,
         f"w3, which joined at step {plan.join_at}, served {late.total()} samples" +
         (f", the first of policy@{min(late)}, in step {min(live.steps_of('w3'))}" if late else "")),
        (killed and 0 <= last_of_killed <= plan.kill_at + 2 and redone > 0,
         f"w1, killed at step {plan.kill_at}, served none after step {last_of_killed}; "
         f"{redone} of its groups went to others (at least the one that it had)"),
        (len(live.rows) == plan.steps and len(frozen.rows) == plan.steps,
         f"both runs did their {plan.steps} steps"),
    ]


def train(run: Run) -> None:
    began = time.monotonic()
    say(f"{run.name:6} starts: broker, trainer, workers w1 and w2 (they load torch first); logs in "
        f"{run.folder}")
    with tempfile.TemporaryDirectory(prefix="heddle-rl-") as work:
        try:
            run.start(pathlib.Path(work))
            run.watch()
        finally:
            run.stop()
    waited, published = (sum(row[key] for row in run.rows) / len(run.rows)
                         for key in ("wait_ms", "publish_ms"))
    say(f"{run.name:6} done in {time.monotonic() - began:.0f} s; a step: publish {published:.1f} ms, wait "
        f"{waited:.1f} ms\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.steps} steps a run instead of "
                                                             f"{FULL.steps}, margin {QUICK.margin} instead "
                                                             f"of {FULL.margin}")
    parser.add_argument("--bin", default=os.environ.get("HEDDLE_BIN_DIR", "build/bin"),
                        help="where heddle-broker is")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/rl_tiny"),
                        help="logs, records and the plot")
    args = parser.parse_args()
    plan = QUICK if args.quick else FULL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    live = Run("live", False, plan, args.out / "live", args.bin)
    frozen = Run("frozen", True, plan, args.out / "frozen", args.bin)
    began = time.monotonic()
    try:
        train(live)
        train(frozen)
    except Failed as e:
        say(f"FAIL  {e}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; every process was ended")
        return 130
    picture = args.out / "rl_tiny.png"
    plot.draw(live, frozen, plan, picture)
    results = checks(live, frozen, plan)
    for is_good, text in results:
        say(f"{'ok  ' if is_good else 'FAIL'}  {text}")
    say(f"\n{picture}   {time.monotonic() - began:.0f} s")
    return 0 if all(is_good for is_good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The board: prompts from the trainer to whichever worker is free, and their samples back.  JSON lines over a
Unix socket.

Heddle moves weights; work is handed out by something of the trainer's own, and this is the smallest that
shows it.  A worker asks, gets one group (a prompt and a count of samples), and answers it.  A group whose
worker is gone is handed to another.
"""
from __future__ import annotations

import collections
import json
import socket
import threading
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Group:
    """One prompt, and what is asked of it.  `attempt` counts how often it was handed out anew: the samples of
    another try are others."""
    number: int
    prompt: str
    prompt_ids: list[int]
    count: int
    seed: int
    attempt: int = 0


class Board:
    """The trainer's side, on a socket that listens.  A thread for each worker; every method may be called on
    any thread."""

    def __init__(self, listening: socket.socket) -> None:
        self._changed = threading.Condition()
        self._open: collections.deque[Group] = collections.deque()
        self._known: dict[int, Group] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._closed = False
        self.redone = 0                     # groups that went down with their worker
        self._socket = listening
        threading.Thread(target=self._accept, daemon=True).start()

    def offer(self, groups: list[Group]) -> None:
        """Those that were offered already are left alone."""
        with self._changed:
            for group in groups:
                if group.number not in self._known:
                    self._known[group.number] = group
                    self._open.append(group)
            self._changed.notify_all()

    def again(self, number: int) -> None:
        """The answer is of no use: the group goes out before all others."""
        with self._changed:
            group = self._known[number]
            group.attempt += 1
            self._answers.pop(number, None)
            self._open.appendleft(group)
            self._changed.notify_all()

    def take(self, number: int, timeout: float) -> dict[str, Any]:
        """The answer to a group that was offered, which the board forgets when it is `done` with."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._answers, timeout):
                raise TimeoutError(f"no worker answered group {number} in {timeout:.0f} s")
            return self._answers[number]

    def done(self, number: int) -> None:
        with self._changed:
            del self._known[number], self._answers[number]

    def close(self) -> None:
        """Workers see the end of their connection, and leave."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._socket.close()

    # -- a worker's thread -----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        group = None
        with connection, connection.makefile("rw") as lines:
            try:
                while lines.readline():             # "ready", or the end
                    group = self._next()
                    if group is None:
                        return
                    lines.write(json.dumps(asdict(group)) + "\n")
                    lines.flush()
                    answer = lines.readline()
                    if not answer.endswith("\n"):    # killed, maybe in the middle of it
                        return
                    self._answered(group, json.loads(answer))
                    group = None
            except OSError:
                pass
            finally:
                if group is not None:
                    self.redone += 1
                    self.again(group.number)

    def _next(self) -> Group | None:
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._closed)
            return None if self._closed else self._open.popleft()

    def _answered(self, group: Group, answer: dict[str, Any]) -> None:
        with self._changed:
            self._answers[group.number] = answer
            self._changed.notify_all()


class Desk:
    """The worker's side: says that it is ready, and has a descriptor to poll until there is work."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rw")

    def fileno(self) -> int:
        return self._socket.fileno()

    def ready(self) -> None:
        self._say("ready")

    def group(self) -> Group | None:
        """None: the trainer is gone, or done."""
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        return Group(**json.loads(line)) if line else None

    def answer(self, answer: dict[str, Any]) -> None:
        self._say(json.dumps(answer))

    def _say(self, line: str) -> None:
        try:
            self._lines.write(line + "\n")
            self._lines.flush()
        except OSError:
            pass                                    # the trainer is gone: group() tells

# SPDX-License-Identifier: Apache-2.0
"""Calls into C that block, and the Ctrl-C that must not wait for them.

Python runs signal handlers on the main thread, between two of its instructions: a main thread that is inside C runs none.  So a call that may
block is made on a helper thread while the main thread waits for it in Python, where a handler runs at once; if the handler raises, the call is
interrupted in C, its end awaited, and the exception goes on.  On other threads the call is made directly.
"""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class _Helper(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="heddle-call", daemon=True)
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            job = self.jobs.get()
            job.run()
            _idle.append(self)
            job.done.set()
            del job


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call
        self.done = threading.Event()
        self.value: Any = None
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            assert self.call is not None
            self.value = self.call()
        except BaseException as e:      # carried to the thread that asked
            self.raised = e
        self.call = None

    def result(self) -> Any:
        if self.raised is not None:
            try:
                raise self.raised
            finally:
                self.raised = None      # the traceback refers to this frame
        return self.value


_idle: list[_Helper] = []
detached: set[_Job] = set()             # calls that were left to finish by themselves; the end of the program waits for them


def _start(call: Callable[[], Any]) -> _Job:
    job = _Job(call)
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.jobs.put(job)
    return job


def detach(call: Callable[[], Any]) -> _Job:
    """call() on a helper thread, which the caller looks after."""
    return _start(call)


def interruptible(call: Callable[[], T], interrupt: Callable[[], None], forget: Callable[[], None] = lambda: None) -> T:
    """call(), which blocks in C until `interrupt()` ends it; `forget()` takes back an interrupt that came too late to end anything."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    job = _start(call)
    try:
        job.done.wait()
    except BaseException:
        interrupt()
        while not job.done.is_set():    # C is on its way out: nobody may touch the handle before
            try:
                job.done.wait()
            except BaseException:
                continue
        forget()
        raise
    value: T = job.result()
    return value


def detachable(call: Callable[[], T]) -> T:
    """call(), which blocks in C for a bounded time and cannot be ended: an exception of a handler leaves it to finish by itself."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    job = _start(call)
    detached.add(job)
    job.done.wait()
    detached.discard(job)
    value: T = job.result()
    return value


def finish() -> None:
    """At the end of the program: what was detached still works with memory of this process."""
    for job in list(detached):
        job.done.wait()
    detached.clear()

# SPDX-License-Identifier: Apache-2.0
"""Calls into C that block, and the Ctrl-C that must not wait for them.

Python runs signal handlers on the main thread, between two of its instructions: a main thread that is inside
C runs none.  So a call that may block is made on a helper thread while the main thread waits for it in
Python, where a handler runs at once; if the handler raises, the call is interrupted in C, its end awaited,
and the exception goes on.  On other threads the call is made directly.
"""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
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
        self.claim = threading.Lock()   # taken once: by who runs it, or by who gives it up before
        self.done = threading.Event()
        self.value: Any = None
        self.raised: BaseException | None = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
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


class Line(threading.Thread):
    """Calls one after the other on a thread that the end of the interpreter does not wait for."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, call))
        return future

    def end(self) -> None:
        """After what was submitted."""
        self._jobs.put(None)

    def run(self) -> None:
        for future, call in iter(self._jobs.get, None):
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as e:      # carried to who asked
                future.set_exception(e)


_idle: list[_Helper] = []
# calls that were left to finish by themselves; the end of the program waits for them
detached: set[_Job] = set()


def _start(job: _Job) -> bool:
    """False: no thread can be had.  From 3.12 on an interpreter that ends starts none."""
    try:
        helper = _idle.pop()
    except IndexError:
        try:
            helper = _Helper()
        except RuntimeError:
            return False
    helper.jobs.put(job)
    return True


def interruptible(call: Callable[[], T], interrupt: Callable[[], None],
                  forget: Callable[[], None] = lambda: None) -> T:
    """call(), which blocks in C until `interrupt()` ends it; `forget()` takes back an interrupt that came
    too late to end anything.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    job = _Job(call)
    try:
        if not _start(job):
            return call()
        job.done.wait()
    except BaseException:
        if not job.claim.acquire(blocking=False):       # it has begun
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
    """call(), which blocks in C for a bounded time and cannot be ended: an exception of a handler leaves it
    to finish by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        job = detach(call)
    except RuntimeError:
        return call()
    job.done.wait()
    value: T = job.result()
    return value


def detach(call: Callable[[], Any]) -> _Job:
    """call() on a helper thread, for nobody to wait for but the end of the program.  RuntimeError: there is
    none.
    """
    def run() -> Any:
        try:
            return call()
        finally:
            detached.discard(job)
    job = _Job(run)
    detached.add(job)
    if not _start(job):
        detached.discard(job)
        raise RuntimeError("no thread can be started")
    return job


def finish() -> None:
    """At the end of the program: what was detached still works with memory of this process."""
    for job in list(detached):
        job.done.wait()

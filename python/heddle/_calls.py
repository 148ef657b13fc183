# SPDX-License-Identifier: Apache-2.0
"""Calls into C that block, and the Ctrl-C that must not wait for them.

Python runs signal handlers on the main thread, between two of its instructions: a main thread that is inside
C runs none.  So a call that may block is made on a helper thread while the main thread waits for it in
Python, where a handler runs at once; if the handler raises, the call is interrupted in C, its end awaited,
and the exception goes on.  On other threads the call is made directly.
"""
from __future__ import annotations

import _thread
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Done:
    """A threading.Event, never cleared, in whose wait() a handler may raise: that one would be left locked,
    and its set() never return.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._tokens.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            try:
                self._tokens.get(timeout=timeout)
                self._tokens.put(None)  # for the next; a handler's exception before it finds it set
            except queue.Empty:
                pass
        return self._is_set


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call
        self.claim = threading.Lock()   # taken once: by who runs it, or by who gives it up before
        self.is_launched = False
        self.done = Done()
        self.value: Any = None
        self.raised: BaseException | None = None

    def run(self) -> bool:
        """False: another thread has run it, or given it up."""
        if not self.claim.acquire(blocking=False):
            return False
        try:
            assert self.call is not None
            self.value = self.call()
        except BaseException as e:      # carried to the thread that asked
            self.raised = e
        self.call = None
        return True

    def result(self) -> Any:
        if self.raised is not None:
            try:
                raise self.raised
            finally:
                self.raised = None      # the traceback refers to this frame
        return self.value


class Line:
    """Calls one after the other on a thread that ends with the line, and that the end of the interpreter does
    not wait for.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_ended = name, False
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._entry = threading.RLock()         # nothing comes in behind the end
        _thread.start_new_thread(_work, (self._jobs,))

    def __del__(self) -> None:
        if hasattr(self, "_jobs"):
            self._jobs.put(None)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """RuntimeError: it has been ended."""
        future: Future[T] = Future()
        with self._entry:
            if self.is_ended:
                raise RuntimeError(f"the thread {self.name} takes no more calls")
            self._jobs.put((future, call))
        return future

    def end(self) -> None:
        """After what was submitted."""
        with self._entry:
            self.is_ended = True
            self._jobs.put(None)


# to be taken by the main thread alone; not those of a fault in the thread itself
_SIGNALS = signal.valid_signals() - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
                                     signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}


def _leave_signals() -> None:
    """In a thread of ours: a signal that it took would not end the wait of the main thread, and a Ctrl-C
    would be looked at when that wait ends by itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _work(jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """The thread of a Line, to which it does not refer: who drops the line ends it."""
    _leave_signals()
    for future, call in iter(jobs.get, None):
        if not future.set_running_or_notify_cancel():
            del future, call
            continue
        try:
            future.set_result(call())
        except BaseException as e:      # carried to who asked
            future.set_exception(e)
        del future, call                # who asked may be gone before the next one comes


_idle: list[queue.SimpleQueue[_Job]] = []       # of helper threads that wait
# calls that were left to finish by themselves; the end of the program waits for them
detached: set[_Job] = set()


class NoThread(RuntimeError):
    """For a call that is to be detached."""


def _help(job: _Job) -> None:
    """A helper thread: its first job, then those that come while it is idle."""
    _leave_signals()
    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    while True:
        has_run = job.run()
        _idle.append(jobs)
        if has_run:
            job.done.set()
        del job
        job = jobs.get()


def _help_once(job: _Job) -> None:
    _leave_signals()
    if job.run():
        job.done.set()


def _is_handlers(e: BaseException) -> bool:
    """It has a frame of its own, other than what a function in C raises here."""
    return e.__traceback__ is not None and e.__traceback__.tb_next is not None


def _start(job: _Job) -> bool:
    """False: no thread can be had.  From 3.12 on an interpreter that ends starts none.  An exception, which
    is a handler's: it may be under way.
    """
    try:
        idle = _idle.pop()
    except IndexError as e:
        if _is_handlers(e):
            raise
        idle = None
    if idle is not None:
        idle.put(job)
        return True
    return _start_thread(_help, job)


def _start_thread(begin: Callable[[_Job], None], job: _Job) -> bool:
    """As _start."""
    try:
        # not threading's: its start() waits, with locks that stand no handler that raises meanwhile
        _thread.start_new_thread(begin, (job,))
    except RuntimeError as e:
        if _is_handlers(e):
            raise
        return False
    return True


def wait_out(job: _Job) -> None:
    """Waits until the call into C has returned, whatever a handler raises meanwhile: until then no thread may
    touch the handle."""
    while not job.done.is_set():
        try:
            job.done.wait()
        except BaseException:
            continue


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def interruptible(call: Callable[[], T], interrupt: Callable[[], None],
                  forget: Callable[[], None] = lambda: None) -> T:
    """call(), which blocks in C until `interrupt()` ends it; `forget()` takes back an interrupt that came
    too late to end anything.
    """
    if not _is_main():
        return call()
    job = _Job(call)
    try:
        if not _start(job):
            return call()
        job.done.wait()
    except BaseException:
        if not job.claim.acquire(blocking=False):       # it has begun
            interrupt()
            wait_out(job)
            forget()
        raise
    value: T = job.result()
    return value


def beside(call: Callable[[], Any], other: Callable[[], T]) -> T:
    """other(), on a helper thread, while call() is made here, which leaves Python to it for most of its
    time.  What call() raises goes first.
    """
    job = _Job(other)
    try:
        # A new thread is put on an idle core; one that is woken may be put on this one, which call() needs:
        # kernels of virtual machines keep threads together, to leave cores to others.
        _start_thread(_help_once, job)
        call()
    except BaseException:
        if not job.claim.acquire(blocking=False):       # it has begun
            job.done.wait()
        raise
    if not job.run():                                   # it has begun already
        job.done.wait()
    value: T = job.result()
    return value


def detachable(call: Callable[[], T]) -> T:
    """call(), which blocks in C for a bounded time and cannot be ended: an exception of a handler leaves it
    to finish by itself.
    """
    if not _is_main():
        return call()
    try:
        job = detach(call)
    except NoThread:
        return call()
    job.done.wait()
    value: T = job.result()
    return value


def detach(call: Callable[[], Any]) -> _Job:
    """call() on a helper thread; only the end of the program waits for it.  After NoThread call() is not
    made.  After an exception of a handler it is not made either, or it goes on by itself.
    """
    job = prepare(call)
    try:
        launch(job)
    except BaseException:
        give_up(job)
        raise
    return job


def prepare(call: Callable[[], Any]) -> _Job:
    """What detach() does, for who must know the job before a handler can raise: it begins with launch()."""
    def run() -> Any:
        try:
            return call()
        finally:
            detached.discard(job)
    job = _Job(run)
    return job


def launch(job: _Job) -> None:
    """May be called again: after an exception it is not known how far the first call came."""
    if job.is_launched:
        return
    detached.add(job)
    if not _start(job):
        detached.discard(job)
        raise NoThread("no thread can be started")
    job.is_launched = True


def give_up(job: _Job) -> bool:
    """It will not be run.  False: it has begun."""
    is_ours = job.claim.acquire(blocking=False)
    if is_ours:
        detached.discard(job)
    return is_ours


def leave(job: _Job) -> None:
    """It may never end: the end of the program does not wait for it either."""
    give_up(job)
    detached.discard(job)


def finish() -> None:
    """At the end of the program: what was detached still works with memory of this process."""
    for job in list(detached):
        if not job.run():       # what has not begun would never be done
            job.done.wait()

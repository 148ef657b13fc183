# SPDX-License-Identifier: Apache-2.0
"""What Publisher, Worker and Admin share: one C handle, closed once, by one thread at a time, never in a
forked child.
"""
from __future__ import annotations

import atexit
import os
import select
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from heddle import _calls, _native
from heddle.errors import Closed, ForkError, HeddleError

Self = TypeVar("Self", bound="Handle")
T = TypeVar("T")
_NUDGE = 0.02           # seconds for a call or a poll to end by itself, before that is looked at again
_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """Context manager.  `close()` may be called twice; every other call after it raises Closed, in a forked
    child ForkError.

    `close()` may come from anywhere, a signal handler within a call of the same handle included: it marks the
    handle closed and interrupts what is under way.  The C handle is freed when no call is in it: by close()
    itself, or, where its own thread is in it further down, by a helper thread.
    """

    _what = "handle"
    _is_endless = True      # its waits may have no end: they must not keep an interpreter that ends

    def __init__(self) -> None:
        _native.use()
        self._ptr: Any = None
        self._make_locks()
        self._is_closed = False             # set before anything is waited for
        self._in_hurry = False              # closing does not wait
        self._freer = 0                     # thread that frees it
        self._freed = _calls.Done()
        self._pollers: set[tuple[int, object]] = set()      # threads that poll a descriptor of the handle
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __reduce_ex__(self, _: Any) -> Any:
        raise uncopied(self)

    def _make_locks(self) -> None:
        """In a forked child anew: who has the parent's is a thread that the child lacks."""
        self._lock = threading.RLock()      # one thread at a time is in the library with this handle
        self._quiet = threading.Condition(self._lock)
        # for a moment: the C handle is interrupted, or taken away to be freed
        self._guard = threading.RLock()

    def _opened(self, ptr: Any) -> None:
        self._ptr = ptr
        _open_handles.add(self)

    def _failed(self) -> None:
        """The C handle could not be made: there is nothing to close but what __init__ above took."""
        self._is_closed = True
        self._close_wake()
        self._freed.set()

    def _where(self) -> dict[str, Any]:
        """What an exception of this handle is about: adapter, worker."""
        return {}

    def _closed(self) -> Closed:
        about = " ".join(self._where().values())
        return Closed(f"the {self._what}{' of ' + about if about else ''} is closed", code="closed", exit=2,
                      **self._where(), hint="open another one, or close this one later")

    def _live(self) -> Any:
        """The C handle.  Hold the lock."""
        if _native.forked:
            raise ForkError()
        if self._is_closed or self._ptr is None:
            raise self._closed()
        return self._ptr

    def _check_open(self) -> None:
        if _native.forked:
            raise ForkError()
        if self._is_closed:
            raise self._closed()

    @property
    def closed(self) -> bool:
        return self._is_closed

    # -- waiting ---------------------------------------------------------------------------------------------

    def _poll(self, fd: int, timeout: float | None) -> None:
        """Until fd is readable, the handle is closed, or the time is over.  Signal handlers run meanwhile,
        and may raise.
        """
        me = (threading.get_ident(), object())
        try:
            with self._lock:
                self._live()
                self._pollers.add(me)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.register(self._wake_fd, select.POLLIN)
            poll.poll(None if timeout is None else _native.milliseconds(timeout, "timeout"))
        finally:
            self._pollers.discard(me)       # in one step: in a lock the next handler could raise
            if self._is_closed:
                with self._quiet:
                    self._quiet.notify_all()

    def _interruptible(self, call: Callable[[], T], forget: Callable[[], None] = lambda: None) -> T:
        """A call that may block in C; hold the lock.  One that was interrupted because the handle is closed
        says that.
        """
        try:
            return _calls.interruptible(call, self._interrupt, forget)
        except HeddleError as e:
            if e.code == "interrupted" and self._is_closed:
                raise self._closed() from None
            raise

    # -- closing ---------------------------------------------------------------------------------------------

    def _close_native(self, ptr: Any) -> None:
        raise NotImplementedError

    def _interrupt_native(self, ptr: Any) -> None:
        raise NotImplementedError

    def _forget_interrupt(self) -> None:
        """Under the lock: takes back an interrupt that came too late to end a call, and would end the
        next.
        """

    def _parts(self) -> list[Handle]:
        """Handles that end with this one."""
        return []

    def _before_close(self, ptr: Any) -> None:
        """Under the lock, before the C handle goes."""
        with self._guard:                   # one being added finds the handle closed, or is found here
            parts = self._parts()
        for part in parts:
            part.close()

    def _interrupt(self) -> None:
        """From any thread, with or without the lock."""
        with self._guard:
            if self._ptr is not None:
                self._interrupt_native(self._ptr)

    def _is_inside(self) -> bool:
        """Whether this very thread is in a call, a poll or an interrupt further down, of this handle or a
        part of it: this is its signal handler.
        """
        me = threading.get_ident()
        owned = (lock._is_owned() for lock in (self._lock, self._guard))        # type: ignore[attr-defined]
        return (any(owned) or any(thread == me for thread, _ in tuple(self._pollers))
                or any(part._is_inside() for part in self._parts()))

    def close(self) -> None:
        """Leaves, and frees.  Idempotent; from any thread, and from a signal handler.  Calls and waits that
        are under way end with Closed.
        """
        if _native.forked or self._freed.is_set():
            return
        self._is_closed = True
        with self._guard:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
        if not self._is_inside():
            _calls.detachable(self._free)
            return
        if self._lock._is_owned():              # type: ignore[attr-defined]
            self._interrupt()
        try:
            _calls.detach(self._free)
        except _calls.NoThread:                 # who closes again, or drops it, frees
            pass

    def _free(self) -> None:
        """Frees the C handle when no call is in it.  A second thread waits for the first.  On a helper thread
        where there is one: a handler could raise between any two of its steps.
        """
        if self._freer == threading.get_ident():        # a handler, while this thread frees it
            return
        while not self._lock.acquire(timeout=_NUDGE):   # the thread that is in C comes out
            self._interrupt()
        try:
            while self._pollers:
                self._quiet.wait(_NUDGE)
            if self._ptr is not None and not self._freer:
                self._freer = threading.get_ident()
                self._before_close(self._ptr)
                if self._in_hurry:
                    self._interrupt()
                else:
                    self._forget_interrupt()            # it was for a call, not for the closing
        except BaseException:
            self._freer = 0
            raise
        finally:
            self._lock.release()
        if self._freer == threading.get_ident():
            self._free_native()
        elif self._freer:
            while not self._freed.wait(_NUDGE):
                pass

    def _free_native(self) -> None:
        try:
            with self._guard:
                ptr, self._ptr = self._ptr, None
            _open_handles.discard(self)
            self._close_native(ptr)
        finally:
            with self._guard:               # close() in another thread writes to it
                self._close_wake()
            self._freed.set()

    def _close_wake(self) -> None:
        fd, self._wake_fd = self._wake_fd, -1
        # Not twice: the number may be of another file by now.  Where Python ends, os may have gone already.
        if fd >= 0 and os is not None:
            os.close(fd)

    def __enter__(self: Self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self._in_hurry = kind is not None and not issubclass(kind, Exception)       # Ctrl-C: does not wait
        self.close()

    def __del__(self) -> None:
        try:
            if getattr(self, "_ptr", None) is not None and not _native.forked:
                dropped, was_closed = repr(self), self._is_closed
                self.close()                # before the warning, which may be an error
                if not was_closed:
                    tell(f"{dropped} was not closed", ResourceWarning, source=self)
        finally:
            if hasattr(self, "_wake_fd"):   # what could not be freed has it still
                self._close_wake()


def uncopied(it: Any) -> TypeError:
    """For what owns something of C: a second owner would free it twice."""
    return TypeError(f"{it!r} cannot be copied, pickled, or sent to another process: open another one there")


def warn(text: str, kind: type[Warning], source: Any = None) -> None:
    """warnings.warn, of the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level, source=source)


def tell(text: str, kind: type[Warning], source: Any = None) -> None:
    """warn() where an exception would be lost, as in __del__; not when the interpreter ends."""
    try:
        warn(text, kind, source)
    except Warning:             # -W error: it is shown as one that was ignored
        raise
    except Exception:
        pass


def _in_child() -> None:
    """Every call gets as far as ForkError."""
    for handle in list(_open_handles):
        handle._make_locks()


os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _close_all(of: Callable[[Handle], bool] = lambda _: True) -> None:
    if _native.forked:
        return
    failed = []
    for handle in filter(of, list(_open_handles)):
        try:
            handle.close()
        except Exception as e:      # the others are closed all the same
            failed.append(f"{handle!r} could not be closed: {e}")
    _calls.finish()
    for text in failed:
        tell(text, ResourceWarning)


def _end_listeners() -> None:
    """Before the interpreter waits for the threads that are not daemons: one in updates() would never end."""
    _close_all(lambda handle: handle._is_endless)


try:        # where concurrent.futures registers, too
    threading._register_atexit(_end_listeners)          # type: ignore[attr-defined]
except (AttributeError, RuntimeError):
    pass                                                # at atexit, then, which is after those threads


class Until:
    """A point in time that a wait ends at; None: never."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None:
            _native.milliseconds(timeout, "timeout")
        self.end = None if timeout is None or timeout == float("inf") else time.monotonic() + timeout

    def left(self, at_most: float | None = None) -> float | None:
        left = None if self.end is None else max(0.0, self.end - time.monotonic())
        if at_most is None:
            return left
        return at_most if left is None else min(left, at_most)

    @property
    def over(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

# SPDX-License-Identifier: Apache-2.0
"""What Publisher, Worker and Admin share: one C handle, closed once, by one thread at a time, never in a forked child."""
from __future__ import annotations

import atexit
import os
import select
import threading
import time
import warnings
import weakref
from typing import Any, TypeVar

from heddle import _calls, _native
from heddle.errors import Closed, ForkError

Self = TypeVar("Self", bound="Handle")
_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """Context manager.  `close()` may be called twice; every other call after it raises Closed, in a forked child ForkError."""

    _what = "handle"

    def __init__(self) -> None:
        _native.use()
        self._ptr: Any = None
        self._lock = threading.RLock()      # one thread at a time is in the library with this handle
        self._is_closed = False
        self._waiters = 0                   # threads that poll a descriptor of the handle
        self._quiet = threading.Condition(self._lock)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def _opened(self, ptr: Any) -> None:
        self._ptr = ptr
        _open_handles.add(self)

    def _failed(self) -> None:
        """The C handle could not be made: there is nothing to close but what __init__ above took."""
        self._is_closed = True

    def _live(self) -> Any:
        """The C handle.  Hold the lock."""
        if _native.forked:
            raise ForkError()
        if self._is_closed or self._ptr is None:
            raise Closed(f"the {self._what} is closed", code="closed", exit=2)
        return self._ptr

    @property
    def closed(self) -> bool:
        return self._is_closed

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def _poll(self, fd: int, timeout: float | None) -> None:
        """Until fd is readable, the handle is closed, or the time is over.  Signal handlers run meanwhile, and may raise."""
        with self._lock:
            self._live()
            self._waiters += 1
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.register(self._wake_fd, select.POLLIN)
            poll.poll(None if timeout is None else _native.milliseconds(timeout, "timeout"))
        finally:
            with self._lock:
                self._waiters -= 1
                self._quiet.notify_all()

    # -- closing ---------------------------------------------------------------------------------------------------------

    def _close_native(self, ptr: Any) -> None:
        raise NotImplementedError

    def _interrupt_native(self, ptr: Any) -> None:
        raise NotImplementedError

    def _before_close(self, ptr: Any) -> None:
        """Under the lock, before the C handle goes."""

    def close(self) -> None:
        """Leaves, and frees.  Idempotent.  Waits that are under way in other threads end."""
        if _native.forked:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ptr, self._ptr = self._ptr, None
            os.eventfd_write(self._wake_fd, 1)
            while self._waiters:
                self._quiet.wait()
            if ptr is not None:
                self._before_close(ptr)
        _open_handles.discard(self)
        if ptr is not None:
            _calls.detachable(lambda: self._close_native(ptr))

    def __enter__(self: Self) -> Self:
        if _native.forked:
            raise ForkError()
        if self._is_closed:
            raise Closed(f"the {self._what} is closed", code="closed", exit=2)
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, Exception) and not _native.forked:     # Ctrl-C: leave without waiting for workers
            with self._lock:
                if self._ptr is not None:
                    self._interrupt_native(self._ptr)
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and self._ptr is not None and not _native.forked:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self)
            self.close()
        if hasattr(self, "_wake_fd"):
            os.close(self._wake_fd)         # not before: a loop may still look at a descriptor that has it


@atexit.register
def _close_all() -> None:
    if _native.forked:
        return
    for handle in list(_open_handles):
        try:
            handle.close()
        except Exception as e:      # the others are closed all the same
            warnings.warn(f"{handle!r} could not be closed: {e}", ResourceWarning)
    _calls.finish()


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

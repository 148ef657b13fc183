# SPDX-License-Identifier: Apache-2.0
"""Versions in the hands of an application: Snapshot and Update, the hold on the slot behind both, and the
iterator of updates.
"""
from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from heddle import _native, slot
from heddle._handle import Until, tell, uncopied, warn
from heddle._native import ffi, lib
from heddle._words import UpdatePhase
from heddle.errors import Closed, ForkError, HeddleError
from heddle.tensors import Layout, Tensors

if TYPE_CHECKING:
    from heddle.admin import Admin
    from heddle.worker import Worker

__all__ = ["Update", "Updates", "Snapshot"]


FEATURES = ("alora", "bdlora", "bias", "dora", "embeddings", "init_base", "layer_replication",
            "modules_to_save", "qalora", "rank_pattern", "rslora", "target_parameters")


@functools.cache
def _dtype_name(dtype: int) -> str:
    return _native.text(lib.heddle_dtype_name(dtype)) or ""


def _address(row: Any) -> int:
    return int(ffi.cast("uintptr_t", row.data))


class _Call:
    """A call in C with a snapshot."""
    __slots__ = ("__weakref__",)


class Hold:
    """One hold of the C library on a version, released when its block has ended and the last view of its
    memory is gone.
    """

    def __init__(self, of: Worker | Admin, snapshot: Any, where: str) -> None:
        manifest = lib.heddle_snapshot_manifest(snapshot)
        self.adapter, self.version = _native.text(manifest.adapter) or "", int(manifest.version)
        self.tag, self.digest = _native.text(manifest.tag) or "", _native.text(manifest.digest) or ""
        self.step = None if manifest.step < 0 else int(manifest.step)
        self.features = tuple(filter(None, (_native.text(manifest.features) or "").split(",")))
        self.kind = _native.text(manifest.kind) or "lora"
        self.config_bytes = bytes(ffi.buffer(manifest.config, manifest.config_bytes))
        self.data_bytes, self.count = int(manifest.data_bytes), int(manifest.tensor_count)
        self.since, self.where = time.monotonic(), where
        self.views: Counter[str] = Counter()
        self._handed: list[Handed] = []         # views that other libraries have
        self._arrays: list[Arrays] = []         # numpy arrays over one buffer
        # in C with the snapshot, each as long as its frame lasts: meanwhile the end of the block leaves it to
        # them
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self.in_block = True
        self._snapshot = snapshot
        self._of = of
        self.make_lock()
        of._holds.add(self)

    def make_lock(self) -> None:
        self._lock = threading.RLock()          # a collection may call drop() in the midst of anything

    @property
    def live(self) -> bool:
        return bool(self._snapshot is not None)

    def _released(self) -> Closed:
        return Closed(f"{self.tag} was released", code="closed", exit=2, adapter=self.adapter,
                      version=self.version, hint="take its tensors within the block, or acquire it again")

    def _live(self) -> Any:
        """The C snapshot.  Hold the lock."""
        if _native.forked:
            raise ForkError()
        if self._snapshot is None:
            raise self._released()
        return self._snapshot

    def buffer(self, name: str, address: Any, size: int) -> Any:
        """The memory of a tensor; while it is there, so is the hold."""
        with self._lock:
            self._live()
            self.views[name] += 1
        return ffi.buffer(ffi.gc(ffi.cast("char *", address), functools.partial(self.drop, name)), size)

    def drop(self, name: str, _: Any) -> None:
        with self._lock:
            self.views[name] -= 1
            if self.views[name] <= 0:
                del self.views[name]
            self._release_if_free()

    def arrays(self, layout: Layout, first: int) -> dict[str, Any]:
        """name -> numpy array, read-only, of all tensors.  They share one buffer, which costs a tenth of a
        buffer for each; while one of them is there, so is the hold.
        """
        import numpy
        arrays = Arrays(layout)
        with self._lock:
            self._live()
            self._arrays.append(arrays)
        place = ffi.gc(ffi.cast("char *", first), functools.partial(self._drop_arrays, arrays))
        data = memoryview(ffi.buffer(place, layout.nbytes)).toreadonly()
        make = numpy.ndarray
        made = {name: make(shape, kind, data, start) for name, kind, shape, start in layout.numpy_rows()}
        arrays.refs = list(map(weakref.ref, made.values()))
        return made

    def _drop_arrays(self, arrays: Arrays, _: Any) -> None:
        with self._lock:
            self._arrays.remove(arrays)
            self._release_if_free()

    def hand_over(self, layout: Layout, take: Callable[[Any], Any]) -> list[Any]:
        """What `take` makes of each tensor of layout.handed, given as a DLPack capsule: a view, of which the
        library knows when it is gone.
        """
        handed, token = None, _Call()
        try:
            with self._lock:
                self._calls.add(token)
                handed = Handed(self._live(), layout)
                self._handed = [one for one in self._handed if one.count] + [handed]
            return handed.over(take)
        finally:
            if handed is not None:
                handed.give_back()
            self._end_call(token)

    def _names(self) -> list[str]:
        """Of the tensors of which a view is there.  Without the lock: who holds it may be in the worker's."""
        handed = (name for one in list(self._handed) for name in one.names())
        shared = (name for one in list(self._arrays) for name in one.names())
        return sorted({*list(self.views), *handed, *shared})

    @property
    def is_over(self) -> bool:
        """Its block has ended, and no view is left."""
        return self._snapshot is None and not any(handed.count for handed in list(self._handed))

    def end_block(self) -> list[str]:
        """Names of the tensors of which a view is still there."""
        with self._lock:
            self.in_block = False
            self._release_if_free()
            return self._names()

    def _release_if_free(self) -> None:
        if self.in_block or self.views or self._arrays or self._calls or self._snapshot is None:
            return
        snapshot, self._snapshot = self._snapshot, None
        if self.is_over:
            self._of._holds.discard(self)       # else forget() does
        if not _native.forked:
            lib.heddle_snapshot_release(ffi.new("heddle_snapshot_t **", snapshot))

    def tensors(self) -> Tensors:
        digest = ffi.new("uint8_t[32]")
        row = ffi.new("heddle_tensor_t *", {"size": ffi.sizeof("heddle_tensor_t")})
        with self._lock:
            snapshot = self._live()
            lib.heddle_snapshot_table_digest(snapshot, digest)
            _native.check(lib.heddle_snapshot_tensor(snapshot, 0, row))
            first, layouts, of = _address(row), self._of._layouts, bytes(ffi.buffer(digest))
            layout = layouts.get(self.adapter)
            if layout is None or layout.digest != of:
                layouts[self.adapter] = layout = Layout(of, self._rows(snapshot, row, first))
        return Tensors(layout, first, self)

    def _rows(self, snapshot: Any, row: Any, first: int) -> list[tuple[str, str, tuple[int, ...], int, int]]:
        """Of all tensors what Layout takes.  `row` is of use."""
        rows, read, unpack = [], lib.heddle_snapshot_tensor, ffi.unpack
        for i in range(self.count):
            _native.check(read(snapshot, i, row))
            shape = tuple(unpack(row.dims, row.ndim)) if row.ndim else ()
            rows.append((ffi.string(row.name).decode(), _dtype_name(row.dtype), shape, int(row.data_bytes),
                         _address(row) - first))
        return rows

    def call(self, function: Any, *args: Any) -> None:
        token = _Call()
        try:
            with self._lock:
                self._calls.add(token)
                snapshot = self._live()
            _native.check(function(snapshot, *args))
        finally:
            self._end_call(token)

    def _end_call(self, token: _Call) -> None:
        with self._lock:
            self._calls.discard(token)
            self._release_if_free()

    def tidy(self) -> None:
        """What an exception left behind that came while another one was being handled."""
        with self._lock:
            if not self._calls:
                for handed in self._handed:
                    handed.give_back()
                self._release_if_free()

    def described(self) -> dict[str, Any]:
        views = self._names()
        return {"adapter": self.adapter, "version": self.version, "tag": self.tag,
                "age_s": time.monotonic() - self.since, "in_block": self.in_block,
                "views": views, "where": self.where}


def forget(holds: set[Hold]) -> None:
    """Those whose last view has gone: views that other libraries hold are not reported."""
    for hold in list(holds):
        hold.tidy()
        if hold.is_over:
            holds.discard(hold)


class Arrays:
    """numpy arrays over one buffer, by weak references: which of them are still there."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.refs: list[weakref.ref[Any]] = []

    def names(self) -> list[str]:
        return [row[0] for row, ref in zip(self._layout.rows, self.refs, strict=False) if ref() is not None]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p,
                                                                 ctypes.c_void_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_DLPACK = b"dltensor"               # who takes it over gives the capsule another name


class Handed:
    """Views of a version that another library has, or is about to have: the library's own count of them."""

    def __init__(self, snapshot: Any, layout: Layout) -> None:
        self._layout = layout
        place = ffi.new("heddle_views_t **")
        _native.check(lib.heddle_snapshot_views(snapshot, place))
        self._views = ffi.gc(place[0], _release_views)
        self._taken = ffi.new("struct DLManagedTensor *[]", len(layout.handed))
        self._capsules: list[Any] | None = None
        self._is_over = False           # from here on what is taken is given back, or taken over
        _native.check(lib.heddle_views_take(self._views, layout.handed_c, len(layout.handed), self._taken))

    def over(self, take: Callable[[Any], Any]) -> list[Any]:
        addresses = ffi.unpack(ffi.cast("uintptr_t *", self._taken), len(self._layout.handed))
        self._capsules = list(map(_new_capsule, addresses, repeat(_DLPACK), repeat(None)))
        found = list(map(take, self._capsules))
        self._is_over = True
        return found

    def give_back(self) -> None:
        """What was taken and not taken over: an exception came in between."""
        if not self._is_over:
            for i, tensor in enumerate(self._taken):
                if self._capsules is None or _is_capsule(self._capsules[i], _DLPACK):
                    lib.heddle_views_put(tensor)
        self._is_over, self._capsules = True, None

    def __del__(self) -> None:
        if hasattr(self, "_is_over"):           # else nothing was taken
            self.give_back()

    @property
    def count(self) -> int:
        """Views that are there."""
        return int(lib.heddle_views_held(self._views))

    def names(self) -> list[str]:
        return [self._layout.rows[i][0] for i in (self._layout.handed if self.count else ())
                if lib.heddle_views_is_held(self._views, i)]


def _release_views(views: Any) -> None:
    if lib is not None:                         # else Python ends, and its holds end with the process
        lib.heddle_views_release(ffi.new("heddle_views_t **", views))


class HeldVersion:
    """What Snapshot and Update show of a version."""

    _hold: Hold | None = None
    _tensors: Tensors | None = None
    _config: dict[str, Any] | None = None

    def __reduce_ex__(self, _: Any) -> Any:
        raise uncopied(self)

    def _held(self) -> Hold:
        raise NotImplementedError

    @property
    def tensors(self) -> Tensors:
        """Tensors by name, in order of name: read-only views of the slot, made when asked for
        (`heddle.tensors.Tensor`).
        """
        hold = self._held()
        if self._tensors is None:
            self._tensors = hold.tensors()
        return self._tensors

    @property
    def config(self) -> dict[str, Any]:
        """adapter_config.json, decoded."""
        if self._config is None:
            self._config = json.loads(self._held().config_bytes)
        return self._config

    @property
    def config_bytes(self) -> bytes:
        """adapter_config.json as published, byte by byte."""
        return self._held().config_bytes

    @property
    def kind(self) -> str:
        """"lora" or "tensors"."""
        return self._held().kind

    @property
    def features(self) -> tuple[str, ...]:
        """Those of FEATURES that this version has."""
        return self._held().features

    def numpy(self) -> dict[str, Any]:
        """name -> numpy array over the slot (read-only; bf16 as uint16, fp8 as uint8)."""
        return self.tensors.numpy()

    def torch(self) -> dict[str, Any]:
        """name -> torch tensor over the slot.  Never write to one: torch knows no read-only tensors, the
        memory is.
        """
        return self.tensors.torch()

    def share(self) -> slot.Slot:
        """The memory of this version for other processes of this host, such as the ranks of an engine: send
        it to each (`Slot.send`).  They need neither the library nor a broker.  It is a hold of its own: close
        it when it was sent.
        """
        shared = ffi.new("heddle_shared_t *", {"size": ffi.sizeof("heddle_shared_t")})
        hold, rows = self._held(), self.tensors.places()
        hold.call(lib.heddle_snapshot_fd, shared)
        base = int(ffi.cast("uintptr_t", shared.base)) - shared.offset
        table = [slot.Row(name, dtype, shape, (address - base) if nbytes else 0, nbytes)
                 for name, dtype, shape, nbytes, address in rows]
        return slot.Slot(shared.fd, slot.Content(hold.tag, hold.config_bytes, tuple(table),
                                                 shared.mark_offset, bytes(ffi.buffer(shared.mark))))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes a complete PEFT directory, synced, then renamed to `path`, which must not exist."""
        self._held().call(lib.heddle_snapshot_export, _native.c_text(path))

    def rehash(self) -> str:
        """The digest of the slot's bytes as they are now."""
        digest = ffi.new("char[68]")
        self._held().call(lib.heddle_snapshot_digest, digest)
        return _native.text(digest) or ""


def _outlived(tag: str, what: str, views: list[str]) -> str:
    some = ", ".join(views[:5]) + (f" and {len(views) - 5} more" if len(views) > 5 else "")
    return f"views of {tag} outlive their {what} and keep its slot: {some}"


class Snapshot(HeldVersion):
    """A hold on one version: `with worker.acquire("policy") as a`, or what Admin.fetch() gives.  Its memory
    does not change, and stays, while the block or a view of it lasts.

    adapter version tag digest step kind features data_bytes   config config_bytes   tensors numpy() torch()
    share() export() rehash()
    """

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.adapter, self.version, self.tag = hold.adapter, hold.version, hold.tag
        self.digest, self.step, self.data_bytes = hold.digest, hold.step, hold.data_bytes

    def _held(self) -> Hold:
        assert self._hold is not None
        return self._hold

    def release(self) -> None:
        """Ends the block.  Views that are still there keep the slot, and are named in a ResourceWarning and
        in `Worker.stats()`.
        """
        hold = self._held()
        if not hold.in_block:
            return
        self._tensors = None
        left = hold.end_block()
        if left:
            warn(_outlived(self.tag, "block", left), ResourceWarning, source=self)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.release()

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)
        if hold is not None and hold.in_block:
            hold.end_block()

    def __repr__(self) -> str:
        return f"<heddle.Snapshot {self.tag}>"


EVENT_PHASE: dict[str, UpdatePhase] = {
    "version.arrived": "arrived", "version.commit": "commit", "activate.done": "active",
    "version.retired": "retired", "stage.failed": "failed", "activate.failed": "stale"}


class Update(HeldVersion):
    """One step in the life of a version on this worker.

    phase      "arrived"  verified, in a slot: load it beside the old one, then staged() or reject(reason)
               (apply="app")
               "commit"   decided: switch between two steps, then activate() or reject(reason)
               (apply="app").  It may be the version that is active already, where the decision
               went back to it while another one was being switched to: switch to it again
               "active"   acquire() gives this one from now on
               (apply="auto")
               "retired"  no longer kept: unload it when its requests are done
               "failed"   failed on this worker, or as a whole (code, message): drop what was loaded
               "stale"    the decision is newer than what is served here (code, message)
    adapter version tag digest step decision
    code message                                       of "failed" and "stale", else None
    config config_bytes kind features tensors numpy() torch() share() export()
    while the version is here (NotFound after)

    An update that wants an answer and gets none before the next one is asked for, or before it is dropped, is
    rejected with a RuntimeWarning; `defer()` says that the answer comes later, from any thread.
    """

    def __init__(self, worker: Worker, phase: UpdatePhase, event: Any) -> None:
        self._worker = worker
        self.phase: UpdatePhase = phase
        self.adapter = _native.text(event.adapter) or ""
        self.version, self.decision = int(event.version), int(event.decision)
        self.tag, self.digest = _native.text(event.tag) or "", _native.text(event.digest) or ""
        self.step = None if event.step < 0 else int(event.step)
        self.code = (_native.text(lib.heddle_err_name(event.code)) if event.code else None)
        self.message = _native.text(event.message) or None
        self.answered = phase not in ("arrived", "commit")
        self._is_deferred = False

    def _held(self) -> Hold:
        if self._hold is None or not self._hold.live:
            self._hold = self._worker._hold(self.adapter, self.version, f"Update {self.phase} {self.tag}")
        return self._hold

    def _answer(self, what: str, call: Any, *args: Any) -> bool:
        if self.answered:
            raise _native.error("usage", f"{self.tag} was answered already, or wants no answer",
                                adapter=self.adapter, version=self.version)
        self.answered = True
        try:
            return self._worker._say(what, call, self.adapter, self.version, *args)
        finally:
            self._end()

    def _end(self) -> None:
        self._tensors = None
        if self._hold is None or not self._hold.in_block:
            return
        left = self._hold.end_block()
        if left:
            tell(_outlived(self.tag, f"update ({self.phase})", left), ResourceWarning, source=self)

    def staged(self) -> bool:
        """Loaded beside the old one.  False: the version is not wanted any more: drop what was loaded."""
        if self.phase != "arrived":
            raise _native.error("usage",
                                f"staged() answers an update that arrived; {self.tag} is {self.phase}")
        return self._answer("staged", lib.heddle_worker_staged)

    def activate(self) -> bool:
        """Switched: acquire() gives this version when it returns.  False: overtaken, or no broker is heard:
        serve what was served before (nothing, where that was nothing), until the next commit.
        """
        if self.phase != "commit":
            raise _native.error("usage", f"activate() answers a commit; {self.tag} is {self.phase}")
        return self._answer("activate", lib.heddle_worker_activate)

    def reject(self, reason: str | Exception) -> bool:
        """Refuses a version that arrived, or says that a commit could not be carried out; up to 640 bytes
        reach the processes that wait for the version.  An exception of this package brings its code and phase
        too; a broker keeps its message, and drops expected, found and hint.  Of any other exception its type
        and text are sent.
        """
        if isinstance(reason, HeddleError):
            return self._answer("reject", lib.heddle_worker_reject_error, _native.c_error(reason))
        if isinstance(reason, Exception):
            reason = f"{type(reason).__name__}: {reason}"
        return self._answer("reject", lib.heddle_worker_reject, _native.c_text(reason))

    def defer(self) -> Update:
        """The answer comes later, from any thread.  Returns the update."""
        self._is_deferred = True
        return self

    def _leave_behind(self) -> None:
        """Before the next update: this one was left unanswered."""
        if self.answered or self._is_deferred or self._worker.closed:
            return
        self._reject_unanswered()
        warn(self._unanswered(), RuntimeWarning)

    def _reject_unanswered(self) -> None:
        try:
            self.reject(f"the application left {self.phase} unanswered")
        except HeddleError:
            pass

    def _unanswered(self) -> str:
        return f"{self.tag} ({self.phase}) was left unanswered, and is rejected"

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)
        if worker is None or _native.forked:
            return
        try:
            if not getattr(self, "answered", True) and not worker.closed:
                self._reject_unanswered()       # before the warning, which may be an error
                tell(self._unanswered(), RuntimeWarning)
        finally:
            self._end()

    def __repr__(self) -> str:
        return f"<heddle.Update {self.phase} {self.tag}>"


class Updates:
    """What `Worker.updates` gives: an iterator, plain and asynchronous, of what comes from now on (one
    reader at a time).
    """

    def __init__(self, worker: Worker, timeout: float | None) -> None:
        if timeout is not None:
            _native.milliseconds(timeout, "timeout")
        self._worker, self._timeout = worker, timeout
        self._last: Update | None = None

    def _leave_behind(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last._leave_behind()

    def __iter__(self) -> Iterator[Update]:
        return self

    def _next(self) -> Update | None:
        """The next one, if it is there.  Raises Closed."""
        found = self._worker._take()
        if found is not None:
            self._last = found
        return found

    def __next__(self) -> Update:
        self._leave_behind()
        until = Until(self._timeout)
        try:
            while (found := self._next()) is None and not until.over:
                self._worker._poll(self._worker.fileno(), self._worker._heard(until.left()))
        except Closed:
            found = None
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        self._leave_behind()
        until = Until(self._timeout)
        try:
            while (found := self._next()) is None and not until.over:
                await self._readable(self._worker._heard(until.left()))
        except Closed:
            found = None
        if found is None:
            raise StopAsyncIteration
        return found

    async def _readable(self, timeout: float | None) -> None:
        """Until there may be something.  A descriptor of our own: a loop knows a descriptor once, and other
        iterators wait too.
        """
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        fd = os.dup(self._worker.fileno())
        loop.add_reader(fd, event.set)
        try:
            await asyncio.wait_for(event.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            pass
        finally:
            loop.remove_reader(fd)
            os.close(fd)

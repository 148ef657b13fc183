# SPDX-License-Identifier: Apache-2.0
"""Admin: what the command line reads and decides, as calls; AsyncAdmin: the same as coroutines."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_end
from typing import Any, TypeVar

from heddle import _calls, _native
from heddle._handle import Handle
from heddle._native import ffi, lib
from heddle.errors import Closed, Unavailable
from heddle.publisher import _PHASE, choose, parse_quorum
from heddle.records import (ActivateResult, AdapterInfo, Event, Status, VerifyResult, VersionInfo, WaitResult, WorkerInfo, decode)

__all__ = ["Admin", "AsyncAdmin"]

T = TypeVar("T")
_PAGE = 500
_FOLLOW_MS = 10_000


class Admin(Handle):
    """Questions to the broker.  The first one connects; each blocks at most `timeout` seconds, plus its own deadline.

    broker   as for Publisher          timeout  seconds to connect and to reply
    One thread at a time is in a call; others wait for it.  Every call may be interrupted.  Raises NotFound, Denied, Unavailable, UsageError.
    An answer that is "no" (a wait that ended by its deadline, a verify with a mismatch) is an exception whose `answer` has the whole object.
    """

    _what = "admin handle"

    def __init__(self, broker: str | None = None, *, timeout: float = 5.0, broker_key: str | None = None, key: str | None = None) -> None:
        super().__init__()
        self._late_interrupt = False
        kept = {"broker": _native.c_text(broker), "broker_key": _native.c_text(broker_key), "key": _native.c_text(key)}
        opts = ffi.new("heddle_admin_opts_t *", {**kept, "size": ffi.sizeof("heddle_admin_opts_t"),
                                                 "timeout_ms": _native.milliseconds(timeout, "timeout", 1)})
        place = ffi.new("heddle_admin_t **")
        try:
            _native.check(lib.heddle_admin_open(opts, place))
        except BaseException:
            self._failed()
            raise
        self._opened(place[0])

    def _interrupt_native(self, ptr: Any) -> None:
        lib.heddle_admin_interrupt(ptr)

    def _close_native(self, ptr: Any) -> None:
        lib.heddle_admin_close(ffi.new("heddle_admin_t **", ptr))

    def __repr__(self) -> str:
        return f"<heddle.Admin{' (closed)' if self._is_closed else ''}>"

    def _interrupted_late(self) -> None:
        self._late_interrupt = True

    def _ask(self, call: Callable[[Any, Any], int], kind: type[T] | None = None) -> Any:
        """call(handle, char **) -> the decoded object, or the exception that it means (with the answer, where there is one)."""
        def run(ptr: Any) -> Any:
            told = ffi.new("char **")
            rc = call(ptr, told)
            answer = _native.take_json(told) if told[0] != _native.NULL else None
            failure = _native.error_of(rc) if rc else None
            if failure is not None:
                failure.answer = decode(kind, answer) if kind is not None and answer is not None else answer
            return failure, answer
        with self._lock:
            ptr = self._live()
            while True:
                failure, answer = _calls.interruptible(lambda: run(ptr), lambda: lib.heddle_admin_interrupt(ptr), self._interrupted_late)
                late, self._late_interrupt = self._late_interrupt, False
                if failure is None or failure.code != "interrupted" or not late:
                    break                       # else: an interrupt of the call before came too late for it
        if failure is not None:
            raise failure
        return answer if kind is None else decode(kind, answer)

    def status(self) -> Status:
        """The broker, how much it knows, and every adapter."""
        found: Status = self._ask(lib.heddle_admin_status, Status)
        return found

    def adapters(self) -> tuple[AdapterInfo, ...]:
        """Every adapter, by name: what is active, what is newest, who writes it, how many workers are current."""
        answer = self._ask(lib.heddle_admin_adapters)
        return tuple(decode(AdapterInfo, a) for a in answer["adapters"])

    def versions(self, ref: str) -> tuple[VersionInfo, ...]:
        """The versions of NAME, ascending; of NAME@V the one, with config, rollout and workers."""
        name = _native.c_text(ref)
        answer = self._ask(lambda a, told: int(lib.heddle_admin_versions(a, name, told)))
        return tuple(decode(VersionInfo, v) for v in answer["versions"])

    def workers(self, name: str | None = None) -> tuple[WorkerInfo, ...]:
        """What each worker (or one) serves and fetches, by name; those that are lost or left are listed for 10 minutes."""
        of = _native.c_text(name)
        answer = self._ask(lambda a, told: int(lib.heddle_admin_workers(a, of, told)))
        return tuple(decode(WorkerInfo, w) for w in answer["workers"])

    def wait(self, ref: str, *, phase: str = "active", quorum: str | int = "all", min: int = 1, workers: Iterable[str] | None = None,
             exact: bool = False, deadline: float = 30.0) -> WaitResult:
        """Until the quorum of READY subscribers, at least `min`, has the version (or one by a later decision, unless `exact`).

        ref      NAME (the newest when asked) or NAME@V       workers   only these        deadline  seconds
        Raises Deadline, RolloutFailed, NotFound; `e.answer.missing` names who lacks it.
        """
        names, kept = _native.c_list(workers, "workers")
        opts = ffi.new("heddle_wait_opts_t *", {"size": ffi.sizeof("heddle_wait_opts_t"), "phase": choose("phase", phase, _PHASE),
                                                "min": _native.count(min, "min"),
                                                "workers": names, "exact": bool(exact),
                                                "deadline_ms": _native.milliseconds(deadline, "deadline", 1)})
        opts.quorum = parse_quorum(quorum)
        name = _native.c_text(ref)
        found: WaitResult = self._ask(lambda a, told: int(lib.heddle_admin_wait(a, name, opts, told)), WaitResult)
        del kept
        return found

    def activate(self, ref: str, *, quorum: str | int = "all", deadline: float = 10.0, dry_run: bool = False,
                 by: str | None = None) -> ActivateResult:
        """Decides that NAME@V is the one to serve, and waits for the quorum.  One older than the newest holds the adapter there.

        Raises Conflict (not_activatable), Deadline (the decision stands), NotFound, Denied.
        """
        who, name = _native.c_text(by), _native.c_text(ref)
        opts = ffi.new("heddle_activate_opts_t *", {"size": ffi.sizeof("heddle_activate_opts_t"), "dry_run": bool(dry_run), "by": who,
                                                    "deadline_ms": _native.milliseconds(deadline, "deadline", 1)})
        opts.quorum = parse_quorum(quorum)
        found: ActivateResult = self._ask(lambda a, told: int(lib.heddle_admin_activate(a, name, opts, told)), ActivateResult)
        return found

    def verify(self, ref: str, *, expected: str | None = None, deadline: float = 30.0) -> VerifyResult:
        """Every holder hashes its bytes again.  `expected`: a digest computed elsewhere; None: the registry's.

        Raises RolloutFailed (digest_mismatch) or Deadline; `e.answer.workers` tells of each.
        """
        name, digest, ms = _native.c_text(ref), _native.c_text(expected), _native.milliseconds(deadline, "deadline", 1)
        found: VerifyResult = self._ask(lambda a, told: int(lib.heddle_admin_verify(a, name, digest, ms, told)), VerifyResult)
        return found

    def events(self, *, follow: bool = False, since: int = 0, adapter: str | None = None, worker: str | None = None,
               limit: int | None = None) -> Iterator[Event]:
        """Events that the broker keeps, from number `since` on (0: the oldest kept), then with `follow` what happens, across restarts of the broker.

        A gap is an Event of type "gap".  Ends after `limit` events, or without `follow` when all were given.
        """
        pager = _Pager(self, since, adapter, worker, limit)
        while not pager.is_over:
            yield from pager.page(follow)


class _Pager:
    """The cursor of one iteration over events."""

    def __init__(self, admin: Admin, since: int, adapter: str | None, worker: str | None, limit: int | None) -> None:
        self._admin, self._left, self._heard = admin, None if limit is None else _native.count(limit, "limit"), False
        self._kept = [_native.c_text(adapter), _native.c_text(worker)]
        self._opts = ffi.new("heddle_events_opts_t *", {"size": ffi.sizeof("heddle_events_opts_t"), "adapter": self._kept[0],
                                                        "since": _native.count(since, "since", 0, _native.NUMBER_MAX),
                                                        "worker": self._kept[1]})
        self.is_over = self._left == 0

    def page(self, follow: bool, wait_ms: int = _FOLLOW_MS) -> list[Event]:
        self._opts.limit = _PAGE if self._left is None else min(_PAGE, self._left)
        self._opts.wait_ms = wait_ms if follow and self._heard else 0
        try:
            answer = self._admin._ask(lambda a, told: int(lib.heddle_admin_events(a, self._opts, told)))
        except Unavailable:
            if follow and self._heard:
                return []                       # it waited for a broker already
            raise
        self._heard = True
        self._opts.since, self._opts.epoch = answer["next"], answer["epoch"]
        found = [decode(Event, e) for e in answer["events"]]
        if self._left is not None:
            self._left -= len(found)
        self.is_over = self._left == 0 or not (follow or answer.get("more"))
        return found


class AsyncAdmin:
    """Admin for asyncio: the same calls as coroutines, made on a thread of its own.  Cancelling one interrupts it.  `async with` closes it."""

    def __init__(self, broker: str | None = None, *, timeout: float = 5.0, broker_key: str | None = None, key: str | None = None) -> None:
        self._admin = Admin(broker, timeout=timeout, broker_key=broker_key, key=key)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heddle-admin")

    async def _run(self, call: Callable[[], T]) -> T:
        if self._admin.closed:
            raise Closed("the admin handle is closed", code="closed", exit=2)
        job = self._thread.submit(call)
        future = asyncio.wrap_future(job)
        future.add_done_callback(lambda f: f.cancelled() or f.exception())      # of a call that was cancelled nobody asks
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not job.cancel() and not self._admin.closed:     # it runs: nobody may touch the handle before its end, which comes at once
                lib.heddle_admin_interrupt(self._admin._ptr)
                wait_for_end([job])
                self._admin._interrupted_late()
            raise

    async def status(self) -> Status:
        """As Admin.status."""
        return await self._run(self._admin.status)

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        """As Admin.adapters."""
        return await self._run(self._admin.adapters)

    async def versions(self, ref: str) -> tuple[VersionInfo, ...]:
        """As Admin.versions."""
        return await self._run(lambda: self._admin.versions(ref))

    async def workers(self, name: str | None = None) -> tuple[WorkerInfo, ...]:
        """As Admin.workers."""
        return await self._run(lambda: self._admin.workers(name))

    async def wait(self, ref: str, **how: Any) -> WaitResult:
        """As Admin.wait, with its keywords."""
        return await self._run(lambda: self._admin.wait(ref, **how))

    async def activate(self, ref: str, **how: Any) -> ActivateResult:
        """As Admin.activate, with its keywords."""
        return await self._run(lambda: self._admin.activate(ref, **how))

    async def verify(self, ref: str, **how: Any) -> VerifyResult:
        """As Admin.verify, with its keywords."""
        return await self._run(lambda: self._admin.verify(ref, **how))

    async def events(self, *, follow: bool = False, since: int = 0, adapter: str | None = None, worker: str | None = None,
                     limit: int | None = None) -> AsyncIterator[Event]:
        """As Admin.events: `async for e in adm.events(follow=True)`."""
        pager = _Pager(self._admin, since, adapter, worker, limit)
        while not pager.is_over:
            for event in await self._run(lambda: pager.page(follow)):
                yield event

    @property
    def closed(self) -> bool:
        return self._admin.closed

    async def close(self) -> None:
        """Idempotent."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._admin.close) if not self._admin.closed else None
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        await self.close()

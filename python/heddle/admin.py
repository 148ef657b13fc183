# SPDX-License-Identifier: Apache-2.0
"""Admin: what the command line reads and decides, as calls; AsyncAdmin: the same as coroutines."""
from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from heddle import _calls, _native
from heddle._arguments import PHASE, Tagged, choose, event_since, parse_quorum, ref_text
from heddle._handle import Handle
from heddle._native import ffi, lib
from heddle._words import Phase
from heddle.errors import HeddleError, Unavailable
from heddle.records import (ActivateResult, AdapterInfo, Brokers, Event, ForgetResult, ReachResult, Status,
                            VerifyResult, VersionInfo, WaitResult, WorkerInfo, decode)
from heddle.tensors import Layout
from heddle.updates import Hold, Snapshot, forget

__all__ = ["Admin", "AsyncAdmin"]

T = TypeVar("T")
_PAGE = 500
_FOLLOW_MS = 10_000
_asked = threading.local()       # .call: what AsyncAdmin asks for on this thread


class _Call:
    """One call, from when it is asked for until its answer is decoded."""

    def __init__(self) -> None:
        self.is_over = False            # its answer is not wanted any more


class Admin(Handle):
    """Questions to the broker.  The first one connects; each blocks at most `timeout` seconds, plus its own
    deadline.

    broker   as for Publisher
    timeout  seconds to connect and to reply; None: no limit.  The broker keeps a `deadline` for 24 days at
             most: None, and what is longer, is that
    A `ref` is NAME, NAME@V, or a tag as each sample carries it ("policy@3:3f9a1c20d4e1"): NotFound where that
    version has another digest, before anything is done.  What has a tag (Version, Snapshot, Update, Current)
    is taken too.
    One thread at a time is in a call; others wait for it, but not for `events(follow=True)`, which has a
    connection of its own.  Every call may be interrupted, and ends with Closed when the handle is closed
    meanwhile.  Raises NotFound, Denied, Unavailable, UsageError. An answer that is "no" (a wait that ended by
    its deadline, a verify with a mismatch) is an exception whose `answer` has the whole object.
    """

    _what = "admin handle"

    def __init__(self, broker: str | None = None, *, timeout: float | None = 5.0,
                 broker_key: str | None = None, key: str | None = None) -> None:
        self._holds: set[Hold] = set()                  # of versions that were fetched
        self._layouts: dict[str, Layout] = {}           # of the version last looked at, by adapter
        super().__init__()
        self._current: _Call | None = None      # in C, or on its way in or out
        # an interrupt came too late for its call: it ends the next one
        self._is_stale = False
        self._followers: weakref.WeakSet[Admin] = weakref.WeakSet()
        self._how: dict[str, Any] = {"broker": broker, "timeout": timeout, "broker_key": broker_key,
                                     "key": key}
        kept = {what: _native.c_text(self._how[what]) for what in ("broker", "broker_key", "key")}
        opts = ffi.new("heddle_admin_opts_t *", {**kept, "size": ffi.sizeof("heddle_admin_opts_t"),
                                                 "timeout_ms": _native.milliseconds(timeout, "timeout", 1)})
        place = ffi.new("heddle_admin_t **")
        try:
            _native.check(lib.heddle_admin_open(opts, place))
        except BaseException:
            self._failed()
            raise
        self._opened(place[0])

    def _make_locks(self) -> None:
        super()._make_locks()
        for hold in self._holds:
            hold.make_lock()

    def _interrupt_native(self, ptr: Any) -> None:
        if self._current is not None:
            self._current.is_over = True
            lib.heddle_admin_interrupt(ptr)

    def _close_native(self, ptr: Any) -> None:
        lib.heddle_admin_close(ffi.new("heddle_admin_t **", ptr))

    def _parts(self) -> list[Handle]:
        with self._guard:
            return list(self._followers)

    def _follower(self) -> Admin:
        """A handle like this one, which ends with it.  Waits for no call that is under way."""
        self._check_open()
        made = Admin(**self._how)
        with self._guard:                   # closing looks for followers after it has said that it is closed
            if not self._is_closed:
                self._followers.add(made)
                return made
        made.close()
        raise self._closed()

    def __repr__(self) -> str:
        return f"<heddle.Admin{' (closed)' if self._is_closed else ''}>"

    def _end(self, call: _Call) -> None:
        """The answer of this call is not needed, whether it has begun or not; another call is left alone."""
        with self._guard:
            call.is_over = True
            if self._current is call and self._ptr is not None:
                lib.heddle_admin_interrupt(self._ptr)

    def _run(self, ptr: Any, query: Callable[[Any, Any], int], call: _Call) -> tuple[HeddleError | None, Any]:
        """The query in C -> (failure, answer)."""
        told = ffi.new("char **")
        while True:
            with self._guard:
                if call.is_over or self._is_closed:
                    return _native.error("interrupted", "interrupted"), None
                self._current = call
            rc = query(ptr, told)
            failure = _native.error_of(rc) if rc else None
            with self._guard:
                self._current = None
                ended = failure is not None and failure.code == "interrupted"
                again = ended and self._is_stale and not call.is_over
                self._is_stale = not ended and (self._is_stale or call.is_over)
            if not again:
                return failure, _native.take_json(told) if told[0] != _native.NULL else None

    def _ask(self, query: Callable[[Any, Any], int], kind: type[T] | None = None,
             call: _Call | None = None) -> Any:
        """query(handle, char **) -> the decoded object, or the exception that it means (with the answer,
        where there is one).
        """
        this = call or getattr(_asked, "call", None) or _Call()
        with self._lock:
            ptr = self._live()
            failure, answer = _calls.interruptible(lambda: self._run(ptr, query, this),
                                                   lambda: self._end(this))
        if failure is None:
            return answer if kind is None else decode(kind, answer)
        if failure.code == "interrupted" and self._is_closed:
            raise self._closed()
        failure.answer = decode(kind, answer) if kind is not None and answer is not None else answer
        raise failure

    def status(self) -> Status:
        """The broker, how much it knows, and every adapter."""
        found: Status = self._ask(lib.heddle_admin_status, Status)
        return found

    def brokers(self) -> Brokers:
        """The broker that leads, its standbys and how far each follows, and how their store is."""
        found: Brokers = self._ask(lib.heddle_admin_brokers, Brokers)
        return found

    def adapters(self) -> tuple[AdapterInfo, ...]:
        """Every adapter, by name: what is active, what is newest, who writes it, how many workers are
        current.
        """
        answer = self._ask(lib.heddle_admin_adapters)
        return tuple(decode(AdapterInfo, a) for a in answer["adapters"])

    def versions(self, ref: str | Tagged) -> tuple[VersionInfo, ...]:
        """The versions of NAME, ascending; of NAME@V the one, with config, rollout and workers."""
        name = ref_text(ref)
        answer = self._ask(lambda a, told: int(lib.heddle_admin_versions(a, name, told)))
        return tuple(decode(VersionInfo, v) for v in answer["versions"])

    def workers(self, name: str | None = None) -> tuple[WorkerInfo, ...]:
        """What each worker (or one) serves and fetches, by name; those that are lost or left are listed for
        10 minutes.
        """
        of = _native.c_text(name)
        answer = self._ask(lambda a, told: int(lib.heddle_admin_workers(a, of, told)))
        return tuple(decode(WorkerInfo, w) for w in answer["workers"])

    def wait(self, ref: str | Tagged, *, phase: Phase = "active", quorum: str | int = "all", min: int = 1,
             workers: Iterable[str] | None = None, exact: bool = False,
             deadline: float | None = 30.0) -> WaitResult:
        """Until the quorum of READY subscribers, at least `min`, has the version (or one by a later decision,
        unless `exact`).

        ref      NAME: the newest when asked        workers   only these        deadline  seconds
        quorum   "all", a count, or "N%"; not "none", which waits for no worker
        Raises Deadline, RolloutFailed, NotFound; `e.answer.missing` names who lacks it.
        """
        if quorum == "none":
            raise _native.error("usage", "wait() with quorum \"none\" would wait for no worker",
                                expected='"all", a count, or "N%"', found="'none'")
        names, kept = _native.c_list(workers, "workers")
        opts = ffi.new("heddle_wait_opts_t *", {"size": ffi.sizeof("heddle_wait_opts_t"),
                                                "phase": choose("phase", phase, PHASE),
                                                "min": _native.count(min, "min"), "workers": names,
                                                "exact": bool(exact),
                                                "deadline_ms": _native.milliseconds(deadline, "deadline", 1)})
        opts.quorum = parse_quorum(quorum)
        name = ref_text(ref)
        found: WaitResult = self._ask(lambda a, told: int(lib.heddle_admin_wait(a, name, opts, told)),
                                      WaitResult)
        del kept
        return found

    def activate(self, ref: str | Tagged, *, quorum: str | int = "all", deadline: float | None = 10.0,
                 dry_run: bool = False, by: str | None = None) -> ActivateResult:
        """Decides that NAME@V is the one to serve, and waits for the quorum.  One older than the newest holds
        the adapter there.

        Raises Conflict (not_activatable: it ended or is lost), NotFound, Denied.  After the decision, which
        stands: Deadline, RolloutFailed (workers refused it, or the last holder ended).
        """
        return self._decide(lib.heddle_admin_activate, ref, quorum, deadline, dry_run, by)

    def verify(self, ref: str | Tagged, *, expected: str | None = None,
               deadline: float | None = 30.0) -> VerifyResult:
        """Every holder hashes its bytes again.  `expected`: a digest computed elsewhere; None: the
        registry's.

        Raises RolloutFailed (digest_mismatch) or Deadline; `e.answer.workers` tells of each.
        """
        name, digest = ref_text(ref), _native.c_text(expected)
        ms = _native.milliseconds(deadline, "deadline", 1)
        found: VerifyResult = self._ask(lambda a, told: int(lib.heddle_admin_verify(a, name, digest, ms,
                                                                                    told)), VerifyResult)
        return found

    def fetch(self, ref: str | Tagged, *, deadline: float | None = 60.0, max_rate: int | None = None,
              data_device: str | None = None, insecure: bool = False,
              host_share: str | None = None) -> Snapshot:
        """A hold on a version, fetched into this process, which does not become a worker: NAME@V, or NAME,
        the active version, and where there is none the newest.  Nothing becomes active by it.  `with`
        releases it; it outlives this handle.  It is in the memory of a process of this host and user that has
        it, where there is one, else in memory of this process.

        deadline      seconds from the call until every byte has come
        max_rate      bytes per second     data_device insecure host_share   as for Worker
        Raises NotFound, RolloutFailed (version_lost: its bytes are gone; version_failed; digest_mismatch),
        Deadline, Denied (the key needs the role worker:ADAPTER).
        """
        texts = {"data_device": data_device, "host_share": host_share}
        kept = {what: _native.c_text(value) for what, value in texts.items()}
        opts = ffi.new("heddle_pull_opts_t *", {
            **kept, "size": ffi.sizeof("heddle_pull_opts_t"), "insecure": bool(insecure),
            "deadline_ms": _native.milliseconds(deadline, "deadline", 1),
            "max_rate_bytes": 0 if max_rate is None else _native.count(max_rate, "max_rate", 1,
                                                                       _native.NUMBER_MAX)})
        name, place = ref_text(ref), ffi.new("heddle_snapshot_t **")
        forget(self._holds)
        _native.load_transport()
        try:
            self._ask(lambda a, _: int(lib.heddle_admin_fetch(a, name, opts, place)))
        except BaseException:                   # Ctrl-C may come when it is here
            lib.heddle_snapshot_release(place)
            raise
        return Snapshot(Hold(self, place[0], "Admin.fetch"))

    def events(self, *, follow: bool = False, since: int | str = 0, adapter: str | None = None,
               worker: str | None = None, limit: int | None = None,
               last: int | None = None) -> Iterator[Event]:
        """Events that the broker keeps, then with `follow` what happens, across restarts of the broker.

        since  a number, from which on; 0: the oldest kept.  Or how far back, "5m"; or a time in UTC,
               "2026-11-25", "2026-11-25T15:50:00Z"
        last   of those that are kept, only the newest so many; None: all
        limit  ends after so many; None: no limit
        A gap is an Event of type "gap".  Ends after `limit` events, or without `follow` when all were given.
        """
        if not follow:
            yield from _Pager(self, since, adapter, worker, limit, last).rest()
            return
        with self._follower() as own:           # others go on asking meanwhile
            yield from _Pager(own, since, adapter, worker, limit, last).rest(follow=True)

    def rollback(self, ref: str | Tagged, *, quorum: str | int = "all", deadline: float | None = 10.0,
                 dry_run: bool = False, by: str | None = None) -> ActivateResult:
        """Goes back to the version that was active before and has other bytes (NAME), or to an earlier one
        (NAME@V), which may have the same ones (`same_bytes`).  The adapter is held there until resume().

        Raises Conflict (not_activatable: there is none), and what activate() raises.
        """
        return self._decide(lib.heddle_admin_rollback, ref, quorum, deadline, dry_run, by)

    def resume(self, adapter: str, *, quorum: str | int = "all", deadline: float | None = 10.0,
               dry_run: bool = False, by: str | None = None) -> ActivateResult:
        """Ends the hold of an adapter: activates its newest version.  Not held: nothing changes.

        Raises what activate() raises.
        """
        return self._decide(lib.heddle_admin_resume, adapter, quorum, deadline, dry_run, by)

    def forget(self, adapter: str, *, dry_run: bool = False) -> ForgetResult:
        """Forgets an adapter, with all its versions: one that was mistyped, or that is not used any more.
        A later version of that name goes on above the old numbers.

        Raises Conflict (writer_held, worker_alive: one subscribes to it), NotFound, Denied, Unavailable (the
        broker was started a moment ago).
        """
        name = _native.c_text(adapter)
        found: ForgetResult = self._ask(lambda a, told: int(lib.heddle_admin_forget(a, name, bool(dry_run),
                                                                                    told)), ForgetResult)
        return found

    def drain(self, worker: str, *, cancel: bool = False) -> WorkerInfo:
        """Has a worker leave: no new rollout waits for it, others fetch the versions that only it has, and
        then it leaves by itself.  -> how it is now; `workers(worker)` shows how it gets on: draining, then
        left.

        cancel: takes that back while it has not left; rollouts that begin from now on wait for it again.

        Raises NotFound, Denied; Conflict where it cannot be taken back: it has left, or leaves now, or by its
        own wish.
        """
        name, call = _native.c_text(worker), (lib.heddle_admin_drain_cancel if cancel
                                              else lib.heddle_admin_drain)
        answer = self._ask(lambda a, told: int(call(a, name, told)))
        return decode(WorkerInfo, answer["workers"][0])

    def reach(self, *, patience: float = 5.0, data_device: str | None = None,
              insecure: bool = False) -> ReachResult:
        """Which workers this process reaches: it opens a data plane as a worker does, and asks each of them
        for a sign of life.  Both directions count, as a worker answers over a connection of its own.

        patience  seconds for the answer of one worker     data_device insecure   as for Worker
        Raises Denied (the key needs the role worker or publisher of some adapter), UsageError
        (insecure_address), and what opening a data plane does.
        """
        opts = ffi.new("heddle_reach_opts_t *", {"size": ffi.sizeof("heddle_reach_opts_t"),
                                                 "data_device": (device := _native.c_text(data_device)),
                                                 "insecure": bool(insecure),
                                                 "patience_ms": _native.milliseconds(patience, "patience",
                                                                                     1)})
        _native.load_transport()
        found: ReachResult = self._ask(lambda a, told: int(lib.heddle_admin_reach(a, opts, told)),
                                       ReachResult)
        del device                              # C has read it until here
        return found

    def _decide(self, call: Callable[..., Any], ref: str | Tagged, quorum: str | int,
                deadline: float | None, dry_run: bool, by: str | None) -> ActivateResult:
        who, name = _native.c_text(by), ref_text(ref)
        opts = ffi.new("heddle_activate_opts_t *", {"size": ffi.sizeof("heddle_activate_opts_t"),
                                                    "dry_run": bool(dry_run), "by": who,
                                                    "deadline_ms": _native.milliseconds(deadline, "deadline",
                                                                                        1)})
        opts.quorum = parse_quorum(quorum)
        found: ActivateResult = self._ask(lambda a, told: int(call(a, name, opts, told)), ActivateResult)
        return found


class _Pager:
    """The cursor of one iteration over events."""

    def __init__(self, admin: Admin, since: int | str, adapter: str | None, worker: str | None,
                 limit: int | None, last: int | None) -> None:
        self._admin, self._heard = admin, False
        number, self._from = event_since(since)     # kept events of an earlier time are dropped
        # the newest of those that are kept, until all of them were read
        self._newest: deque[Event] | None = (
            None if last is None else deque(maxlen=_native.count(last, "last", 1, _native.NUMBER_MAX)))
        self._left = None if limit is None else _native.count(limit, "limit")
        self._kept = [_native.c_text(adapter), _native.c_text(worker)]
        self._opts = ffi.new("heddle_events_opts_t *", {"size": ffi.sizeof("heddle_events_opts_t"),
                                                        "adapter": self._kept[0],
                                                        "since": number,
                                                        "worker": self._kept[1]})
        self.is_over = self._left == 0

    def rest(self, follow: bool = False) -> Iterator[Event]:
        while not self.is_over:
            yield from self.page(follow)

    def page(self, follow: bool) -> list[Event]:
        is_whole = self._left is None or self._from or self._newest is not None
        self._opts.limit = _PAGE if is_whole else min(_PAGE, self._left or 0)
        self._opts.wait_ms = _FOLLOW_MS if follow and self._heard else 0
        try:
            answer = self._admin._ask(lambda a, told: int(lib.heddle_admin_events(a, self._opts, told)))
        except Unavailable:
            if follow and self._heard:
                return []                       # it waited for a broker already
            raise
        self._heard = True
        self._opts.since, self._opts.epoch = answer["next"], answer["epoch"]
        more = bool(answer.get("more"))
        found = [decode(Event, e) for e in answer["events"] if not e["at"] or e["at"] >= self._from]
        if not more:
            self._from = ""                     # what happens from now on is later, whatever the clocks say
        if self._newest is not None:
            self._newest.extend(found)
            found = [] if more else list(self._newest)
            self._newest = self._newest if more else None
        if self._left is not None:
            found = found[:self._left]
            self._left -= len(found)
        self.is_over = self._left == 0 or not (follow or more)
        return found


class AsyncAdmin:
    """Admin for asyncio: the same calls as coroutines, made one after the other on a thread of its own;
    `events(follow=True)` has another.

    Cancelling a call ends it in C, and never blocks the loop.  `async with` closes it.
    """

    def __init__(self, broker: str | None = None, *, timeout: float | None = 5.0,
                 broker_key: str | None = None, key: str | None = None) -> None:
        self._set(Admin(broker, timeout=timeout, broker_key=broker_key, key=key))

    def _set(self, admin: Admin) -> None:
        self._admin = admin
        self._thread = _calls.Line("heddle-admin")

    @classmethod
    def _follower(cls, of: Admin) -> AsyncAdmin:
        made = cls.__new__(cls)
        made._set(of._follower())
        return made

    async def _run(self, function: Callable[[], T]) -> T:
        self._admin._check_open()
        if self.closed:
            raise self._admin._closed()
        call = _Call()

        def run() -> T:
            _asked.call = call
            try:
                return function()
            finally:
                _asked.call = None
        queued = self._thread.submit(run)
        job = asyncio.wrap_future(queued)
        # the result of a cancelled one is never asked for
        job.add_done_callback(lambda f: f.cancelled() or f.exception())
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._admin._end(call)
            # it comes at once; the next call finds it free
            while not queued.cancel() and not job.done():
                try:
                    await asyncio.wait([job])
                except asyncio.CancelledError:
                    continue
            raise

    async def status(self) -> Status:
        """As Admin.status."""
        return await self._run(self._admin.status)

    async def brokers(self) -> Brokers:
        """As Admin.brokers."""
        return await self._run(self._admin.brokers)

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        """As Admin.adapters."""
        return await self._run(self._admin.adapters)

    async def versions(self, ref: str | Tagged) -> tuple[VersionInfo, ...]:
        """As Admin.versions."""
        return await self._run(lambda: self._admin.versions(ref))

    async def workers(self, name: str | None = None) -> tuple[WorkerInfo, ...]:
        """As Admin.workers."""
        return await self._run(lambda: self._admin.workers(name))

    async def wait(self, ref: str | Tagged, *, phase: Phase = "active", quorum: str | int = "all",
                   min: int = 1, workers: Iterable[str] | None = None, exact: bool = False,
                   deadline: float | None = 30.0) -> WaitResult:
        """As Admin.wait."""
        return await self._run(lambda: self._admin.wait(ref, phase=phase, quorum=quorum, min=min,
                                                        workers=workers, exact=exact, deadline=deadline))

    async def activate(self, ref: str | Tagged, *, quorum: str | int = "all",
                       deadline: float | None = 10.0, dry_run: bool = False,
                       by: str | None = None) -> ActivateResult:
        """As Admin.activate."""
        return await self._run(lambda: self._admin.activate(ref, quorum=quorum, deadline=deadline,
                                                            dry_run=dry_run, by=by))

    async def verify(self, ref: str | Tagged, *, expected: str | None = None,
                     deadline: float | None = 30.0) -> VerifyResult:
        """As Admin.verify."""
        return await self._run(lambda: self._admin.verify(ref, expected=expected, deadline=deadline))

    async def fetch(self, ref: str | Tagged, *, deadline: float | None = 60.0, max_rate: int | None = None,
                    data_device: str | None = None, insecure: bool = False,
                    host_share: str | None = None) -> Snapshot:
        """As Admin.fetch."""
        return await self._run(lambda: self._admin.fetch(ref, deadline=deadline, max_rate=max_rate,
                                                         data_device=data_device, insecure=insecure,
                                                         host_share=host_share))

    async def events(self, *, follow: bool = False, since: int | str = 0, adapter: str | None = None,
                     worker: str | None = None, limit: int | None = None,
                     last: int | None = None) -> AsyncIterator[Event]:
        """As Admin.events: `async for e in adm.events(follow=True)`."""
        own = AsyncAdmin._follower(self._admin) if follow else self
        try:
            pager = _Pager(own._admin, since, adapter, worker, limit, last)
            while not pager.is_over:
                for event in await own._run(lambda: pager.page(follow)):
                    yield event
        finally:
            if own is not self:
                await own.close()

    async def rollback(self, ref: str | Tagged, *, quorum: str | int = "all", deadline: float | None = 10.0,
                       dry_run: bool = False, by: str | None = None) -> ActivateResult:
        """As Admin.rollback."""
        return await self._run(lambda: self._admin.rollback(ref, quorum=quorum, deadline=deadline,
                                                            dry_run=dry_run, by=by))

    async def resume(self, adapter: str, *, quorum: str | int = "all", deadline: float | None = 10.0,
                     dry_run: bool = False, by: str | None = None) -> ActivateResult:
        """As Admin.resume."""
        return await self._run(lambda: self._admin.resume(adapter, quorum=quorum, deadline=deadline,
                                                          dry_run=dry_run, by=by))

    async def reach(self, *, patience: float = 5.0, data_device: str | None = None,
                    insecure: bool = False) -> ReachResult:
        """As Admin.reach."""
        return await self._run(lambda: self._admin.reach(patience=patience, data_device=data_device,
                                                         insecure=insecure))

    async def forget(self, adapter: str, *, dry_run: bool = False) -> ForgetResult:
        """As Admin.forget."""
        return await self._run(lambda: self._admin.forget(adapter, dry_run=dry_run))

    async def drain(self, worker: str, *, cancel: bool = False) -> WorkerInfo:
        """As Admin.drain."""
        return await self._run(lambda: self._admin.drain(worker, cancel=cancel))

    @property
    def closed(self) -> bool:
        return self._thread.is_ended or self._admin.closed

    async def close(self) -> None:
        """Idempotent."""
        self._thread.end()
        await asyncio.to_thread(self._admin.close)          # not in line: it ends what is under way

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        await self.close()

# SPDX-License-Identifier: Apache-2.0
"""Worker: versions of adapters, received into this process, in a rollout engine."""
from __future__ import annotations

import functools
import logging
import os
import select
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle import _native
from heddle._handle import Handle, Until
from heddle._native import ffi, lib
from heddle._words import Apply, Kind
from heddle.errors import Closed, HeddleError
from heddle.tensors import Layout
from heddle.updates import EVENT_PHASE, FEATURES, Hold, Snapshot, Update, Updates, forget

__all__ = ["Worker", "Update", "Updates", "Snapshot", "Current"]

_log = logging.getLogger("heddle")
_DEFAULT = "the address of your context, else tcp://127.0.0.1:7700"
_HINT = "start one with `heddle broker`, or name it: Worker(broker=...) or HEDDLE_BROKER"
_APPLY = {"auto": 0, "app": 1}
_PENDING_MAX = 256
_ALONE_S = 5.0          # without an answer of a broker, until that is logged
_SLICE = 0.05           # seconds between looks: another thread may answer, or have read what is waited for


_join_given: str | None = None      # by HEDDLE_JOIN, to this process


def _join_of_environment() -> str | None:
    """Once read it is in the environment no more: it is a secret, of which children of this process, such as
    the ranks of an engine, have no use.
    """
    global _join_given
    _join_given = os.environ.pop("HEDDLE_JOIN", None) or _join_given
    return _join_given


@functools.cache
def _readable_fd() -> int:
    """Always readable: one for all workers of the process, so that a closed one needs none of its own."""
    return os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


@dataclass(frozen=True)
class Current:
    """The version that `acquire(adapter)` would give.  `tag` belongs to every sample."""
    adapter: str
    version: int
    tag: str
    digest: str
    step: int | None


@dataclass(frozen=True)
class _Why:
    """What is remembered of an update that failed or is stale: not the update, which may have a hold."""
    adapter: str
    version: int
    tag: str
    phase: str
    code: str | None
    message: str | None


class Worker(Handle):
    """Receives versions of adapters; a thread of the library fetches and verifies them.  Opening does not
    wait for the broker.

    adapters   names, at least one                     name    as others see it; None: <host>-<pid>
    labels     up to 32 pairs of words
    slots      versions in memory, for each adapter: active, kept, arriving; 0: 2 + the broker's --keep
    apply      "app": the application loads and switches (`updates`); "auto": staged when verified, active
               when decided
    accepts    features that the engine can load, of heddle.updates.FEATURES; a version with another one is
               rejected (unsupported_feature) before the application sees it.  None: all.  With apply="app"
    kinds      what the application takes: "lora", adapters of PEFT; "tensors", full weights.  A version of
               another kind is rejected (unsupported_feature) before its bytes are fetched
    max_rate   bytes per second, served and fetched, each way by itself
    own_memory           every version is copied into memory of this process; else a version that another
               process of this host and user has is used there, read-only
    no_relay             other workers fetch from this one only where no other process has the version
    verify_each          compares the digest of what is used there itself; else one process of the host does
               it for all
    host_share           directory, mode 0700, in which processes of this host find each other for that: the
               same one in all containers.  None: processes of one network namespace find each other
    join                 what `heddle invite` printed, or "@FILE" with it: names the broker, and has this
               worker's own key entered.  Not with broker or broker_key.  None: HEDDLE_JOIN
    join_timeout         seconds to give up joining under a name that is alive; None: never
    group, rank, ranks   workers that serve as one, as the ranks of one engine: each names the group, its rank
               from 0, and how many there are (at most 4096).  A version counts as staged in a group when each
               of its ranks has staged it

    Where no broker answers, updates() and wait_current() go on, and say so after 5 s: `worker.waiting`, a
    warning of the logger "heddle". Any thread; `fileno()` is readable while `updates(timeout=0)` has
    something.  Raises UsageError, HeddleError (internal: no UCX; see doctor()).
    """

    _what = "worker"

    def __init__(self, broker: str | None = None, adapters: Iterable[str] = ("policy",), *,
                 name: str | None = None, labels: Mapping[str, str] | None = None, slots: int = 0,
                 apply: Apply = "app", group: str | None = None, rank: int = 0, ranks: int = 1,
                 accepts: Iterable[str] | None = None, max_rate: int | None = None,
                 join_timeout: float | None = None, data_device: str | None = None, insecure: bool = False,
                 broker_key: str | None = None, key: str | None = None, own_memory: bool = False,
                 verify_each: bool = False, host_share: str | None = None, no_relay: bool = False,
                 kinds: Iterable[Kind] = ("lora",), join: str | None = None) -> None:
        self._holds: set[Hold] = set()
        self._layouts: dict[str, Layout] = {}           # of the version last looked at, by adapter
        super().__init__()
        self._pending: deque[Update] = deque()          # read from the library, not yet by the application
        self._refused: HeddleError | None = None
        self._refusals: set[tuple[str | None, ...]] = set()     # that were said, since it was in
        self._is_over = False                           # the refusal stays
        self._has_left = False                          # it was drained; what is here stays
        self._wants_to_leave = False                    # drain() was called
        # token, epoch, cluster; None while no broker knows this worker
        self._joined: dict[str, Any] | None = None
        self._alone_since = time.monotonic()
        self._is_told = False                           # that it is alone
        self._was_joined = False
        self._stale: dict[str, _Why] = {}
        self._ended: dict[str, _Why] = {}            # the last of each adapter, until a later one arrives
        self._unanswered: weakref.WeakSet[Update] = weakref.WeakSet()
        try:
            self._check(group, rank, ranks, apply, accepts)
            self.adapters = _native.names(adapters, "adapters")
            self.kinds = _native.names(kinds, "kinds")
            self._app = apply == "app"
            self._accepts = None if accepts is None else frozenset(_native.names(accepts, "accepts"))
            for feature in self._accepts or ():
                if feature not in FEATURES:
                    raise _native.error("usage", "accepts has what is not a feature",
                                        expected=" ".join(FEATURES), found=repr(feature))
            given = _join_of_environment()
            join = join or (given if not broker and not broker_key else None)
            self._endpoint = ("the address of the join string" if join else
                              broker or os.environ.get("HEDDLE_BROKER") or _DEFAULT)
            self._open(broker, name, labels, slots, apply, max_rate, join_timeout, data_device, insecure,
                       broker_key, key, (group, rank, ranks), (own_memory, verify_each, host_share, no_relay),
                       join)
        except BaseException:
            self._failed()
            raise
        self._pending_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        _readable_fd()                      # here, where a lack of descriptors is said
        for fd in (self._fd, self._pending_fd, self._wake_fd):
            self._epoll.register(fd, select.EPOLLIN)

    @staticmethod
    def _check(group: str | None, rank: int, ranks: int, apply: str, accepts: Iterable[str] | None) -> None:
        if group is None and (rank != 0 or ranks != 1):
            raise _native.error("usage", "a rank is of a group", expected="group=NAME, or rank=0, ranks=1",
                                found=f"group=None, rank={rank}, ranks={ranks}")
        if not isinstance(apply, str) or apply not in _APPLY:
            raise _native.error("usage", "apply is neither app nor auto", expected="app auto",
                                found=repr(apply))
        if accepts is not None and apply != "app":
            raise _native.error("usage",
                                'accepts needs apply="app": else a version is staged before a call looks')

    def _open(self, broker: str | None, name: str | None, labels: Mapping[str, str] | None, slots: int,
              apply: str, max_rate: int | None, join_timeout: float | None, data_device: str | None,
              insecure: bool, broker_key: str | None, key: str | None,
              place_in_group: tuple[str | None, int, int],
              sharing: tuple[bool, bool, str | None, bool], join: str | None) -> None:
        group, rank, ranks = place_in_group
        own_memory, verify_each, host_share, no_relay = sharing
        texts = {"broker": broker, "name": name, "data_device": data_device, "broker_key": broker_key,
                 "key": key, "group": group, "host_share": host_share, "join": join}
        kept = {what: _native.c_text(value) for what, value in texts.items()}
        names, kept_names = _native.c_list(self.adapters, "adapters")
        pairs, kept_pairs = _native.c_list(_native.pairs(labels, "labels"), "labels")
        kinds, kept_kinds = _native.c_list(self.kinds, "kinds")
        join_ms = _native.milliseconds(join_timeout, "join_timeout", 1)
        opts = ffi.new("heddle_worker_opts_t *", {
            **kept, "size": ffi.sizeof("heddle_worker_opts_t"), "adapters": names, "labels": pairs,
            "kinds": kinds,
            "apply": _APPLY[apply], "slots": _native.count(slots, "slots"),
            "max_rate_bytes": 0 if max_rate is None else _native.count(max_rate, "max_rate", 1,
                                                                       _native.NUMBER_MAX),
            "rank": 0 if group is None else _native.count(rank, "rank"),
            "ranks": 0 if group is None else _native.count(ranks, "ranks", 1),
            "own_memory": bool(own_memory), "verify_each": bool(verify_each), "no_relay": bool(no_relay),
            "insecure": bool(insecure),
            "omits_staging": True, "quiet": True,       # it logs itself
            "join_timeout_ms": 0 if join_ms == _native.LONGEST_MS else join_ms})
        place = ffi.new("heddle_worker_t **")
        _native.load_transport()
        _native.check(lib.heddle_worker_open(opts, place))
        del kept_names, kept_pairs, kept_kinds
        self._fd = int(lib.heddle_worker_fd(place[0]))         # asked once: the handle may be freed later
        self._opened(place[0])

    def _make_locks(self) -> None:
        super()._make_locks()
        for hold in self._holds:
            hold.make_lock()

    def _where(self) -> dict[str, Any]:
        return {"adapter": self.adapters[0]} if len(self.adapters) == 1 else {}

    def _interrupt_native(self, ptr: Any) -> None:
        lib.heddle_worker_interrupt(ptr)

    def _close_native(self, ptr: Any) -> None:
        lib.heddle_worker_close(ffi.new("heddle_worker_t **", ptr))

    def _before_close(self, ptr: Any) -> None:
        if not self._epoll.closed:      # for a loop that still looks at it, or at a copy
            self._epoll.register(_readable_fd(), select.EPOLLIN)
        self._epoll.close()
        fd, self._pending_fd = self._pending_fd, -1
        if fd >= 0:                             # not twice: the number may be of another file by now
            os.close(fd)

    def __repr__(self) -> str:
        names = ", ".join(getattr(self, "adapters", ()))
        return f"<heddle.Worker of {names}{' (closed)' if self._is_closed else ''}>"

    # -- events ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable while `updates(timeout=0)` has something.  Poll it; never read or close it."""
        with self._lock:
            self._live()
            return int(self._epoll.fileno())

    def updates(self, timeout: float | None = None) -> Updates:
        """`for u in w.updates()`, `async for u in w.updates()`: each Update, in order.

        timeout   seconds that the next one is waited for; then the iteration ends (0: what is there, say
                  between two steps).  None: no limit.
        Ends when the worker is closed, and when it was drained and has left (`left`).  Raises what the broker
        refused the join for, where it stays so (Conflict, Denied).
        """
        with self._lock:
            self._live()
        return Updates(self, timeout)

    def _take(self) -> Update | None:
        """The next update, if there is one."""
        with self._lock:
            self._live()
            while not self._pending and self._read():
                pass
            if not self._pending:
                self._check_refused()
            found = self._pending.popleft() if self._pending else None
            if not self._pending and not self._is_over:
                self._calm()
            return found

    def _rouse(self) -> None:
        """A waiting call looks again: there is an update, or another call has got what ends them."""
        os.eventfd_write(self._pending_fd, 1)

    def _calm(self) -> None:
        try:
            os.eventfd_read(self._pending_fd)
        except BlockingIOError:
            pass

    def _check_refused(self) -> None:
        if self._is_over:
            assert self._refused is not None
            raise self._refused

    def _read(self) -> bool:
        """One event of the library into _pending, or into what is known of the session.  False: there was
        none.
        """
        ptr = self._live()
        event = ffi.new("heddle_event_t *", {"size": ffi.sizeof("heddle_event_t")})
        rc = lib.heddle_worker_next_event(ptr, 0, event)
        if rc in (lib.HEDDLE_ERR_AGAIN, lib.HEDDLE_ERR_INTERRUPTED):
            return False
        if rc == lib.HEDDLE_ERR_CLOSED:
            if self._is_over:           # it left for that; what is here stays
                return False
            raise self._closed()
        _native.check(rc)
        self._note(event)
        return True

    def _note(self, event: Any) -> None:
        kind = _native.text(lib.heddle_event_name(event.type)) or "unknown"
        if kind == "worker.joined":
            self._joined = {"token": int(event.token), "epoch": int(event.epoch),
                            "cluster": _native.text(event.cluster) or ""}
            self._refused, self._is_over, self._is_told, self._was_joined = None, False, False, True
            self._refusals.clear()
        elif kind == "worker.draining":
            _log.info("%s: this worker is to leave", kind)
        elif kind == "worker.staying":
            _log.info("%s: that it was to leave was taken back", kind)
        elif kind in ("broker.lost", "worker.fenced", "worker.left"):
            self._has_left = kind == "worker.left" and not self._is_over
            if self._joined is not None:
                self._joined, self._alone_since = None, time.monotonic()
                self._rouse()
            if self._has_left and not self._wants_to_leave:
                _log.warning("%s: this worker was drained (heddle drain) and has left: no version comes any "
                             "more, and what is here stays until it is closed", kind)
            else:
                _log.info("%s: %s", kind, _native.text(event.message))
        elif kind == "worker.refused":
            self._refused = why = _native.error_of(event.code)
            self._is_over = not event.retriable         # told by who waits; any call may have read it
            if self._is_over:
                self._rouse()
            elif (told := (why.code, why.expected, why.hint)) not in self._refusals:    # the rest has times
                self._refusals.add(told)
                _log.warning("the broker refused this worker for now: %s", why)
        elif kind in EVENT_PHASE and not (kind == "activate.done" and self._app):
            self._offer(Update(self, EVENT_PHASE[kind], event))

    def _offer(self, update: Update) -> None:
        if update.phase in ("active", "commit"):
            self._stale.pop(update.adapter, None)
        if update.phase in ("active", "commit", "arrived"):
            self._ended.pop(update.adapter, None)
        if update.phase in ("stale", "failed"):
            of = self._stale if update.phase == "stale" else self._ended
            of[update.adapter] = _Why(update.adapter, update.version, update.tag, update.phase, update.code,
                                      update.message)
        if not update.answered:
            self._unanswered.add(update)
        if update.phase == "arrived" and self._accepts is not None and not self._is_acceptable(update):
            return
        # read by wait_current() alone: what is only told makes room
        if len(self._pending) >= _PENDING_MAX:
            told = next((u for u in self._pending if u.answered), None)
            if told is not None:
                self._pending.remove(told)
        self._pending.append(update)
        self._rouse()

    def _is_acceptable(self, update: Update) -> bool:
        try:
            why = self._why_foreign(update)
        except HeddleError:                 # gone in the meantime: the application hears of that
            return True
        if why is not None:
            update.reject(why)
        return why is None

    def _why_foreign(self, version: Update | Snapshot) -> HeddleError | None:
        """None: its features and its kind are among those that the application takes."""
        foreign = [] if self._accepts is None else sorted(set(version.features) - self._accepts)
        if version.kind not in self.kinds:
            what, wanted, foreign = "is of a kind that", " ".join(self.kinds), [version.kind]
        else:
            what, wanted = "has what", " ".join(sorted(self._accepts or ())) or "a plain LoRA"
        if not foreign:
            return None
        return _native.error("unsupported_feature", f"{version.tag} {what} this engine cannot load: "
                             f"{' '.join(foreign)}", phase="stage", expected=wanted, found=" ".join(foreign))

    def _say(self, what: str, call: Any, adapter: str, version: int, *args: Any) -> bool:
        name = _native.c_text(adapter)
        with self._lock:
            rc = call(self._live(), name, version, *args)
            if rc in (lib.HEDDLE_ERR_NOT_FOUND, lib.HEDDLE_ERR_FENCED):
                return False
            _native.check(rc)
            if what == "activate":
                self._stale.pop(adapter, None)
        return True

    # -- versions --------------------------------------------------------------------------------------------

    def _hold(self, adapter: str, version: int, where: str = "") -> Hold:
        place, name = ffi.new("heddle_snapshot_t **"), _native.c_text(adapter)
        forget(self._holds)
        with self._lock:
            if not self._app:
                self._drain()           # events need not be read: lost ones are nothing to log
            _native.check(lib.heddle_worker_acquire(self._live(), name, version, place))
        return Hold(self, place[0], where)

    def acquire(self, adapter: str, version: int | None = None) -> Snapshot:
        """A hold on the active version (None), or on a given one while it is here.  `with` releases it.

        Never waits for the broker or for other readers; any thread.  NotFound: nothing is active yet, or the
        version is not here.
        """
        wanted = 0 if version is None else _native.count(version, "version", 1, _native.NUMBER_MAX)
        here = sys._getframe()
        caller = here.f_back or here            # a thread may begin with this call
        return Snapshot(self._hold(adapter, wanted, f"{caller.f_code.co_filename}:{caller.f_lineno}"))

    def current(self, adapter: str) -> Current | None:
        """What acquire(adapter) would give; None while nothing is active."""
        try:
            hold = self._hold(adapter, 0)
        except HeddleError as e:
            if e.code == "not_found" and adapter in self.adapters:
                return None
            raise
        try:
            return Current(hold.adapter, hold.version, hold.tag, hold.digest, hold.step)
        finally:
            hold.end_block()

    def wait_current(self, timeout: float | None = 30.0) -> dict[str, Current]:
        """Until every adapter has an active version here, and none is stale, as far as this worker knows.  ->
        {adapter: Current}

        With apply="app" another thread or task answers the updates meanwhile.  Raises Deadline,
        which names the adapters and why: an update without an answer, what a version failed or is
        stale for, a broker that is away; RolloutFailed (version_lost) instead where no process holds the
        active version any more.  Raises Closed when the worker was drained and has left.  Raises Denied after
        5 s in which the broker refuses the key; the worker goes on trying, and joins when the key is added.
        """
        until = Until(timeout)
        while True:
            self._drain()
            self._check_refused()
            if self._has_left:
                raise self._gone()
            if (denied := self._denied()) and time.monotonic() >= self._alone_since + _ALONE_S:
                raise denied
            found = {name: self.current(name) for name in self.adapters}
            lacking = [name for name, it in found.items() if it is None or name in self._stale]
            if not lacking and self._joined is not None:
                return {name: it for name, it in found.items() if it is not None}
            if until.over:
                raise self._not_current(lacking, timeout)
            self._poll(self._fd, self._heard(until.left(_SLICE)))

    def _gone(self) -> Closed:
        return Closed("this worker was drained and has left: no version comes any more", code="closed",
                      exit=2, **self._where(), hint="open another one; acquire() serves what is here until "
                                                    "close()")

    def _denied(self) -> HeddleError | None:
        """While not admitted: the last refusal, where it is one of the key."""
        why = self._refused if self._joined is None else None
        return why if why is not None and why.code == "denied" else None

    def _not_current(self, lacking: list[str], timeout: float | None) -> HeddleError:
        about = {"adapter": lacking[0]} if len(lacking) == 1 else self._where()
        names = " ".join(lacking or self.adapters)
        late = f"{names} not current within {timeout} s"
        if denied := self._denied():
            return denied
        if self._joined is None:
            why = "the broker is away" if self._was_joined else "no broker has admitted this worker"
            return _native.error("deadline", f"{late}: {why}", **about,
                                 retriable=True, expected=f"a broker at {self._endpoint}",
                                 hint=(self._refused.hint if self._refused else None) or _HINT,
                                 found=self._refused.message if self._refused else "no answer")
        waiting = sorted((u for u in self._unanswered if not u.answered and u.adapter in lacking),
                         key=lambda u: u.version)
        if waiting:
            said = ", ".join(f"{u.tag} {u.phase}" for u in waiting)
            return _native.error("deadline", f"{late}: an update is unanswered: {said}", **about,
                                 retriable=True, expected="an answer in updates()",
                                 found=f"{said}, unanswered",
                                 hint='answer it in updates(), on another thread or task, or open the worker '
                                      'with apply="auto"')
        told = next((u for name in lacking for of in (self._stale, self._ended) if (u := of.get(name))), None)
        if told is not None and told.code == "version_lost":
            named = f"{told.adapter}@{told.version}"
            return _native.error("version_lost", f"{late}: {told.message}", adapter=told.adapter,
                                 version=told.version, expected=f"a process that holds {named}",
                                 found="none", hint="publish the bytes again, and this worker gets them; "
                                                    f'`Admin().versions("{named}")` tells which had them')
        if told is not None:
            said = f"{told.tag} {told.phase if told.phase == 'failed' else 'is not served'}: {told.message}"
            return _native.error("deadline", f"{late}: {said} ({told.code})", **about, retriable=True,
                                 expected="an active version of every adapter",
                                 found=f"{told.phase}: {told.code}",
                                 hint=f'`Admin().versions("{told.adapter}@{told.version}")` tells more')
        return _native.error("deadline", late, **about, retriable=True, found=f"none of {names}",
                             expected="an active version of every adapter",
                             hint=f'`Admin().versions("{names.split()[0]}")` tells what there is, and '
                                  "`Admin().workers()` why it is not here")

    def _heard(self, left: float | None) -> float | None:
        """While no broker has answered: tells that, once it has lasted.  -> how long to wait before looking
        again, `left` at most.
        """
        if self._joined is not None or self._is_told:
            return left
        due = self._alone_since + _ALONE_S - time.monotonic()
        if due > 0:
            return due if left is None else min(due, left)
        self._is_told = True
        why = f" ({self._refused.message})" if self._refused else ""
        _log.warning("worker.waiting: no broker at %s has admitted this worker within %g s%s; waiting: %s",
                     self._endpoint, _ALONE_S, why, (self._refused.hint if self._refused else None) or _HINT)
        return left

    def _drain(self) -> None:
        with self._lock:
            while not self._has_left and self._read():
                pass

    def drain(self, timeout: float | None = 30.0) -> bool:
        """Leaves cleanly, before close(): no new rollout waits for this worker, and other workers fetch the
        versions that only it has.  Holds and acquire() go on meanwhile.  -> True: it has left.  False: some
        are only here after `timeout` seconds, and would be lost with it; it drains on until it is closed.
        """
        until = Until(timeout)
        with self._lock:
            self._wants_to_leave = True
            _native.check(lib.heddle_worker_drain(self._live()))
        while True:
            self._drain()
            if self._has_left or until.over:
                return self._has_left
            self._poll(self._fd, until.left(_SLICE))

    @property
    def left(self) -> bool:
        """It was drained, by drain() or by an operator's `heddle drain`, and has left for good: updates() has
        ended, and what is here stays until close().  Any thread.
        """
        with self._lock:
            if not self._is_closed:
                self._drain()           # events need not be read
            return self._has_left

    # -- for people ------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """bytes_in bytes_out chunks_bad retries fenced (as `heddle workers`); own_bytes held_bytes slots
        session, and adapters: version decided_version lag versions counts of each (heddle/worker.h); joined
        (token, epoch, cluster; None: no broker), and held: one entry for each hold: adapter version tag age_s
        in_block views (names of tensors) where (file:line of acquire, or the Update)."""
        told = ffi.new("char **")
        with self._lock:
            self._drain()               # `joined` is from events, which may be unread
            _native.check(lib.heddle_worker_stats(self._live(), told))
        counters: dict[str, Any] = _native.take_json(told)
        forget(self._holds)
        held = sorted((hold.described() for hold in list(self._holds)),
                      key=lambda h: (h["adapter"], h["version"]))
        return {**counters, "joined": self._joined, "held": held}

    def transport(self) -> dict[str, Any]:
        """backend, ucx (its version), devices, addresses."""
        told = ffi.new("char **")
        with self._lock:
            _native.check(lib.heddle_worker_transport(self._live(), told))
        found: dict[str, Any] = _native.take_json(told)
        return found

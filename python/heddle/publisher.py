# SPDX-License-Identifier: Apache-2.0
"""Publisher: the one writer of one adapter, in a trainer."""
from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from heddle import _calls, _names, _native
from heddle._arguments import PHASE, Config, choose, config_bytes, parse_quorum
from heddle._handle import Handle, Until
from heddle._native import ffi, lib
from heddle._words import Activation, IfUnchanged, Kind, Phase
from heddle.errors import ForkError, HeddleError, named
from heddle.tensors import Given, Table, describe, write
from heddle.versions import Missing, Progress, Rollout, Version

if TYPE_CHECKING:
    from heddle._collective import Collective
    from heddle._model import Plan

__all__ = ["Publisher"]

_log = logging.getLogger("heddle")
_KINDS = {"lora": 0, "tensors": 1}
_ACTIVATION = {"all": 0, "as-ready": 1, "manual": 2}
_UNCHANGED = {"fail": 0, "skip": 1, "publish": 2}
_NOT_YET = ("deadline", "no_workers")
_ENDED = ("failed", "retired", "lost", "superseded")
_HELD_S = 0.1               # seconds between tries while a writer that died is in the way
_LOOK_AGAIN = 0.25          # seconds: an event tells of most changes, and this of the rest


@dataclass
class _Wanted:
    """What a wait is for."""
    version: Version
    phase: str
    number: int             # of the phase
    quorum: Any
    least: int
    until: Until
    report: Any


def _silent_s(e: HeddleError) -> float | None:
    """How long ago the last message of the writer in the way came; None: that is not why."""
    found = re.search(r" ([0-9]+) ms ago$", e.found or "")
    return int(found[1]) / 1000 if e.code == "writer_held" and e.retriable and found else None


class Publisher(Handle):
    """The writer of one adapter.  Opening waits for the broker, at most `timeout` seconds, and as long for a
    writer before this one that says nothing any more (its process died): its session ends with the broker's
    lease.  One that sends a message meanwhile is a Conflict at once.

    broker         "tcp://host:port[,...]"; None: $HEDDLE_BROKER, else of your context
    kind           of what it publishes: "lora", adapters of PEFT; "tensors", full weights (docs/weights.md):
                   publish_tensors and publish_files.  An adapter has one kind for life, that of its first
                   version; another one is BadAdapter (unsupported_feature)
    activation     "all": all switch when all have it; "as-ready": each when it has it; "manual":
                   `Admin.activate` decides
    takeover       fences a live writer of this adapter now
    if_unchanged   what to do when the bytes equal the newest version's: "skip" (the Version of that one,
                   created False), "fail", "publish".  (`heddle publish` fails where it is not told: a step
                   of a training loop that changed nothing is not a mistake, a directory published twice is)
    max_rate       bytes per second served; None: no limit
    process_group  a torch.distributed group: every rank makes the publisher and makes every call; rank 0 is
                   the one that talks to the broker, and its outcome, exception included, is that of all.
                   A rank that is gone is Unavailable on the others; ranks that hold different adapters are a
                   UsageError on all
    timeout        seconds for the broker's answers; None: no limit
    close_timeout  seconds that `close` may wait for a worker that is fetching the last version; None: for
                   ever
    host_share     directory, mode 0700, in which workers of this host find the publisher, to use its memory
                   in place of a copy: the same one in all containers.  None: those of its network namespace
                   do

    One thread at a time is in a call; others wait for it.  Raises Conflict (writer_held names who),
    Unavailable, UsageError, Denied.
    """

    _what = "publisher"
    # a thread that trains on after the main one publishes its last, and an atexit handler
    _is_endless = False

    def __init__(self, broker: str | None = None, adapter: str = "policy", *, writer: str | None = None,
                 activation: Activation = "all", takeover: bool = False, if_unchanged: IfUnchanged = "skip",
                 max_rate: int | None = None, process_group: Any = None, timeout: float | None = 5.0,
                 close_timeout: float | None = 3.0, data_device: str | None = None, insecure: bool = False,
                 broker_key: str | None = None, key: str | None = None,
                 host_share: str | None = None, kind: Kind = "lora") -> None:
        super().__init__()
        self.adapter = adapter
        choose("kind", kind, _KINDS)
        self.kind: str = kind
        self._activation = choose("activation", activation, _ACTIVATION)
        self._unchanged = choose("if_unchanged", if_unchanged, _UNCHANGED)
        self._callback: Callable[[Progress], None] | None = None
        self._told_held = ""        # the hold that was logged last
        self._given: Given | None = None        # the table of the last publish_tensors
        self._ranks: Collective | None = None
        self._is_interrupted = _calls.Done()    # ever; for opening, which is in no C handle while it pauses
        # an Admin handle for the names of workers, made when it is wanted
        self._asked: Any = None
        self._asked_opts: dict[str, Any] = {"broker": broker, "broker_key": broker_key, "key": key,
                                            "timeout": timeout}
        try:
            if process_group is not None:
                from heddle._collective import Collective
                self._ranks = Collective(process_group)
            self._together(lambda: self._open(broker, writer, takeover, max_rate, timeout, close_timeout,
                                              data_device, insecure, broker_key, key, host_share))
        except BaseException:
            if self._ptr is None:
                self._failed()
            else:
                self.close()
            raise

    def _open(self, broker: str | None, writer: str | None, takeover: bool, max_rate: int | None,
              timeout: float | None, close_timeout: float | None,
              data_device: str | None, insecure: bool, broker_key: str | None, key: str | None,
              host_share: str | None) -> None:
        texts = {"broker": broker, "adapter": self.adapter, "writer": writer, "data_device": data_device,
                 "broker_key": broker_key, "key": key, "host_share": host_share, "kind": self.kind}
        kept = {name: _native.c_text(value) for name, value in texts.items()}
        until = Until(timeout)
        opts = ffi.new("heddle_publisher_opts_t *", {
            **kept, "size": ffi.sizeof("heddle_publisher_opts_t"), "takeover": bool(takeover),
            "insecure": bool(insecure),
            "timeout_ms": _native.milliseconds(timeout, "timeout", 1),
            "max_rate_bytes": (0 if max_rate is None
                               else _native.count(max_rate, "max_rate", 1, _native.NUMBER_MAX)),
            "close_ms": _native.milliseconds(close_timeout, "close_timeout", 1),
            "quiet_events": True})          # they are read while Version.wait waits, and by nothing else
        _native.load_transport()
        last_s = 0.0            # since the other writer's last message, when it was looked last
        while True:
            try:
                self._start(opts)
                return
            except HeddleError as e:
                silent_s = _silent_s(e)
                if silent_s is None or silent_s < last_s or (until.left(60.0) or 0.0) < 2 * _HELD_S:
                    raise
            last_s = silent_s
            self._forget_start()
            if self._is_interrupted.wait(_HELD_S):
                raise _native.error("interrupted", "interrupted")
            opts.timeout_ms = _native.milliseconds(until.left(60.0), "timeout", 1)

    def _start(self, opts: Any) -> None:
        place = ffi.new("heddle_publisher_t **")
        _native.check(lib.heddle_publisher_start(opts, place))
        # asked once: the handle may be freed before a later question
        self._fd = int(lib.heddle_publisher_fd(place[0]))
        self._opened(place[0])
        if self._is_interrupted.is_set():       # before there was a C handle to be told
            raise _native.error("interrupted", "interrupted")
        with self._lock:
            self._call(lambda: _native.check(lib.heddle_publisher_opened(place[0])))

    def _forget_start(self) -> None:
        """The handle that was refused."""
        with self._lock:
            self._live()
            with self._guard:
                ptr, self._ptr = self._ptr, None
            _calls.detachable(lambda: self._close_native(ptr))

    # -- the handle ------------------------------------------------------------------------------------------

    def _call(self, call: Callable[[], Any]) -> Any:
        """A call that may block; hold the lock."""
        self._live()
        return self._interruptible(call, self._forget_interrupt)

    def _forget_interrupt(self) -> None:
        """One that came too late to end a call would end the next one."""
        if self._ptr is None:
            return
        event = _new_event()
        while lib.heddle_publisher_next_event(self._ptr, 0, event) == 0:
            pass

    def _where(self) -> dict[str, Any]:
        return {"adapter": self.adapter}

    def _interrupt(self) -> None:
        self._is_interrupted.set()
        super()._interrupt()

    def _interrupt_native(self, ptr: Any) -> None:
        lib.heddle_publisher_interrupt(ptr)
        if self._asked is not None:
            self._asked._interrupt()

    def _parts(self) -> list[Handle]:
        asked = self._asked
        return [] if asked is None else [asked]

    def _close_native(self, ptr: Any) -> None:
        lib.heddle_publisher_close(ffi.new("heddle_publisher_t **", ptr))

    def __repr__(self) -> str:
        return f"<heddle.Publisher of {self.adapter}{' (closed)' if self._is_closed else ''}>"

    # -- publishing ------------------------------------------------------------------------------------------

    def publish(self, model: Any, *, step: int | None = None, peft_adapter: str = "default",
                request_id: str | None = None,
                meta: Mapping[str, str] | None = None, deadline: float | None = 60.0,
                allow_step_back: bool = False,
                config: Config | None = None) -> Version:
        """Publishes the LoRA of a live model: every tensor that `save_pretrained` would write, under the same
        key, of the same shape and type.

        model         a PeftModel, also inside of DistributedDataParallel, torch.compile or FSDP2
                      (fully_shard); with `process_group` every rank
                      calls this.  Nothing is merged, and nothing of the model is changed: it has one
                      more attribute, for what was worked out, which holds the adapter's parameters as
                      long as the model lives.
        peft_adapter  which of its adapters
        config        adapter_config.json; None: what save_pretrained writes, with sets sorted (PEFT's order
                      follows the hash seed).  With the bytes of a saved file the digest is that of the saved
                      directory.
        The tensors are copied once, into Heddle's region (those that other ranks send: through a buffer on
        either side): `optimizer.step()` may follow at once.  Until it returns no other thread may
        change, move or free them.  What goes where is worked out at the first call
        for a model, and again when its structure, types or configuration changed.
        Raises as publish_tensors, and BadAdapter (unsupported_peft_type) with the type's name, NotFound for a
        missing adapter.
        """
        from heddle import _model
        self._check_kind("lora", "publish", "publish_tensors or publish_files")
        how = (step, request_id, meta, deadline, allow_step_back)
        if self._ranks is not None:
            return self._publish_together(model, peft_adapter, config, how)
        base = _model.unwrapped(model)
        plan = _model.known_plan(base, peft_adapter)
        if plan is not None:
            try:
                return self._publish_plan(plan, config, how, base)
            except _model.Outdated:
                pass
        plan, _ = _model.plan_of(base, peft_adapter)
        if plan.is_sharded:
            raise _native.error("usage", "the model is sharded over ranks",
                                expected="Publisher(process_group=...)", found="no process_group",
                                hint="give every rank's Publisher the group (torch.distributed.group.WORLD), "
                                     "and call publish on every rank")
        return self._publish_plan(plan, config, how, None)

    def _publish_plan(self, plan: Plan, config: Config | None, how: tuple[Any, ...], base: Any) -> Version:
        """base: whether the plan is still of this model is found out on the way (Outdated)."""
        is_on_cpu = (base is not None and plan.is_found) or all(p.is_cpu for p in plan.parameters)
        return self._publish(plan.table, plan.config if config is None else config_bytes(config),
                             functools.partial(plan.fill, model=base), is_on_cpu, *how)

    def _publish_together(self, model: Any, peft_adapter: str, config: Config | None,
                          how: tuple[Any, ...]) -> Version:
        """Every rank: all can, else none; gather to rank 0, which commits; its outcome is that of all."""
        from heddle import _collective, _model
        assert self._ranks is not None
        if _native.forked:
            raise ForkError()
        ranks = self._ranks
        cell = _new_publication()

        def prepare() -> tuple[Any, tuple[bool, tuple[bytes, bytes]]]:
            self._check_open()                  # on every rank: only rank 0 has a C handle that would say so
            opts = self._publish_opts(*how)
            plan, is_new = _model.plan_of(_model.unwrapped(model), peft_adapter)
            words = plan.config if config is None else config_bytes(config)
            if ranks.rank == 0:
                self._begin(plan.table, words, cell)
            return (plan, words, opts), (is_new or plan.shards is None, _collective.outline(plan, words))

        def commit() -> Version:
            load.place(plan.targets(cell[0]))
            return self._commit(cell, opts[0], how[0])

        with self._lock, ranks.one_call():
            try:
                (plan, words, opts), told = ranks.agree(prepare)
                _collective.compare(plan, words, [outline for _, outline in told], ranks)
                load = _collective.gather(plan, any(is_new for is_new, _ in told), ranks)
                return self._ours(ranks.lead(commit, self._check_open, self._interrupt,
                                             self._forget_interrupt))
            finally:
                lib.heddle_publication_abort(cell)

    def _ours(self, version: Version) -> Version:
        """As it came from rank 0."""
        return version if version.__dict__["_publisher"] is self else replace(version, _publisher=self)

    def _check_all_open(self) -> None:
        """Closed on one rank: Closed on every one."""
        assert self._ranks is not None
        if _native.forked:                      # no rank: it has no word in what they say
            raise ForkError()

        def check() -> tuple[None, None]:
            self._check_open()
            return None, None
        self._ranks.agree(check)

    def _together(self, call: Callable[[], Any]) -> Any:
        """A call of rank 0's for all ranks; alone: the call."""
        if self._ranks is None:
            return call()
        with self._ranks.one_call():
            self._check_all_open()
            return self._ranks.lead(call, self._check_open, self._interrupt, self._forget_interrupt)

    def _check_kind(self, kind: str, call: str, instead: str) -> None:
        if self.kind != kind:
            raise _native.error("usage", f"{call} publishes kind {kind}, and this publisher is of kind "
                                         f"{self.kind}", adapter=self.adapter, expected=kind,
                                found=self.kind, hint=f"call {instead}")

    def _config(self, config: Config | None) -> bytes:
        """Kind tensors has none."""
        if self.kind == "lora" or config is not None:
            return config_bytes(config)     # type: ignore[arg-type]   # None is refused there
        return b""

    def publish_tensors(self, tensors: Mapping[str, Any], config: Config | None = None, *,
                        step: int | None = None,
                        request_id: str | None = None,
                        meta: Mapping[str, str] | None = None, deadline: float | None = 60.0,
                        allow_step_back: bool = False) -> Version:
        """Publishes tensors under PEFT's on-disk names ("base_model.model....lora_A.weight"): what
        `peft.get_peft_model_state_dict` gives, and not the names of the live parameters
        ("...lora_A.default.weight").

        tensors   name -> torch.Tensor (any device, any strides) or numpy.ndarray; copied once, into Heddle's
                  region: change them as soon as this
                  returns.  Types: those of safetensors; ml_dtypes' bfloat16 and float8 count as such.
        config    adapter_config.json: bytes or str as they are, or a mapping.  None for kind "tensors", where
                  names may be any
        step      the trainer's step, >= 0        meta   up to 32 pairs of words
        deadline  seconds for the whole rollout; past it the version fails everywhere and the old one stays.
                  None, and what is longer: 24 days (2,147,483 s), the longest that the broker keeps
        Until it returns no other thread may change, move or free the tensors.  Their table is worked out at
        the first call, and again when names, types, shapes or devices changed.
        Returns when the record is durable.  Raises UsageError, BadAdapter, Conflict, Fenced, Unavailable,
        Deadline.
        """
        def alone() -> Version:
            if not isinstance(tensors, Mapping):
                raise _native.error("usage", "the tensors are not a mapping", expected="{name: tensor}",
                                    found=type(tensors).__name__)
            names, values = _native.names(tensors, "the names of the tensors"), list(tensors.values())
            given = self._given
            if given is not None and given.fits(names, values):
                given.check_memory(values)
            else:
                if self.kind == "lora":
                    _names.check(names)
                self._given = given = Given(names, values)

            def fill(begin: Callable[[], Any], _table: Table) -> None:
                given.fill(begin(), values)
            return self._publish(given, self._config(config), fill, given.is_on_cpu, step, request_id, meta,
                                 deadline, allow_step_back)
        return self._ours(self._together(alone))

    def publish_each(self, table: Iterable[tuple[str, str, tuple[int, ...]]],
                     tensors: Iterable[tuple[str, Any]], *, step: int | None = None,
                     request_id: str | None = None, meta: Mapping[str, str] | None = None,
                     deadline: float | None = 60.0, allow_step_back: bool = False) -> Version:
        """Publishes full weights of which one tensor at a time is at hand; for kind "tensors".

        table     (name, safetensors' type, shape) of each
        tensors   (name, tensor) of each, in the same order; each is copied before the next one is taken
        As publish_tensors otherwise.  A tensor that is not as the table has it, does not come, or is none of
        the table is a UsageError, and nothing is published.  Not for a publisher with process_group, whose
        other ranks would take nothing from their `tensors`: that is a UsageError on every rank.
        """
        self._check_kind("tensors", "publish_each", "publish")
        if self._ranks is not None:
            raise _native.error("usage", "publish_each is not for all ranks of a process_group",
                                adapter=self.adapter, found="process_group",
                                expected="a Publisher without process_group, on one rank",
                                hint="make the Publisher on one rank; where gathering a tensor takes all "
                                     "ranks, the others go through their tensors and publish nothing")
        rows = [(name, dtype, tuple(shape)) for name, dtype, shape in table]

        def fill(begin: Callable[[], Any], of: Table) -> None:
            publication = begin()
            came = iter(tensors)
            for i, row in enumerate(of.rows):
                name, tensor = next(came, (None, None))
                found = None if name is None else (name, *describe(name, tensor))
                if found != row:
                    raise _native.error("usage", f"tensor {row[0]} did not come as the table has it",
                                        adapter=self.adapter, phase="pack", expected=repr(row),
                                        found=repr(found), hint="give each tensor of the table once, in "
                                                                "its order, as it is described there")
                write(lib.heddle_publication_tensor(publication, i), of.sizes[i], row[1], row[2], tensor)
            surplus = next(came, None)
            if surplus is not None:
                raise _native.error("usage", f"tensor {surplus[0]} is none of the table",
                                    adapter=self.adapter, phase="pack", expected=f"{len(of)} tensors",
                                    found="more", hint="give the table all tensors that are to be "
                                                       "published")
        return self._publish(Table(rows), b"", fill, False, step, request_id, meta, deadline,
                             allow_step_back)

    def publish_files(self, paths: Iterable[str | os.PathLike[str]], *, step: int | None = None,
                      request_id: str | None = None, meta: Mapping[str, str] | None = None,
                      deadline: float | None = 60.0, allow_step_back: bool = False) -> Version:
        """Publishes safetensors files that together are one version of kind "tensors".

        As publish_tensors; NotFound without one of them.
        """
        files = [os.fspath(path) for path in ((paths,) if isinstance(paths, (str, os.PathLike)) else paths)]

        def alone() -> Version:
            with self._lock:
                ptr = self._live()
                opts, kept = self._publish_opts(step, request_id, meta, deadline, allow_step_back)
                done = _new_published()
                where, texts = _native.c_list(files, "paths")
                self._call(lambda: _native.check(lib.heddle_publisher_publish_files(ptr, where, opts, done)))
                del kept, texts
                return self._version(done, step)
        return self._ours(self._together(alone))

    def publish_dir(self, path: str | os.PathLike[str], *, step: int | None = None,
                    request_id: str | None = None,
                    meta: Mapping[str, str] | None = None, deadline: float | None = 60.0,
                    allow_step_back: bool = False) -> Version:
        """Publishes a directory that PEFT saved (adapter_config.json and adapter_model.safetensors).

        As publish_tensors; NotFound without it.
        """
        def alone() -> Version:
            with self._lock:
                ptr = self._live()
                opts, kept = self._publish_opts(step, request_id, meta, deadline, allow_step_back)
                done = _new_published()
                where = _native.c_text(path)
                self._call(lambda: _native.check(lib.heddle_publisher_publish_dir(ptr, where, opts, done)))
                del kept
                return self._version(done, step)
        return self._ours(self._together(alone))

    def _publish(self, table: Table, config: bytes, fill: Callable[[Callable[[], Any], Table], None],
                 is_on_cpu: bool, step: int | None, request_id: str | None,
                 meta: Mapping[str, str] | None, deadline: float | None, allow_step_back: bool) -> Version:
        """`fill`: begins the publication, by what it is given, and fills it.
        `is_on_cpu`: all of it may be done on a helper thread, in one go.

        An accelerator's copies belong to the caller's stream.
        """
        def whole() -> Version:
            cell = _new_publication()
            try:
                fill(lambda: self._begin(table, config, cell), table)
                return self._commit(cell, opts, step)
            finally:
                lib.heddle_publication_abort(cell)      # of what was begun and not committed; else it is NULL
        with self._lock:
            opts, kept = self._publish_opts(step, request_id, meta, deadline, allow_step_back)
            version: Version = self._call(whole) if is_on_cpu else whole()
            del kept
            return version

    def _begin(self, table: Table, config: bytes, cell: Any) -> Any:
        """The publication, which lies in the caller's `cell` by then, also where this is interrupted."""
        ptr = self._live()
        self._call(lambda: _native.check(
            lib.heddle_publication_begin(ptr, table.c, len(table), config, len(config), _native.NULL, cell)))
        return cell[0]

    def _commit(self, cell: Any, opts: Any, step: int | None) -> Version:
        done = _new_published()
        self._call(lambda: _native.check(lib.heddle_publication_commit(cell, opts, done)))
        return self._version(done, step)

    def _publish_opts(self, step: int | None, request_id: str | None, meta: Mapping[str, str] | None,
                      deadline: float | None,
                      allow_step_back: bool) -> tuple[Any, Any]:
        pairs, kept = _native.c_list(_native.pairs(meta, "meta"), "meta")
        name = _native.c_text(request_id)
        number = -1 if step is None else _native.count(
            step, "step", 0, _native.NUMBER_MAX, hint="steps count from 0; without step= a version has none")
        opts = ffi.new("heddle_publish_opts_t *", {
            "size": ffi.sizeof("heddle_publish_opts_t"), "step": number, "request_id": name,
            "activation": self._activation,
            "if_unchanged": self._unchanged, "allow_step_back": bool(allow_step_back),
            "deadline_ms": _native.milliseconds(deadline, "deadline", 1), "meta": pairs})
        return opts, (pairs, kept, name)

    def _version(self, done: Any, step: int | None) -> Version:
        words, held = _native.text(done.features) or "", _native.text(done.held) or ""
        tag = _native.text(done.tag) or ""
        self._tell_held(tag, held)
        reason = "replayed" if done.replayed else "unchanged" if done.unchanged else None
        if reason is not None:
            step = self._stored_step(done.version)
        return Version(adapter=self.adapter, version=done.version, tag=tag,
                       digest=_native.text(done.digest) or "",
                       created=bool(done.created), reason=reason, step=None if step is None else int(step),
                       request_id=_native.text(done.request_id) or "",
                       features=tuple(words.split(",")) if words else (),
                       data_bytes=done.data_bytes, tensor_count=done.tensor_count,
                       chunk_count=done.chunk_count, pack_ms=done.pack_ms, commit_ms=done.commit_ms,
                       held=held or None, _publisher=self)

    def _tell_held(self, tag: str, held: str) -> None:
        """Once for each hold."""
        if held and held != self._told_held:
            _log.warning("adapter.held: %s; %s and later versions are staged and not activated, until "
                         "Admin.resume", held, tag)
        self._told_held = held

    def _stored_step(self, version: int) -> int | None:
        try:
            told = self._admin().versions(f"{self.adapter}@{version}")
        except HeddleError:
            return None
        return told[0].step if told else None

    # -- waiting ---------------------------------------------------------------------------------------------

    def on_progress(self, callback: Callable[[Progress], None] | None) -> None:
        """`callback(progress)` is called inside `Version.wait` alone, on the thread that waits.  It takes the
        place of the one before; None: none is called any more.

        What it raises ends the wait.
        """
        if callback is not None and not callable(callback):
            raise _native.error("usage", "on_progress takes a function",
                                expected="callback(progress), or None", found=repr(callback)[:80])
        self._callback = callback

    def report(self, version: int | Version) -> Rollout:
        """The rollout of a version of this publisher as last heard; never blocks."""
        if isinstance(version, Version):
            self._check_ours(version)
            version = version.version
        elif isinstance(version, str):
            raise _native.error("usage", "a publisher reports of its own versions alone", found=version,
                                expected="the Version that publish returned, or its number",
                                hint="Admin.versions takes a tag")
        def alone() -> Rollout:
            report = _new_report()
            with self._lock:
                _native.check(lib.heddle_publisher_report(self._live(), number, report))
            return self._rollout(report, "active")
        number = _native.count(version, "version", 1, _native.NUMBER_MAX)
        found: Rollout = self._together(alone)
        return replace(found, _ask=self._who)

    def _check_ours(self, version: Version) -> None:
        if version.adapter != self.adapter:
            raise _native.error("usage", f"{version.tag} is a version of another adapter",
                                adapter=self.adapter, found=version.tag,
                                expected=f"a version of {self.adapter}",
                                hint="ask the publisher of that adapter")

    def _wait(self, version: Version, phase: str, quorum: str | int, least: int,
              timeout: float | None) -> Rollout:
        want, number = parse_quorum(quorum), choose("phase", phase, PHASE)
        if want.kind == lib.HEDDLE_QUORUM_NONE:
            raise _native.error("usage", "a wait for none is not a wait", expected='"all", a count, or "N%"',
                                found='"none"',
                                hint="leave the wait out")
        least = _native.count(least, "min")
        wanted = _Wanted(version, phase, number, want, least, Until(timeout), _new_report())
        if self._ranks is None:
            while (found := self._turn(wanted, _LOOK_AGAIN)) is None:
                pass
            return found[0]
        from heddle._collective import TURN_S
        with self._ranks.one_call():
            self._check_all_open()
            rollout = self._ranks.in_turns(lambda: self._turn(wanted, TURN_S), self._check_open)
        return replace(rollout, _ask=self._who)

    def _turn(self, wanted: _Wanted, at_most: float) -> tuple[Rollout] | None:
        """Looks, and where it is not there yet waits for news, `at_most` seconds."""
        version, report = wanted.version, wanted.report
        failure = self._judge(version, wanted.number, wanted.quorum, report)
        have = report.active_count if wanted.number == PHASE["active"] else report.staged_count
        if failure is None and have >= wanted.least:
            return (self._rollout(report, wanted.phase),)
        has_ended = _native.text(report.state) in _ENDED
        is_over = failure is not None and (has_ended or failure.code not in _NOT_YET)
        if is_over or wanted.until.over:
            failure = failure or _native.error(
                "deadline", f"{version.tag} is not {wanted.phase} on enough workers", adapter=self.adapter,
                version=version.version, expected=f"at least {wanted.least}", found=str(have), retriable=True)
            failure.rollout = self._rollout(report, wanted.phase)
            raise failure
        self._poll(self._fd, wanted.until.left(at_most))
        self._tell_progress()
        return None

    def _judge(self, version: Version, phase: int, want: Any, report: Any) -> HeddleError | None:
        """None: it is as wanted; else why not (yet)."""
        with self._lock:
            rc = lib.heddle_publisher_wait(self._live(), version.version, phase, want, 0, report)
            return _native.error_of(rc) if rc else None

    def _tell_progress(self) -> None:
        event = _new_event()
        while True:
            with self._lock:
                rc = lib.heddle_publisher_next_event(self._live(), 0, event)
            if rc:
                return
            if self._callback is not None:
                self._callback(_progress(event))

    def _who(self, rollout: Rollout) -> tuple[str, ...]:
        """Names of the workers that have it.  Holds no lock of ours.

        Nothing rests on them: without an answer there are none.
        """
        states = ("active",) if rollout.phase == "active" else ("staged", "committed", "active", "kept")
        try:
            told = self._admin().versions(f"{self.adapter}@{rollout.version}")
        except HeddleError:
            return ()
        return tuple(w.worker for w in told[0].workers or () if w.state in states) if told else ()

    def _admin(self) -> Any:
        """For what a publisher's own connection does not tell."""
        from heddle.admin import Admin
        self._check_open()
        if self._asked is None:
            made: Any = Admin(**self._asked_opts)
            made._is_endless = False        # it lives as long as this
            with self._guard:               # closing looks for it after it has said that it is closed
                if self._asked is None and not self._is_closed:
                    self._asked, made = made, None
            if made is not None:            # another thread's is there, or none is wanted any more
                made.close()
        self._check_open()
        return self._asked

    def _rollout(self, r: Any, phase: str) -> Rollout:
        rows = (r.missing[i] for i in range(min(r.missing_count, len(r.missing))))
        missing = tuple(Missing(_native.text(m.worker) or "", _native.text(m.phase) or "",
                                _native.text(lib.heddle_err_name(m.code)) if m.code else None,
                                named(_native.text(m.message) or "") or None)
                        for m in rows)
        return Rollout(adapter=self.adapter, version=r.version, phase=phase,
                       state=_native.text(r.state) or "", eligible_count=r.eligible_count,
                       staged_count=r.staged_count, active_count=r.active_count, decision=r.decision,
                       missing=missing, _ask=self._who,
                       staged_ms=None if r.staged_ms < 0 else r.staged_ms,
                       active_ms=None if r.active_ms < 0 else r.active_ms)


def _sized(kind: str) -> Any:
    made = ffi.new(kind + " *")
    made.size = ffi.sizeof(kind)
    return made


def _new_publication() -> Any:
    return ffi.new("heddle_publication_t **")


def _new_event() -> Any:
    return _sized("heddle_event_t")


def _new_published() -> Any:
    return _sized("heddle_published_t")


def _new_report() -> Any:
    return _sized("heddle_report_t")


def _progress(event: Any) -> Progress:
    name = (_native.text(lib.heddle_event_name(event.type)) or "unknown").rsplit(".", 1)[-1]
    return Progress(type=name, adapter=_native.text(event.adapter) or "", version=event.version or None,
                    bytes_done=event.bytes_done,
                    data_bytes=event.data_bytes, message=_native.text(event.message) or "")

# SPDX-License-Identifier: Apache-2.0
"""In SGLang's tokenizer manager: the one Heddle worker of the engine (heddle._inside.leader), and what the
names of requests stand for.

SGLang looks a request's adapter up by name.  Before it does, `policy` becomes `policy@58`: so a request keeps
the version that was active when it was let through, and SGLang counts it by that version's own id.

A version that SGLang has evicted (--max-loaded-loras) is loaded again before a request that names it is let
through.  Place for it is made here, of adapters that no request uses, or waited for: SGLang itself would wait
for requests with its lock held, and one that is paused would hold up every load.

What loads and unloads is a task of the leader's own.  The task of a request ends where its client hangs up,
and SGLang would take the ranks' answer to it for that to the next load.
"""
from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle import _ranks
from heddle._inside import answers, leader
from heddle.sglang.loading import FORMAT

if TYPE_CHECKING:
    from heddle.updates import Snapshot, Update
    from heddle.worker import Worker

_log = logging.getLogger("sglang.srt.heddle")
_TRIES = 8                      # of one request, when what it names is evicted again before it is let through
_PLACE_S = 60.0                 # for a place that some request has; one that is paused may keep it for good
_LOOK_S = 0.02                  # between two looks for it


@dataclass(eq=False)
class Version(leader.Version):
    lora_id: str | None = None  # SGLang's, another one each time that it is loaded


class Leader(leader.Leader[Version]):
    """Of one engine.  On the loop of the tokenizer manager.  `names`: each adapter, and what requests may
    call its active version.
    """

    kind = "sglang"

    def __init__(self, manager: Any, ranks: _ranks.Ranks, names: Mapping[str, tuple[str, ...]],
                 open_worker: Callable[[], Worker], places: int = 0, **how: Any) -> None:
        super().__init__(ranks, names, open_worker, _log, places, **how)
        self._manager = manager
        self._adapter_of = {name: adapter for adapter, given in names.items() for name in given}
        self._loading = asyncio.Lock()          # SGLang has one less, or one more
        self._loads: dict[str, asyncio.Task[None]] = {}     # for requests, by the name of the version
        self._going: str | None = None          # what makes place; SGLang has it still
        self._own: list[Any] = []               # requests to SGLang that are the leader's
        self._ranks_count = len(ranks.hellos)

    def _begin_serving(self) -> None:
        pass

    # -- SGLang's registry -----------------------------------------------------------------------------------

    def _id_of(self, name: str) -> str | None:
        """None: SGLang has not loaded it, or has evicted it."""
        found = self._manager.lora_registry.get_all_adapters().get(name)
        return None if found is None else found.lora_id

    def _count(self, lora_id: str | None) -> int:
        """Of requests, by SGLang's own counter."""
        counter = self._manager.lora_registry._counters.get(lora_id)
        return 0 if counter is None else int(counter.value())

    async def _ask(self, call: Callable[..., Any], request: Any) -> None:
        self._own.append(request)
        try:
            answer = await call(request)
        finally:
            self._own.remove(request)
        if not answer.success:
            raise RuntimeError(answer.error_message)

    # -- a version comes and goes ----------------------------------------------------------------------------

    def _new(self, update: Update | Snapshot) -> tuple[Version, Mapping[str, Any]]:
        return Version(update.adapter, update.version, update.tag), {}

    def _is_loaded(self, version: Version) -> bool:
        return version.name != self._going and self._id_of(version.name) is not None

    async def _load(self, version: Version) -> None:
        if self._is_loaded(version):            # no load of another one holds it up
            return
        async with self._loading:
            if self._is_loaded(version):
                return
            await self._tidy_pending(version.name)
            await self._make_place()
            from sglang.srt.managers.io_struct import LoadLoRAAdapterFromTensorsReqInput
            request = LoadLoRAAdapterFromTensorsReqInput(
                lora_name=version.name, config_dict={"tag": version.tag}, load_format=FORMAT,
                serialized_named_tensors=[b""] * self._ranks_count)
            try:
                await self._ask(self._manager.load_lora_adapter_from_tensors, request)
            finally:                            # by it SGLang would look for an evicted one at the hub
                self._manager.lora_ref_cache.pop(version.name, None)
            version.lora_id = self._id_of(version.name)
            if version.lora_id is None:
                raise RuntimeError(f"SGLang has evicted {version.name} at once")

    async def _load_fetched(self, version: Version) -> None:
        """The request that waits for it loads it, as one that was evicted: no other version waits."""

    async def _load_for_requests(self, version: Version) -> None:
        """All requests wait for the same load, and it ends without them too."""
        if self._is_loaded(version):
            return
        load = self._loads.get(version.name)
        if load is None:
            load = self._loads[version.name] = self._begin(self._load(version))
            load.add_done_callback(lambda done: self._loaded(version, done))
        await asyncio.shield(load)

    def _loaded(self, version: Version, load: asyncio.Task[None]) -> None:
        del self._loads[version.name]
        if not load.cancelled() and load.exception() is not None:
            _log.warning("heddle: %s is not loaded again: %s", version.tag, load.exception())

    async def _tidy_pending(self, name: str) -> None:
        """What SGLang has begun to unload and not ended: it loads no adapter of that name before."""
        if name not in self._manager.pending_lora_unloads:
            return
        try:
            await self._unload_name(name)
        except RuntimeError:                    # SGLang was at it, and has ended it
            if name in self._manager.pending_lora_unloads:
                raise

    async def _make_place(self) -> None:
        registry, most = self._manager.lora_registry, self._manager.server_args.max_loaded_loras
        until = time.monotonic() + _PLACE_S
        while most is not None and registry.num_registered_loras >= most:
            idle = self._idle()
            if idle is not None:
                await self._unload_idle(idle)
            elif time.monotonic() < until:
                await asyncio.sleep(_LOOK_S)
            else:
                raise RuntimeError(f"all {most} places of --max-loaded-loras are in use by requests, for "
                                   f"{_PLACE_S:g} s")

    def _idle(self) -> str | None:
        """The adapter that no request uses for the longest time."""
        named = self._manager.lora_registry.get_all_adapters()          # in the order of their last use
        using = {version.name for version in self._versions.values() if version.uses}
        return next((name for name, ref in named.items()
                     if not ref.pinned and name not in using and not self._count(ref.lora_id)), None)

    async def _unload_idle(self, name: str) -> None:
        """A request that names it from now on waits, and loads it again."""
        self._going = name
        try:
            await self._unload_name(name)
        finally:
            self._going = None

    async def _unload_name(self, name: str) -> None:
        """Of an adapter that no request uses."""
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput
        await self._ask(self._manager.unload_lora_adapter, UnloadLoRAAdapterReqInput(lora_name=name))

    async def _unload(self, version: Version) -> None:
        """Where SGLang has it not, nothing is waited for."""
        if self._is_held(version.name):
            async with self._loading:
                if self._id_of(version.name) is not None:
                    await self._unload_name(version.name)
                else:
                    await self._tidy_pending(version.name)

    def _is_held(self, name: str) -> bool:
        return self._id_of(name) is not None or name in self._manager.pending_lora_unloads

    def _give_names(self, version: Version) -> Callable[[], None]:
        return lambda: None                     # requests are looked up in what the leader says is active

    def _give_name(self, version: Version) -> None:
        pass

    def _take_name(self, version: Version) -> None:
        pass

    def _is_used(self, version: Version) -> bool:
        return (version.uses > 0 or version.name in self._loads
                or self._count(self._id_of(version.name)) > 0)

    # -- names -----------------------------------------------------------------------------------------------

    def is_ours(self, name: Any) -> bool:
        if not isinstance(name, str):
            return False
        adapter, at, _ = name.partition("@")
        return name in self._adapter_of or (bool(at) and adapter in self._active)

    def named(self, name: Any) -> Version | None:
        """What a request's name stands for; None: not Heddle's.  ValueError: no version that is served."""
        if not self.is_ours(name):
            return None
        if name in self._adapter_of:
            active = self._active[self._adapter_of[name]]
            if active is None:
                raise ValueError(f"no version of {self._adapter_of[name]} is active here yet; GET "
                                 "/heddle/status tells when one is")
            return active
        version = self._versions.get(name)
        if version is None or not version.is_named:
            raise ValueError(f"{name} is not served here; GET /heddle/status lists what is")
        return version

    def told_of(self, lora_id: Any) -> str | None:
        """The tag of the version that SGLang has under an id."""
        return next((v.tag for v in self._versions.values() if lora_id is not None and v.lora_id == lora_id),
                    None)

    @contextlib.contextmanager
    def _taken(self, obj: Any) -> Iterator[list[Version]]:
        """The versions that a request names, in use; its names become theirs."""
        given = obj.lora_path
        names = given if isinstance(given, list) else [given]
        versions = [self.named(name) for name in names]
        found = [v.name if v is not None else name for v, name in zip(versions, names, strict=True)]
        taken = list(dict.fromkeys(v for v in versions if v is not None))
        if taken:
            obj.lora_path = found if isinstance(given, list) else found[0]
            for at, part in _parts(obj).items():
                part.lora_path = found[at] if isinstance(given, list) else found[0]
        for version in taken:
            version.uses += 1
        try:
            yield taken
        finally:
            for version in taken:
                version.uses -= 1

    # -- hooks: each around a function of SGLang's -----------------------------------------------------------

    async def resolve(self, original: Callable[..., Any], manager: Any, obj: Any) -> Any:
        """TokenizerManager._validate_and_resolve_lora: after it, SGLang's counter has the request."""
        try:
            await self._fetch_named(obj)
            with self._taken(obj) as versions:
                found = await self._resolve(original, manager, obj, versions)
                self._note(versions)
                return found
        except ValueError:
            for of in (obj, *_parts(obj).values()):     # else SGLang counts one less, of an id that is none
                of.lora_path = None
            raise

    async def _fetch_named(self, obj: Any) -> None:
        """What the request names, and is kept elsewhere.  One of a batch may give way while another comes."""
        given = obj.lora_path if isinstance(obj.lora_path, list) else [obj.lora_path]
        for _ in range(_TRIES):
            wanted = [name for name in dict.fromkeys(given) if self.may_fetch(name)]
            for name in wanted:
                try:
                    await self.fetch(name)
                except Exception as e:
                    raise ValueError(f"{name} is not served here, and cannot be fetched: {e}") from e

    async def _resolve(self, original: Callable[..., Any], manager: Any, obj: Any,
                       versions: list[Version]) -> Any:
        for _ in range(_TRIES):
            await self._load_again(versions)
            try:
                return await original(manager, obj)
            except ValueError:
                if all(self._id_of(version.name) is not None for version in versions):
                    raise
        raise ValueError(f"{obj.lora_path} is evicted (--max-loaded-loras) whenever it is loaded")

    @staticmethod
    def _note(versions: list[Version]) -> None:
        use = answers.current()
        if use is not None:
            for version in versions:
                use.add(version)

    async def _load_again(self, versions: list[Version]) -> None:
        try:
            for version in versions:
                await self._load_for_requests(version)
        except RuntimeError as e:
            raise ValueError(str(e)) from e     # an answer of SGLang's

    def wait(self, original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **named: Any) -> Any:
        """TokenizerManager._wait_one_response: one asynchronous generator for each request of a batch."""
        outs, tag = original(manager, obj, *args, **named), self.told_of(obj.lora_id)
        return outs if tag is None else _told(outs, tag)

    def model(self, original: Callable[..., Any], serving: Any, model: Any, *args: Any, **named: Any) -> Any:
        """OpenAIServingBase._resolve_lora_path: SGLang's own takes `base:policy` alone."""
        return model if self.is_ours(model) else original(serving, model, *args, **named)

    async def change(self, original: Callable[..., Any], manager: Any, obj: Any, *args: Any,
                     **named: Any) -> Any:
        """TokenizerManager.load_lora_adapter, load_lora_adapter_from_tensors and unload_lora_adapter.  SGLang
        loads a client's own adapter again in the task of a request too.
        """
        is_own = any(obj is own for own in self._own)
        if is_own or not (self.is_ours(obj.lora_name) or getattr(obj, "load_format", None) == FORMAT):
            return await asyncio.shield(self._begin(original(manager, obj, *args, **named)))
        from sglang.srt.managers.io_struct import LoRAUpdateOutput
        return LoRAUpdateOutput(success=False, error_message=f"{obj.lora_name} is a name that Heddle gives: "
                                                             "its versions come and go by themselves")


def _parts(obj: Any) -> dict[int, Any]:
    """Of a batch: those of its requests that are objects already."""
    found: dict[int, Any] = obj.__dict__.get("_sub_obj_cache", {})
    return found


async def _told(outs: Any, tag: str) -> Any:
    async with contextlib.aclosing(outs):
        async for out in outs:
            if isinstance(out.get("meta_info"), dict):
                out["meta_info"]["heddle_version"] = tag
            yield out

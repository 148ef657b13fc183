# SPDX-License-Identifier: Apache-2.0
"""In vLLM's API server: the one Heddle worker of the engine (heddle._inside.leader).

A version that is decided goes into the engine with add_lora, which copies it into its place; then
`policy@58` and `policy` are served.  What clients load by path goes through add_lora too:
`heddle://policy@57` and `heddle://policy` are found here, and no rank is asked.

A name or a path of a version that is not here, and that is kept in the cluster, is fetched: vLLM asks a
resolver for names that it does not have (with VLLM_ALLOW_RUNTIME_LORA_UPDATING).

A request that the engine gets for a version that is gone would end the engine in its step: between two turns
of one that runs in the background nothing holds the version.  So add_request looks first.
"""
from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle import _ranks
from heddle._inside import kept, leader
from heddle.vllm.answers import Requests
from heddle.vllm.loading import SCHEME, path_of

if TYPE_CHECKING:
    from heddle.updates import Snapshot, Update
    from heddle.worker import Worker

_log = logging.getLogger("vllm.heddle")


@dataclass(eq=False)
class Version(leader.Version):
    request: Any = None         # vLLM's LoRARequest, its name `policy@57`


class Leader(leader.Leader[Version]):
    """Of one engine.  On the loop of the API server."""

    kind = "vllm"

    def __init__(self, models: Any, engine: Any, ranks: _ranks.Ranks, adapters: Iterable[str],
                 open_worker: Callable[[], Worker], places: int = 0, **how: Any) -> None:
        super().__init__(ranks, adapters, open_worker, _log, places, **how)
        self._models, self._engine = models, engine
        self._add = engine.add_lora             # vLLM's own
        self._add_request = getattr(engine, "add_request", None)    # an engine without a server has not

    def _begin_serving(self) -> None:
        self._models.lora_requests = Requests(self._models.lora_requests, self._version_of)
        self._engine.add_lora = self._load_for_client
        if self._add_request is not None:
            self._engine.add_request = self._request
        if hasattr(self._models, "lora_resolvers"):     # an engine without a server has not
            self._models.lora_resolvers = [*self._models.lora_resolvers, self]

    def _new(self, update: Update | Snapshot) -> tuple[Version, Mapping[str, Any]]:
        from vllm.lora.request import LoRARequest
        version = Version(update.adapter, update.version, update.tag)
        number = self._models.lora_id_counter.inc(1)
        version.request = LoRARequest(version.name, number, path_of(version.name))
        return version, {"id": number}

    async def _load(self, version: Version) -> None:
        await self._add(version.request)

    async def _unload(self, version: Version) -> None:
        await self._engine.remove_lora(version.request.lora_int_id)

    def _give_names(self, version: Version) -> Callable[[], None]:
        names = self._models.lora_requests
        new = {version.name: version.request, version.adapter: version.request}
        old = {name: names.get(name) for name in new}
        names.update(new)

        def take_back() -> None:
            for name, request in old.items():
                if request is None:
                    names.pop(name, None)
                else:
                    names[name] = request
        return take_back

    def _give_name(self, version: Version) -> None:
        self._models.lora_requests[version.name] = version.request

    def _take_name(self, version: Version) -> None:
        self._models.lora_requests.pop(version.name, None)

    def _is_used(self, version: Version) -> bool:
        """By a request, or by a name that a client gave to its path."""
        path = version.request.lora_path
        states = self._engine.output_processor.request_states.values()
        return (version.uses > 0
                or any(named.lora_path == path for name, named in self._models.lora_requests.items()
                       if name not in (version.name, version.adapter))
                or any(state.lora_request is not None and state.lora_request.lora_path == path
                       for state in states))

    # -- a request -------------------------------------------------------------------------------------------

    async def _request(self, request_id: str, prompt: Any, params: Any, arrival_time: Any = None,
                       lora_request: Any = None, *args: Any, **named: Any) -> Any:
        """Instead of the engine's add_request.  What it raises is the answer of that request."""
        assert self._add_request is not None
        version = self._version_behind(lora_request)
        if version is not None:
            version.uses += 1                   # until request_states has it
        try:
            return await self._add_request(request_id, prompt, params, arrival_time, lora_request, *args,
                                           **named)
        finally:
            if version is not None:
                version.uses -= 1

    def _version_behind(self, request: Any) -> Version | None:
        """None: it is of no version."""
        if request is None or not request.lora_path.startswith(SCHEME):
            return None
        version = self._versions.get(request.lora_path.removeprefix(SCHEME))
        if version is None or version.request.lora_int_id != request.lora_int_id:   # or it came again
            from vllm.lora.worker_manager import LoRAAdapterNotFoundError
            raise LoRAAdapterNotFoundError(request.lora_name, request.lora_path)
        return version

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any | None:
        """vLLM's resolver, of a name that it has not.  None: it is not found (404).  vLLM gives the request
        that it gets a number of its own, so it is not the version's.
        """
        if not self.may_fetch(lora_name):
            return None
        try:
            version = await self.fetch(lora_name)
        except Exception as e:
            if kept.is_none(e):
                return None
            from fastapi import HTTPException
            raise HTTPException(503 if kept.is_for_now(e) else 400, f"{lora_name} is not served: {e}") from e
        return copy.copy(version.request)

    # -- a client's name for it ------------------------------------------------------------------------------

    def _version_of(self, path: str) -> Version | None:
        """`heddle://policy@57`, or `heddle://policy`: the active one."""
        if not path.startswith(SCHEME):
            return None
        name = path.removeprefix(SCHEME)
        return self._versions.get(name) or self._active.get(name)

    async def _load_for_client(self, request: Any) -> Any:
        """Instead of the engine's add_lora.  What it raises is the answer of /v1/load_lora_adapter."""
        name, path = request.lora_name, request.lora_path
        version = self._version_of(path)
        if path.startswith(SCHEME) and self.may_fetch(path.removeprefix(SCHEME)):
            version = await self._fetch_for_client(path.removeprefix(SCHEME))
        if path.startswith(SCHEME) and (version is None or not version.is_named):
            from vllm.lora.worker_manager import LoRAAdapterNotFoundError
            raise LoRAAdapterNotFoundError(name, path)
        self._check_name(name, version)
        if version is not None:
            return await self._add(version.request)
        number = request.lora_int_id
        behind = next((v for v in self._versions.values() if v.request.lora_int_id == number), None)
        if behind is not None:                  # in place of a name that stands for a version
            raise ValueError(f"{name} is a name for {behind.tag}, which does not change: unload {name} first")
        return await self._add(request)

    async def _fetch_for_client(self, name: str) -> Version | None:
        try:
            return await self.fetch(name)
        except Exception as e:
            if kept.is_none(e):
                return None
            raise

    def _check_name(self, name: str, version: Version | None) -> None:
        """`policy` and `policy@57` stand for what they say."""
        adapter = name.partition("@")[0]
        if adapter not in self._active or (version is not None and name == version.name):
            return
        if version is None or version is not self._active[adapter] or name != adapter:
            raise ValueError(f"{name} is a name that Heddle gives: load under another one")

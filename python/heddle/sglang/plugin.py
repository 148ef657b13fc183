# SPDX-License-Identifier: Apache-2.0
"""The entry point of SGLang's plugin mechanism, `sglang.srt.plugins`.

`register` runs in each process of SGLang and hooks its functions, by SGLang's HookRegistry alone.  The plugin
is on where HEDDLE_BROKER and HEDDLE_ADAPTERS ask for it, SGLang is a release of seams.py with all names of
it, and the ranks are processes of this host.  Else it makes no thread and no socket, and changes no function:
one line of the log says why, and the server serves without it.
"""
from __future__ import annotations

import functools
import logging
import os
from importlib import metadata
from typing import Any

from heddle._inside import switch
from heddle.sglang import seams

_log = logging.getLogger("sglang.srt.heddle")
_RANKS_S = switch.RANKS_S
_APPLIES = ("rank_pattern", "rslora")     # features; scale.py puts them into what SGLang reads

_listener: Any = None           # of this process, where it is the first one that loads the plugin
_is_off = False                 # and that was said
_is_registered = False
_leader: Any = None             # of this process, when its server is up


def _off(why: str) -> None:
    """Once a process tree: the process that has the rank link says it, else the first one."""
    global _is_off
    if not _is_off and (_listener is not None or switch.is_first_process()):
        switch.say_off(_log, why)
    _is_off = True


def names() -> dict[str, tuple[str, ...]]:
    """HEDDLE_ADAPTERS: each adapter, and what requests may call its active version.  `policy=miles_lora` adds
    a name to `policy`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in switch.adapters():
        adapter, _, alias = text.partition("=")
        given = found.get(adapter, (adapter,))
        found[adapter] = given if not alias or alias in given else (*given, alias)
    return found


def _what_is_wrong_with_names() -> str | None:
    given = [name for of in names().values() for name in of]
    twice = sorted({name for name in given if given.count(name) > 1})
    return f"HEDDLE_ADAPTERS gives {', '.join(twice)} to two adapters" if twice else None


@functools.cache
def release() -> str:
    return metadata.version("sglang")


def register() -> None:
    """May be called again, and never raises.  A process below the one with the rank link is a rank, or has
    nothing to hook: that one has looked at the names.
    """
    global _is_registered
    if _is_off or _is_registered:
        return
    if not switch.has_rank_link_above():
        why = switch.why_not(_turn_on, switch.what_is_missing, _what_is_wrong_with_names,
                             lambda: switch.what_is_unknown("SGLang", release, seams))
    else:
        why = switch.why_not(_hook_ranks)
    if why is not None:
        _off(why)


def _turn_on() -> None:
    global _listener, _is_registered
    from heddle import _ranks
    _listener = _ranks.listen()
    os.environ[switch.LINK] = _listener.name
    _hook_server()
    _is_registered = True


def _hook_ranks() -> None:
    global _is_registered
    link_name = os.environ[switch.LINK]
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from heddle.sglang import loading
    manager = "sglang.srt.lora.lora_manager.LoRAManager"
    HookRegistry.register(f"{manager}.init_state", loading.connect(link_name), HookType.AFTER)
    HookRegistry.register(f"{manager}.load_lora_weights_from_tensors", loading.load_weights, HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.tp_worker.BaseTpWorker.load_lora_adapter_from_tensors",
                          loading.load_from_tensors, HookType.AROUND)
    _is_registered = True


def _hook_server() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    for target, name in ((f"{manager}._validate_and_resolve_lora", "resolve"),
                         (f"{manager}._wait_one_response", "wait"),
                         (f"{manager}.load_lora_adapter", "change"),
                         (f"{manager}.load_lora_adapter_from_tensors", "change"),
                         (f"{manager}.unload_lora_adapter", "change"),
                         ("sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase._resolve_lora_path",
                          "model")):
        HookRegistry.register(target, _around(name), HookType.AROUND)
    HookRegistry.register("sglang.srt.entrypoints.http_server.set_global_state", _server_is_made,
                          HookType.AFTER)


def _around(name: str) -> Any:
    """The leader's method of that name, while there is a leader."""
    def hook(original: Any, *args: Any, **named: Any) -> Any:
        if _leader is None:
            return original(*args, **named)
        return getattr(_leader, name)(original, *args, **named)
    hook.__name__ = hook.__qualname__ = f"heddle_{name}"
    return hook


def _server_is_made(_: Any, global_state: Any) -> None:
    """After set_global_state: its processes are there, and it does not serve yet."""
    manager = global_state.tokenizer_manager
    why = switch.why_not(lambda: _add_to(manager), lambda: _what_forbids(manager))
    if why is not None:
        _listener.close()                       # and with it go the links of ranks
        _off(why)


def _what_forbids(manager: Any) -> str | None:
    """By the options first: with some of them SGLang has another object in place of a tokenizer manager."""
    why = switch.what_instances_lack("SGLang", release, (manager, "server_args"))
    why = why or _what_options_forbid(manager.server_args)
    why = why or switch.what_instances_lack(
        "SGLang", release, (manager, "lora_registry"), (manager, "lora_ref_cache"),
        (manager, "pending_lora_unloads"), (getattr(manager, "lora_registry", None), "_counters"))
    if why is not None:
        return why
    loaded = manager.lora_registry.get_all_adapters()
    taken = [name for given in names().values() for name in given
             if name in loaded or name == manager.served_model_name]
    return f"the server has a model of the same name: {', '.join(taken)}" if taken else None


def _what_options_forbid(args: Any) -> str | None:
    if not args.enable_lora:
        return "the engine has no --enable-lora"
    if args.nnodes != 1 or args.dp_size != 1:
        return "it needs one replica, with all ranks on the host of the API server"
    for name, option in (("pp_size", "--pp-size"), ("tokenizer_worker_num", "--tokenizer-worker-num")):
        if getattr(args, name) != 1:
            return f"it was not proven with {option}"
    for name, option in (("enable_dp_attention", "--enable-dp-attention"),
                         ("speculative_algorithm", "--speculative-algorithm")):
        if getattr(args, name, None):
            return f"it was not proven with {option}"
    return None


def _add_to(manager: Any) -> None:
    from fastapi.responses import JSONResponse
    from sglang.srt.entrypoints.http_server import app

    from heddle._inside.answers import Middleware

    async def status() -> JSONResponse:
        """200 where every adapter has an active version here, else 503."""
        if _leader is None:
            return JSONResponse({"schema": "heddle/1", "kind": "sglang", "ok": False, "ready": False}, 503)
        return JSONResponse(_leader.status(), 200 if _leader.is_ready else 503)

    app.add_middleware(Middleware, start=functools.partial(_start, manager), stop=_stop, waits=True)
    app.add_api_route("/heddle/status", status, methods=["GET"])


async def _start(manager: Any) -> None:
    global _leader
    try:
        from heddle import _ranks
        from heddle.sglang.leader import Leader
        from heddle.sglang.loading import INSTANCE
        links = _listener.gather(INSTANCE, manager.server_args.tp_size, _RANKS_S)
        args = manager.server_args
        leader = Leader(manager, _ranks.Ranks(links), names(), open_worker,
                        args.max_loaded_loras or args.max_loras_per_batch - 1)
        await leader.start(switch.end_server)
    except Exception as e:
        _listener.close()
        _off(str(e))
        return
    _leader = leader
    say_on(manager.server_args)


async def _stop() -> None:
    global _leader
    leader, _leader = _leader, None
    if leader is not None:
        await leader.stop()


def say_on(args: Any) -> None:
    count = len(names())
    if args.max_loras_per_batch < 2 * count + 1:
        _log.warning("heddle: --max-loras-per-batch %d has no place for the active version and the one "
                     "before of each of %d adapters and for the base model, which takes one too: requests "
                     "to one wait for those to the other", args.max_loras_per_batch, count)
    if args.max_loaded_loras is not None and args.max_loaded_loras < 2 * count:
        _log.warning("heddle: --max-loaded-loras %d has no room for the active version and the one before of "
                     "each of %d adapters", args.max_loaded_loras, count)
    _log.info("heddle: on, for %s at %s", ", ".join(names()), os.environ["HEDDLE_BROKER"])


def open_worker() -> Any:
    from heddle.worker import Worker
    return Worker(adapters=list(names()), accepts=_APPLIES)

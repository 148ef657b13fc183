# SPDX-License-Identifier: Apache-2.0
"""In a rank of vLLM: versions as directories of heddle://, which vLLM's own loader reads.

`heddle://policy@57` is a directory that no disk has, with adapter_config.json and adapter_model.safetensors
in it.  Four names that the loader calls (seams.py) answer for such paths, and are vLLM's own for all others.
The loader's body stays vLLM's, and so do its checks, its evictions and its reloads.

A version that is staged is loaded and merged in the thread of the rank link, beside generation; the step loop
gets the finished model, once.  When vLLM has evicted it, the step loop loads it again by its path.  Each load
maps the memory anew, because vLLM scales tensors in place.
"""
from __future__ import annotations

import builtins
import io
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heddle import _ranks
from heddle.slot import Slot
from heddle.vllm import fit

SCHEME = "heddle://"
_NAMED = 3                      # modules, in the words of a refusal
_log = logging.getLogger("vllm.heddle")
is_under_the_loader = False     # in this process; a forked child has its parent's


def path_of(name: str) -> str:
    """Of a version under the name that it is served by, as `policy@57`."""
    return SCHEME + name


class Shelf:
    """The versions that this process has the memory of, by path.  Any thread."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}

    def put(self, path: str, slot: Slot) -> None:
        self._slots[path] = slot

    def take(self, path: str) -> None:
        slot = self._slots.pop(path, None)
        if slot is not None:
            slot.close()

    def file(self, path: str) -> tuple[Slot, str]:
        folder, _, name = path.rpartition("/")
        slot = self._slots.get(folder)
        if slot is None:
            raise FileNotFoundError(f"{folder} is not a version that this server has; GET /heddle/status "
                                    "lists them")
        return slot, name

    def open(self, path: str) -> io.StringIO:
        slot, name = self.file(path)
        if name != "adapter_config.json":
            raise FileNotFoundError(path)
        return io.StringIO(slot.config_bytes.decode())

    def is_file(self, path: str) -> bool:
        return self.file(path)[1] in ("adapter_config.json", "adapter_model.safetensors")

    def tensors(self, path: str) -> Tensors:
        slot, name = self.file(path)
        if name != "adapter_model.safetensors":
            raise FileNotFoundError(path)
        return Tensors(slot.torch())


class Tensors:
    """What the loader has of safetensors.safe_open."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: Any) -> None:
        self._tensors = {}

    def keys(self) -> list[str]:
        return list(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get_tensor(self, name: str) -> Any:
        return self._tensors[name]


class Instead:
    """A module with some of its names replaced: for one importer, not for the process."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _is_ours(path: Any) -> bool:
    return isinstance(path, str) and path.startswith(SCHEME)


def _chosen(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """By the first argument, a path."""
    def call(path: Any, *args: Any, **named: Any) -> Any:
        return ours(path) if _is_ours(path) else theirs(path, *args, **named)
    return call


class Builder:
    """What a rank does with the versions that the leader hands it (_ranks.Handler)."""

    def __init__(self, manager: Any, shelf: Shelf, load: Callable[..., Any]) -> None:
        self._manager, self._shelf, self._load = manager, shelf, load
        self._built: dict[str, Any] = {}        # tag -> a model that the step loop has not taken yet
        self._paths: dict[str, str] = {}
        self._lock = threading.Lock()

    def stage(self, tag: str, slot: Slot, fields: Mapping[str, Any]) -> None:
        from vllm.lora.request import LoRARequest
        request = LoRARequest(str(fields["name"]), int(fields["id"]), path_of(str(fields["name"])))
        with self._lock:
            self._paths[tag] = request.lora_path
        self._shelf.put(request.lora_path, slot)
        try:
            if self._has_experts():
                raise NotImplementedError("the plugin was not proven with a model that has experts (MoE); "
                                          "the plug, `python -m heddle.engine`, serves it")
            fit.check_halves({row.name: row.shape for row in slot.table})
            model = self._load(self._manager, request)
            self._manager._adapter_manager._create_merged_loras_inplace(model)
            self._check(model)
        except BaseException:
            self.drop(tag)
            raise
        with self._lock:
            self._built[tag] = model

    def _check(self, model: Any) -> None:
        """vLLM reads over LoRA of modules that have none in this server, without a word."""
        manager, applied = self._manager._adapter_manager, set()
        for name, module in manager.modules.items():
            lora = manager._get_lora_layer_weights(model, name)
            if lora:
                fit.check(name, module, lora)
                applied.add(id(lora))
        left = sorted(name for name, lora in model.loras.items() if id(lora) not in applied)
        if left:
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            raise ValueError(f"this server would read over the LoRA of {', '.join(left[:_NAMED])}{more}: "
                             "these have none here (--lora-target-modules)")

    def _has_experts(self) -> bool:
        modules = self._manager._adapter_manager.modules.values()
        return any("MoE" in type(module).__name__ for module in modules)

    def commit(self, tag: str) -> None:
        """Whether it will have a place: what raises in the step loop of a rank ends the engine, or leaves the
        answers of the others in their queues."""
        if tag not in self._paths:
            raise LookupError(f"{tag} is not staged here")
        manager = self._manager._adapter_manager
        for places, option in ((manager._active_adapters, "--max-loras"),
                               (manager._registered_adapters, "--max-cpu-loras")):
            if len(places.pinned_items) >= places.capacity:
                raise RuntimeError(f"all {places.capacity} places of {option} are pinned")

    def drop(self, tag: str) -> None:
        with self._lock:
            self._built.pop(tag, None)
            path = self._paths.pop(tag, None)
        if path is not None:
            self._shelf.take(path)

    def finished(self, request: Any) -> Any | None:
        """The step loop: the model of a request, if it was built ahead and not taken before."""
        with self._lock:
            tag = next((tag for tag, path in self._paths.items() if path == request.lora_path), "")
            model = self._built.get(tag)
            return self._built.pop(tag) if model is not None and model.id == request.lora_int_id else None


def put_under_the_loader(link_name: str) -> None:
    """Once a process: a LoRA manager that is created from now on connects its process, as a rank, to the
    leader whose link has this name.
    """
    global is_under_the_loader
    from vllm.lora import lora_model, peft_helper, worker_manager
    shelf = Shelf()
    builders: dict[int, Builder] = {}       # by LoRA manager
    load = worker_manager.WorkerLoRAManager._load_adapter
    create = worker_manager.LRUCacheWorkerLoRAManager.create_lora_manager

    def load_adapter(self: Any, lora_request: Any) -> Any:
        builder = builders.get(id(self)) if _is_ours(lora_request.lora_path) else None
        built = builder.finished(lora_request) if builder is not None else None
        return load(self, lora_request) if built is None else built

    def create_lora_manager(self: Any, model: Any, vllm_config: Any) -> Any:
        created = create(self, model, vllm_config)
        builders[id(self)] = builder = Builder(self, shelf, load)
        _connect(link_name, builder, vllm_config)
        return created

    worker_manager.get_adapter_absolute_path = _chosen(lambda path: path,
                                                       worker_manager.get_adapter_absolute_path)
    peft_helper.open = _chosen(shelf.open, builtins.open)
    lora_model.safetensors = Instead(lora_model.safetensors,
                                     safe_open=_chosen(shelf.tensors, lora_model.safetensors.safe_open))
    lora_model.os = Instead(os, path=Instead(os.path, isfile=_chosen(shelf.is_file, os.path.isfile)))
    worker_manager.WorkerLoRAManager._load_adapter = load_adapter
    worker_manager.LRUCacheWorkerLoRAManager.create_lora_manager = create_lora_manager
    is_under_the_loader = True


def _connect(link_name: str, builder: Builder, vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    hello = {"instance": vllm_config.instance_id, "pid": os.getpid(),
             "rank": getattr(parallel, "data_parallel_index", 0) * parallel.world_size + parallel.rank}
    _ranks.join(link_name, hello, builder, _log)

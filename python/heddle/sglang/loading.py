# SPDX-License-Identifier: Apache-2.0
"""In a rank of SGLang: versions are built in the thread of the rank link, beside generation, and handed to
SGLang's own loader when its from-tensors request comes for one.

The request has load_format="heddle" and says a tag; the memory came over the rank link before.  SGLang's own
code builds the adapter, on a copy of its LoRA manager that has no other adapter, and then writes it into a
pool that has no memory: what it would refuse in the midst of generation it refuses here, in its own words.
"""
from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle import _ranks
from heddle.sglang import scale
from heddle.slot import Slot

FORMAT = "heddle"
INSTANCE = "sglang"             # a process tree has one engine
_log = logging.getLogger("sglang.srt.heddle")
_POOLS = ("embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer", "lm_head_B_buffer",
          "new_embeddings_buffer")
_builders: dict[int, Builder] = {}      # by LoRA manager


@dataclass(frozen=True)
class Built:
    """In place of tensors, for the loader."""

    config: dict[str, Any]
    adapter: Any                # SGLang's LoRAAdapter


class Builder:
    """What a rank does with the versions that the leader hands it (_ranks.Handler)."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._built: dict[str, Built] = {}      # by tag; kept, for SGLang may evict what it has loaded
        self._lock = threading.Lock()

    def stage(self, tag: str, slot: Slot, fields: Mapping[str, Any]) -> None:
        with slot:                              # the tensors go on holding the memory
            if _has_experts(self._manager):
                raise NotImplementedError("the plugin was not proven with a model that has experts (MoE); "
                                          "the plug, `python -m heddle.engine`, serves it")
            config, tensors = scale.fitted(slot.config, slot.torch())
        scale.placed(tensors, [path for layer in self._manager.lora_modules for path in layer])
        tensors = scale.completed(tensors, self._manager.memory_pool.target_modules,
                                  sizes_of(self._manager.base_hf_config))
        adapter = build(self._manager, str(fields["name"]), config, tensors)
        prove(self._manager, adapter)
        with self._lock:
            self._built[tag] = Built(config, adapter)

    def commit(self, tag: str) -> None:
        self.built(tag)

    def drop(self, tag: str) -> None:
        with self._lock:
            self._built.pop(tag, None)

    def built(self, tag: str) -> Built:
        with self._lock:
            found = self._built.get(tag)
        if found is None:
            raise LookupError(f"{tag} is not staged here")
        return found


def _has_experts(manager: Any) -> bool:
    return any("MoE" in type(module).__name__ for layer in manager.lora_modules for module in layer.values())


def sizes_of(config: Any) -> dict[str, int]:
    """Of attention, by the configuration of the model."""
    heads = getattr(config, "num_attention_heads", 0)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(heads, 1)
    pairs = (getattr(config, "num_key_value_heads", None) or heads) * size
    return {"q_proj": heads * size, "k_proj": pairs, "v_proj": pairs}


def build(manager: Any, name: str, config: dict[str, Any], tensors: dict[str, Any]) -> Any:
    """By SGLang's own body, where generation does not look."""
    from sglang.srt.lora.lora_registry import LoRARef
    apart = copy.copy(manager)
    apart.loras, apart.configs, apart.lora_refs = {}, {}, {}
    ref = LoRARef(lora_name=name, lora_path=FORMAT, pinned=False)
    answer = apart.load_lora_adapter_from_tensors(ref, tensors, config, None)
    if not answer.success:
        raise RuntimeError(answer.error_message)
    return apart.loras[ref.lora_id]


def prove(manager: Any, adapter: Any) -> None:
    """Raises what SGLang would raise in a step that loads the adapter into its place: that ends the rank."""
    pool = copy.copy(manager.memory_pool)
    for name in ("A_buffer", "B_buffer"):
        setattr(pool, name, {module: [_without_memory(of) for of in layers]
                             for module, layers in getattr(pool, name).items()})
    for name in _POOLS:
        setattr(pool, name, {module: _without_memory(of) for module, of in getattr(pool, name).items()})
    pool.strict_loading, pool.pin_memory_available = True, False
    pool.load_lora_weight_to_buffer(adapter.uid, 0, adapter, manager.lora_modules,
                                    manager.embed_tokens_module, manager.lm_head_module)


def _without_memory(buffer: Any) -> Any:
    """One place of a pool's buffer.  A layer that has not the module has no buffer."""
    import torch
    return None if buffer is None else torch.empty((1, *buffer.shape[1:]), dtype=buffer.dtype, device="meta")


# -- hooks ---------------------------------------------------------------------------------------------------

def connect(link_name: str) -> Callable[..., None]:
    """After LoRAManager.init_state: the process is a rank of the leader whose link has this name."""
    def connected(_: Any, manager: Any, *args: Any, **named: Any) -> None:
        hello = {"instance": INSTANCE, "pid": os.getpid(), "rank": manager.memory_pool.tp_rank}
        _builders[id(manager)] = builder = Builder(manager)
        _ranks.join(link_name, hello, builder, _log)
    return connected


def load_from_tensors(original: Callable[..., Any], worker: Any, request: Any) -> Any:
    """Around BaseTpWorker.load_lora_adapter_from_tensors.  Never raises: that would end the rank."""
    if request.load_format != FORMAT:
        return original(worker, request)
    manager = worker.model_runner.lora_manager
    try:
        built = _builders[id(manager)].built(str(request.config_dict.get("tag")))
    except LookupError:
        return manager.create_lora_update_result(success=False,
                                                 error_message=f"{request.lora_name} is not staged here")
    from sglang.srt.lora.lora_registry import LoRARef
    # not request.to_ref(), by which all have the same path: SGLang warns of that
    ref = LoRARef(lora_id=request.lora_id, lora_name=request.lora_name,
                  lora_path=f"heddle://{request.lora_name}", pinned=request.pinned)
    return manager.load_lora_adapter_from_tensors(ref, built, built.config, None)


def load_weights(original: Callable[..., Any], manager: Any, lora_ref: Any, tensors: Any) -> Any:
    """Around LoRAManager.load_lora_weights_from_tensors: what is built already."""
    if not isinstance(tensors, Built):
        return original(manager, lora_ref, tensors)
    tensors.adapter.uid = lora_ref.lora_id
    manager.loras[lora_ref.lora_id] = tensors.adapter
    return None

# SPDX-License-Identifier: Apache-2.0
"""The private names of SGLang that the plugin relies on, and the releases in which that was proven.

heddle._inside.seams says who reads them.
"""
from __future__ import annotations

from heddle._inside.seams import Attribute, Function, Global, Seam, missing

__all__ = ["Attribute", "Function", "Global", "RELEASES", "SEAMS", "is_proven", "missing"]

# Releases whose answers were compared, token by token, with PEFT's (tests/engines/run).
RELEASES = ("0.5.23",)

_MANAGER, _CONTROL = "sglang.srt.managers.tokenizer_manager", "sglang.srt.managers.tokenizer_control_mixin"
_LORA, _POOL = "sglang.srt.lora.lora_manager", "sglang.srt.lora.mem_pool"
_STRUCTS, _HTTP = "sglang.srt.managers.io_struct", "sglang.srt.entrypoints.http_server"

SEAMS: tuple[Seam, ...] = (
    # the leader: where the server tells that its tokenizer manager is there, and its application
    Function(_HTTP, "set_global_state", ("global_state",)),
    Global(_HTTP, "app"),
    # names: before SGLang looks an adapter up, and where it tells a request's answer
    Function(_MANAGER, "TokenizerManager._validate_and_resolve_lora", ("self", "obj"),
             uses=("_resolve_lora_path",)),
    Function(_MANAGER, "TokenizerManager._resolve_lora_path", ("self", "obj"),
             uses=("lora_ref_cache", "acquire")),
    Function(_MANAGER, "TokenizerManager._wait_one_response", ("self", "obj", "request")),
    Function("sglang.srt.entrypoints.openai.serving_base", "OpenAIServingBase._resolve_lora_path",
             ("self", "request_model", "explicit_lora_path")),
    # versions into SGLang and out of it
    Function(_CONTROL, "TokenizerControlMixin.load_lora_adapter", ("self", "obj", "_")),
    Function(_CONTROL, "TokenizerControlMixin.load_lora_adapter_from_tensors", ("self", "obj", "_"),
             uses=("lora_update_lock", "lora_ref_cache")),
    Function(_CONTROL, "TokenizerControlMixin.unload_lora_adapter", ("self", "obj", "_")),
    Global(_STRUCTS, "LoadLoRAAdapterFromTensorsReqInput"),
    Global(_STRUCTS, "UnloadLoRAAdapterReqInput"),
    Global(_STRUCTS, "LoRAUpdateOutput"),
    Attribute(_MANAGER, "TokenizerManager", "lora_registry"),
    Attribute(_MANAGER, "TokenizerManager", "lora_ref_cache"),
    Attribute("sglang.srt.lora.lora_registry", "LoRARegistry", "_counters"),
    Function("sglang.srt.lora.lora_registry", "LoRARegistry.get_all_adapters", ("self",)),
    # a rank: SGLang's own loader, run beside generation
    Function("sglang.srt.managers.tp_worker", "BaseTpWorker.load_lora_adapter_from_tensors",
             ("self", "recv_req")),
    Function(_LORA, "LoRAManager.init_state", ("self", "max_lora_rank", "target_modules", "lora_paths"),
             uses=("init_memory_pool",)),
    Function(_LORA, "LoRAManager.load_lora_adapter_from_tensors",
             ("self", "lora_ref", "tensors", "config_dict", "added_tokens_config")),
    Function(_LORA, "LoRAManager.load_lora_weights_from_tensors", ("self", "lora_ref", "tensors")),
    Function(_LORA, "LoRAManager.create_lora_update_result", ("self", "success", "error_message")),
    Attribute(_LORA, "LoRAManager", "loras"),
    Attribute(_LORA, "LoRAManager", "configs"),
    Attribute(_LORA, "LoRAManager", "lora_refs"),
    Attribute(_LORA, "LoRAManager", "base_hf_config"),
    Attribute(_LORA, "LoRAManager", "memory_pool"),
    Attribute(_LORA, "LoRAManager", "lora_modules"),
    Attribute(_LORA, "LoRAManager", "embed_tokens_module"),
    Attribute(_LORA, "LoRAManager", "lm_head_module"),
    # a rank: the pool that an adapter is tried in
    Function(_POOL, "LoRAMemoryPool.load_lora_weight_to_buffer",
             ("self", "uid", "buffer_id", "lora_adapter", "lora_modules", "lora_embed_tokens_module",
              "lora_lm_head_module")),
    *(Attribute(_POOL, "LoRAMemoryPool", name) for name in (
        "A_buffer", "B_buffer", "embedding_A_buffer", "embedding_B_buffer", "lm_head_A_buffer",
        "lm_head_B_buffer", "new_embeddings_buffer", "strict_loading", "target_modules", "tp_rank")),
)


def is_proven(release: str) -> bool:
    return release.partition("+")[0] in RELEASES

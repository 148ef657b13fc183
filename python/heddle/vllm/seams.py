# SPDX-License-Identifier: Apache-2.0
"""The private names of vLLM that the plugin relies on, and the releases in which that was proven.

heddle._inside.seams says who reads them.
"""
from __future__ import annotations

from heddle._inside.seams import Attribute, Function, Global, Seam, missing

__all__ = ["Attribute", "Function", "Global", "OFFLINE", "RELEASES", "RELEASES_OF_WEIGHTS", "SEAMS",
           "WEIGHTS", "is_proven", "missing"]

# Releases (their first two numbers) whose answers were compared, token by token, with PEFT's
# (tests/engines/run).  In others the plugin stays off, though the names below are there in more of them.
RELEASES = ("0.26", "0.31", "0.32")
RELEASES_OF_WEIGHTS = ("0.32",)         # of heddle.weight_transfer, which is refused in others

_MANAGER, _MODEL = "vllm.lora.worker_manager", "vllm.lora.lora_model"
_LAYERS = "vllm.lora.layers"
_MODELS, _ENGINE = "vllm.entrypoints.openai.models.serving", "vllm.v1.engine.async_llm"

SEAMS: tuple[Seam, ...] = (
    # a rank, loading: the virtual directory
    Global(_MANAGER, "get_adapter_absolute_path"),
    Global(_MANAGER, "LoRAAdapterNotFoundError"),
    Function(_MANAGER, "WorkerLoRAManager._load_adapter", ("self", "lora_request"),
             uses=("get_adapter_absolute_path", "from_local_dir", "from_local_checkpoint")),
    Function("vllm.lora.peft_helper", "PEFTHelper.from_local_dir", ("cls", "lora_path"),
             uses=("open", "load")),
    Global(_MODEL, "safetensors"),
    Global(_MODEL, "os"),
    Function(_MODEL, "LoRAModel.from_local_checkpoint", ("cls", "lora_dir"),
             uses=("safe_open", "isfile", "get_tensor")),
    # a rank, building ahead: what a loaded adapter is merged by
    Function(_MANAGER, "LRUCacheWorkerLoRAManager.create_lora_manager", ("self", "model", "vllm_config")),
    Attribute(_MANAGER, "WorkerLoRAManager", "_adapter_manager"),
    Function("vllm.lora.model_manager", "LoRAModelManager._create_merged_loras_inplace",
             ("self", "lora_model")),
    Attribute("vllm.lora.model_manager", "LoRAModelManager", "modules"),
    Function("vllm.lora.model_manager", "LoRAModelManager._get_lora_layer_weights",
             ("self", "lora_model", "module_name")),
    Function("vllm.lora.model_manager", "LoRAModelManager.activate_adapter", ("self", "lora_id"),
             uses=("modules", "_get_lora_layer_weights")),
    Attribute(_MODEL, "LoRAModel", "loras"),
    # and whether it fits
    Attribute("vllm.lora.lora_weights", "LoRALayerWeights", "lora_a"),
    Attribute("vllm.lora.lora_weights", "LoRALayerWeights", "lora_b"),
    Function(_LAYERS + ".base_linear", "BaseLinearLayerWithLoRA.set_lora",
             ("self", "index", "lora_a", "lora_b"),
             uses=("lora_a_stacked", "lora_b_stacked", "n_slices", "tp_size", "slice_lora_a",
                   "slice_lora_b")),
    Attribute(_LAYERS + ".base_linear", "BaseLinearLayerWithLoRA", "tp_rank"),
    Attribute(_LAYERS + ".column_parallel_linear", "MergedColumnParallelLinearWithLoRA", "output_ids"),
    Attribute(_LAYERS + ".column_parallel_linear", "MergedQKVParallelLinearWithLoRA", "output_ids"),
    *(Attribute(_LAYERS + ".column_parallel_linear", "QKVParallelLinearWithLoRA", name)
      for name in ("q_proj_total_size", "kv_proj_total_size")),
    Function(_LAYERS + ".column_parallel_linear", "MergedColumnParallelLinearWithLoRA.set_lora",
             ("self", "index", "lora_a", "lora_b"),
             uses=("lora_a_stacked", "lora_b_stacked", "n_slices", "tp_size", "slice_lora_a",
                   "slice_lora_b")),
    Attribute("vllm.lora.model_manager", "LoRAModelManager", "_active_adapters"),
    Attribute("vllm.lora.model_manager", "LoRAModelManager", "_registered_adapters"),
    # add_lora between two steps may give a place of the running batch away: each step looks where it is
    Function("vllm.lora.model_manager", "LoRAModelManager.set_adapter_mapping", ("self", "mapping"),
             uses=("_last_slot_layout", "lora_index_to_id")),
    # the leader: names, ids, and which request uses which
    Attribute(_MODELS, "OpenAIServingModels", "lora_requests"),
    Attribute(_MODELS, "OpenAIServingModels", "lora_id_counter"),
    Function(_MODELS, "OpenAIServingModels.model_name", ("self", "lora_request")),
    Function(_MODELS, "OpenAIServingModels.load_lora_adapter", ("self", "request"),
             uses=("add_lora", "lora_requests")),
    Function(_MODELS, "OpenAIServingModels.unload_lora_adapter", ("self", "request"),
             uses=("lora_requests",)),
    # versions that are fetched at their first request
    Attribute(_MODELS, "OpenAIServingModels", "lora_resolvers"),
    Function(_MODELS, "OpenAIServingModels.resolve_lora", ("self", "lora_name"),
             uses=("lora_resolvers", "resolve_lora", "add_lora", "lora_requests")),
    Function(_ENGINE, "AsyncLLM.add_lora", ("self", "lora_request")),
    Function(_ENGINE, "AsyncLLM.remove_lora", ("self", "lora_id")),
    Function(_ENGINE, "AsyncLLM.add_request", ("self", "request_id", "prompt", "params", "arrival_time",
                                               "lora_request")),
    Function(_ENGINE, "AsyncLLM.generate", ("self", "prompt"), uses=("add_request",)),
    Function(_ENGINE, "AsyncLLM.encode", ("self", "prompt"), uses=("add_request",)),
    Attribute(_ENGINE, "AsyncLLM", "output_processor"),
    Attribute("vllm.v1.engine.output_processor", "OutputProcessor", "request_states"),
    Attribute("vllm.v1.engine.output_processor", "RequestState", "lora_request"),
)


def is_proven(release: str, releases: tuple[str, ...] = RELEASES) -> bool:
    return ".".join(release.split(".")[:2]) in releases and "rc" not in release and "dev" not in release


# attach() alone
_LLM = "vllm.v1.engine.llm_engine"
OFFLINE: tuple[Seam, ...] = (
    Function(_LLM, "LLMEngine.add_lora", ("self", "lora_request")),
    Function(_LLM, "LLMEngine.remove_lora", ("self", "lora_id")),
    Attribute(_LLM, "LLMEngine", "output_processor"),
)

# heddle.weight_transfer and reload alone.  Only a server that asks for the backend imports these.
_TRANSFER = "vllm.distributed.weight_transfer"
_RELOAD = "vllm.model_executor.model_loader.reload"
WEIGHTS: tuple[Seam, ...] = (
    *(Global(f"{_TRANSFER}.base", name) for name in ("TrainerInitInfo", "WeightTransferInitInfo",
                                                     "WeightTransferUpdateInfo")),
    Function(f"{_TRANSFER}.base", "WeightTransferEngine.__init__",
             ("self", "config", "vllm_config", "device", "model")),
    *(Attribute(f"{_TRANSFER}.base", "WeightTransferEngine", name) for name in (
        "vllm_config", "model_config", "model")),
    Function(f"{_TRANSFER}.base", "WeightTransferEngine.parse_update_info", ("self", "update_dict"),
             uses=("update_info_cls",)),
    *(Function(f"{_TRANSFER}.base", f"WeightTransferEngine.{name}", parameters) for name, parameters in (
        ("init_transfer_engine", ("self", "init_info")), ("start_weight_update", ("self",)),
        ("update_weights", ("self", "update_info")), ("receive_weights", ("self", "update_info")),
        ("finish_weight_update", ("self",)), ("shutdown", ("self",)))),
    Function(f"{_TRANSFER}.base", "TrainerWeightTransferEngine.__init__", ("self",),
             uses=("client", "source", "is_sender")),
    *(Function(f"{_TRANSFER}.factory", f"{registry}.register_engine", ("cls", "name"), uses=("_registry",))
      for registry in ("WeightTransferEngineFactory", "WeightTransferTrainerFactory")),
    *(Function(_RELOAD + ".layerwise", name, parameters) for name, parameters in (
        ("get_layerwise_info", ("layer",)), ("initialize_layerwise_reload", ("model",)),
        ("finalize_layerwise_processing", ("model", "model_config")))),
    Function(_RELOAD + ".layerwise", "make_online_process_loader", ("layer", "param_name"),
             uses=("wraps", "online_process_loader")),
    *(Global(_RELOAD, name) for name in ("initialize_layerwise_reload", "finalize_layerwise_reload")),
    Function(_RELOAD + ".meta", "restore_layer_on_meta", ("layer", "info")),
    Function(_RELOAD + ".meta", "to_meta_tensor", ("tensor",)),
    Function(_RELOAD + ".types", "LayerReloadingInfo.reset", ("self",)),
)

# SPDX-License-Identifier: Apache-2.0
"""An adapter as SGLang reads it.

SGLang reads r, lora_alpha and target_modules, and serves every module with lora_alpha / r.  So rsLoRA, alpha
and rank patterns are put into those: one scale for all modules goes into lora_alpha; where modules differ,
each one's own is multiplied into its B, and lora_alpha is r; a smaller rank is filled up with zeros.
target_modules names what the adapter has tensors of, because SGLang skips others without a word.

SGLang has q, k and v in one module, and gate and up in one, and wants to find all of them in an adapter:
zeros stand for those that it has not.

Pure: torch alone.  B may be written to, as it is private (heddle.slot).
"""
from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

_HALF = re.compile(r"(?P<module>.+)\.(?P<kind>lora_(?:embedding_)?)(?P<half>[AB])(?P<end>\.weight)?")
_ROOT = "base_model.model."
_OUTER = ("embed_tokens", "lm_head")
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Unfit(ValueError):
    """SGLang cannot serve it as it was trained."""


@dataclass
class _Module:
    """A and B, with the names of their tensors."""

    name: str
    a: str = ""
    b: str = ""


def fitted(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """-> SGLang's configuration, and tensors.  Raises Unfit."""
    modules = _modules_of(tensors)
    outer = [module.name for module in modules if module.name.rpartition(".")[2] in _OUTER]
    if outer:
        raise Unfit(f"SGLang gives LoRA of {' and '.join(outer)} to other requests of a batch too")
    ranks = {module.name: _rank_of(module, tensors) for module in modules}
    scales = {name: _scale_of(config, name, rank) for name, rank in ranks.items()}
    rank = max(ranks.values())
    is_one = len(set(scales.values())) == 1
    found: dict[str, Any] = {}
    for module in modules:
        a, b = tensors[module.a], tensors[module.b]
        if not is_one:
            b.mul_(scales[module.name])
        found[module.a], found[module.b] = _filled(a, 0, rank), _filled(b, 1, rank)
    alpha = rank * next(iter(scales.values())) if is_one else float(rank)
    targets = sorted({module.name.rpartition(".")[2] for module in modules})
    return {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets}, found


def _modules_of(tensors: Mapping[str, Any]) -> list[_Module]:
    found: dict[str, _Module] = {}
    for name in tensors:
        if name.endswith(".base_layer.weight"):         # the base model's own, which PEFT saves beside a LoRA
            continue
        match = _HALF.fullmatch(name)
        if match is None:
            raise Unfit(f"SGLang does not apply the tensor {name}")
        path = match["module"].removeprefix(_ROOT)
        module = found.setdefault(path, _Module(path))
        if match["half"] == "A":
            module.a = name
        else:
            module.b = name
    for module in found.values():
        if not module.a or not module.b:
            raise Unfit(f"{module.name} has lora_{'B' if module.b else 'A'} alone")
    if not found:
        raise Unfit("the adapter has no LoRA tensor")
    return list(found.values())


def _rank_of(module: _Module, tensors: Mapping[str, Any]) -> int:
    a, b = tensors[module.a], tensors[module.b]
    if a.dim() != 2 or b.dim() != 2:
        raise Unfit(f"{module.name} has {a.dim()} dimensions; the plugin takes 2")
    if a.shape[0] != b.shape[1]:
        raise Unfit(f"{module.name} has {tuple(a.shape)} in A and {tuple(b.shape)} in B")
    return int(a.shape[0])


def _scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    """As PEFT: alpha / r, or alpha / sqrt(r)."""
    alpha = _of_pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_pattern(pattern: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """As PEFT: the first key that is the module's name, or the end of it after a dot."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), otherwise)


def _filled(half: Any, dim: int, rank: int) -> Any:
    """With zeros, up to the rank."""
    if half.shape[dim] == rank:
        return half
    shape = list(half.shape)
    shape[dim] = rank
    found = half.new_zeros(shape)
    found.narrow(dim, 0, half.shape[dim]).copy_(half)
    return found


def placed(tensors: Mapping[str, Any], has: Collection[str]) -> None:
    """`has`: the paths of the modules of the model that take LoRA, as SGLang names them.  Raises Unfit:
    SGLang looks at the number of a layer and the end of a name alone.  It would drop a tensor of none of them
    without a word, or put that of a tower into the layer of the language model that has the same number.
    """
    for module in _modules_of(tensors):
        path, _, part = module.name.rpartition(".")
        whole = next((whole for whole, parts in _FUSED.items() if part in parts), part)
        if not {module.name, f"{path}.{whole}"} & set(has):
            raise Unfit(f"SGLang has no LoRA of {module.name} in this model, and would not apply it")


def completed(tensors: Mapping[str, Any], has: Collection[str], sizes: Mapping[str, int]) -> dict[str, Any]:
    """`has`: the modules of the model, by SGLang's names; `sizes`: what its q, k and v give, of all heads."""
    found = dict(tensors)
    modules = sorted({name.partition(".lora_")[0] for name in tensors})
    for whole, parts in _FUSED.items():
        for path, _, part in (module.rpartition(".") for module in modules):
            if whole not in has or part not in parts:
                continue
            a, b = (found[f"{path}.{part}.lora_{half}.weight"] for half in "AB")
            for other in parts:
                if f"{path}.{other}.lora_A.weight" not in found:
                    found[f"{path}.{other}.lora_A.weight"] = a.new_zeros(a.shape)
                    found[f"{path}.{other}.lora_B.weight"] = b.new_zeros((sizes.get(other, b.shape[0]),
                                                                          b.shape[1]))
    return found

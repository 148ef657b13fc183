# SPDX-License-Identifier: Apache-2.0
"""heddle.peft: a version into a live PeftModel, in place."""
from __future__ import annotations

import bisect
import json
from collections.abc import Mapping
from typing import Any

from heddle import _model, _native
from heddle.tensors import Tensor, extent, is_numpy, is_torch, torch_dtype
from heddle.updates import HeldVersion

__all__ = ["load_into"]

# fields of a LoraConfig that decide what the tensors compute: a model that differs in one of these would
# compute something else with them
_MEANING = {
    "r": "scales the product: alpha / r",
    "lora_alpha": "scales the product",
    "rank_pattern": "r of some modules",
    "alpha_pattern": "lora_alpha of some modules",
    "use_rslora": "scales by alpha / sqrt(r)",
    "use_dora": "normalises the sum with the base's weight",
    "use_qalora": "averages groups of the input first",
    "qalora_group_size": "how large these groups are",
    "use_bdlora": "takes a factor for the blocks of a diagonal, so many of them",
    "kasa_config": "has a third factor, and truncates the base's weight",
    "arrow_config": "mixes several adapters, so many and so sharply",
    "fan_in_fan_out": "transposes the product",
    "bias": "says whose biases the tensors replace",
    "alora_invocation_tokens": "the adapter works only after these tokens",
    "trainable_token_indices": "says which rows of the embedding the tensors replace",
    "layer_replication": "says which layer of the base lies under which of the adapter",
    "init_lora_weights": "pissa, olora, corda, loftq and lora_ga subtract from the base's weight what the "
                         "adapter began with",
    "loftq_config": "how coarse loftq made the base",
}
# ... and those that do not
_NO_MEANING = {
    "task_type": "says what the base's head is for",
    "peft_type": "only LoRA comes here",
    "auto_mapping": "how to load the base",
    "peft_version": "who wrote the file",
    "base_model_name_or_path": "a path of the trainer's machine, as often as not",
    "revision": "goes with the path",
    "inference_mode": "what is trained",
    "target_modules": "the tensors' names say it",
    "exclude_modules": "the tensors' names say it",
    "modules_to_save": "the tensors' names say it",
    "layers_to_transform": "the tensors' names say it",
    "layers_pattern": "the tensors' names say it",
    "target_parameters": "the tensors' names say it: the order is the module's",
    "lora_bias": "the tensors' names say it",
    "lora_dropout": "in training alone",
    "monteclora_config": "noise in training alone",
    "velora_config": "what is kept for the backward pass",
    "eva_config": "how A begins; ranks that follow from it are in rank_pattern",
    "corda_config": "data that the beginning is computed from",
    "lora_ga_config": "data that the beginning is computed from",
    "megatron_config": "the same product, cut differently",
    "megatron_core": "the same product, cut differently",
    "runtime_config": "never saved",
    "ensure_weight_tying": "which tensors are one: they are compared before they are loaded",
}
_ON_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_EXACT = {"F16": ("F32", "F64"), "BF16": ("F32", "F64"), "F32": ("F64",), "F8_E5M2": ("F16", "BF16", "F32"),
          "F8_E4M3": ("F16", "BF16", "F32"),
          "I8": ("I16", "I32", "I64"), "U8": ("I16", "I32", "I64"), "I16": ("I32", "I64"), "I32": ("I64",)}
_SHOWN = 5


def load_into(model: Any, a: Any, adapter: str = "default") -> None:
    """Copies a version's tensors into the adapter of a live model: all of them, or, if anything does not fit,
    none.

    model    a PeftModel (also compiled or wrapped, not sharded) whose adapter has the same structure: the
             same keys and shapes
    a        a Snapshot or Update, or a mapping of PEFT's on-disk names to tensors (`Tensor`, torch or numpy)
    adapter  the adapter's name in the model

    Before a byte moves everything is checked: names, shapes, types (a type that holds every value of the
    version's will do: PEFT keeps bf16 adapters as f32), and of a Snapshot or Update the fields of the
    configuration that decide what the tensors compute (r, lora_alpha, rank_pattern, alora_invocation_tokens,
    ...).  The parameters stay the same objects, so optimizers and compiled graphs keep them.  The calling
    thread does the copy; no forward pass may run meanwhile.

    Memory is checked too: tensors that were freed or are on "meta", parameters that are read-only in torch
    (inference tensors) or with elements at one place (expanded), tied parameters that would get different
    values.  What is loaded may lie in the model's own memory (parameters that change places): it is copied
    first.

    Raises BadAdapter (bad_adapter: names, shapes, configuration, tied parameters), UsageError (types; memory;
    a merged or sharded adapter; no PeftModel), NotFound.
    """
    if not isinstance(a, (Mapping, HeldVersion)):
        raise _native.error("usage", "there is nothing to load",
                            expected="a Snapshot, an Update, or a mapping of names to tensors",
                            found=type(a).__name__,
                            hint="with worker.acquire(adapter) as a: load_into(model, a)")
    inner = _model.unwrapped(model, _model.LOAD)
    plan, _ = _model.plan_of(inner, adapter, _model.LOAD)
    _check_model(inner, adapter, plan)
    tensors: Mapping[str, Any] = a if isinstance(a, Mapping) else a.tensors
    if not isinstance(a, Mapping):
        _check_meaning(a.config, json.loads(plan.config), adapter)
    _check_names(plan, tensors, adapter)
    sources = [_check_row(row, tensors[row[0]]) for row in plan.table.rows]
    _check_targets(plan, sources)
    _model.copy(plan.parameters, _apart(plan.parameters, sources))


def _check_model(model: Any, adapter: str, plan: _model.Plan) -> None:
    if any(_model.is_sharded(p) for p in plan.parameters):
        raise _native.error("usage",
                            "the model is sharded over ranks: load the version where the model is whole",
                            found="sharded parameters")
    for name, module in model.named_modules():
        if adapter in (getattr(module, "merged_adapters", None) or ()):
            raise _native.error("usage",
                                f"the adapter {adapter!r} is merged into {name}: what is loaded would not be "
                                "used",
                                hint="call model.unmerge_adapter() first")


def _meaning(config: dict[str, Any], field: str) -> Any:
    """What a field says, with one value for all that mean the same (None: nothing)."""
    value = config.get(field) or None
    how = str(config.get("init_lora_weights")).lower()
    if field == "init_lora_weights":
        return how if how.startswith(_ON_THE_BASE) else None
    unused = {"loftq_config": how != "loftq", "qalora_group_size": not config.get("use_qalora"),
              "bias": value == "none"}
    if unused.get(field):
        return None
    return value is not None if field == "kasa_config" else value       # what is in it steers the training


def _check_meaning(theirs: dict[str, Any], ours: dict[str, Any], adapter: str) -> None:
    """Fields that neither table has, of a later PEFT, count where both sides have them: what one of them
    lacks has a default that only it knows.
    """
    unknown = sorted((theirs.keys() & ours.keys()) - _MEANING.keys() - _NO_MEANING.keys())
    for field in (*_MEANING, *unknown):
        if _meaning(theirs, field) != _meaning(ours, field):
            raise _native.error("bad_adapter",
                                f"the version was trained with another {field} than the adapter {adapter!r} "
                                "of this model has",
                                expected=f"{field} = {ours.get(field)!r}",
                                found=f"{field} = {theirs.get(field)!r}",
                                hint="make the model's adapter from the version's config: "
                                     "peft.LoraConfig(**fields)")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _check_names(plan: _model.Plan, tensors: Mapping[str, Any], adapter: str) -> None:
    want, have = {name for name, _, _ in plan.table.rows}, set(tensors)
    if want != have:
        # the keys of a mapping may be anything
        lacking, strange = sorted(want - have), sorted(map(str, have - want))
        raise _native.error("bad_adapter",
                            f"the tensors are not those of the adapter {adapter!r} of this model",
                            expected=f"also {_some(lacking)}" if lacking
                            else f"these {len(want)} tensors and no others",
                            found=f"also {_some(strange)}" if strange
                            else f"{len(have)} tensors, without those",
                            hint="make the model's adapter from the version's config: "
                                 "peft.LoraConfig(**fields)")


def _check_row(row: tuple[str, str, tuple[int, ...]], tensor: Any) -> Any:
    """The tensor as torch's, if it fits."""
    name, dtype, shape = row
    if isinstance(tensor, Tensor):
        kind, extents = tensor.dtype, tensor.shape
    else:
        from heddle.tensors import describe
        kind, extents = describe(name, tensor)
    if extents != shape:
        raise _native.error("bad_adapter", f"tensor {name} has another shape", expected=str(list(shape)),
                            found=str(list(extents)))
    if kind != dtype and dtype not in _EXACT.get(kind, ()):
        raise _native.error("usage", f"tensor {name} has a type that the model's cannot hold", expected=dtype,
                            found=kind,
                            hint="cast the model's adapter, or publish in its type")
    return _as_torch(tensor, kind)


def _as_torch(tensor: Any, kind: str) -> Any:
    if isinstance(tensor, Tensor):
        return tensor.torch()
    if is_torch(tensor):
        return tensor
    assert is_numpy(tensor)
    import numpy
    import torch
    # ml_dtypes: the same bytes
    if tensor.dtype.name == "bfloat16" or tensor.dtype.name.startswith("float8"):
        return torch.from_numpy(tensor.view(f"u{tensor.dtype.itemsize}").copy()).view(torch_dtype(kind))
    # torch takes neither steps back nor other byte orders
    own = numpy.array(tensor, dtype=tensor.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(own)


# -- what would end the copy half-way, or write over what is still to be read --------------------------------

def _check_targets(plan: _model.Plan, sources: list[Any]) -> None:
    """Every parameter of the model can be written to, and what is written there stays."""
    import torch
    names = [name for name, _, _ in plan.table.rows]
    for name, p in zip(names, plan.parameters, strict=True):
        if p.is_inference() and not torch.is_inference_mode_enabled():
            raise _native.error("usage",
                                f"tensor {name} of the model is an inference tensor, which torch "
                                "makes read-only",
                                expected="a tensor made outside of torch.inference_mode()",
                                found="is_inference()",
                                hint="make the model outside of torch.inference_mode(), or call load_into in "
                                     "it")
        if _repeats(p):
            raise _native.error("usage",
                                f"tensor {name} of the model has several elements at one place in memory",
                                expected="memory for each element", found=f"shape {list(p.shape)}, strides "
                                                                          f"{list(p.stride())}",
                                hint="give the model a contiguous() copy of it")
    last: tuple[tuple[str, int, int], int] | None = None         # of those before, what ends last
    for place, i in _places(plan.parameters):
        if last is not None and last[0][0] == place[0] and place[1] < last[0][2]:
            if not _is_tied(plan.parameters, sources, last[1], i):
                raise _native.error("bad_adapter",
                                    f"tensors {names[last[1]]} and {names[i]} lie in the same memory in the "
                                    "model, and what is loaded "
                                    "has other values for each", expected="equal values, or memory for each",
                                    hint="publish from a model that ties them too, or load into one that "
                                         "does not")
            if place[2] <= last[0][2]:
                continue
        last = place, i


def _repeats(tensor: Any) -> bool:
    """Whether elements lie at one place (an expanded tensor), or dimensions run into each other."""
    if tensor.is_contiguous():
        return False
    taken = 1
    for stride, n in sorted((stride, n)
                            for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride < taken:
            return True
        taken += (n - 1) * stride
    return False


def _places(tensors: list[Any]) -> list[tuple[tuple[str, int, int], int]]:
    """(device, first byte, byte after the last) and the index of each tensor with bytes, in order of address.
    """
    return sorted(((str(t.device), t.data_ptr(), t.data_ptr() + extent(t) * t.itemsize), i)
                  for i, t in enumerate(tensors)
                  if t.numel() and not hasattr(t, "__tensor_flatten__"))


def _is_tied(parameters: list[Any], sources: list[Any], i: int, j: int) -> bool:
    """Whether two parameters are one (tied weights), and get the same bytes."""
    import torch

    def look(t: Any) -> tuple[Any, ...]:
        return t.data_ptr(), t.dtype, t.shape, t.stride(), t.is_neg(), t.is_conj()

    def raw(t: Any) -> Any:
        plain = t.detach().to("cpu", parameters[i].dtype).contiguous().resolve_neg().resolve_conj()
        return plain.reshape(-1).view(torch.uint8)
    return look(parameters[i]) == look(parameters[j]) and torch.equal(raw(sources[i]), raw(sources[j]))


def _apart(parameters: list[Any], sources: list[Any]) -> list[Any]:
    """The sources, those in the memory of a parameter copied first: it is written to before all are read."""
    into, apart = [place for place, _ in _places(parameters)], list(sources)
    for place, i in _places(sources):
        # the first that ends after this one begins
        at = bisect.bisect_right(into, place[:2], key=lambda p: (p[0], p[2]))
        if at < len(into) and into[at][0] == place[0] and into[at][1] < place[2]:
            apart[i] = sources[i].clone()
    return apart

# SPDX-License-Identifier: Apache-2.0
"""Full weights into the model of a rank, by vLLM's own loaders and its layerwise reload.

    check()     runs the loaders over a version with all tensors of the model put aside: no byte is written
    load()      the same in truth

vLLM itself takes a version that lacks a tensor: what did not come stays as it was, or is not initialized.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heddle import _native
from heddle.errors import HeddleError

_NAMED = 3                      # of those that lack, in the words of the error


def check(model: Any, tag: str, tensors: dict[str, Any]) -> None:
    """Raises where a tensor of the version is not the model's, or has another shape, and where the model has
    one that the version does not fill.
    """
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import restore_layer_on_meta, to_meta_tensor
    before = _Tensors(model)
    shared = {name: id(tensor) for name, tensor in _parameters(model).items()}
    at = ""

    def each() -> Iterator[tuple[str, Any]]:
        nonlocal at
        for at, tensor in tensors.items():
            yield at, tensor

    try:
        for layer in model.modules():
            restore_layer_on_meta(layer, get_layerwise_info(layer))
            for mine in (layer._parameters, layer._buffers):
                mine.update({name: _loader_of_its_own(tensor, to_meta_tensor(tensor))
                             for name, tensor in mine.items() if tensor is not None})
        with torch.no_grad(), _Written() as written:
            model.load_weights(each())
        parameters, buffers = _parameters(model), dict(model.named_buffers())
    except Exception as e:
        raise _unfit(tag, f"{at}: {e or type(e).__name__}") from e
    finally:
        before.put_back()
    # a parameter that is another one's, too (a tied head), is filled with it
    filled = {shared.get(name, name) for name, tensor in parameters.items() if written.fills(tensor)}
    lacking = [name for name in parameters if shared.get(name, name) not in filled]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise _unfit(tag, f"nothing, or not all, for {', '.join(lacking[:_NAMED])}{more}")
    # loaders cut off what is too long, and pass over some names
    whole = sum(tensor.numel() for tensor in tensors.values())
    taken = sum(written.taken(tensor) for tensor in (*parameters.values(), *buffers.values()))
    if taken < whole:
        raise _unfit(tag, f"{whole} elements, of which the model takes {taken}")


def load(model: Any, model_config: Any, tensors: dict[str, Any]) -> None:
    """Where it raises, the weights are mixed; the model can run, and be loaded again."""
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    before = _Tensors(model)
    try:
        initialize_layerwise_reload(model)
        model.load_weights(iter(tensors.items()))
        finalize_layerwise_reload(model, model_config)
    except BaseException:
        before.put_back()               # else layers without memory would take part in the next step
        for layer in model.modules():
            get_layerwise_info(layer).reset()
        raise


class _Tensors:
    """The tensors that a model has now: which ones, not their bytes."""

    def __init__(self, model: Any) -> None:
        self._of = [(layer, dict(layer._parameters), dict(layer._buffers),
                     set(layer._non_persistent_buffers_set)) for layer in model.modules()]

    def put_back(self) -> None:
        for layer, parameters, buffers, not_persistent in self._of:
            for mine, kept in ((layer._parameters, parameters), (layer._buffers, buffers)):
                mine.clear()
                mine.update(kept)
            layer._non_persistent_buffers_set = not_persistent


class _Written(TorchDispatchMode):      # type: ignore[misc]
    """How many elements are written to each memory, by copies and by fills (of padding)."""

    def __init__(self) -> None:
        super().__init__()
        aten = torch.ops.aten
        self._fills = (aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
        self._copied: Counter[int] = Counter()
        self._filled: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self._copied[_memory(args[0])] += args[0].numel()
        elif func in self._fills:
            self._filled[_memory(args[0])] += args[0].numel()
        return func(*args, **(kwargs or {}))

    def fills(self, tensor: Any) -> bool:
        """But for the padding that vLLM's loaders know of."""
        wanted: int = getattr(tensor, "weight_loader_numel", tensor.numel())
        return self._copied[_memory(tensor)] + self._filled[_memory(tensor)] >= wanted

    def taken(self, tensor: Any) -> int:
        """Some loaders copy a second time, to transform what they copied."""
        return min(self._copied[_memory(tensor)], int(tensor.numel()))


def _memory(tensor: Any) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def _parameters(model: Any) -> dict[str, Any]:
    return dict(model.named_parameters(remove_duplicate=False))


def _loader_of_its_own(tensor: Any, aside: Any) -> Any:
    """Not the one that vLLM's layerwise reload puts around it, which writes to the model."""
    loader = getattr(tensor, "weight_loader", None)
    while getattr(loader, "__name__", "") == "online_process_loader":
        loader = loader.__wrapped__     # type: ignore[union-attr]
    if loader is not None:
        aside.weight_loader = loader
    return aside


def _unfit(tag: str, found: str) -> HeddleError:
    return _native.error("not_activatable", f"{tag} does not fit the model", adapter=tag.partition("@")[0],
                         phase="stage", found=found,
                         expected="a tensor of the right shape for each parameter, and no other")

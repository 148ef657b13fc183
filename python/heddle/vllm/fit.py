# SPDX-License-Identifier: Apache-2.0
"""Whether an adapter has the sizes of the model that vLLM serves.

vLLM copies A and B into places of a fixed size, in a step, and looks at nothing: it serves what is smaller
than its place as if the rest were zeros, and what is larger raises there, which leaves the ranks' answers in
their queues.  Pure: of tensors it reads the shapes alone.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_HALF = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?(?P<half>[AB])(?:\.weight)?")


class Unfit(ValueError):
    """vLLM cannot serve it as it was trained."""


def check_halves(shapes: Mapping[str, Sequence[int]]) -> None:
    """Of all tensors, by name, before vLLM reads them: each module has A and B, of one rank."""
    modules: dict[str, dict[str, Sequence[int]]] = {}
    for name, shape in shapes.items():
        match = _HALF.fullmatch(name)
        if match is not None:
            modules.setdefault(match["module"], {})[match["half"]] = shape
    for module, halves in modules.items():
        if len(halves) == 1:
            raise Unfit(f"{module} has lora_{next(iter(halves))} alone")
        a, b = halves["A"], halves["B"]
        if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise Unfit(f"{module} has {tuple(a)} in lora_A and {tuple(b)} in lora_B: not two matrices of "
                        "one rank")


def check(name: str, module: Any, lora: Any) -> None:
    """`lora`: of the module of vLLM's that has this name, merged."""
    a, b = lora.lora_a, lora.lora_b
    places_a, places_b = module.lora_a_stacked, module.lora_b_stacked
    if not isinstance(places_a, tuple):         # the embeddings and the head: whole in each rank
        # (places, rows, rank) for the embeddings, else (places, 1, rank, columns)
        columns = places_a.shape[1] if len(places_a.shape) == 3 else places_a.shape[3]
        _check_rank(name, b, places_b)
        _compare(f"{name}, lora_A", a.shape[1], columns)
        _compare(f"{name}, lora_B", b.shape[0], places_b.shape[2])
        return
    if isinstance(b, list) and len(b) != module.n_slices:
        a, b = module.expand_packed_lora(a, b)
    own_a, own_b = a, b
    if module.tp_size > 1:
        own_a, own_b = module.slice_lora_a(a), module.slice_lora_b(b)
    for whole, own, place in zip(_list(a), _list(own_a), places_a, strict=True):
        if whole is not None:
            is_cut = own.shape[1] != whole.shape[1]
            _compare(f"{name}, lora_A", whole.shape[1], place.shape[3] * (module.tp_size if is_cut else 1))
    for n, (whole, own, place) in enumerate(zip(_list(b), _list(own_b), places_b, strict=True)):
        if whole is not None:
            _check_rank(name, whole, place)
            _compare(f"{name}, lora_B", whole.shape[0],
                     _rows(module, n, own.shape[0] != whole.shape[0], place.shape[2]))


def _rows(module: Any, n: int, is_cut: bool, place: int) -> int:
    """Of the whole B, of which `place` are this rank's.  Ranks may share a part of k and v: then this rank's
    part is the last one in the last rank alone, which looks for all."""
    if hasattr(module, "output_ids"):           # modules side by side, or q, k and v
        return int(module.output_ids[n] + 1) * place if module.tp_rank == module.tp_size - 1 else 0
    if hasattr(module, "q_proj_total_size"):    # q, k and v in one matrix
        return int(module.q_proj_total_size + 2 * module.kv_proj_total_size)
    return place * (int(module.tp_size) if is_cut else 1)


def _check_rank(name: str, b: Any, place: Any) -> None:
    """vLLM looks at what adapter_config.json says of it, and not at the tensors."""
    if b.shape[1] > place.shape[3]:
        raise Unfit(f"{name} is of rank {b.shape[1]}, and this server takes {place.shape[3]} at most "
                    "(--max-lora-rank)")


def _list(of: Any) -> list[Any]:
    return list(of) if isinstance(of, (list, tuple)) else [of]


def _compare(what: str, found: int, wanted: int) -> None:
    """`wanted` 0: another rank looks."""
    if wanted and found != wanted:
        raise Unfit(f"{what}: it is of {found}, and this model takes {wanted}")

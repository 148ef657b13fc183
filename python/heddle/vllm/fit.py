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
        _compare(f"{name}, lora_A", a.shape[1], a.shape[1], columns, 1)
        _compare(f"{name}, lora_B", b.shape[0], b.shape[0], places_b.shape[2], 1)
        _check_rank(name, b, places_b)
        return
    if isinstance(b, list) and len(b) != module.n_slices:
        a, b = module.expand_packed_lora(a, b)
    own_a, own_b, ranks = a, b, module.tp_size
    if ranks > 1:
        own_a, own_b = module.slice_lora_a(a), module.slice_lora_b(b)
    for whole, own, place in zip(_list(a), _list(own_a), places_a, strict=True):
        if whole is not None:
            _compare(f"{name}, lora_A", whole.shape[1], own.shape[1], place.shape[3], ranks)
    for whole, own, place in zip(_list(b), _list(own_b), places_b, strict=True):
        if whole is not None:
            _compare(f"{name}, lora_B", whole.shape[0], own.shape[0], place.shape[2], ranks)
            _check_rank(name, whole, place)


def _check_rank(name: str, b: Any, place: Any) -> None:
    """vLLM looks at what adapter_config.json says of it, and not at the tensors."""
    if b.shape[1] > place.shape[3]:
        raise Unfit(f"{name} is of rank {b.shape[1]}, and this server takes {place.shape[3]} at most "
                    "(--max-lora-rank)")


def _list(of: Any) -> list[Any]:
    return list(of) if isinstance(of, (list, tuple)) else [of]


def _compare(what: str, whole: int, own: int, place: int, ranks: int) -> None:
    """`own`: this rank's part.  Ranks may share a part, so the whole is up to as many parts as ranks."""
    if own != place or whole not in range(place, place * ranks + 1, place):
        raise Unfit(f"{what}: it is of {whole}, and this model takes {place}"
                    f"{f' in each of {ranks} ranks' if ranks > 1 else ''}")

# SPDX-License-Identifier: Apache-2.0
"""One publisher for all ranks of a training job: the gather goes to rank 0, and rank 0's outcome, exception included, reaches every rank.

Every rank makes every call, in the same order.  Before bytes move, the ranks tell each other whether they can: one that cannot ends the call
everywhere with its exception, and nobody waits in a collective that the others never enter.
"""
from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from heddle import _model, _native
from heddle.errors import HeddleError

T = TypeVar("T")


class Collective:
    """The ranks of a torch.distributed group."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist
        if not dist.is_available() or not dist.is_initialized():
            raise _native.error("usage", "process_group was given, and torch.distributed is not initialised",
                                hint="call torch.distributed.init_process_group first")
        self.group, self._dist = group, dist
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise _native.error("usage", "this process is not of the process_group")
        self._first = dist.get_global_rank(group, 0)

    def lead(self, call: Callable[[], T]) -> T:
        """call() on rank 0; its value or exception on every rank."""
        outcome: list[Any] = [_attempt(call)] if self.rank == 0 else [None]
        own = outcome[0]
        if own is not None:
            outcome = [(own[0], portable(own[1]))]
        self._dist.broadcast_object_list(outcome, src=self._first, group=self.group)
        ok, value = own if own is not None else outcome[0]
        if not ok:
            raise value
        result: T = value
        return result

    def agree(self, call: Callable[[], T]) -> T:
        """call() on every rank; if it fails on one, that exception on all."""
        ok, value = _attempt(call)
        told: list[Any] = [None] * self.size
        self._dist.all_gather_object(told, None if ok else portable(value), group=self.group)
        if not ok:
            raise value
        for failure in told:
            if failure is not None:
                raise failure
        result: T = value
        return result

    def tell_all(self, value: T) -> list[T]:
        """Every rank's value, in order of rank."""
        told: list[Any] = [None] * self.size
        self._dist.all_gather_object(told, value, group=self.group)
        return told

    def gather(self, flat: Any, sizes: list[int]) -> list[Any] | None:
        """The bytes of every rank, on rank 0 (None elsewhere).  `flat`: uint8, sizes[rank] of them."""
        import torch
        room = max(sizes)
        if room == 0:
            return [flat] * self.size if self.rank == 0 else None
        padded = torch.zeros(room, dtype=torch.uint8, device=flat.device)
        padded[: flat.numel()] = flat
        into = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        self._dist.gather(padded, into, dst=self._first, group=self.group)
        return [piece[:n] for piece, n in zip(into, sizes, strict=True)] if into is not None else None

    @property
    def is_on_cpu(self) -> bool:
        return "gloo" in str(self._dist.get_backend(self.group))


def _attempt(call: Callable[[], T]) -> tuple[bool, Any]:
    try:
        return True, call()
    except BaseException as e:      # the others are told before it goes on
        return False, e


def portable(value: Any) -> Any:
    """What can be sent: exceptions that cannot travel become a HeddleError with their text; of a Ctrl-C the others learn as interrupted."""
    if isinstance(value, BaseException) and not isinstance(value, Exception):
        return HeddleError(f"another rank was interrupted ({type(value).__name__})", code="interrupted", exit=130, retriable=True)
    try:
        pickle.loads(pickle.dumps(value))
        return value
    except Exception:
        return HeddleError(f"{type(value).__name__}: {value}", code="internal", exit=9)


# -- shards ----------------------------------------------------------------------------------------------------------------

class Shards:
    """Which piece of which tensor lies on which rank, and the way to rank 0: one gather for all tensors."""

    def __init__(self, plan: _model.Plan, group: Collective) -> None:
        mine = [_piece(p) for p in plan.parameters]
        self.pieces = group.tell_all(mine)                  # [rank][tensor] -> (shape, offset), or None: it is not in the gather
        self.whole = [i for i, p in enumerate(mine) if p is None]
        width = [p.element_size() for p in plan.parameters]
        self.sizes = [sum(_count(piece[0]) * w for piece, w in zip(row, width, strict=True) if piece is not None) for row in self.pieces]

    def gather(self, plan: _model.Plan, group: Collective, targets: list[Any] | None) -> None:
        """Every rank calls it; on rank 0 the targets are filled."""
        import torch
        with torch.no_grad():
            mine = [_local(p).contiguous().reshape(-1).view(torch.uint8) for p, piece in
                    zip(plan.parameters, self.pieces[group.rank], strict=True) if piece is not None and _count(piece[0])]
            flat = torch.cat(mine) if mine else torch.empty(0, dtype=torch.uint8)
            got = group.gather(flat.cpu() if group.is_on_cpu else flat, self.sizes)
            for i in self.whole:                            # laid out in a way that only the tensor itself can undo
                full = plan.parameters[i].full_tensor() if hasattr(plan.parameters[i], "full_tensor") else plan.parameters[i]
                if targets is not None and targets[i] is not None:
                    targets[i].copy_(full)
            if got is not None and targets is not None:
                self._place(plan, got, targets)

    def _place(self, plan: _model.Plan, got: list[Any], targets: list[Any]) -> None:
        for row, flat in zip(self.pieces, got, strict=True):
            at = 0
            for piece, parameter, target in zip(row, plan.parameters, targets, strict=True):
                if piece is None or not _count(piece[0]):
                    continue
                shape, offset = piece
                size = _count(shape) * parameter.element_size()
                if target is not None:
                    into = target
                    for dim, (start, n) in enumerate(zip(offset, shape, strict=True)):
                        into = into.narrow(dim, start, n)
                    into.copy_(flat[at:at + size].clone().view(parameter.dtype).view(shape))
                at += size


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


def _local(parameter: Any) -> Any:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()


def _piece(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(shape, offset) of this rank's piece; None where the pieces of the ranks do not make the tensor by lying side by side."""
    if not hasattr(parameter, "device_mesh"):
        shape = tuple(parameter.shape)
        return shape, (0,) * len(shape)
    from torch.distributed.tensor import Replicate, Shard
    if any(type(p) not in (Shard, Replicate) for p in parameter.placements):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return tuple(int(n) for n in shape), tuple(int(n) for n in offset)


def gather(plan: _model.Plan, is_new: bool, group: Collective, targets: list[Any] | None) -> None:
    """Fills rank 0's targets with the whole tensors; every rank calls it with its own plan."""
    import torch
    if any(group.tell_all(is_new or plan.shards is None)):
        plan.shards = Shards(plan, group)
    if any(hasattr(p, "ds_id") for p in plan.parameters):
        import deepspeed
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(plan.parameters)):
            if targets is not None:
                _model.copy(targets, plan.parameters)
        return
    shards: Shards = plan.shards
    shards.gather(plan, group, targets)

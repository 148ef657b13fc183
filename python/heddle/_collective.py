# SPDX-License-Identifier: Apache-2.0
"""One publisher for all ranks of a training job.

The gather goes to rank 0, and rank 0's outcome, exception included, reaches every rank.  Every rank makes
every call, in the same order.  Whatever can fail on one rank alone (making plans, allocating, copying) is
done between two messages of all ranks to all: one that cannot ends the call everywhere with its exception,
and no rank waits in a transfer that the others never enter.  The process group reports a rank that is gone:
Unavailable.

    agree(prepare)  ->  [agree(pieces), of a new plan]  ->  agree(pack)  ->  transfer  ->  lead(place, commit)

While rank 0 is in a call that may take long, the others are not in one long collective but in many short
ones: the timeout of the process group does not matter, and a Ctrl-C on any rank reaches all of them.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from heddle import _calls, _model, _native
from heddle.errors import HeddleError

T = TypeVar("T")
U = TypeVar("U")
Piece = tuple[tuple[int, ...], tuple[int, ...]]         # shape, offset

# how long rank 0 is silent in a call: twice that is what a Ctrl-C on another one takes
TURN_S = 0.04


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
        self._caught: BaseException | None = None       # a Ctrl-C in the call of now: the next goes through

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Of a Ctrl-C that came in it nothing is left behind its end, which it is."""
        try:
            yield
        finally:
            caught, self._caught = self._caught, None
            if caught is not None:
                raise caught

    # -- words of all ranks to all ---------------------------------------------------------------------------

    def tell_all(self, value: T) -> list[T]:
        """Every rank's value, in order of rank."""
        told: list[Any] = [None] * self.size
        self._all_enter(lambda: self._dist.all_gather_object(told, value, group=self.group))
        return told

    def agree(self, call: Callable[[], tuple[T, U]]) -> tuple[T, list[U]]:
        """call() on every rank: its own first value, and the second of all.

        If it fails on one, that exception on all.
        """
        ok, value = self._attempt(call)
        told = self.tell_all((ok, value[1] if ok else portable(value)))
        if not ok:
            raise value
        for is_well, said in told:
            if not is_well:
                raise said
        return value[0], [said for _, said in told]

    def lead(self, call: Callable[[], T], check: Callable[[], None], interrupt: Callable[[], None],
             forget: Callable[[], None]) -> T:
        """call() on rank 0, on a thread of its own; its value or exception on every rank.

        The others check() meanwhile.  `interrupt` ends the call; `forget` takes back an interrupt that came
        too late to end it.
        """
        job = _calls.prepare(_on_this_stream(call))

        def turn() -> tuple[T] | None:
            _calls.launch(job)                  # in a turn: all ranks learn what a handler raises meanwhile
            return (job.result(),) if job.done.wait(TURN_S) else None

        def abandon() -> None:
            if job.done.is_set() or _calls.give_up(job):
                return
            interrupt()
            _calls.wait_out(job)
            forget()
        return self.in_turns(turn, check, abandon)

    def in_turns(self, turn: Callable[[], tuple[T] | None], check: Callable[[], None],
                 abandon: Callable[[], None] = lambda: None) -> T:
        """turn() on rank 0 alone, each TURN_S at most, until it gives (value,) or raises: that on every rank.

        What check() raises on another one ends it on all, as does a Ctrl-C on any: itself there,
        `interrupted` on the others, after abandon() on rank 0.
        """
        while True:
            ok, found = self._attempt(turn if self.rank == 0 else check)
            try:
                told = self.tell_all((ok, found if ok else portable(found)))
            except BaseException:
                abandon()
                if not ok:
                    raise found from None       # says more than that another rank cannot be reached any more
                raise
            is_well, outcome = told[0]
            failure: Any = found if not ok else next((said for fine, said in told if not fine), None)
            if not ok or (failure is not None and (not is_well or outcome is None)):
                abandon()
                raise failure
            if outcome is not None:
                value: T = found[0] if self.rank == 0 else outcome[0]
                return value

    def transfer(self, send: Any, into: dict[int, Any]) -> None:
        """`send` (or None) goes to rank 0, which has a buffer for each rank that sends."""
        dist = self._dist
        ops = [dist.P2POp(dist.irecv, buffer, dist.get_global_rank(self.group, rank), self.group)
               for rank, buffer in into.items()]
        if send is not None:
            ops.append(dist.P2POp(dist.isend, send, dist.get_global_rank(self.group, 0), self.group))

        def go() -> None:
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        if ops:
            self._all_enter(go)

    def all_enter(self, call: Callable[[], None]) -> None:
        """A collective of other code, which every rank is about to enter."""
        self._all_enter(call)

    # -- what ends them --------------------------------------------------------------------------------------

    def _attempt(self, call: Callable[[], Any]) -> tuple[bool, Any]:
        """call(), and whether it succeeded: the others learn it before its exception goes on."""
        try:
            if self._caught is not None:
                raise self._caught
            return True, call()
        except BaseException as e:
            if not isinstance(e, Exception):
                self._caught = e
            return False, e

    def _all_enter(self, call: Callable[[], None]) -> None:
        """A collective, to its end: who left half-way would leave the others in it.

        A Ctrl-C is kept for the next word.

        The second one of a call goes through, for ranks that stand still.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._entered(call)
        job = _calls.prepare(_on_this_stream(lambda: self._entered(call)))
        try:
            _calls.launch(job)
            job.done.wait()
        except BaseException as e:
            try:
                if self._caught is not None:
                    raise
                _calls.launch(job)
                job.done.wait()
            except BaseException:
                _calls.leave(job)
                raise
            if job.raised is not None:
                raise
            self._caught = e
        job.result()

    def _entered(self, call: Callable[[], None]) -> None:
        try:
            call()
        # torch's for a peer that is gone, and for the time of the group
        except RuntimeError as e:
            self._lost(e)

    def _lost(self, e: RuntimeError) -> NoReturn:
        first = (str(e).splitlines() or [""])[0][:200]
        raise _native.error("unavailable", f"the ranks of the process_group cannot reach each other: {first}",
                            expected=f"all {self.size} ranks in the same call",
                            found=f"{type(e).__name__} on rank {self.rank}",
                            hint="a rank has ended, or is elsewhere: see its log; "
                                 "the process_group is of no more use") from e

    def device_for(self, parameter: Any) -> Any:
        """Where this group moves bytes: gloo from the CPU, others from where the parameter is."""
        import torch
        if "gloo" in str(self._dist.get_backend(self.group)):
            return torch.device("cpu")
        if parameter.device.type != "cpu":
            return parameter.device
        return torch.device("cuda", torch.cuda.current_device())


def _on_this_stream(call: Callable[[], T]) -> Callable[[], T]:
    """For another thread: the accelerator's device and stream are the thread's own."""
    import torch
    if not torch.cuda.is_initialized():
        return call
    stream = torch.cuda.current_stream()

    def there() -> T:
        with torch.cuda.stream(stream):
            return call()
    return there


def portable(value: Any) -> Any:
    """What can be sent: exceptions that cannot travel become a HeddleError with their text.

    Of a Ctrl-C the others learn as interrupted.
    """
    if isinstance(value, BaseException) and not isinstance(value, Exception):
        return HeddleError(f"another rank was interrupted ({type(value).__name__})", code="interrupted",
                           exit=130,
                           retriable=True)
    try:
        pickle.loads(pickle.dumps(value))
        return value
    except Exception:
        return HeddleError(f"{type(value).__name__}: {value}", code="internal", exit=9)


# -- the same on every rank ----------------------------------------------------------------------------------

def outline(plan: _model.Plan, config: bytes) -> tuple[bytes, bytes]:
    """Digests of what must be the same everywhere: names, types and shapes; the configuration."""
    if plan.outline is None:
        plan.outline = hashlib.sha256(repr(plan.table.rows).encode()).digest()
    return plan.outline, hashlib.sha256(config).digest()


def compare(plan: _model.Plan, config: bytes, outlines: list[tuple[bytes, bytes]], group: Collective) -> None:
    """Raises, on every rank alike, where the ranks hold different adapters."""
    if len({rows for rows, _ in outlines}) > 1:
        said = group.tell_all(plan.table.rows)
        rank, ours, theirs = _first_other(said)
        raise _native.error("usage", f"rank {rank} has another adapter than rank 0", expected=_row_text(ours),
                            found=_row_text(theirs), phase="pack",
                            hint="give every rank the same model, in the same types")
    if len({words for _, words in outlines}) > 1:
        texts = group.tell_all(config)
        rank = next(i for i, text in enumerate(texts) if text != texts[0])
        raise _native.error("usage", f"rank {rank} has another adapter_config.json than rank 0", phase="pack",
                            expected="the same on every rank",
                            found=_config_difference(texts[0], texts[rank]),
                            hint="give every rank the same configuration, or the same config=")


def _first_other(said: list[list[Any]]) -> tuple[int, Any, Any]:
    rank = next(i for i, rows in enumerate(said) if rows != said[0])
    for ours, theirs in zip(said[0], said[rank], strict=False):
        if ours != theirs:
            return rank, ours, theirs
    n = min(len(said[0]), len(said[rank]))
    return rank, (said[0][n:] or [None])[0], (said[rank][n:] or [None])[0]


def _row_text(row: Any) -> str:
    return "no such tensor" if row is None else f"{row[0]} {row[1]} {list(row[2])}"


def _config_difference(ours: bytes, theirs: bytes) -> str:
    try:
        a, b = json.loads(ours), json.loads(theirs)
        other = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
        return "other values of " + ", ".join(other[:8])
    except (ValueError, AttributeError):
        return "other bytes"


# -- shards --------------------------------------------------------------------------------------------------

class Shards:
    """Which piece of which tensor lies on which rank, and who sends it: of equal pieces the lowest rank's."""

    def __init__(self, plan: _model.Plan, group: Collective) -> None:
        def mine() -> tuple[None, list[Piece | None]]:
            return None, [_piece(p) for p in plan.parameters]
        # [rank][tensor]; None: its pieces do not lie side by side
        _, pieces = group.agree(mine)
        self.pieces = pieces
        self.whole = [i for i in range(len(plan.parameters)) if any(row[i] is None for row in pieces)]
        self.sent = [self._sent_by(rank, plan) for rank in range(group.size)]
        self.sizes = [sum(self._bytes(rank, i, plan) for i in sent) for rank, sent in enumerate(self.sent)]
        self._check_cover(plan)

    def _sent_by(self, rank: int, plan: _model.Plan) -> list[int]:
        """In an order in which every tensor's place in the bytes that are sent fits its type."""
        rows = [i for i, piece in enumerate(self.pieces[rank]) if piece is not None and i not in self.whole
                and _count(piece[0]) and all(self.pieces[lower][i] != piece for lower in range(rank))]
        return sorted(rows, key=lambda i: -plan.parameters[i].element_size())

    def _bytes(self, rank: int, i: int, plan: _model.Plan) -> int:
        piece = self.pieces[rank][i]
        assert piece is not None
        return int(_count(piece[0]) * plan.parameters[i].element_size())

    def _check_cover(self, plan: _model.Plan) -> None:
        have = [0] * len(plan.parameters)
        for rank, sent in enumerate(self.sent):
            for i in sent:
                have[i] += self._bytes(rank, i, plan)
        for i, (key, _, _) in enumerate(plan.table.rows):
            if i not in self.whole and have[i] != plan.table.sizes[i]:
                raise _native.error("usage", f"the ranks do not hold the whole of tensor {key}", phase="pack",
                                    expected=f"{plan.table.sizes[i]} bytes", found=f"{have[i]} bytes")

    def pack(self, plan: _model.Plan, group: Collective) -> tuple[Any, dict[int, Any]]:
        """Everything that allocates: what this rank sends, and on rank 0 where it goes."""
        import torch
        if group.rank == 0:
            device = group.device_for(plan.parameters[0]) if plan.parameters else torch.device("cpu")
            return None, {rank: torch.empty(size, dtype=torch.uint8, device=device)
                          for rank, size in enumerate(self.sizes) if rank and size}
        rows = self.sent[group.rank]
        if not rows:
            return None, {}
        with torch.no_grad():
            flat = torch.cat([_bytes_of(_local(plan.parameters[i])) for i in rows])
            if flat.numel() != self.sizes[group.rank]:
                raise _native.error("usage", "a shard is not of the size that its layout says", phase="pack",
                                    expected=f"{self.sizes[group.rank]} bytes", found=f"{flat.numel()} bytes")
            return flat.to(group.device_for(plan.parameters[rows[0]])), {}

    def place(self, plan: _model.Plan, received: dict[int, Any], targets: list[Any]) -> None:
        """On rank 0: its own pieces, and those that came."""
        import torch
        into, sources = [], []
        with torch.no_grad():
            for rank, sent in enumerate(self.sent):
                at = 0
                for i in sent:
                    size = self._bytes(rank, i, plan)
                    shape, offset = self.pieces[rank][i] or ((), ())
                    came = received.get(rank)
                    sources.append(_local(plan.parameters[i]) if came is None else
                                   came[at:at + size].view(plan.parameters[i].dtype).view(shape))
                    into.append(_part(targets[i], shape, offset))
                    at += size
        _model.copy(into, sources)


def _part(target: Any, shape: tuple[int, ...], offset: tuple[int, ...]) -> Any:
    for dim, (start, n) in enumerate(zip(offset, shape, strict=True)):
        target = target.narrow(dim, start, n)
    return target


def _count(shape: tuple[int, ...]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


def _local(parameter: Any) -> Any:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.detach()


def _bytes_of(tensor: Any) -> Any:
    """As they are published: a bit that says that a tensor is to be negated or conjugated is not in its
    memory.
    """
    import torch
    return tensor.resolve_neg().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def _piece(parameter: Any) -> Piece | None:
    """(shape, offset) of this rank's piece; None where the pieces do not make the tensor side by side."""
    if not hasattr(parameter, "device_mesh"):
        shape = tuple(parameter.shape)
        return shape, (0,) * len(shape)
    from torch.distributed.tensor import Replicate, Shard
    if any(type(p) not in (Shard, Replicate) for p in parameter.placements):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh,
                                                          parameter.placements)
    return tuple(int(n) for n in shape), tuple(int(n) for n in offset)


class Load:
    """What came to rank 0, before it is where it belongs."""

    def __init__(self, plan: _model.Plan, received: dict[int, Any], whole: dict[int, Any]) -> None:
        self._plan, self._received, self._whole = plan, received, whole

    def place(self, targets: list[Any]) -> None:
        if self._plan.shards is not None:
            self._plan.shards.place(self._plan, self._received, targets)
        rows = [i for i in self._whole if targets[i] is not None]
        _model.copy([targets[i] for i in rows], [self._whole[i] for i in rows])


def gather(plan: _model.Plan, is_new: bool, group: Collective) -> Load:
    """The tensors of all ranks, on their way to rank 0.

    Every rank calls it with its own plan, and `is_new` of all.
    """
    if any(hasattr(p, "ds_id") for p in plan.parameters):
        return _gather_zero3(plan, group)
    if is_new:
        plan.shards = Shards(plan, group)
    shards: Shards = plan.shards
    (send, into), _ = group.agree(lambda: (shards.pack(plan, group), None))
    group.transfer(send, into)
    whole = {i: _full(plan.parameters[i], group) for i in shards.whole}
    return Load(plan, into, whole)


def _full(parameter: Any, group: Collective) -> Any:
    """The whole of one that is laid out in a way that only the tensor itself can undo."""
    import torch
    found: list[Any] = []

    def enter() -> None:
        with torch.no_grad():
            found.append(parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach())
    group.all_enter(enter)
    return found[0] if group.rank == 0 else None


def _gather_zero3(plan: _model.Plan, group: Collective) -> Load:
    """ZeRO-3 takes them apart again when its block ends: rank 0 keeps a copy."""
    whole: dict[int, Any] = {}
    failed: list[BaseException] = []

    def enter() -> None:
        import deepspeed
        import torch
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(plan.parameters)):
            try:
                if group.rank == 0:
                    whole.update((i, p.detach().cpu()) for i, p in enumerate(plan.parameters))
            except BaseException as e:      # told below: the block is a collective, too
                failed.append(e)
    group.all_enter(enter)

    def said() -> tuple[None, None]:
        if failed:
            raise failed[0]
        return None, None
    group.agree(said)
    return Load(plan, {}, whole)

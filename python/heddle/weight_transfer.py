# SPDX-License-Identifier: Apache-2.0
"""Full weights through vLLM's own weight transfer API, as its backend `heddle` (docs/weights.md).

    trainer                                     each rank of the engine
    trainer_init()      init {broker, adapter} ──►  a worker of the adapter
    send_weights()      publish ── broker ──►       fetches once a host, verifies
                        update {tag} ───────►       takes that version if it fits the model, holds it
                        pause
                        finish(tag) ────────►       loads it into the model
                        resume

Nothing is written to the model before finish, and then only bytes whose digest was verified, and which fit.
Until then the old weights answer, whatever becomes of the trainer, the broker or the version.

init and update are calls in vLLM's own loop: while they wait, the engine makes no step.

vLLM imports this module where the backend is asked for; it is registered by heddle.vllm.plugin.
"""
from __future__ import annotations

import logging
import select
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from heddle import _native
from heddle._inside import switch
from heddle.admin import Admin
from heddle.errors import HeddleError, NotFound
from heddle.publisher import Publisher
from heddle.slot import Slot
from heddle.tensors import torch_name
from heddle.vllm import plugin, reload, seams
from heddle.worker import Worker


def _what_is_unknown(missing: Callable[[], list[str]]) -> str | None:
    """Of vLLM: its release, else the first name that it has not."""
    if not seams.is_proven(plugin.release(), seams.RELEASES_OF_WEIGHTS):
        return switch.what_is_not_proven("vLLM", plugin.release, seams.RELEASES_OF_WEIGHTS)
    return switch.what_differs("vLLM", plugin.release, missing()[:1])


def _refusal(why: str | None) -> str:
    return (f"heddle: the backend for weights does not run here: {why}; hint: take vLLM "
            f"{', '.join(seams.RELEASES_OF_WEIGHTS)}, or another backend (docs/weights.md)")


try:
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.platforms import current_platform
except ImportError as e:
    lacking = str(e)
    raise ImportError(_refusal(_what_is_unknown(lambda: [lacking]))) from e

__all__ = ["HeddleEngine", "HeddleInitInfo", "HeddleUpdateInfo", "HeddleTrainerEngine",
           "HeddleTrainerInitInfo"]

_log = logging.getLogger("vllm.heddle")
_LOOK_S = 0.25              # an event of the worker tells of most changes, and this of the rest
_ENDED = ("failed", "superseded", "lost")
_STALL_S = 5.0              # the trainer waits before, for as long as it wants


@dataclass
class HeddleInitInfo(WeightTransferInitInfo):           # type: ignore[misc]
    """broker   of the ranks, "tcp://host:port[,...]"
    adapter     which has the weights
    timeout     seconds that init may wait for the broker, and update for a version; no request makes a step
                meanwhile
    """
    broker: str
    adapter: str
    timeout: float = _STALL_S


@dataclass
class HeddleUpdateInfo(WeightTransferUpdateInfo):       # type: ignore[misc]
    """tag   of a version that the broker has recorded: "base@7:3f9a1c20d4e1".  An older one is a way back."""
    tag: str


class HeddleEngine(WeightTransferEngine):               # type: ignore[misc]
    """In each rank of vLLM.  vLLM itself refuses a second start, and an update or finish without one."""

    init_info_cls = HeddleInitInfo
    update_info_cls = HeddleUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_if(_what_is_unknown(lambda: seams.missing(seams.WEIGHTS)))
        super().__init__(*args, **kwargs)
        _refuse_if(switch.what_instances_lack("vLLM", plugin.release, (self, "vllm_config"),
                                              (self, "model_config"), (self, "model")))
        _refuse_what_is_not_proven(self.vllm_config)
        self._info: HeddleInitInfo | None = None
        self._worker: Worker | None = None
        self._slot: Slot | None = None          # what finish will load
        self._mixed_by: str | None = None       # the tag whose load broke; until another one is loaded whole

    def init_transfer_engine(self, init_info: HeddleInitInfo) -> None:
        """May be called again, by another trainer: with another broker or adapter the worker is another, and
        so it is after `heddle drain`.  What is held stays: the session of a trainer that died may be open,
        and finish ends it.
        """
        if self._worker is not None and init_info == self._info and not self._worker.left:
            return
        self._close_worker()
        worker = Worker(init_info.broker, [init_info.adapter], kinds=["tensors"], apply="auto")
        try:
            _wait_joined(worker, init_info)
        except BaseException:
            worker.close()
            raise
        self._worker, self._info = worker, init_info

    def start_weight_update(self) -> None:
        if self._worker is None:
            raise RuntimeError("heddle: init_weight_transfer_engine comes before start_weight_update")
        self._drop()                            # of an update that was never finished

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """vLLM's own asks for an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: HeddleUpdateInfo) -> None:
        """Holds the version; the model is as it was.  Raises where there is no such version, it does not come
        in time, or it does not fit the model.
        """
        if self._worker is None or self._info is None:
            raise RuntimeError("heddle: init_weight_transfer_engine comes before update_weights")
        self._drop()
        with _resident(self._worker, self._info, update_info.tag) as snapshot:
            slot = snapshot.share()
        try:
            reload.check(self.model, slot.tag, slot.torch())
        except BaseException:
            slot.close()
            raise
        self._slot = slot
        _log.info("weights: %s is held: finish_weight_update loads it, with the tag as its weight_version",
                  slot.tag)

    def finish_weight_update(self) -> None:
        """Loads what receive_weights holds; nothing where no update came.  Where it raises, vLLM's session is
        open, and the version is held: the next finish loads it again.
        """
        if self._slot is None:
            if self._mixed_by is not None:
                raise _native.error("not_activatable", f"the weights are mixed: the load of {self._mixed_by} "
                                    "broke", phase="activate", expected="an update before finish")
            return
        tag = self._mixed_by = self._slot.tag
        # private pages: a loader may write to what it is given
        reload.load(self.model, self.model_config, self._slot.torch())
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self._mixed_by = None
        _log.info("weights: those of %s are loaded", tag)
        self._slot.close()
        self._slot = None

    def shutdown(self) -> None:
        """May be called twice.  The weights stay."""
        self._drop()
        self._close_worker()

    def _close_worker(self) -> None:
        worker, self._worker, self._info = self._worker, None, None
        if worker is not None:
            worker.close()

    def _drop(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            _log.info("weights: %s is not held any more, and was not loaded", slot.tag)
            slot.close()

    @staticmethod
    def trainer_send_weights(*_: Any, **__: Any) -> None:
        """Of releases before 0.31, where the trainer had no engine of its own."""
        raise NotImplementedError("heddle: use HeddleTrainerEngine")


def _refuse_if(why: str | None) -> None:
    if why is not None:
        raise ValueError(_refusal(why))


def _refuse_what_is_not_proven(vllm_config: Any) -> None:
    """An error of one rank leaves the answers of others to the next call: then a finish that failed at one
    would be answered with what it said before.
    """
    parallel = vllm_config.parallel_config
    ranks = parallel.world_size * parallel.data_parallel_size
    if ranks != 1:
        raise ValueError("heddle: the backend for weights takes one rank, without tensor, pipeline or data "
                         f"parallelism, and this engine has {ranks}")
    if vllm_config.quant_config is not None:
        raise ValueError("heddle: the backend for weights takes no quantized model")
    is_tied = getattr(vllm_config.model_config.hf_text_config, "tie_word_embeddings", False)
    if is_tied and current_platform.is_cpu():
        raise ValueError("heddle: on the CPU the backend for weights takes no model whose head is tied to "
                         "its embeddings: vLLM computes with a packed copy of it, which no load renews")


def _wait_joined(worker: Worker, info: HeddleInitInfo) -> None:
    """A trainer that publishes at once counts this worker."""
    end = time.monotonic() + info.timeout
    while worker.stats()["joined"] is None:
        left = end - time.monotonic()
        if left <= 0:
            raise _native.error("unavailable", "the broker has not admitted this worker", retriable=True,
                                adapter=info.adapter, expected=f"a broker at {info.broker}",
                                found=f"none within {info.timeout:g} s")
        select.select([worker.fileno()], [], [], min(left, _LOOK_S))
        for _ in worker.updates(timeout=0):     # only told: it serves by itself
            pass


def _resident(worker: Worker, info: HeddleInitInfo, tag: str) -> Any:
    """A Snapshot of the version, whose bytes are here and verified.  What the broker does not know, or knows
    to have ended, is an error at once.
    """
    end = time.monotonic() + info.timeout
    with Admin(info.broker, timeout=info.timeout) as admin:
        told = admin.versions(tag)[0]
    if not tag.startswith(f"{info.adapter}@") or told.state in _ENDED:
        raise _native.error("not_activatable", f"{tag} cannot be loaded", adapter=info.adapter,
                            expected=f"a version of {info.adapter}, staged or served", found=told.state)
    while True:
        try:
            return _same(worker.acquire(info.adapter, told.version), told.tag)
        except NotFound:
            left = end - time.monotonic()
        if worker.left:
            raise _native.error("closed", f"{tag} does not come: the worker of this engine was drained "
                                "(heddle drain)", phase="fetch", adapter=info.adapter, version=told.version,
                                expected="a worker with a session", found="one that has left",
                                hint="init_weight_transfer_engine opens another one")
        if left <= 0:
            raise _native.error("deadline", f"{tag} did not come within {info.timeout:g} s", phase="fetch",
                                adapter=info.adapter, version=told.version, retriable=True,
                                expected="a version that this worker has", found=told.state,
                                hint=f"`heddle activate {tag}` brings a version back that is kept elsewhere")
        for update in worker.updates(timeout=min(left, _LOOK_S)):
            if update.phase == "failed" and update.version == told.version:
                raise _failed(update)
            break


def _same(snapshot: Any, tag: str) -> Any:
    """A broker that lost its data gives a number out again, and the worker may have the older one."""
    if snapshot.tag != tag:
        snapshot.release()
        raise _native.error("not_activatable", f"this worker has other bytes under the number of {tag}",
                            adapter=snapshot.adapter, version=snapshot.version, phase="fetch",
                            expected=tag, found=snapshot.tag)
    return snapshot


def _failed(update: Any) -> HeddleError:
    return _native.error(update.code or "version_failed", update.message or f"{update.tag} failed",
                         adapter=update.adapter, version=update.version, phase="fetch")


@dataclass
class HeddleTrainerInitInfo(TrainerInitInfo):           # type: ignore[misc]
    """broker           of the trainer; and of the engine, unless it has another address of it
    adapter             to be written, for life of kind tensors
    timeout             seconds of the trainer, for the broker, and until the engine has a version's bytes
    timeout_of_ranks    seconds that the engine may stand still for init, and for update
    pause               of requests under way, as vLLM's /pause has it: keep, wait or abort
    """
    backend: ClassVar[str] = "heddle"
    broker: str = "tcp://127.0.0.1:7700"
    adapter: str = "base"
    broker_of_ranks: str | None = None
    timeout: float = 300.0
    timeout_of_ranks: float = _STALL_S
    pause: str = "keep"


class HeddleTrainerEngine(TrainerWeightTransferEngine):     # type: ignore[misc]
    """On each rank of the trainer; the sender publishes and drives the engine by its client.

    version   what the last send_weights published: a heddle.Version
    """

    init_info_cls = HeddleTrainerInitInfo

    def __init__(self, *, client: Any, source: Any, info: HeddleTrainerInitInfo) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self.version: Any = None
        self._info = info
        self._pauses = _pauses(client) if info.is_sender else None
        self._publisher = (Publisher(info.broker, info.adapter, kind="tensors", timeout=info.timeout)
                           if info.is_sender else None)

    @classmethod
    def trainer_init(cls, init_info: HeddleTrainerInitInfo, *, client: Any,
                     source: Any = None) -> HeddleTrainerEngine:
        if source is None:
            raise ValueError("heddle: the trainer's weights come from a WeightSource")
        engine = cls(client=client, source=source, info=init_info)
        if engine.is_sender:
            try:
                client.init_weight_transfer_engine({
                    "broker": init_info.broker_of_ranks or init_info.broker, "adapter": init_info.adapter,
                    "timeout": init_info.timeout_of_ranks})
            except BaseException:
                engine.shutdown()
                raise
        return engine

    def send_weights(self) -> None:
        """Returns when the engine answers with these weights, and with no keys and values of those before.
        Where it raises, the engine answers with those before; but where finish raised, it stays paused: its
        weights may be mixed.
        """
        rows = [(meta.name, torch_name(meta.dtype), tuple(meta.shape)) for meta in _metadata(self.source)]
        pairs = _pairs(self.source)
        if self._publisher is None:             # materializing a tensor may take all ranks
            for _ in pairs:
                pass
            return
        self.version = version = self._publisher.publish_each(rows, pairs, deadline=self._info.timeout)
        version.wait("staged", timeout=self._info.timeout)
        self.client.start_weight_update()
        self.client.update_weights({"tag": version.tag})
        assert self._pauses is not None
        self._pauses.pause(self._info.pause)        # which clears the cache of prefixes
        self.client.finish_weight_update(weight_version=version.tag)
        self._pauses.resume()

    def shutdown(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _pauses(client: Any) -> Any:
    """pause(mode) and resume(): of the client, or routes of the server where it is vLLM's own over HTTP."""
    if all(callable(getattr(client, name, None)) for name in ("pause", "resume")):
        return client
    if isinstance(getattr(client, "base_url", None), str):
        return _Routes(client)
    raise ValueError("heddle: the client has no pause(mode) and resume(): without them the engine answers "
                     "with keys and values of the weights before")


class _Routes:
    def __init__(self, client: Any) -> None:
        self._client = client

    def pause(self, mode: str) -> None:
        self._post(f"pause?mode={mode}")

    def resume(self) -> None:
        self._post("resume")

    def _post(self, path: str) -> None:
        request = urllib.request.Request(f"{self._client.base_url.rstrip('/')}/{path}", data=b"")
        urllib.request.urlopen(request, timeout=self._client.timeout).close()


def _metadata(source: Any) -> list[Any]:
    """A method, and since vLLM 0.33 a property."""
    found = source.metadata
    return list(found() if callable(found) else found)


def _pairs(source: Any) -> Iterator[tuple[str, Any]]:
    """Iteration, and since vLLM 0.33 `iter_full`."""
    whole = getattr(source, "iter_full", None)
    return iter(whole() if whole is not None else source)

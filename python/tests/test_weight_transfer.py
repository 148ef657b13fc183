# SPDX-License-Identifier: Apache-2.0
"""The backend `heddle` of vLLM's weight transfer against a double of vLLM's classes, with a real broker: what
is written to a model, and when.  tests/engines/weights.py does it with the real server.
"""
from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass, field

import pytest

import heddle

torch = pytest.importorskip("torch")


class Base:
    """vLLM's WeightTransferEngine, as far as the backend uses it."""

    def __init__(self, config, vllm_config, device, model):
        self.model, self.model_config = model, None

    def parse_update_info(self, told):
        return self.update_info_cls(**told)


class TrainerBase:
    def __init__(self, *, client, source=None, is_sender=True):
        self.client, self.source, self.is_sender = client, source, is_sender


@dataclass
class TrainerInfo:
    rank: int = field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


@dataclass
class Meta:
    name: str
    dtype: object
    shape: tuple


class Source:
    def __init__(self, model):
        self.model = model

    def metadata(self):
        return [Meta(name, p.dtype, tuple(p.shape)) for name, p in self.model.named_parameters()]

    def __iter__(self):
        return iter([(name, p.detach()) for name, p in self.model.named_parameters()])


class LaterSource:
    """Of vLLM 0.33."""

    def __init__(self, model):
        self._source = Source(model)

    @property
    def metadata(self):
        return self._source.metadata()

    def iter_full(self):
        return iter(self._source)


class Model(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(16, 8), torch.nn.Linear(8, 4, dtype=torch.bfloat16)

    def load_weights(self, pairs):
        mine = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in pairs:
                mine[name].copy_(tensor.mul_(1))        # loaders may write to what they are given

    def bits(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and a.keys() == b.keys()


@pytest.fixture
def transfer(monkeypatch):
    """heddle.weight_transfer over the double; `calls`: those of the layerwise reload."""
    calls = []
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.TrainerInitInfo, base.TrainerWeightTransferEngine = TrainerInfo, TrainerBase
    base.WeightTransferEngine = Base
    base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = object
    reload = types.ModuleType("vllm.model_executor.model_loader.reload")
    reload.initialize_layerwise_reload = lambda model: calls.append("initialize")
    reload.finalize_layerwise_reload = lambda model, config: calls.append("finalize")
    names = ["vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.model_executor",
             "vllm.model_executor.model_loader"]
    for module in (*map(types.ModuleType, names), base, reload):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "heddle.weight_transfer", raising=False)
    found = importlib.import_module("heddle.weight_transfer")
    found.calls = calls
    yield found
    sys.modules.pop("heddle.weight_transfer", None)


class Client:
    """The server's side in this process, with the order that vLLM's worker keeps."""

    def __init__(self, engine):
        self.engine, self.weight_version = engine, None

    def init_weight_transfer_engine(self, told):
        self.engine.init_transfer_engine(self.engine.init_info_cls(**told))

    def start_weight_update(self):
        self.engine.start_weight_update()

    def update_weights(self, told):
        self.engine.update_weights(told)

    def finish_weight_update(self, weight_version=None):
        self.engine.finish_weight_update()
        self.weight_version = weight_version


def both(transfer, broker, adapter, source):
    served = Model(0)
    engine = transfer.HeddleEngine(None, None, None, served)
    info = transfer.HeddleTrainerInitInfo(rank=0, broker=broker.endpoint, adapter=adapter, timeout=30.0)
    trainer = transfer.HeddleTrainerEngine.trainer_init(info, client=Client(engine), source=source)
    return served, engine, trainer


@pytest.mark.parametrize("form", [Source, LaterSource])
def test_weights_arrive_and_an_older_tag_is_a_way_back(transfer, broker, adapter, form):
    one, two = Model(1), Model(2)
    served, engine, trainer = both(transfer, broker, adapter, form(one))
    trainer.send_weights()
    first = trainer.version.tag
    assert same(served.bits(), one.bits()) and trainer.client.weight_version == first
    assert transfer.calls == ["initialize", "finalize"]
    trainer.source = form(two)
    trainer.send_weights()
    assert same(served.bits(), two.bits()) and trainer.version.version == 2
    client = trainer.client
    client.start_weight_update()
    client.update_weights({"tag": first})
    client.finish_weight_update()
    assert same(served.bits(), one.bits())
    trainer.shutdown()
    engine.shutdown()


def test_nothing_is_written_before_finish(transfer, broker, adapter):
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    trainer.send_weights()
    tag, before = trainer.version.tag, served.bits()
    trainer.source = Source(Model(2))
    trainer.client.finish_weight_update = None          # the trainer ends there
    with pytest.raises(TypeError):
        trainer.send_weights()
    trainer.shutdown()
    assert same(served.bits(), before)
    calls = len(transfer.calls)
    engine.start_weight_update()                        # of another trainer: what was held is forgotten
    engine.finish_weight_update()
    assert same(served.bits(), before) and len(transfer.calls) == calls
    wrong = tag.rpartition(":")[0] + ":000000000000"
    for unknown in (wrong, f"{adapter}@99", "other@1"):
        engine.start_weight_update()
        with pytest.raises(heddle.NotFound):
            engine.update_weights({"tag": unknown})
    assert same(served.bits(), before)
    engine.shutdown()


def test_out_of_order(transfer, broker, adapter):
    engine = transfer.HeddleEngine(None, None, None, Model(0))
    before = engine.model.bits()
    with pytest.raises(RuntimeError, match="init_weight_transfer_engine"):
        engine.start_weight_update()
    with pytest.raises(RuntimeError, match="init_weight_transfer_engine"):
        engine.update_weights({"tag": f"{adapter}@1"})
    engine.finish_weight_update()
    engine.shutdown()
    engine.shutdown()
    info = transfer.HeddleInitInfo(broker.endpoint, adapter)
    engine.init_transfer_engine(info)
    worker = engine._worker
    engine.init_transfer_engine(transfer.HeddleInitInfo(broker.endpoint, adapter))
    assert engine._worker is worker                     # the same trainer again
    engine.shutdown()
    assert same(engine.model.bits(), before)


def test_a_rank_that_does_not_send_takes_part_in_the_gathering(transfer, broker, adapter):
    came = []

    class Counted(Source):
        def __iter__(self):
            for pair in super().__iter__():
                came.append(pair[0])
                yield pair
    info = transfer.HeddleTrainerInitInfo(rank=1, broker=broker.endpoint, adapter=adapter)
    trainer = transfer.HeddleTrainerEngine.trainer_init(info, client=None, source=Counted(Model(1)))
    trainer.send_weights()
    assert len(came) == 4 and trainer.version is None
    trainer.shutdown()

# SPDX-License-Identifier: Apache-2.0
"""The backend `heddle` of vLLM's weight transfer against a double of vLLM's classes, with a real broker: what
is written to a model, and when.  tests/engines/weights.py does it with the real server.
"""
from __future__ import annotations

import functools
import http.server
import importlib
import sys
import threading
import types
from dataclasses import dataclass, field

import pytest

import heddle
from heddle.vllm import plugin, seams

torch = pytest.importorskip("torch")


class Base:
    """vLLM's WeightTransferEngine, as far as the backend uses it."""

    def __init__(self, config, vllm_config, device, model):
        self.vllm_config, self.model, self.model_config = vllm_config, model, None

    def parse_update_info(self, update_dict):
        return self.update_info_cls(**update_dict)

    def init_transfer_engine(self, init_info): ...

    def start_weight_update(self): ...

    def update_weights(self, update_info): ...

    def receive_weights(self, update_info): ...

    def finish_weight_update(self): ...

    def shutdown(self): ...


class Factory:
    _registry = {}

    @classmethod
    def register_engine(cls, name, module):
        cls._registry[name] = module


class TrainerFactory:
    _registry = {}

    @classmethod
    def register_engine(cls, name, module):
        cls._registry[name] = module


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
        return [Meta(name, p.dtype, tuple(p.shape)) for name, p in self.model.files().items()]

    def __iter__(self):
        return iter(self.model.files().items())


class LaterSource:
    """Of vLLM 0.33."""

    def __init__(self, model):
        self._source = Source(model)

    @property
    def metadata(self):
        return self._source.metadata()

    def iter_full(self):
        return iter(self._source)


def whole(param, loaded):
    assert param.shape == loaded.shape
    param.data.copy_(loaded.mul_(1))        # loaders may write to what they are given


def part(param, loaded, number):
    """As vLLM's of fused layers: what is too long is cut off."""
    param.data.narrow(0, 4 * number, 4).copy_(loaded.narrow(0, 0, 4))


class Model(torch.nn.Module):
    """Two layers: the first one is fused of `q` and `k`; `head` is tied to `second`."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(16, 8), torch.nn.Linear(8, 4, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(8, 4, bias=False)
        self.head.weight = self.second.weight
        self.first.weight.weight_loader = part

    def load_weights(self, pairs):
        mine = dict(self.named_parameters(remove_duplicate=False))
        for name, tensor in pairs:
            if name in ("q", "k"):
                weight = mine["first.weight"]
                weight.weight_loader(weight, tensor, "qk".index(name))
            else:
                getattr(mine[name], "weight_loader", whole)(mine[name], tensor)

    def files(self):
        """A version of it: names and tensors."""
        found = self.bits()
        weight = found.pop("first.weight")
        return {"q": weight[:4].clone(), "k": weight[4:].clone(), **found}

    def bits(self):
        return {name: p.detach().clone() for name, p in self.named_parameters()}


class Layer:
    """vLLM's LayerReloadingInfo."""

    def __init__(self, layer):
        self.meta = {name: p.to("meta") for name, p in layer._parameters.items() if p is not None}
        for name, p in self.meta.items():
            p.__dict__.update(layer._parameters[name].__dict__)
        self.reset()

    def reset(self):
        self.kernel, self.came, self.count = None, [], 0


class Reload:
    """vLLM's layerwise reload: a layer is without memory until all of it came.  `bias` always has some."""

    def __init__(self):
        self.calls, self.breaks, self._layers = [], 0, {}

    def info(self, layer):
        return self._layers.setdefault(layer, Layer(layer))

    def put_on_meta(self, layer, info):
        for name, tensor in info.meta.items():
            if name != "bias":
                layer._parameters[name] = tensor

    @staticmethod
    def to_meta(tensor):
        found = tensor.data.to("meta")
        found.__class__, found.__dict__ = tensor.__class__, tensor.__dict__.copy()
        return found

    def initialize(self, model):
        self.calls.append("initialize")
        for layer in model.modules():
            info = self.info(layer)
            if info.kernel is None:
                info.kernel = dict(layer._parameters)
                self.put_on_meta(layer, info)
                for name, tensor in layer._parameters.items():
                    if tensor is not None:
                        self.wrap(layer, info, name, tensor)

    def wrap(self, layer, info, name, tensor):
        own = getattr(tensor, "weight_loader", whole)
        if own.__name__ == "online_process_loader":
            own = own.__wrapped__

        @functools.wraps(own, assigned=())
        def online_process_loader(param, loaded, *more):
            if self.breaks:
                self.breaks -= 1
                raise MemoryError("no memory for a layer")
            info.came.append((name, own, loaded, more))
            own(param, loaded, *more)
            info.count += loaded.numel()
            if info.count >= sum(p.numel() for p in info.meta.values()):
                self.process(layer, info)
        tensor.weight_loader = online_process_loader

    def process(self, layer, info):
        with torch.no_grad():
            made = {name: torch.full(p.shape, 777.0, dtype=p.dtype) for name, p in info.meta.items()}
            for name, own, loaded, more in info.came:
                own(made[name], loaded, *more)
            for name, tensor in made.items():
                info.kernel[name].data.copy_(tensor)
        layer._parameters.update(info.kernel)
        info.reset()

    def finalize(self, model, config):
        self.calls.append("finalize")
        for layer in model.modules():
            info = self.info(layer)
            if info.kernel is not None and info.came:
                self.process(layer, info)
            elif info.kernel is not None:
                layer._parameters.update(info.kernel)
                info.reset()


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and a.keys() == b.keys()


def functions_of(double):
    """vLLM's functions of the layerwise reload."""
    def get_layerwise_info(layer):
        return double.info(layer)

    def initialize_layerwise_reload(model):
        double.initialize(model)

    def finalize_layerwise_reload(model, model_config):
        double.finalize(model, model_config)

    def finalize_layerwise_processing(model, model_config): ...

    def make_online_process_loader(layer, param_name):
        @functools.wraps(layer)
        def online_process_loader(): ...
        return online_process_loader

    def restore_layer_on_meta(layer, info):
        double.put_on_meta(layer, info)

    def to_meta_tensor(tensor):
        return double.to_meta(tensor)

    class LayerReloadingInfo:
        def reset(self): ...
    return {made.__name__: made for made in locals().values() if made is not double}


TRANSFER, RELOAD = "vllm.distributed.weight_transfer", "vllm.model_executor.model_loader.reload"


def modules_of(double):
    """vLLM's, as far as the backend uses them, or asks whether they are there: name -> what is in it"""
    functions, platform = functions_of(double), types.SimpleNamespace(is_cpu=lambda: True)
    return {"vllm": {}, "vllm.platforms": {"current_platform": platform},
            "vllm.distributed": {}, TRANSFER: {},
            f"{TRANSFER}.base": {"TrainerInitInfo": TrainerInfo, "TrainerWeightTransferEngine": TrainerBase,
                                 "WeightTransferEngine": Base, "WeightTransferInitInfo": object,
                                 "WeightTransferUpdateInfo": object},
            f"{TRANSFER}.factory": {"WeightTransferEngineFactory": Factory,
                                    "WeightTransferTrainerFactory": TrainerFactory},
            "vllm.model_executor": {}, "vllm.model_executor.model_loader": {}, RELOAD: functions,
            f"{RELOAD}.layerwise": functions, f"{RELOAD}.meta": functions, f"{RELOAD}.types": functions}


@pytest.fixture
def transfer(monkeypatch):
    """heddle.weight_transfer over the double; `calls`: those of the layerwise reload."""
    double = Reload()
    for name, its in modules_of(double).items():
        module = types.ModuleType(name)
        vars(module).update(its)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(plugin, "release", lambda: "0.32.0")
    monkeypatch.delitem(sys.modules, "heddle.weight_transfer", raising=False)
    found = importlib.import_module("heddle.weight_transfer")
    found.double, found.calls = double, double.calls
    yield found
    sys.modules.pop("heddle.weight_transfer", None)


def config(ranks=1, replicas=1, quant=None, is_tied=False):
    text_config = types.SimpleNamespace(tie_word_embeddings=is_tied)
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(hf_text_config=text_config),
        parallel_config=types.SimpleNamespace(world_size=ranks, data_parallel_size=replicas),
        quant_config=quant)


class Client:
    """The server's side in this process, with the order that vLLM's worker keeps."""

    def __init__(self, engine):
        self.engine, self.weight_version = engine, None
        self.is_active = False
        self.cached = "of the weights before"       # keys and values of prefixes
        self.did = []

    def init_weight_transfer_engine(self, told):
        self.engine.init_transfer_engine(self.engine.init_info_cls(**told))

    def start_weight_update(self):
        assert not self.is_active
        self.engine.start_weight_update()
        self.is_active = True

    def update_weights(self, told):
        assert self.is_active
        try:
            self.engine.update_weights(told)
        except BaseException:
            self.is_active = False
            raise

    def pause(self, mode):
        self.did.append(f"pause {mode}")
        self.cached = None

    def resume(self):
        self.did.append("resume")

    def finish_weight_update(self, weight_version=None):
        assert self.is_active
        self.did.append("finish")
        self.engine.finish_weight_update()
        self.is_active = False
        if weight_version is not None:
            self.weight_version = weight_version


def both(transfer, broker, adapter, source):
    served = Model(0)
    engine = transfer.HeddleEngine(None, config(), None, served)
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


def test_nothing_is_written_before_finish(transfer, broker, adapter, caplog):
    caplog.set_level("INFO", "vllm.heddle")
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
    assert engine._slot is not None
    said = [r.getMessage() for r in caplog.records if "weights: " in r.getMessage()]
    assert said[0].startswith(f"weights: {tag} is held") and said[1] == f"weights: those of {tag} are loaded"
    assert len(said) == 3, "and of the update that was left open"
    assert said[2].startswith(f"weights: {engine._slot.tag} is held")
    held = engine._slot.tag
    engine.start_weight_update()                        # of another trainer: what was held is forgotten
    assert f"weights: {held} is not held any more, and was not loaded" in caplog.text
    engine.finish_weight_update()
    assert same(served.bits(), before) and len(transfer.calls) == calls
    wrong = tag.rpartition(":")[0] + ":000000000000"
    for unknown in (wrong, f"{adapter}@99", "other@1"):
        engine.start_weight_update()
        with pytest.raises(heddle.NotFound):
            engine.update_weights({"tag": unknown})
    assert same(served.bits(), before)
    engine.shutdown()


def test_what_is_held_outlasts_the_init_of_another_trainer(transfer, broker, adapter):
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    trainer.client.finish_weight_update = None          # the trainer ends there
    with pytest.raises(TypeError):
        trainer.send_weights()
    tag = trainer.version.tag
    trainer.shutdown()
    worker = engine._worker
    engine.init_transfer_engine(transfer.HeddleInitInfo(broker.endpoint, adapter, timeout=7.0))
    assert engine._worker is not worker and engine._slot.tag == tag
    engine.finish_weight_update()                       # as people do it, with that tag
    assert same(served.bits(), Model(1).bits())
    engine.shutdown()


def test_out_of_order(transfer, broker, adapter):
    engine = transfer.HeddleEngine(None, config(), None, Model(0))
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
    assert len(came) == 5 and trainer.version is None
    trainer.shutdown()


def published(broker, adapter, tensors):
    """The tag of a version that is published like that, by another writer."""
    with heddle.Publisher(broker.endpoint, adapter, kind="tensors") as publisher:
        version = publisher.publish_tensors(tensors)
        version.wait("staged", timeout=30)
        return version.tag


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


MISFITS = {
    "half of a fused layer": (lambda t: without(t, "k"), "first.weight"),
    "a missing file": (lambda t: without(t, "second.weight", "second.bias"), "second.weight"),
    "a missing bias": (lambda t: without(t, "first.bias"), "first.bias"),
    "another shape": (lambda t: {**t, "second.weight": torch.zeros(5, 8)}, "second.weight"),
    "too long for a fused layer": (lambda t: {**t, "k": torch.zeros(6, 16)}, "elements"),
    "a name of no parameter": (lambda t: {**t, "third": torch.zeros(3)}, "third"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_is_refused_before_a_byte_is_written(transfer, broker, adapter, what):
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    client = trainer.client
    trainer.send_weights()                          # so that the loaders have been wrapped once
    tag, before = trainer.version.tag, served.bits()
    places = {name: id(p) for name, p in served.named_parameters(remove_duplicate=False)}
    trainer.shutdown()
    change, named = MISFITS[what]
    wrong = published(broker, adapter, change(Model(2).files()))
    client.start_weight_update()
    with pytest.raises(heddle.HeddleError, match=named) as told:
        client.update_weights({"tag": wrong})
    assert told.value.code == "not_activatable" and wrong in str(told.value)
    assert same(served.bits(), before)
    assert places == {name: id(p) for name, p in served.named_parameters(remove_duplicate=False)}
    client.start_weight_update()                    # vLLM ended the session
    client.update_weights({"tag": tag})
    client.finish_weight_update(weight_version=tag)
    assert same(served.bits(), Model(1).bits()) and client.weight_version == tag
    engine.shutdown()


@pytest.mark.parametrize("loads", [1, 3])
def test_a_load_that_broke_says_yes_to_no_tag(transfer, broker, adapter, loads):
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    client = trainer.client
    trainer.send_weights()
    first = trainer.version.tag
    transfer.double.breaks = loads                  # as many tensors end in an error, one after the other
    trainer.source = Source(Model(2))
    client.did.clear()
    with pytest.raises(MemoryError):
        trainer.send_weights()
    second = trainer.version.tag
    assert client.did == ["pause keep", "finish"]   # mixed weights do not answer
    assert not any(p.is_meta for p in served.parameters())
    for _ in range(loads - 1):
        with pytest.raises(MemoryError):
            client.finish_weight_update(weight_version=second)
    assert client.weight_version == first
    client.finish_weight_update(weight_version=second)      # it is held, and loaded whole
    assert same(served.bits(), Model(2).bits()) and client.weight_version == second
    trainer.shutdown()
    engine.shutdown()


def test_mixed_weights_take_a_whole_version_before_a_tag(transfer, broker, adapter):
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    client = trainer.client
    trainer.send_weights()
    tag = trainer.version.tag
    transfer.double.breaks = 1
    trainer.source = Source(Model(2))
    with pytest.raises(MemoryError):
        trainer.send_weights()
    with pytest.raises(heddle.NotFound):
        client.update_weights({"tag": f"{adapter}@99"})     # which ends vLLM's session
    client.start_weight_update()
    with pytest.raises(heddle.HeddleError, match="mixed"):
        client.finish_weight_update(weight_version=f"{adapter}@99")
    assert client.weight_version == tag
    client.update_weights({"tag": tag})
    client.finish_weight_update(weight_version=tag)
    assert same(served.bits(), Model(1).bits())
    trainer.shutdown()
    engine.shutdown()


@pytest.mark.parametrize("release", ["0.31.0", "0.33.0", "0.32.0rc1"])
def test_a_release_that_was_not_proven_is_refused(transfer, monkeypatch, release):
    monkeypatch.setattr(plugin, "release", lambda: release)
    with pytest.raises(ValueError, match=f"vLLM {release} is not a release that .*; hint: .* 0.32"):
        transfer.HeddleEngine(None, config(), None, Model(0))


@pytest.mark.parametrize("seam", seams.WEIGHTS, ids=str)
def test_a_vllm_without_one_of_the_private_names_is_refused(transfer, monkeypatch, seam):
    """Of an instance, where it is a name of instances."""
    module, words = sys.modules[seam.module], "vLLM 0.32.0 is not as expected: "
    if isinstance(seam, seams.Attribute):
        def init(self, config, vllm_config, device, model):
            its = {"vllm_config": vllm_config, "model_config": None, "model": model}
            self.__dict__.update({name: value for name, value in its.items() if name != seam.name})
        monkeypatch.setattr(Base, "__init__", init)
        words += f"HeddleEngine has no {seam.name}"
    elif seam.name.endswith(".__init__"):       # of which every class has one
        monkeypatch.setattr(getattr(module, seam.name.partition(".")[0]), "__init__", lambda this: None)
        words += f"{seam.module}.{seam.name} takes this"
    else:
        *owner, name = seam.name.split(".")
        monkeypatch.delattr(getattr(module, *owner) if owner else module, name)
        words += f"{seam.module} has no {seam.name}"
    with pytest.raises(ValueError, match=f"{words}; hint: .* 0.32"):
        transfer.HeddleEngine(None, config(), None, Model(0))


@pytest.mark.parametrize("release, words", [("0.26.0", "is not a release"),
                                            ("0.32.0", "is not as expected: cannot import")])
def test_a_vllm_without_what_the_backend_is_made_of_is_refused(transfer, monkeypatch, release, words):
    monkeypatch.setattr(plugin, "release", lambda: release)
    monkeypatch.delattr(sys.modules[f"{TRANSFER}.base"], "TrainerInitInfo")
    monkeypatch.delitem(sys.modules, "heddle.weight_transfer")
    with pytest.raises(ImportError, match=f"heddle: .* vLLM {release} {words}.*; hint: .* 0.32"):
        importlib.import_module("heddle.weight_transfer")


@pytest.mark.parametrize("its, words", [(config(ranks=2), "one rank"), (config(replicas=2), "one rank"),
                                        (config(quant=object()), "quantized"),
                                        (config(is_tied=True), "whose head is tied")])
def test_an_engine_that_was_not_proven_does_not_start(transfer, its, words):
    with pytest.raises(ValueError, match=words):
        transfer.HeddleEngine(None, its, None, Model(0))


def test_a_tied_head_is_taken_where_it_has_no_copy_of_its_own(transfer, monkeypatch):
    monkeypatch.setattr(transfer.current_platform, "is_cpu", lambda: False)
    transfer.HeddleEngine(None, config(is_tied=True), None, Model(0)).shutdown()


def test_no_key_or_value_of_the_weights_before_is_kept(transfer, broker, adapter):
    _, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    trainer.send_weights()
    assert trainer.client.did == ["pause keep", "finish", "resume"] and trainer.client.cached is None
    trainer.shutdown()
    engine.shutdown()


def test_a_client_that_cannot_pause_is_refused(transfer, broker, adapter):
    info = transfer.HeddleTrainerInitInfo(rank=0, broker=broker.endpoint, adapter=adapter)
    with pytest.raises(ValueError, match="pause"):
        transfer.HeddleTrainerEngine.trainer_init(info, client=object(), source=Source(Model(1)))


def test_the_client_of_vllm_pauses_by_the_routes_of_the_server(transfer):
    class Routes(http.server.BaseHTTPRequestHandler):
        paths = []

        def do_POST(self):
            self.paths.append(self.path)
            self.send_response(200 if "bad" not in self.path else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Routes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        found = transfer._pauses(types.SimpleNamespace(base_url=url, timeout=30))
        found.pause("wait")
        found.resume()
        with pytest.raises(OSError, match="500"):
            found.pause("bad")
        server.shutdown()
    assert Routes.paths[:2] == ["/pause?mode=wait", "/resume"]


def test_the_engine_stands_still_for_seconds_alone(transfer, broker, adapter, monkeypatch):
    assert transfer.HeddleInitInfo("", "").timeout <= 10
    engine = transfer.HeddleEngine(None, config(), None, Model(0))
    asked = []
    monkeypatch.setattr(engine, "init_transfer_engine", asked.append)
    info = transfer.HeddleTrainerInitInfo(rank=0, broker=broker.endpoint, adapter=adapter)
    transfer.HeddleTrainerEngine.trainer_init(info, client=Client(engine), source=Source(Model(1))).shutdown()
    info.timeout_of_ranks = 42.0
    transfer.HeddleTrainerEngine.trainer_init(info, client=Client(engine), source=Source(Model(1))).shutdown()
    assert asked[0].timeout <= 10 and asked[1].timeout == 42.0


def test_other_bytes_under_the_number_are_not_taken(transfer, broker, adapter, monkeypatch):
    """As after a broker lost its data: it gives the number out again, and the worker has the older bytes."""
    served, engine, trainer = both(transfer, broker, adapter, Source(Model(1)))
    trainer.send_weights()
    before, client = served.bits(), trainer.client
    tag = trainer.version.tag.rpartition(":")[0] + ":0123456789ab"
    told = types.SimpleNamespace(tag=tag, state="active", version=trainer.version.version)
    monkeypatch.setattr(transfer.Admin, "versions", lambda self, ref: (told,))
    client.start_weight_update()
    with pytest.raises(heddle.HeddleError, match="other bytes"):
        client.update_weights({"tag": tag})
    assert engine._slot is None and same(served.bits(), before)
    trainer.shutdown()
    engine.shutdown()

# SPDX-License-Identifier: Apache-2.0
"""What a live model does between two versions: modules come and go, memory is freed, tensors are tied or
lazy.
"""
import _thread
import collections
import copy
import functools
import gc
import json
import os
import pathlib
import pickle
import socket
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import heddle
import models
from heddle import _model


def layer(model, at=0):
    return model.base_model.model.model.layers[at].self_attn.q_proj


def planned(model, name="default"):
    """What the plan says: name -> parameter."""
    plan, _ = _model.plan_of(model, name)
    return {row[0]: p for row, p in zip(plan.table.rows, plan.parameters, strict=True)}


def is_true(model, name="default"):
    """Whether the plan says what PEFT would save now."""
    have, want = planned(model, name), dict(_model._saved(model, name))
    return have.keys() == want.keys() and all(have[key] is p for key, p in want.items())


# -- modules come and go -------------------------------------------------------------------------------------

def set_one(model):
    owner = layer(model).lora_B
    owner.pop("default")
    owner["default"] = torch.nn.Linear(8, 32, bias=False)


def replace_a_saved_module(model):
    wrapper = model.base_model.model.model.norm
    del wrapper.modules_to_save["default"]
    wrapper.modules_to_save["default"] = copy.deepcopy(wrapper.original_module)


def load_again(model):
    from peft import LoraConfig
    model.delete_adapter("default")
    gc.collect()
    model.add_adapter("default",
                      LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj",
                                                                     "down_proj"], task_type="CAUSAL_LM"))


@pytest.mark.parametrize("kind,change", [("plain", set_one), ("modules_to_save", replace_a_saved_module),
                                         ("plain", load_again)])
def test_a_module_at_the_address_of_one_that_is_gone_is_another(kind, change):
    model = models.lora(kind)
    assert is_true(model)
    assert not _model.plan_of(model, "default")[1], "the plan is known"
    for turn in range(12):
        change(model)
        assert is_true(model), f"turn {turn}: the plan says what is no longer of the model"


def test_what_is_published_is_of_the_model(broker, adapter, tmp_path):
    model = models.lora()
    with heddle.Publisher(adapter=adapter) as pub:
        for turn in range(6):
            model.save_pretrained(tmp_path / str(turn))
            config = (tmp_path / str(turn) / "adapter_config.json").read_bytes()
            want = heddle.safetensors.check(tmp_path / str(turn)).digest
            assert pub.publish(model, config=config).digest == want, f"turn {turn}"
            set_one(model)


def test_parameters_that_are_tied_no_longer_are_two(broker, adapter, tmp_path):
    model = models.lora()
    first, second = [m for m in model.modules() if "default" in getattr(m, "lora_A", ())][:2]
    second.lora_A["default"].weight = first.lora_A["default"].weight
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        for turn in range(3):
            if turn == 2:
                own = first.lora_A["default"].weight.detach() + 1
                second.lora_A["default"].weight = torch.nn.Parameter(own)
            tensors = {key: p.detach().clone() for key, p in planned(model).items()}
            want = pub.publish_tensors(tensors, _model.config_of(model, "default")).digest
            assert is_true(model) and pub.publish(model).digest == want, f"turn {turn}"


def test_modules_that_change_names_are_noticed():
    from peft import LoraConfig
    model = models.lora()
    model.add_adapter("other",
                      LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert is_true(model) and is_true(model, "other")
    owner = layer(model).lora_A
    first, second = owner.pop("default"), owner.pop("other")
    owner["other"], owner["default"] = first, second          # the same modules, in the same order
    assert is_true(model) and is_true(model, "other")


def test_a_module_without_children_that_gets_one_is_noticed():
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    assert is_true(model) and plan.is_of(model)
    layer(model).lora_magnitude_vector["default"] = torch.nn.Linear(3, 2, bias=False)
    assert not plan.is_of(model) and is_true(model)
    assert any("lora_magnitude_vector" in key for key in planned(model))


def test_children_in_another_dict_are_noticed():
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    leaf = layer(model).lora_magnitude_vector
    leaf.__dict__["_modules"] = {"default": torch.nn.Linear(3, 2, bias=False)}
    assert not plan.is_of(model) and is_true(model)


@pytest.mark.parametrize("put", [lambda m: setattr(m, "bias", torch.nn.Parameter(torch.zeros(32))),
                                 lambda m: m.register_buffer("bias_lora_", torch.zeros(3))])
def test_a_tensor_beside_one_of_the_adapter_is_noticed(put):
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    put(layer(model).lora_B["default"])
    assert not plan.is_of(model) and is_true(model)
    assert any("lora_B.bias" in key for key in planned(model))


def test_a_configuration_that_changes_is_published(broker, adapter):
    model = models.lora()
    config = model.peft_config["default"]

    def as_a_float():
        config.lora_alpha = float(config.lora_alpha)        # equal, and written differently

    def in_place():
        config.target_modules.add("gate_proj")

    def in_another_order():
        config.target_modules = sorted(config.target_modules)

    def in_order():
        config.target_modules = set(config.target_modules)  # as another type, and written as before
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        digests = [pub.publish(model).digest]
        tensors = {key: p.detach().clone() for key, p in planned(model).items()}
        for change in (as_a_float, in_place, in_another_order, in_order):
            change()
            digests.append(pub.publish(model).digest)
            want = pub.publish_tensors(tensors, _model.config_of(model, "default")).digest
            assert digests[-1] == want, change.__name__
            plan = _model.known_plan(model, "default")
            assert plan._config_key == _model._config_key(model, "default"), "it is not made anew each time"
        assert len(set(digests)) == 3 and digests[2:] == [digests[2]] * 3


def test_a_plan_keeps_no_module():
    model = models.lora()
    planned(model)
    gone = weakref.ref(layer(model).lora_B["default"])
    set_one(model)
    gc.collect()
    assert gone() is None
    child = torch.nn.Linear(3, 2, bias=False)
    child.owner = [model]                       # in what had no children: it must not be kept with its parent
    layer(model).lora_magnitude_vector["default"] = child
    del child
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("where", [lambda m: m.lora_A["default"], lambda m: m.lora_dropout["default"],
                                   lambda m: m.lora_A, lambda m: m])
def test_a_module_that_knows_the_model_does_not_keep_it(where):
    model = models.lora()
    planned(model)
    where(layer(model)).register_forward_hook(lambda *_, known=model: None)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_with_a_plan_goes_as_one_without_does():
    """The memory of a base model waits for no garbage collection."""
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    gone = [weakref.ref(thing) for thing in (model, plan, *model.modules())]
    gc.collect()
    gc.disable()
    try:
        del model, plan
        assert not any(ref() is not None for ref in gone)
    finally:
        gc.enable()


def test_what_is_taken_out_of_a_model_goes_with_all_that_is_in_it():
    model = models.lora()
    planned(model)
    layers = model.base_model.model.model.layers
    gone = [weakref.ref(module) for module in layers[1].modules()]
    layers[1] = torch.nn.Identity()
    assert not any(ref() is not None for ref in gone)
    assert is_true(model)


def test_a_copy_of_a_model_does_not_take_its_plans():
    model = models.lora()
    planned(model)
    data = pickle.dumps(model)
    assert b"heddle._model" not in data, "who reads it needs no Heddle"
    for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(data)):
        assert _model.known_plan(other, "default") is None
        assert is_true(other) and is_true(model)
        assert not _model.plan_of(other, "default")[1] and not _model.plan_of(model, "default")[1]
    assert not any("heddle" in key for key in model.state_dict())


def test_plans_are_of_a_type_that_torch_loads_with_weights_only(tmp_path):
    class Holder(torch.nn.Module):
        pass
    holder = Holder()
    _model._plans_of(holder)["default"] = None
    torch.save(vars(holder)[_model._PLANS], tmp_path / "plans")
    assert torch.load(tmp_path / "plans", weights_only=True) == {}


def test_a_module_that_refers_to_itself_goes_with_the_next_plan():
    model = models.lora()
    planned(model)
    layers = model.base_model.model.model.layers
    layers[1].forward = layers[1].forward               # as accelerate does it
    gone = weakref.ref(layers[1])
    layers[1] = torch.nn.Identity()
    assert is_true(model)
    gc.collect()
    assert gone() is None


def test_a_traced_module_is_looked_at_too():
    model = models.lora()
    mlp = model.base_model.model.model.layers[0].mlp
    for inner in (torch.nn.SiLU(), torch.nn.Sequential(torch.nn.SiLU())):
        mlp.act_fn = torch.jit.trace(inner, torch.zeros(2, 3))
        plan, _ = _model.plan_of(model, "default")
        assert is_true(model) and plan.is_of(model)
        mlp.act_fn = torch.nn.SiLU()
        assert not plan.is_of(model) and is_true(model)


def test_a_handler_that_raises_as_a_module_goes_is_heard():
    """And what went is known to have gone: the next module may be at its address."""
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    owner = layer(model).lora_B
    calls = [_thread.interrupt_main, functools.partial(owner._modules.pop, "default")]
    with pytest.raises(KeyboardInterrupt):
        # nothing of Python's runs between the two, or before the callback of what goes
        collections.deque(map(functools.partial.__call__, map(functools.partial, calls)), maxlen=0)
    owner["default"] = torch.nn.Linear(8, 32, bias=False)
    assert not plan.is_of(model) and "dicts" not in plan._tree._held


@pytest.mark.parametrize("plain", [True, False])
def test_a_publish_begins_once(broker, adapter, monkeypatch, plain):
    model = models.lora()
    if not plain:
        p = layer(model).lora_B["default"].weight
        p.data = p.data.t().contiguous().t()
    begun = []
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        begin = pub._begin
        monkeypatch.setattr(pub, "_begin", lambda *args: (begun.append(1), begin(*args))[1])
        for _ in range(3):
            pub.publish(model)
    assert len(begun) == 3


@pytest.mark.parametrize("kind", ["_modules", "_parameters"])
def test_a_dict_that_is_exchanged_is_noticed_when_it_changes(kind):
    """torch.nn.Sequential does that where a slice of it is deleted, DeepSpeed everywhere."""
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    owner = layer(model).lora_B
    module = owner if kind == "_modules" else owner["default"]
    setattr(module, kind, dict(getattr(module, kind)))
    assert is_true(model)
    if kind == "_modules":
        owner["default"] = torch.nn.Linear(8, 32, bias=False)
    else:
        owner["default"].weight = torch.nn.Parameter(torch.zeros(32, 8))
    assert not plan.is_of(model) and is_true(model)


def test_the_order_of_an_ordered_dict_is_its_own():
    from peft import LoraConfig
    model = models.lora()
    model.add_adapter("other",
                      LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    owner = layer(model).lora_A
    owner._modules = collections.OrderedDict(owner._modules)
    assert is_true(model) and is_true(model, "other")
    first, second = owner.pop("default"), owner.pop("other")
    owner["other"], owner["default"] = first, second
    owner._modules.move_to_end("other")             # the names as they were, of the other modules
    assert is_true(model) and is_true(model, "other")


def test_what_torch_conjugates_later_does_not_lie_as_it_did(broker, adapter):
    model = models.lora()
    p = layer(model).lora_A["default"].weight
    p.data = torch.complex(p.data, p.data + 1)
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        for _ in range(2):
            pub.publish(model)
        p.data = p.data.conj()
        found = pub.publish(model).digest
        tensors = {key: t.detach().clone().resolve_conj() for key, t in planned(model).items()}
        assert found == pub.publish_tensors(tensors, _model.config_of(model, "default")).digest


def test_memory_of_another_storage_is_not_read_as_its_own():
    model = models.lora()
    plan, _ = _model.plan_of(model, "default")
    p = layer(model).lora_A["default"].weight
    arena, size = bytearray(8 * p.nbytes), p.nbytes
    views = [torch.frombuffer(arena, dtype=p.dtype, count=2 * p.numel(), offset=at)
             for at in (size, 2 * size)]
    p.data = views[1][:p.numel()].view(p.shape)
    plan._find()
    assert plan.is_there()
    p.data = views[0][p.numel():].view(p.shape)     # at the same address, and as large
    assert not plan.is_there()


def moved(p):
    old, p.data = p.data, p.data + 1
    old.zero_()


def turned(p):
    p.data = p.data.t().contiguous().t()            # as many bytes at another stride


def turned_in_place(p):
    n, m = p.shape
    p.data = p.data.as_strided((n, m), (1, n))      # where it was


@pytest.mark.parametrize("change", [moved, turned, turned_in_place,
                                    lambda p: setattr(p, "data", torch._neg_view(p.data))])
def test_a_parameter_that_lies_elsewhere_since_is_published_as_it_is(broker, adapter, change):
    model = models.lora()
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        for _ in range(2):
            pub.publish(model)
        change(layer(model).lora_A["default"].weight)
        found = pub.publish(model).digest
        tensors = {key: p.detach().clone().resolve_neg() for key, p in planned(model).items()}
        assert found == pub.publish_tensors(tensors, _model.config_of(model, "default")).digest


def test_a_parameter_that_was_freed_since_is_refused(broker, adapter):
    model = models.lora()
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        for _ in range(2):
            pub.publish(model)
        layer(model).lora_A["default"].weight.untyped_storage().resize_(0)
        with pytest.raises(heddle.UsageError, match="has no memory"):
            pub.publish(model)


# -- memory --------------------------------------------------------------------------------------------------

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def freed(shape, offset=0, left=0, order="ab"):
    """A tensor whose storage ends before its last element; the first may have an address nevertheless."""
    flat = torch.randn(offset + torch.Size(shape).numel())
    tensor = flat[offset:].view(shape) if order == "ab" else flat[offset:].view(shape[::-1]).t()
    flat.untyped_storage().resize_(left and flat.nbytes - left)
    return tensor


LACKING = {
    "freed": lambda shape: freed(shape),
    "freed, at an offset": lambda shape: freed(shape, offset=64),
    "shrunk": lambda shape: freed(shape, left=1),
    "shrunk, with strides": lambda shape: freed(shape, offset=64, left=1, order="ba"),
    "meta": lambda shape: torch.empty(shape, device="meta"),
    "sparse": lambda shape: torch.eye(*shape).to_sparse(),
    "csr": lambda shape: torch.eye(*shape).to_sparse_csr(),
}


def test_what_has_no_memory_is_refused_by_name(program, broker, adapter):
    """In a process of its own: to read it would end that."""
    it = program("""
        import torch
        sys.path.insert(0, sys.argv[1])
        import heddle, heddle.peft, models, test_model as here

        def said(call):
            try:
                told = ["no error", None, str(call())]
            except heddle.HeddleError as e:
                told = [e.code, e.phase, str(e)]
            print(json.dumps(told), flush=True)

        model = models.lora()
        owner = here.layer(model).lora_A["default"]
        whole = owner.weight
        with heddle.Publisher(adapter=sys.argv[2]) as pub:
            for how in here.LACKING.values():
                said(lambda: pub.publish_tensors({here.KEY.format("A"): torch.randn(8, 32),
                                                  here.KEY.format("B"): how((32, 8))}, here.CONFIG))
                owner.weight = whole
                source = {key: p.detach().clone() for key, p in here.planned(model).items()}
                said(lambda: heddle.peft.load_into(model, {**source, here.KEY.format("A"): how((8, 32))}))
                owner.weight = torch.nn.Parameter(how((8, 32)))
                said(lambda: pub.publish(model))
                said(lambda: heddle.peft.load_into(model, source))
    """, pathlib.Path(__file__).parent, adapter)
    for how in LACKING:
        what = "not dense" if how in ("sparse", "csr") else "no memory"
        for name, phase in ((KEY.format("B"), None), (KEY.format("A"), None), (KEY.format("A"), "pack"),
                            (KEY.format("A"), None)):
            code, at, text = it.json()
            assert (code, at) == ("usage", phase) and f"{name} " in text and what in text, how
    assert it.end(sign=None) == 0


def test_a_piece_of_a_sharded_tensor_without_memory_is_refused_by_name():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(s.getsockname()[1]))
    dist.init_process_group("gloo")
    try:
        model = models.lora()
        owner = layer(model).lora_A["default"]
        owner.weight = torch.nn.Parameter(distribute_tensor(owner.weight.detach(),
                                                            init_device_mesh("cpu", (1,)), [Shard(0)]))
        assert is_true(model)
        owner.weight.to_local().untyped_storage().resize_(0)
        with pytest.raises(heddle.UsageError, match=r"q_proj\.lora_A\.weight has no memory") as e:
            _model.plan_of(model, "default")
        assert e.value.phase == "pack"
        from heddle.tensors import describe
        with pytest.raises(heddle.UsageError, match="x is sharded"):
            describe("x", owner.weight)
    finally:
        dist.destroy_process_group()
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name)


def test_a_sign_that_torch_has_not_applied_yet_is_published(broker, adapter):
    """torch keeps a negation (and a conjugation) as a bit of the tensor: the bytes in memory are of the other
    sign.
    """
    model = models.lora()
    owner = layer(model).lora_A["default"]
    owner.weight = torch.nn.Parameter(torch._neg_view(owner.weight.detach().clone()))
    assert owner.weight.is_neg() and owner.weight.is_contiguous()
    tensors = {key: p.detach().clone() for key, p in planned(model).items()}
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        want = pub.publish_tensors({key: t.resolve_neg() for key, t in tensors.items()},
                                   _model.config_of(model, "default")).digest
        assert pub.publish(model).digest == want
        assert pub.publish_tensors({**tensors, KEY.format("A"): owner.weight},
                                   _model.config_of(model, "default")).digest == want
    heddle.peft.load_into(model, tensors)
    assert all(torch.equal(p, tensors[key]) for key, p in planned(model).items())


# -- load_into: all, or none ---------------------------------------------------------------------------------

def values(model):
    return {key: p.detach().clone() for key, p in planned(model).items()}


def other(model):
    return {key: t + 1 for key, t in values(model).items()}


def refused(model, source, error, match):
    before = values(model)
    with pytest.raises(error, match=match) as e:
        heddle.peft.load_into(model, source)
    assert [key for key, t in values(model).items()
            if not torch.equal(t, before[key])] == [], "something was loaded"
    return e.value


def set_last(model, make):
    """Puts another tensor in the place of the parameter that is loaded last."""
    owner = [m for m in model.modules() if "default" in getattr(m, "lora_B", ())][-1].lora_B["default"]
    owner.weight = torch.nn.Parameter(make(owner.weight.detach()), requires_grad=False)
    return list(planned(model))[-1]


def in_inference_mode(tensor):
    with torch.inference_mode():
        return tensor.clone()


@pytest.mark.parametrize("make,match", [
    (lambda t: torch.zeros(1, 1).expand(t.shape), "several elements at one place"),
    (lambda t: torch.zeros(64 + t.numel()).as_strided(t.shape, (2, 1)), "several elements at one place"),
    (in_inference_mode, "inference tensor"),
])
def test_a_parameter_that_cannot_be_written_to_is_named_and_nothing_is_loaded(make, match):
    model = models.lora()
    source = other(model)
    name = set_last(model, make)
    assert name in str(refused(model, source, heddle.UsageError, match))


def test_in_inference_mode_its_tensors_are_written_to():
    model = models.lora()
    source = other(model)
    with torch.inference_mode():
        set_last(model, torch.clone)
        heddle.peft.load_into(model, source)
    assert all(torch.equal(t, source[key]) for key, t in values(model).items())


@pytest.mark.parametrize("make",
                         [lambda t: torch.empty_like(t, device="meta"), lambda t: freed(t.shape, offset=8)])
def test_a_source_without_memory_is_named_and_nothing_is_loaded(make):
    model = models.lora()
    source = other(model)
    last = list(planned(model))[-1]
    assert last in str(refused(model, {**source, last: make(source[last])}, heddle.UsageError, "no memory"))


def test_tied_parameters_take_what_is_equal_and_nothing_else():
    model = models.lora()
    source = other(model)
    one, two = (layer(model, at).lora_A["default"] for at in (0, 1))
    names = [KEY.format("A"), KEY.format("A").replace("layers.0", "layers.1")]
    two.weight = one.weight
    error = refused(model, source, heddle.BadAdapter, "same memory")
    assert all(name in str(error) for name in names) and error.code == "bad_adapter"
    source[names[0]][0, 0] = float("nan")
    source[names[1]] = source[names[0]].clone()
    heddle.peft.load_into(model, source)
    assert all(torch.equal(t.nan_to_num(), source[key].nan_to_num()) for key, t in values(model).items())
    two.weight = torch.nn.Parameter(torch.zeros(512)[128:384].view(8, 32))
    # one further, in the same storage
    one.weight = torch.nn.Parameter(two.weight.detach().view(-1).as_strided((8, 32), (32, 1), 129))
    refused(model, source, heddle.BadAdapter, "same memory")
    both = torch.zeros(2, 8, 32)
    # side by side is no sharing
    one.weight, two.weight = torch.nn.Parameter(both[0]), torch.nn.Parameter(both[1])
    heddle.peft.load_into(model, source)


@pytest.mark.parametrize("as_numpy", [False, True])
def test_parameters_of_the_model_may_change_places(as_numpy):
    model = models.lora()
    names = [KEY.format("A").replace("layers.0", f"layers.{at}") for at in (0, 1)]
    want, live = values(model), planned(model)
    want[names[0]], want[names[1]] = want[names[1]], want[names[0]]
    source = {key: p.detach().numpy() if as_numpy else p for key, p in live.items()}
    source[names[0]], source[names[1]] = source[names[1]], source[names[0]]
    heddle.peft.load_into(model, source)
    assert [key for key, t in values(model).items() if not torch.equal(t, want[key])] == []


def test_parameters_may_take_parts_of_each_other():
    """Ranges of one storage that overlap a target only in part."""
    model = models.lora()
    flat = torch.randn(1024)
    first, second = layer(model).lora_A["default"], layer(model, 1).lora_A["default"]
    first.weight, second.weight = (torch.nn.Parameter(flat[at:at + 256].view(8, 32), requires_grad=False)
                                   for at in (0, 256))
    source = values(model)
    names = [KEY.format("A").replace("layers.0", f"layers.{at}") for at in (0, 1)]
    source[names[0]], source[names[1]] = flat[128:384].view(8, 32), flat[255:511].view(8, 32)
    want = {key: t.clone() for key, t in source.items()}
    heddle.peft.load_into(model, source)
    assert [key for key, t in values(model).items() if not torch.equal(t, want[key])] == []


def test_numpy_arrays_of_any_order_are_loaded():
    model = models.lora()
    source = other(model)
    for how in (lambda a: a[::-1, ::-1].copy()[::-1, ::-1], lambda a: a.astype(">f4"),
                lambda a: a.T.copy().T):
        for t in source.values():
            t.add_(1)
        heddle.peft.load_into(model, {key: how(t.numpy()) for key, t in source.items()})
        assert all(torch.equal(t, source[key]) for key, t in values(model).items())


# -- load_into: the configuration ----------------------------------------------------------------------------

def test_every_field_of_peft_has_been_judged():
    import dataclasses

    from heddle.peft import _MEANING, _NO_MEANING
    from peft import LoraConfig
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    assert not _MEANING.keys() & _NO_MEANING.keys()
    assert fields - _MEANING.keys() - _NO_MEANING.keys() == set(), (
        "decide whether a tensor means something else with it")


def loaded(theirs, ours):
    """load_into of a version with one configuration into a model with another, as far as configurations go.
    """
    from heddle.peft import _check_meaning
    base = json.loads(_model.config_of(models.lora(), "default"))
    _check_meaning({**base, **theirs}, {**base, **ours}, "default")


@pytest.mark.parametrize("field,value", [
    ("alora_invocation_tokens", [1, 2]), ("layer_replication", [[0, 2], [1, 2]]),
    ("trainable_token_indices", [3]), ("use_qalora", True),
    ("use_bdlora", {"nblocks": 2}), ("kasa_config", {"beta": 0.1}), ("arrow_config", {"top_k": 3}),
    ("init_lora_weights", "pissa_niter_4"),
    ("init_lora_weights", "olora"), ("init_lora_weights", "corda"), ("init_lora_weights", "loftq"),
    ("init_lora_weights", "lora_ga"),
    ("bias", "all"), ("use_dora", True)])
def test_another_meaning_is_refused(field, value):
    for theirs, ours in (({field: value}, {}), ({}, {field: value})):
        with pytest.raises(heddle.BadAdapter, match=f"another {field}") as e:
            loaded(theirs, ours)
        assert f"{field} = " in e.value.expected and f"{field} = " in e.value.found
    loaded({field: value}, {field: value})


def test_what_means_the_same_is_loaded():
    for theirs, ours in (
            ({"init_lora_weights": "eva"}, {}),
            ({"init_lora_weights": "gaussian"}, {"init_lora_weights": False}), ({"lora_dropout": 0.5}, {}),
            ({"qalora_group_size": 32}, {}), ({"bias": "none"}, {"bias": None}),
            ({"kasa_config": {"beta": 1}}, {"kasa_config": {"beta": 2}}),
            ({"lora_alpha": 16.0}, {}), ({"base_model_name_or_path": "/a"},
                                         {"base_model_name_or_path": "/b"}), ({"of_a_later_peft": 7}, {}),
            ({"target_modules": "all-linear"}, {}), ({"loftq_config": {"loftq_bits": 4}}, {})):
        loaded(theirs, ours)
    with pytest.raises(heddle.BadAdapter, match="of_a_later_peft"):
        loaded({"of_a_later_peft": 7}, {"of_a_later_peft": 8})
    with pytest.raises(heddle.BadAdapter, match="loftq_config"):
        loaded(*({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": bits}} for bits in (4, 8)))
    with pytest.raises(heddle.BadAdapter, match="qalora_group_size"):
        loaded(*({"use_qalora": True, "qalora_group_size": n} for n in (16, 32)))


def test_an_activated_lora_is_not_loaded_into_a_plain_one(broker, adapter):
    theirs, ours = models.lora(alora_invocation_tokens=[1, 2]), models.lora()
    assert not torch.equal(models.logits(theirs),
                           models.logits(ours)), "the same tensors compute something else"
    with heddle.Publisher(adapter=adapter) as pub, heddle.Worker(adapters=[adapter], apply="auto",
                                                                 name="activated") as w:
        pub.publish(theirs).wait(min=1, timeout=60)
        with w.acquire(adapter) as a:
            refused(ours, a, heddle.BadAdapter, "alora_invocation_tokens")
            heddle.peft.load_into(theirs, a)


# -- what else comes in --------------------------------------------------------------------------------------

def test_keys_that_are_no_names_are_named():
    model = models.lora()
    assert "also 5, more" in refused(model, {**other(model), "more": torch.zeros(1), 5: torch.zeros(1)},
                                     heddle.BadAdapter, "not those").found

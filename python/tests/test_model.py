# SPDX-License-Identifier: Apache-2.0
"""What a live model does between two versions: modules come and go, memory is freed, tensors are tied or lazy."""
import copy
import gc
import os
import pathlib
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


# -- modules come and go ---------------------------------------------------------------------------------------------------

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
    model.add_adapter("default", LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))


@pytest.mark.parametrize("kind,change", [("plain", set_one), ("modules_to_save", replace_a_saved_module), ("plain", load_again)])
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
            assert pub.publish(model, config=config).digest == heddle.safetensors.check(tmp_path / str(turn)).digest, f"turn {turn}"
            set_one(model)


def test_modules_that_change_names_are_noticed():
    from peft import LoraConfig
    model = models.lora()
    model.add_adapter("other", LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert is_true(model) and is_true(model, "other")
    owner = layer(model).lora_A
    first, second = owner.pop("default"), owner.pop("other")
    owner["other"], owner["default"] = first, second          # the same modules, in the same order
    assert is_true(model) and is_true(model, "other")


def test_a_plan_keeps_no_module():
    model = models.lora()
    planned(model)
    gone = weakref.ref(layer(model).lora_B["default"])
    set_one(model)
    gc.collect()
    assert gone() is None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and not any(True for _ in _model._plans)


# -- memory ----------------------------------------------------------------------------------------------------------------

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
                said(lambda: pub.publish_tensors({here.KEY.format("A"): torch.randn(8, 32), here.KEY.format("B"): how((32, 8))}, here.CONFIG))
                owner.weight = whole
                source = {key: p.detach().clone() for key, p in here.planned(model).items()}
                said(lambda: heddle.peft.load_into(model, {**source, here.KEY.format("A"): how((8, 32))}))
                owner.weight = torch.nn.Parameter(how((8, 32)))
                said(lambda: pub.publish(model))
                said(lambda: heddle.peft.load_into(model, source))
    """, pathlib.Path(__file__).parent, adapter)
    for how in LACKING:
        what = "not dense" if how in ("sparse", "csr") else "no memory"
        for name, phase in ((KEY.format("B"), None), (KEY.format("A"), None), (KEY.format("A"), "pack"), (KEY.format("A"), None)):
            code, at, text = it.json()
            assert (code, at) == ("usage", phase) and f"{name} " in text and what in text, how
    assert it.end(sign=None) == 0


def test_a_piece_of_a_sharded_tensor_without_memory_is_refused_by_name():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]))
    dist.init_process_group("gloo")
    try:
        model = models.lora()
        owner = layer(model).lora_A["default"]
        owner.weight = torch.nn.Parameter(distribute_tensor(owner.weight.detach(), init_device_mesh("cpu", (1,)), [Shard(0)]))
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
    """torch keeps a negation (and a conjugation) as a bit of the tensor: the bytes in memory are of the other sign."""
    model = models.lora()
    owner = layer(model).lora_A["default"]
    owner.weight = torch.nn.Parameter(torch._neg_view(owner.weight.detach().clone()))
    assert owner.weight.is_neg() and owner.weight.is_contiguous()
    tensors = {key: p.detach().clone() for key, p in planned(model).items()}
    with heddle.Publisher(adapter=adapter, if_unchanged="publish") as pub:
        want = pub.publish_tensors({key: t.resolve_neg() for key, t in tensors.items()}, _model.config_of(model, "default")).digest
        assert pub.publish(model).digest == want
        assert pub.publish_tensors({**tensors, KEY.format("A"): owner.weight}, _model.config_of(model, "default")).digest == want
    heddle.peft.load_into(model, tensors)
    assert all(torch.equal(p, tensors[key]) for key, p in planned(model).items())

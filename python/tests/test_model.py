# SPDX-License-Identifier: Apache-2.0
"""What a live model does between two versions: modules come and go, memory is freed, tensors are tied or lazy."""
import copy
import gc
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

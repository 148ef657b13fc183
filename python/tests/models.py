# SPDX-License-Identifier: Apache-2.0
"""Small real models with real adapters of every kind, made in code: no download."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

KINDS = {
    "plain": {},
    "rank_pattern": {"rank_pattern": {"q_proj": 4, "layers.1.mlp.up_proj": 12},
                     "alpha_pattern": {"q_proj": 32}},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "bias": {"bias": "lora_only", "base": {"attention_bias": True}},
    "bias_all": {"bias": "all", "base": {"attention_bias": True}},
    "lora_bias": {"lora_bias": True},
    "modules_to_save": {"modules_to_save": ["norm"]},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj", "v_proj"]},
    "regex": {"target_modules": r".*\.(q|v)_proj"},
    "target_parameters": {"target_modules": ["q_proj"],
                          "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                          "moe": True},
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def base(layers=2, hidden=32, **how):
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=64, hidden_size=hidden, intermediate_size=2 * hidden,
                         num_hidden_layers=layers, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, **how)
    return LlamaForCausalLM(config).eval()


def mixture():
    from transformers import MixtralConfig, MixtralForCausalLM
    torch.manual_seed(7)
    return MixtralForCausalLM(MixtralConfig(vocab_size=64, hidden_size=32, intermediate_size=32,
                                            num_hidden_layers=2, num_attention_heads=4,
                                            num_key_value_heads=2, num_local_experts=4,
                                            num_experts_per_tok=2)).eval()


def lora(kind="plain", dtype="f32", **how):
    """A PeftModel whose adapter is not zero: as after some steps of training."""
    options = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
               "task_type": "CAUSAL_LM",
               **KINDS[kind], **how}
    made = mixture() if options.pop("moe", False) else base(**options.pop("base", {}))
    model = get_peft_model(made.to(TYPES[dtype]), LoraConfig(**options),
                           autocast_adapter_dtype=dtype == "f32")
    return stir(model, 1)


def stir(model, seed):
    """A step of training, as far as publishing can see."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    return model


def logits(model):
    torch.manual_seed(0)
    with torch.no_grad():
        return model(input_ids=torch.arange(24).reshape(2, 12) % 64).logits

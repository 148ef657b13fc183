# SPDX-License-Identifier: Apache-2.0
"""model.py FOLDER COUNT [experts]: a tiny Llama in FOLDER/base, COUNT plain adapters in FOLDER/lora1.., after
them one with rsLoRA, ranks and alphas by pattern, one of rank 64, one with rsLoRA alone, one of the
embeddings and the head, and one of the head alone; and FOLDER/expected.json: what PEFT itself generates with
each.  And two that do not fit: lora-half, of a model half as wide, and lora-late, of which one B has twice
the rows.  With `experts` instead: a tiny Qwen3 MoE, COUNT plain adapters of its attention, and one with
rsLoRA.

Runs in build/engines/common.  The adapters are large enough to change every answer: expected.json holds as
many different answers as adapters, and none is the base model's."""
import json
import os
import pathlib
import shutil
import sys

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")
PROMPTS = [[1, 2, 3, 4], [17, 5, 99, 230, 8, 8], [400],
           [(7 * n * n + 3) % 509 for n in range(80)]]      # of which a server keeps the beginning
LENGTH = 8


def main() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder, count = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 512}
    torch.manual_seed(0)
    if sys.argv[3:] == ["experts"]:
        config = Qwen3MoeConfig(**sizes, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2,
                                norm_topk_prob=True)
        attention = {"r": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
        kinds = [{"lora_alpha": 64, **attention}] * count
        kinds.append({"lora_alpha": 16, "use_rslora": True, **attention})
        make(folder, Qwen3MoeForCausalLM(config), kinds)
        return
    kinds = [{"r": 8, "lora_alpha": 64}] * count
    kinds.append({"r": 8, "lora_alpha": 16, "use_rslora": True,
                  "rank_pattern": {"q_proj": 4, "layers.1.mlp.up_proj": 16},
                  "alpha_pattern": {"v_proj": 48, "layers.0.mlp.down_proj": 4}})
    kinds.append({"r": 64, "lora_alpha": 64})
    kinds.append({"r": 8, "lora_alpha": 16, "use_rslora": True})
    kinds.append({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "embed_tokens", "lm_head"]})
    kinds.append({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "lm_head"]})
    make(folder, LlamaForCausalLM(LlamaConfig(**sizes)), kinds)
    make_unfit(folder, LlamaForCausalLM(LlamaConfig(**{**sizes, "hidden_size": 64, "intermediate_size": 128,
                                                       "head_dim": 16})))


def make_unfit(folder, narrow) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file, save_file

    get_peft_model(narrow, LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
                   ).save_pretrained(folder / "lora-half")
    shutil.copytree(folder / "lora1", folder / "lora-late")
    path = folder / "lora-late" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("layers.1.mlp.down_proj.lora_B.weight"))
    tensors[name] = torch.cat((tensors[name], tensors[name]))
    save_file(tensors, path)


def make(folder, base, kinds) -> None:
    """The base model, an adapter of each kind, and what PEFT generates with each."""
    import torch
    from peft import LoraConfig, get_peft_model

    def generate(model: torch.nn.Module) -> list[list[int]]:
        answers = (model.generate(input_ids=torch.tensor([p]), max_new_tokens=LENGTH, do_sample=False,
                                  eos_token_id=None) for p in PROMPTS)
        return [answer[0, len(prompt):].tolist() for prompt, answer in zip(PROMPTS, answers)]

    base.save_pretrained(folder / "base")
    answers = {"base": generate(base)}
    for number, kind in enumerate(kinds, 1):
        torch.manual_seed(number)
        config = LoraConfig(init_lora_weights=False, **{"target_modules": "all-linear", **kind})
        model = get_peft_model(type(base).from_pretrained(folder / "base", dtype=torch.float32), config)
        model.save_pretrained(folder / f"lora{number}")
        answers[f"lora{number}"] = generate(model)
    if len({json.dumps(a) for a in answers.values()}) != len(kinds) + 1:
        sys.exit("model.py: two of the adapters answer alike")
    (folder / "expected.json").write_text(json.dumps({"prompts": PROMPTS, "length": LENGTH,
                                                      "answers": answers}))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""model.py FOLDER COUNT: a tiny Llama in FOLDER/base, COUNT plain adapters in FOLDER/lora1.., after them one
with rsLoRA, ranks and alphas by pattern, one of rank 64, one with rsLoRA alone, one of the embeddings and the
head, and one of the head alone; and FOLDER/expected.json: what PEFT itself generates with each.

Runs in build/engines/common.  The adapters are large enough to change every answer: expected.json holds as
many different answers as adapters, and none is the base model's."""
import json
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")
PROMPTS = [[1, 2, 3, 4], [17, 5, 99, 230, 8, 8], [400],
           [(7 * n * n + 3) % 509 for n in range(80)]]      # of which a server keeps the beginning
LENGTH = 8


def main() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, count = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])

    def generate(model: torch.nn.Module) -> list[list[int]]:
        answers = (model.generate(input_ids=torch.tensor([p]), max_new_tokens=LENGTH, do_sample=False,
                                  eos_token_id=None) for p in PROMPTS)
        return [answer[0, len(prompt):].tolist() for prompt, answer in zip(PROMPTS, answers)]

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2,
                         head_dim=32, vocab_size=512, max_position_embeddings=512)
    base = LlamaForCausalLM(config)
    base.save_pretrained(folder / "base")
    answers = {"base": generate(base)}
    kinds = [{"r": 8, "lora_alpha": 64}] * count
    kinds.append({"r": 8, "lora_alpha": 16, "use_rslora": True,
                  "rank_pattern": {"q_proj": 4, "layers.1.mlp.up_proj": 16},
                  "alpha_pattern": {"v_proj": 48, "layers.0.mlp.down_proj": 4}})
    kinds.append({"r": 64, "lora_alpha": 64})
    kinds.append({"r": 8, "lora_alpha": 16, "use_rslora": True})
    kinds.append({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "embed_tokens", "lm_head"]})
    kinds.append({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "lm_head"]})
    for number, kind in enumerate(kinds, 1):
        torch.manual_seed(number)
        config = LoraConfig(init_lora_weights=False, **{"target_modules": "all-linear", **kind})
        model = get_peft_model(LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32), config)
        model.save_pretrained(folder / f"lora{number}")
        answers[f"lora{number}"] = generate(model)
    if len({json.dumps(a) for a in answers.values()}) != len(kinds) + 1:
        sys.exit("model.py: two of the adapters answer alike")
    (folder / "expected.json").write_text(json.dumps({"prompts": PROMPTS, "length": LENGTH,
                                                      "answers": answers}))


if __name__ == "__main__":
    main()

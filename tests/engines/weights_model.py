# SPDX-License-Identifier: Apache-2.0
"""weights_model.py FOLDER: two tiny Llamas of other weights, FOLDER/base and FOLDER/next, and FOLDER/other
with the same names and other shapes, each in several safetensors files; FOLDER/tied, whose head is tied to
its embeddings; and FOLDER/lora, an adapter of the first two.  Runs in build/engines/common."""
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")


def main() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = pathlib.Path(sys.argv[1]).resolve()
    config = LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, vocab_size=512, max_position_embeddings=512)
    for seed, name in enumerate(("base", "next")):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder / name, max_shard_size="1MB")
    lora = LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(LlamaForCausalLM(config), lora).save_pretrained(folder / "lora")
    config.num_key_value_heads = 4          # what vLLM's loader of a fused layer cuts off
    LlamaForCausalLM(config).save_pretrained(folder / "other", max_shard_size="1MB")
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(folder / "tied")


if __name__ == "__main__":
    main()

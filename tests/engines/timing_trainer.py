# SPDX-License-Identifier: Apache-2.0
"""timing_trainer.py FOLDER: the trainer of timing.py.  Makes a Llama of 195 million parameters in FOLDER,
then does what each line of its input says, a JSON object, and answers with one.  In build/engines/common,
with heddle beside it.

    begin     another adapter of `rank`, in float32
    step      every tensor of it changes
    publish   its next version, by Heddle, until it is active        -> began, ended, tag
    save      the same by save_pretrained, in `folder`               -> began, ended
"""
import json
import os
import pathlib
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")
BROKER_S = 600


def main() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    import heddle

    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(
        hidden_size=1024, intermediate_size=3904, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=16, vocab_size=512, max_position_embeddings=512))
    base.save_pretrained(pathlib.Path(sys.argv[1]))
    model = base
    say({"ready": True})
    for line in sys.stdin:
        told = json.loads(line)
        if told["do"] == "begin":
            if model is base:
                publisher = heddle.Publisher(told["broker"], "policy")
            else:
                base = model.unload()
            model = get_peft_model(base, LoraConfig(r=told["rank"], lora_alpha=told["rank"],
                                                    target_modules="all-linear", init_lora_weights=False))
            say({})
            continue
        if told["do"] == "step":
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.mul_(1.001)
            say({})
            continue
        began = time.monotonic()
        if told["do"] == "save":
            model.save_pretrained(told["folder"])
            say({"began": began, "ended": time.monotonic()})
            continue
        version = publisher.publish(model, deadline=BROKER_S)
        version.wait("active", timeout=BROKER_S)
        say({"began": began, "ended": time.monotonic(), "tag": version.tag})


def say(told: dict) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""trl_server.py SERVER BROKER BASE: TRL's GRPOTrainer in server mode against a real vLLM server, with the
plug between them, on the CPU.  Run by tests/engines/trl_server; prints one line a check, and exits with 1
when one fails.

Real: the trainer, its VLLMGeneration and VLLMClient, the server, the plug, the broker.  Left out: TRL's NCCL
group with the server, which it refuses to open without a GPU.  Every sample's log-probabilities, as the
server says them, must be those of the trainer's own weights at that moment, and not those of the base
model."""
import os
import pathlib
import sys

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
                  TOKENIZERS_PARALLELISM="false")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests"), str(ROOT / "examples" / "rl_tiny")]
SERVER, BROKER, BASE = sys.argv[1:]
ROUNDING, STEPS = 1e-3, 3
import vllm_stub  # noqa: E402

vllm_stub.put(f"{BASE}-stub")


def main():
    import task
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_client import VLLMClient

    import heddle
    import heddle.trl
    VLLMClient.init_communicator = lambda self, device: None
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(BASE), processing_class=task.tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": task.prompts(4 * STEPS, 1)}),
        peft_config=LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
        reward_funcs=lambda completion_ids, **_: [sum(t % 2 for t in ids) / 6 for ids in completion_ids],
        args=GRPOConfig(output_dir=f"{BASE}-trl", use_cpu=True, bf16=False, max_steps=STEPS,
                        num_generations=4,
                        per_device_train_batch_size=8, max_completion_length=6, learning_rate=1e-2,
                        use_vllm=True, vllm_mode="server", vllm_server_base_url=SERVER,
                        gradient_checkpointing=False, logging_strategy="no", save_strategy="no", report_to=[],
                        disable_tqdm=True))
    model, generate, seen = trainer.accelerator.unwrap_model(trainer.model), VLLMClient.generate, []

    @torch.no_grad()
    def logprobs(prompt, answer):
        scores = torch.log_softmax(model(torch.tensor([prompt + answer])).logits[0].float(), -1)
        return [float(scores[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)]

    def farthest(said, prompts, answers):
        pairs = ((a, b) for prompt, answer, row in zip(prompts, answers, said, strict=True)
                 for a, b in zip(logprobs(prompt, answer), (told[0] for told in row), strict=True))
        return max(abs(a - b) for a, b in pairs)

    def witness(self, *args, **how):
        got = generate(self, *args, **how)
        answers, each = got["completion_ids"], len(got["completion_ids"]) // len(got["prompt_ids"])
        prompts = [prompt for prompt in got["prompt_ids"] for _ in range(each)]
        here = farthest(got["logprobs"], prompts, answers)
        with model.disable_adapter():
            seen.append((self.model, here, farthest(got["logprobs"], prompts, answers)))
        return got

    VLLMClient.generate = witness
    with heddle.Publisher(BROKER, adapter="policy") as publisher:
        heddle.trl.attach(trainer, publisher, timeout=120)
        trainer.train()
    good = [name for name, _, _ in seen] == [f"policy@{n}" for n in range(1, STEPS + 1)]
    good = good and all(here < ROUNDING for _, here, _ in seen)
    # the first changes nothing yet
    good = good and all(base > 100 * ROUNDING for _, _, base in seen[1:])
    for name, here, base in seen:
        print(f"  {'ok  ' if good else 'FAIL'}  {name}: the server's log-probabilities are within {here:.1e} "
              f"of "
              f"the trainer's, {base:.1e} of the base model's", file=RESULT, flush=True)
    return 0 if good else 1


RESULT, sys.stdout = sys.stdout, sys.stderr         # the trainer prints
sys.exit(main())

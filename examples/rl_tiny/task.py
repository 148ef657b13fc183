# SPDX-License-Identifier: Apache-2.0
"""The task: count on.  "from seven" wants "eight nine ten eleven zero"; the reward is how much of that is
right, from the left.

A two-layer Llama with random weights, made in code; a tokenizer of whole words; a LoRA on every linear layer
is all that is trained.
"""
from __future__ import annotations

import random

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = "zero one two three four five six seven eight nine ten eleven".split()
LENGTH = 5
EOS = "<eos>"
VOCABULARY = {word: i for i, word in enumerate(["<pad>", EOS, "<unk>", "from", *WORDS])}
PROMPTS = [f"from {word}" for word in WORDS]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token=EOS,
                                   unk_token="<unk>")


def policy(adapters: tuple[str, ...] = ("default",)) -> PeftModel:
    """The base model, the same in every process, with an adapter that changes nothing yet under each of the
    names."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=len(VOCABULARY),
        max_position_embeddings=64, initializer_range=0.1, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(1)
    model = get_peft_model(base, lora, adapter_name=adapters[0])
    for name in adapters[1:]:
        model.add_adapter(name, lora)
    return model


def prompts(count: int, seed: int) -> list[str]:
    """As many as are asked for, every word equally often."""
    dice, order = random.Random(seed), []
    while len(order) < count:
        order += dice.sample(PROMPTS, len(PROMPTS))
    return order[:count]


def reward(prompt: str, completion: str) -> float:
    start, said = WORDS.index(prompt.split()[1]), completion.split()
    right = 0
    while right < min(LENGTH, len(said)) and said[right] == WORDS[(start + right + 1) % len(WORDS)]:
        right += 1
    return right / LENGTH


@torch.no_grad()
def sample(model: PeftModel, prompt_ids: list[int], count: int,
           seed: int) -> list[tuple[list[int], list[float]]]:
    """`count` completions of one prompt, as (tokens, log-probabilities), each up to and with its
    end-of-sequence."""
    dice = torch.Generator().manual_seed(seed)
    tokens, logprobs, cache = [], [], None
    step = torch.tensor([prompt_ids] * count)
    for _ in range(LENGTH):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache, scores = out.past_key_values, torch.log_softmax(out.logits[:, -1].float(), -1)
        step = torch.multinomial(scores.exp(), 1, generator=dice)
        tokens.append(step)
        logprobs.append(scores.gather(1, step))
    rows = zip(torch.cat(tokens, 1).tolist(), torch.cat(logprobs, 1).tolist())
    return [_to_the_end(row, scores) for row, scores in rows]


def _to_the_end(tokens: list[int], logprobs: list[float]) -> tuple[list[int], list[float]]:
    end = tokens.index(VOCABULARY[EOS]) + 1 if VOCABULARY[EOS] in tokens else len(tokens)
    return tokens[:end], logprobs[:end]


@torch.no_grad()
def surprise(model: PeftModel, prompt_ids: list[int], samples: list[tuple[list[int], list[float]]]) -> float:
    """How far the log-probabilities that a worker gave for its samples are from this model's own, at most."""
    longest = max(len(tokens) for tokens, _ in samples)
    rows = torch.tensor([prompt_ids + tokens + [0] * (longest - len(tokens)) for tokens, _ in samples])
    scores = torch.log_softmax(model(input_ids=rows).logits.float(), -1)
    own = scores[:, len(prompt_ids) - 1:-1].gather(2, rows[:, len(prompt_ids):, None])[:, :, 0].tolist()
    return max(abs(a - b) for mine, (_, theirs) in zip(own, samples) for a, b in zip(mine, theirs))


def skill(model: PeftModel, words: PreTrainedTokenizerFast, count: int = 32) -> float:
    """Mean reward of `count` samples of every prompt, with a seed of its own."""
    was_training = model.training
    model.eval()
    total = 0.0
    for i, prompt in enumerate(PROMPTS):
        samples = sample(model, words(prompt)["input_ids"], count, seed=900_000 + i)
        total += sum(reward(prompt, words.decode(tokens)) for tokens, _ in samples) / count
    model.train(was_training)
    return total / len(PROMPTS)

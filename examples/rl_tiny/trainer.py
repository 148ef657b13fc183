#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The trainer: TRL's GRPOTrainer, whose samples come from the workers of the board, and whose versions go to
them through Heddle.

Writes one JSON line a step, and one at the end, to --record.
"""
from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import heddle
import heddle.trl
import torch
from datasets import Dataset
from peft import PeftModel
from trl import GRPOConfig, GRPOTrainer

import task
from board import Board, Group

ANSWER_TIMEOUT_S = 60.0


@dataclass
class Seen:
    """What became of the samples that came for a step."""
    lag: Counter = field(default_factory=Counter)                       # versions behind -> samples used
    dropped: Counter = field(default_factory=Counter)                   # ... -> samples thrown away
    served: dict[str, Counter] = field(default_factory=dict)            # worker -> version -> samples used
    # samples of the newest version: the trainer still has its weights
    compared: int = 0
    # of those, how far the worker's log-probabilities were off, at most
    surprise: float = 0.0


class Rollouts:
    """rollout_func: takes the samples of a step from the board, drops those over the bound, and writes down
    what it saw."""

    def __init__(self, board: Board, prompts: list[str], per_step: int, count: int, seed: int,
                 max_lag: int | None, record) -> None:
        self._board, self._per_step, self._max_lag, self._record = board, per_step, max_lag, record
        self._words = task.tokenizer()
        self._groups = [Group(i, prompt, self._words(prompt)["input_ids"], count, seed * 100_003 + i)
                        for i, prompt in enumerate(prompts)]
        self._digests: dict[int, str] = {}          # version -> what was published
        self._began = time.monotonic()
        self.sync: heddle.trl.Sync | None = None

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list]:
        pushed = self.sync.last
        self._digests[pushed.version.version] = pushed.version.digest
        step = trainer.state.global_step
        began = time.monotonic()
        wanted = self._groups[step * self._per_step:][:self._per_step]
        self._board.offer(wanted)
        seen = Seen()
        samples = []
        for group in wanted:
            own = self._fresh(group, pushed.version.version, seen)
            self._compare(trainer.model, group,
                          [sample for sample in own if sample["tag"] == pushed.version.tag], seen)
            samples += own
        if self._max_lag != 0:                      # the next step's: generated while this one is trained
            self._board.offer(self._groups[(step + 1) * self._per_step:][:self._per_step])
        assert [group.prompt for group in wanted for _ in range(group.count)] == prompts
        self._write(step, pushed, time.monotonic() - began, prompts, samples, seen)
        return {"prompt_ids": [group.prompt_ids for group in wanted for _ in range(group.count)],
                "completion_ids": [sample["ids"] for sample in samples],
                "logprobs": [sample["logprobs"] for sample in samples]}

    def _fresh(self, group: Group, newest: int, seen: Seen) -> list[dict]:
        """The samples of a group, none of a version further behind than the bound."""
        while True:
            answer = self._board.take(group.number, ANSWER_TIMEOUT_S)
            lags = [newest - self._version_of(sample["tag"]) for sample in answer["samples"]]
            if self._max_lag is None or max(lags) <= self._max_lag:
                break
            seen.dropped.update(lags)
            self._board.again(group.number)
        self._board.done(group.number)
        seen.lag.update(lags)
        seen.served.setdefault(answer["worker"], Counter()).update(newest - lag for lag in lags)
        return answer["samples"]

    def _compare(self, model: PeftModel, group: Group, samples: list[dict], seen: Seen) -> None:
        """A tag that tells the truth: the weights that made the sample are the trainer's."""
        if samples:
            given = [(sample["ids"], sample["logprobs"]) for sample in samples]
            seen.surprise = max(seen.surprise, task.surprise(model, group.prompt_ids, given))
            seen.compared += len(samples)

    def _version_of(self, tag: str) -> int:
        """Of "policy@7:3f9a1c20d4e1", 7; the digest must be the one that was published as that."""
        name, _, digest = tag.partition(":")
        version = int(name.partition("@")[2])
        if self._digests[version].removeprefix("h1:")[:12] != digest:
            raise RuntimeError(f"a sample is tagged {tag}, and version {version} was published as "
                               f"{self._digests[version]}")
        return version

    def _write(self, step: int, pushed, rollout_s: float, prompts: list[str], samples: list[dict],
               seen: Seen) -> None:
        rewards = [task.reward(prompt, self._words.decode(sample["ids"]))
                   for prompt, sample in zip(prompts, samples)]
        self._record({"step": step, "version": pushed.version.version, "tag": pushed.version.tag,
                      "reward": sum(rewards) / len(rewards),
                      **vars(seen),
                      "publish_ms": pushed.publish_s * 1e3, "wait_ms": pushed.wait_s * 1e3,
                      "rollout_ms": rollout_s * 1e3,
                      "at_s": time.monotonic() - self._began})


def recorder(path: str):
    lines = open(path, "w", buffering=1)
    return lambda row: lines.write(json.dumps(row) + "\n")


def make_trainer(args: argparse.Namespace, prompts: list[str], rollouts: Rollouts) -> GRPOTrainer:
    def right(prompts: list[str], completions: list[str], **_: object) -> list[float]:
        return [task.reward(prompt, completion) for prompt, completion in zip(prompts, completions)]

    config = GRPOConfig(
        output_dir=args.output, use_cpu=True, bf16=False, seed=args.seed, max_steps=args.steps,
        num_generations=args.generations,
        per_device_train_batch_size=args.prompts * args.generations, max_completion_length=task.LENGTH,
        shuffle_dataset=False,
        learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, gradient_checkpointing=False,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True)
    return GRPOTrainer(model=task.policy(), reward_funcs=right, args=config,
                       train_dataset=Dataset.from_dict({"prompt": prompts}),
                       processing_class=task.tokenizer(), rollout_func=rollouts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--board-fd", type=int, required=True, help="a Unix socket that listens, inherited")
    parser.add_argument("--record", required=True, help="file for a JSON line a step")
    parser.add_argument("--output", required=True, help="TRL's directory")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--prompts", type=int, default=6, help="a step")
    parser.add_argument("--generations", type=int, default=12, help="samples of a prompt")
    parser.add_argument("--max-lag", type=int, default=1,
                        help="bound on the staleness of samples, in versions")
    parser.add_argument("--frozen", action="store_true",
                        help="versions are published and never activated, but the first; no bound")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    record, board = recorder(args.record), Board(socket.socket(fileno=args.board_fd))
    max_lag = None if args.frozen else args.max_lag
    prompts = task.prompts(args.steps * args.prompts, args.seed)
    rollouts = Rollouts(board, prompts, args.prompts, args.generations, args.seed, max_lag, record)
    trainer = make_trainer(args, prompts, rollouts)
    with heddle.Publisher(args.broker, adapter="policy",
                          activation="manual" if args.frozen else "all") as publisher:
        rollouts.sync = heddle.trl.attach(trainer, publisher, max_lag=max_lag)
        if args.frozen:
            freeze(args.broker, rollouts.sync)
        record({"untrained": task.skill(trainer.model, task.tokenizer())})
        trainer.train()
        record({"trained": task.skill(trainer.model, task.tokenizer()), "redone": board.redone})
        board.close()


def freeze(broker: str, sync: heddle.trl.Sync) -> None:
    """Version 1 is activated by hand, and no other will be."""
    first = sync.push().version
    first.wait("staged", timeout=60.0)
    with heddle.Admin(broker) as admin:
        admin.activate(first.tag.partition(":")[0])


if __name__ == "__main__":
    main()

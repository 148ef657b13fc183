#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rollout worker: receives versions through Heddle, generates what the board asks for, tags every sample
with the version that made it.

The model holds as many adapters as the worker has slots: the active version, the arriving one, and three
kept for a roll-back.  A version that arrives is loaded into an adapter that does not serve.  When the broker
has decided for it, that adapter serves, between two groups: a group is of one version.
"""
from __future__ import annotations

import argparse
import os
import select
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import heddle
import heddle.peft
import torch

import task
from board import Desk, Group


class Engine:
    """The model, the adapter that serves and those beside it."""

    def __init__(self) -> None:
        self.words = task.tokenizer()
        self.adapters = ["one", "two", "three", "four", "five"]      # loaded last stands last
        self._model = task.policy(tuple(self.adapters)).eval()
        self._holds: dict[str, str] = {}
        self.tag: str | None = None

    def load(self, update: heddle.Update) -> None:
        adapter = next(a for a in self.adapters if self.tag is None or self._holds.get(a) != self.tag)
        self._holds.pop(adapter, None)
        heddle.peft.load_into(self._model, update, adapter=adapter)
        self._holds[adapter] = update.tag
        self.adapters.remove(adapter)
        self.adapters.append(adapter)

    def switch(self, tag: str | None) -> None:
        """None: nothing serves yet."""
        if tag is not None:
            self._model.set_adapter(next(a for a, held in self._holds.items() if held == tag))
        self.tag = tag

    def too_old(self) -> str | None:
        """The newest version still in the model that is two or more behind the one that serves."""
        old = [tag for tag in self._holds.values() if number(tag) <= number(self.tag) - 2]
        return max(old, key=number, default=None)

    def generate(self, group: Group) -> list[dict[str, object]]:
        samples = task.sample(self._model, group.prompt_ids, group.count, group.seed * 1009 + group.attempt)
        return [{"tag": self.tag, "ids": ids, "logprobs": logprobs} for ids, logprobs in samples]


def number(tag: str) -> int:
    """Of "policy@7:3f9a1c20d4e1", 7."""
    return int(tag.partition("@")[2].partition(":")[0])


def follow(worker: heddle.Worker, engine: Engine) -> None:
    """What Heddle has to say by now; waits for nothing."""
    for update in worker.updates(timeout=0):
        if update.phase == "arrived":
            try:
                engine.load(update)
            except heddle.HeddleError as e:
                update.reject(str(e))
            else:
                update.staged()
        elif update.phase == "commit":
            before = engine.tag
            engine.switch(update.tag)
            if not update.activate():               # overtaken: the next commit tells
                engine.switch(before)


def lag(engine: Engine, group: Group) -> list[dict[str, object]]:
    """Generates with a version that is too old, where there is one; the tags say so."""
    old, now = engine.too_old(), engine.tag
    if old is None:
        return []
    engine.switch(old)
    samples = engine.generate(group)
    engine.switch(now)
    return samples


def serve(name: str, worker: heddle.Worker, engine: Engine, desk: Desk, lags: bool = False,
          is_mortal: bool = False) -> None:
    has_asked = False
    while True:
        follow(worker, engine)
        if engine.tag and not has_asked:
            desk.ready()
            has_asked = True
        readable, _, _ = select.select([worker, desk], [], [])
        if desk not in readable:
            continue
        group = desk.group()
        if group is None:
            return
        if is_mortal and select.select([sys.stdin], [], [], 0)[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        late = lag(engine, group) if lags else []
        lags = lags and not late
        desk.answer({"worker": name, "samples": late or engine.generate(group)})
        has_asked = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--board", required=True, help="the trainer's socket")
    parser.add_argument("--late", action="store_true", help="join when a line comes on standard input")
    parser.add_argument("--lags", action="store_true", help="generate one group with a version too old")
    parser.add_argument("--mortal", action="store_true",
                        help="die (SIGKILL) of the next group when a line has come on standard input")
    args = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine()
    if args.late and not sys.stdin.readline():
        return
    desk = Desk(args.board)
    with heddle.Worker(args.broker, adapters=["policy"], name=args.name, apply="app",
                       slots=len(engine.adapters)) as worker:
        serve(args.name, worker, engine, desk, args.lags, args.mortal)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""timing.py [--kind vllm|sglang] [--pairs 20] [--streamed 60]: how long a version takes from the trainer's
memory to its first answer, by the plugin, and by the engine's own loader: save_pretrained to a file in memory
(/dev/shm), then the engine's load over HTTP.  Adapters of 17.6 and of 87 MB, by turns, in one run.  Prints a
table in ms, of medians of each column.  It measures: run it alone on a machine, by hand.

    first answer    from the call of publish() or save_pretrained() to the first token
    of it           before: publish() until the version is active, or save_pretrained() alone;
                    the engine's: its load over HTTP (the plugin's is before the version is active);
                    the answer itself
    between tokens  p99 of a stream of the base model that goes on while `streamed` versions are staged each
                    way, without an answer of theirs, and of one with no version

and two rows of what the plugin takes beside the loader, of each pair: the median, and in how many pairs it
is less.  `served`: until a request can name the version, so without the answer.  Where other processes take
turns with these, it is the pairs that say which way is faster.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time

import inside
import inside_sglang
import stream
from stream import ROOT, Failed

RANKS = {16: "17.6 MB", 79: "87 MB"}    # of the model in timing_trainer.py
PATHS = {"vllm": "/v1/", "sglang": "/"}
PROMPT = [1, 2, 3, 4]
STREAM = 200                            # tokens of a request
APART = 30                              # tokens of a stream from the start of one version to the next


class Stream(threading.Thread):
    """Requests to the base model, one after the other, until end(): the times between their tokens, in ms."""

    def __init__(self, url, kind):
        super().__init__(daemon=True)
        self._url, self._kind, self._is_over = url, kind, threading.Event()
        self.gaps, self.error = [], None
        self.start()

    def run(self):
        try:
            while not self._is_over.is_set():
                self._one()
        except Exception as e:
            self.error = e

    def _one(self):
        if self._kind == "vllm":
            path, body = "/v1/completions", {"model": "base", "prompt": PROMPT, "max_tokens": STREAM,
                                             "ignore_eos": True, "detokenize": False,
                                             "return_token_ids": True}
        else:
            path, body = "/generate", {"input_ids": PROMPT, "sampling_params": {
                "max_new_tokens": STREAM, "ignore_eos": True}}
        with inside_sglang.post(self._url + path, {**body, "stream": True}) as answer:
            last = None
            for line in answer:
                if self._is_over.is_set():          # the server ends a request whose client is gone
                    return
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now - last) * 1000)
                    last = now

    def end(self):
        self._is_over.set()
        self.join()
        if self.error is not None:
            raise self.error


class Timing:
    """With a Trial of the engine."""

    def run(self):
        self.start()
        print("| adapter | way | first answer | before | the engine's | the answer | between tokens |\n"
              "|---|---|---|---|---|---|---|", flush=True)
        for rank, size in RANKS.items():
            self.trainer("begin", rank=rank, broker=self.broker)
            with_plugin, with_loader = [], []
            for turn in range(self.pairs + 1):      # the first pair makes what is made once
                self.trainer("step")
                one = self.by_plugin()
                self.trainer("step")
                other = self.by_loader(rank, turn)
                if turn:
                    with_plugin.append(one)
                    with_loader.append(other)
            gaps = self.while_it_streams(lambda: self.by_plugin(is_asked=False),
                                         lambda rank=rank: self.by_loader(rank, -1, is_asked=False))
            self.row(size, "the plugin", with_plugin, gaps[0])
            self.row(size, "the engine's loader", with_loader, gaps[1])
            self.pair_by_pair(size, with_plugin, with_loader)
        print(f"| no version | | | | | | {self.while_it_streams(lambda: None)[0]:.1f} |", flush=True)
        self.end()

    def row(self, size, way, found, gap):
        columns = " | ".join(f"{statistics.median(column):.1f}" for column in zip(*found, strict=True))
        print(f"| {size} | {way} | {columns} | {gap:.1f} |", flush=True)

    def pair_by_pair(self, size, with_plugin, with_loader):
        for what, took in (("first answer", lambda found: found[0]),
                           ("served", lambda found: found[1] + found[2])):
            ratios = [took(one) / took(other) for one, other in zip(with_plugin, with_loader, strict=True)]
            print(f"| {size} | {what}, plugin / loader | {statistics.median(ratios):.2f}; less in "
                  f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)} | | | | |", flush=True)

    def while_it_streams(self, *ways):
        """p99 of each of the ways, which take turns.  A way has the tokens from the start of its version on,
        as many as the other one: more only where a version takes longer than they do.  None asks for an
        answer of its version: that would hold the stream up for longer than a version does, and for either
        way alike."""
        streams, found = Stream(self.url, self.kind), [[] for _ in ways]
        for _ in range(self.streamed):
            for do, gaps in zip(ways, found, strict=True):
                self.trainer("step")
                self.until(lambda at=len(streams.gaps): streams.error or len(streams.gaps) > at)
                at = len(streams.gaps)
                do()
                end = max(at + APART, len(streams.gaps) + 1)    # with the gap in which it ended
                self.until(lambda end=end: streams.error or len(streams.gaps) >= end)
                gaps += streams.gaps[at:end]
        streams.end()
        return [statistics.quantiles(gaps, n=100)[98] for gaps in found]

    def trainer(self, what, **fields):
        process = self.stage.running["trainer"]
        process.stdin.write(json.dumps({"do": what, **fields}).encode() + b"\n")
        process.stdin.flush()
        return self.stage.line("trainer")

    def by_plugin(self, is_asked=True):
        """ms: all, before, the engine's (0: it is before), the answer"""
        told = self.trainer("publish")
        if not is_asked:
            return None
        tag, end = self.first("policy")
        if tag != told["tag"]:
            raise Failed(f"{tag} answered after {told['tag']}")
        return (end - told["began"]) * 1e3, (told["ended"] - told["began"]) * 1e3, 0, \
            (end - told["ended"]) * 1e3

    def by_loader(self, rank, turn, is_asked=True):
        folder = pathlib.Path(self.memory, f"{rank}.{turn}")
        told = self.trainer("save", folder=str(folder))
        # a name of its own: with load_inplace, vLLM 0.32 loads it again at each step of a request
        name, url = f"loaded{turn}", self.url + PATHS[self.kind]
        inside_sglang.post(url + "load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}).close()
        loaded = time.monotonic()
        end = self.first(name)[1] if is_asked else loaded
        inside_sglang.post(url + "unload_lora_adapter", {"lora_name": name}).close()
        shutil.rmtree(folder)
        return ((end - told["began"]) * 1e3, (told["ended"] - told["began"]) * 1e3,
                (loaded - told["ended"]) * 1e3, (end - loaded) * 1e3)

    def first(self, name):
        """(the tag, when its first token was there)"""
        if self.kind == "vllm":
            tag = self.answer(self.url, name, PROMPT, 1).tag
        else:
            with inside_sglang.post(self.url + "/generate",
                                    {"input_ids": PROMPT, "lora_path": name,
                                     "sampling_params": {"max_new_tokens": 1, "temperature": 0}}) as answer:
                tag = answer.headers["X-Heddle-Version"]
        return tag, time.monotonic()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--streamed", type=int, default=60)
    asked = parser.parse_args()
    engine = {"vllm": inside.Trial, "sglang": inside_sglang.Trial}[asked.kind]
    options = ["--max-lora-rank", "128", *(["--max-loaded-loras", "8"] if asked.kind == "sglang" else [])]

    def checks(stage, models):
        site = inside.plugin_site(models.parent)
        os.environ["PYTHONPATH"] = str(site)
        with tempfile.TemporaryDirectory(prefix="heddle-timing-", dir="/dev/shm") as memory:
            trial = type("Trial", (Timing, engine), {"pairs": asked.pairs, "streamed": asked.streamed,
                                                        "memory": memory})(
                stage, models, {"prompts": [PROMPT], "length": 1}, asked.kind, *options)
            stage.start("trainer", ROOT / "build/engines/common/bin/python",
                        ROOT / "tests/engines/timing_trainer.py", models / "base", is_written=True)
            stage.line("trainer")
            trial.run()
        stage.end("trainer")

    return stream.run_checks(checks, "heddle-timing-")


if __name__ == "__main__":
    sys.exit(main())

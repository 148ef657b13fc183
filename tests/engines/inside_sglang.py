# SPDX-License-Identifier: Apache-2.0
"""inside_sglang.py: heddle.sglang in a real SGLang server.  Prints one line a check, and exits with 1 when
one fails.

As inside.py, with SGLang's own ways of asking: every answer must be, token by token, what PEFT generates with
the version that the answer names; adapters that SGLang by itself would serve wrongly (rsLoRA, patterns) too.
The server has room for three adapters (--max-loaded-loras), and four are served: it evicts, and they come
back.  In a process of its own, first: the plugin off, in each of the ways in which it can be
(inside_off.py)."""
import concurrent.futures
import json
import os
import sys
import urllib.error
import urllib.request

import inside
from inside import KEEP, LONG
from stream import EMBEDDINGS, HEAD, PATIENCE, PATTERNS, PLAIN, RSLORA, Failed

ALIAS = "miles_lora"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=PATIENCE)


class Answer:
    """Of one request: the version that it names, its tag in the head, and its tokens."""

    def __init__(self, url, name, prompt, length, is_stream=False):
        body = {"input_ids": prompt, "lora_path": name, "stream": is_stream,
                "sampling_params": {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}}
        with post(url + "/generate", body) as answer:
            self.tag = answer.headers["X-Heddle-Version"]
            parts = self._parts(answer) if is_stream else [json.load(answer)]
        told = {part["meta_info"].get("heddle_version") for part in parts}
        if told != {self.tag}:
            raise Failed(f"the head says {self.tag}, and meta_info {told}")
        self.name = (self.tag or "").partition(":")[0]
        self.tokens = parts[-1]["output_ids"]

    @staticmethod
    def _parts(answer):
        lines = [line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: ")]
        if lines[-1].strip() != b"[DONE]":
            raise Failed(f"a stream ended with {lines[-1]!r}")
        parts = [json.loads(line) for line in lines[:-1]]
        if any("error" in part for part in parts):
            raise Failed(f"a stream said {parts[-1]}")
        return parts


class Trial(inside.Trial):
    """One server with the plugin, and a broker."""

    answer, gone = Answer, 400

    def run(self):
        self.start()
        self.versions_while_streams_run()
        self.names()
        self.evictions()
        self.refusal()
        self.kinds()
        self.clients_cannot_change()
        self.way_back()
        self.broker_killed()
        self.what_leaves()
        self.end()

    def start(self):
        super().start()
        self.check("and what names none is refused", self.status_of("policy"), self.gone)

    def start_server(self):
        os.environ.update(HEDDLE_BROKER=self.broker, HEDDLE_ADAPTERS=f"policy={ALIAS}")
        self.serve("--max-loaded-loras", "3")

    def names(self):
        """Every way to name a version, and several in one request."""
        older, prompts = self.served()[-2], self.expected["prompts"]
        self.check("the alias", self.wrong(ALIAS, among=[self.done]), None)
        self.check("a version's own name", self.wrong(f"policy@{older}", prompt=1, among=[older]), None)
        for model, version in (("policy", self.done), ("base:policy", self.done), (f"policy@{older}", older)):
            self.check(f"/v1/completions with the model {model}", self.completed_by(model),
                       self.tags[version])
        named = ["policy", f"policy@{older}", None, ALIAS]
        with post(self.url + "/generate",
                  {"input_ids": [prompts[0]] * 4, "lora_path": named,
                   "sampling_params": {"max_new_tokens": self.expected["length"], "temperature": 0,
                                       "ignore_eos": True}}) as answer:
            head, parts = answer.headers["X-Heddle-Version"], json.load(answer)
        of = [self.done, older, None, self.done]
        self.check("a batch that names several: each answer names its own",
                   [part["meta_info"].get("heddle_version") for part in parts],
                   [self.tags[n] if n else None for n in of])
        self.check("and is exact", [part["output_ids"] for part in parts],
                   [self.expected["answers"][f"lora{self.adapters[n]}" if n else "base"][0] for n in of])
        self.check("and the head names them all", head, f"{self.tags[self.done]}, {self.tags[older]}")

    def completed_by(self, model):
        """The head of an answer.  Without a tokenizer SGLang generates, and then has no text: 500."""
        try:
            post(self.url + "/v1/completions", {"model": model, "prompt": self.expected["prompts"][0],
                                                "max_tokens": 4, "temperature": 0}).close()
        except urllib.error.HTTPError as e:
            if e.code == 500 and b"'text'" in e.read():
                return e.headers["X-Heddle-Version"]
            raise
        raise Failed("/v1/completions answers without a tokenizer")

    def kinds(self):
        for adapter in (EMBEDDINGS, HEAD):
            why = self.publish(adapter, 1)["rollout"]["missing"][0]
            self.check("LoRA of the embeddings or the head, which SGLang mixes in a batch, is refused",
                       why.get("code") in ("unsupported_feature", "version_failed"), True)
        for adapter, kind in ((RSLORA, "rsLoRA"), (PATTERNS, "rsLoRA with patterns")):
            self.publish(adapter)
            self.check(f"{kind}: exact",
                       [self.wrong("policy", prompt=n, among=[self.done]) for n in range(4)], [None] * 4)

    def clients_cannot_change(self):
        """The names that Heddle gives, and its own way into the server."""
        name, folder = f"policy@{self.done}", str(self.models / "lora1")
        for what, body in (("unload_lora_adapter", {"lora_name": name}),
                           ("load_lora_adapter", {"lora_name": "policy", "lora_path": folder}),
                           ("load_lora_adapter", {"lora_name": ALIAS, "lora_path": folder}),
                           ("load_lora_adapter_from_tensors",
                            {"lora_name": "mine", "config_dict": {"tag": self.tags[self.done]},
                             "load_format": "heddle", "serialized_named_tensors": [""]})):
            self.check(f"/{what} of {body['lora_name']} is refused",
                       "a name that Heddle gives" in self.refused(what, body), True)
        self.check("and nothing changed", self.wrong("policy", among=[self.done]), None)
        with post(f"{self.url}/load_lora_adapter", {"lora_name": "mine", "lora_path": folder}) as answer:
            self.check("another adapter is loaded as ever", json.load(answer)["success"], True)
        with post(self.url + "/generate",
                  {"input_ids": self.expected["prompts"][0], "lora_path": "mine",
                   "sampling_params": {"max_new_tokens": self.expected["length"], "temperature": 0,
                                       "ignore_eos": True}}) as answer:
            self.check("and served", (answer.headers["X-Heddle-Version"], json.load(answer)["output_ids"]),
                       (None, self.expected["answers"]["lora1"][0]))
        versions = self.served()
        self.check("and no version is lost by it",
                   [self.wrong(f"policy@{n}", among=[n]) for n in versions], [None] * len(versions))

    def refused(self, what, body):
        try:
            with post(f"{self.url}/{what}", body) as answer:
                return f"{answer.status}: {answer.read()}"
        except urllib.error.HTTPError as e:
            return e.read().decode()

    def what_leaves(self):
        """A version is retired while a request names it, and generation stands still: SGLang waits for such a
        request with its lock held."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            version, long = self.retired_under_way(pool)
            try:
                for _ in range(KEEP):
                    self.publish_another()
                self.check("versions come while a request stands still, and it keeps its own",
                           (self.tags[version] in self.status()[1]["leaving"], long.done()), (True, False))
            finally:
                self.go_on()
            got = long.result()
        self.check("a request that names a retired version ends with it",
                   (got.tag, len(got.tokens), got.tokens[:self.expected["length"]]),
                   (self.tags[version], LONG, self.expected["answers"][f"lora{self.adapters[version]}"][0]))
        self.until(lambda: not self.status()[1]["leaving"])
        self.check("its name is gone", self.status_of(f"policy@{version}"), self.gone)
        self.comes("the process of the model holds the versions that are served, and no other",
                   self.held_by_ranks, KEEP + 1)

    def long_answer(self, version):
        """In a pause one request goes on, if it did not end before."""
        return Answer(self.url, f"policy@{version}", self.expected["prompts"][0], LONG, True)

    def pause(self):
        post(f"{self.url}/pause_generation", {"mode": "in_place"}).close()

    def go_on(self):
        post(f"{self.url}/continue_generation", {}).close()

    def end(self):
        """One process is asked to end, which ends its others: where these go first, it kills itself."""
        self.stage.running[self.kind].terminate()
        self.stage.running[self.kind].wait(PATIENCE)
        super().end()


def main():
    return inside.run(lambda *of: [Trial(*of, "sglang")],
                      lambda stage, site: inside.off(stage, site, "sglang"))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""inside.py [vllm[@RELEASE]]: heddle.vllm in a real vLLM server.  Prints one line a check, and exits with 1
when one fails.

A broker, a server with the plugin and places for two adapters, and `heddle publish`.  Every answer must be,
token by token, what PEFT generates with the version that the answer names: while versions are published and
streams run, when four versions are asked in turn so that vLLM evicts and loads again, after a refusal, after
a way back, and for a client that loads by path.  In a process of its own, first: the plugin off, in each of
the ways in which it can be (inside_off.py)."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import stream
from stream import (BIN, EMBEDDINGS, LARGE, PATIENCE, PATTERNS, PLAIN, ROOT, RSLORA, Failed, free_port,
                    publish, serve)

import heddle
from heddle.engine.releases import Release

STREAMS, VERSIONS, ROUNDS = 8, 20, 50
KEEP = 3                                # with the active one: four versions that are served
LONG = 240                              # tokens of a request that goes on while versions come
BLOCK = 32                              # tokens: the last prompt of model.py has two that a server keeps


def plugin_site(folder):
    """What `pip install heddle-sync` puts beside vLLM, and nothing else of this environment."""
    installed, site = pathlib.Path(heddle.__file__).parents[1], folder / "site"
    site.mkdir()
    for pattern in ("heddle", "heddle_sync-*.dist-info", "cffi", "cffi-*.dist-info", "_cffi_backend*",
                    "pycparser"):
        for path in installed.glob(pattern):
            (site / path.name).symlink_to(path)
    return site


def regions_of(pid):
    """How many regions of Heddle a process has open or mapped."""
    process = pathlib.Path("/proc", str(pid))
    found = {line.split()[4] for line in (process / "maps").read_text().splitlines()
             if "heddle-region" in line}
    for path in (process / "fd").iterdir():
        try:
            if "heddle-region" in os.readlink(path):
                found.add(str(path.stat().st_ino))
        except FileNotFoundError:
            pass
    return len(found)


class Answer:
    """Of one request: the name and the tag that it says, and its tokens."""

    def __init__(self, url, name, prompt, length, is_stream=False):
        body = {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "detokenize": False, "stream": is_stream}
        request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            self.tag = answer.headers["X-Heddle-Version"]
            parts = self._parts(answer) if is_stream else [json.load(answer)]
        self.name = parts[0]["model"]
        self.tokens = [token for part in parts for choice in part["choices"]
                       for token in choice.get("token_ids") or ()]

    @staticmethod
    def _parts(answer):
        lines = [line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: ")]
        if lines[-1].strip() != b"[DONE]":
            raise Failed(f"a stream ended with {lines[-1]!r}")
        return [json.loads(line) for line in lines[:-1]]


class Trial:
    """One server with the plugin, and a broker.  `kind`: of build/engines, with its release."""

    plugins, release = "heddle", "0.32.0"       # what tests/engines/vllm.txt has
    answer, gone = Answer, 404                  # and of a name that is not served

    def __init__(self, stage, models, expected, kind="vllm", *options):
        self.stage, self.models, self.expected = stage, models, expected
        self.kind, self.options = kind, options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.adapters, self.tags = {}, {}           # of each version: the folder of model.py, and its tag
        self.begun = self.done = 0                  # versions whose publication began, and ended well

    def run(self):
        self.start()
        self.versions_while_streams_run()
        self.evictions()
        self.refusal()
        self.kinds()
        self.loaded_by_path()
        self.way_back()
        self.broker_killed()
        self.what_leaves()
        self.end()

    def start(self):
        self.start_broker("tcp://127.0.0.1:*")
        self.start_server()
        self.check("not ready before a version is active", self.status()[0], 503)

    def start_server(self):
        os.environ.update(HEDDLE_BROKER=self.broker, HEDDLE_ADAPTERS="policy", VLLM_PLUGINS=self.plugins)
        self.serve("--max-cpu-loras", "2", "--block-size", str(BLOCK))

    def serve(self, *options):
        began = serve(self.stage, self.kind, self.models, self.port, *options, *self.options)
        print(f"{' '.join((self.kind, *self.options))} with the plugin: up after {began:.0f} s", flush=True)

    def start_broker(self, endpoint):
        self.stage.start("broker", BIN / "heddle-broker", "--listen", endpoint, "--keep", str(KEEP),
                         "--data", self.stage.folder / "data")
        self.broker = self.stage.line("broker")["endpoint"]

    def check(self, what, found, expected):
        self.stage.check(f"inside: {what}", found, expected)

    def status(self):
        code, told = self.told()
        return code, told["adapters"][0]

    def told(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/heddle/status")
        answer = connection.getresponse()
        return answer.status, json.load(answer)

    def publish(self, adapter, wants=0):
        self.begun += 1
        told = publish(self.broker, self.models / f"lora{adapter}", wants)
        self.adapters[told["version"]], self.tags[told["version"]] = adapter, told["tag"]
        self.done = told["version"] if wants == 0 else self.done
        return told

    def wrong(self, name, prompt=0, is_stream=False, among=None):
        """What is wrong with an answer; None: nothing."""
        least = self.done
        got = self.answer(self.url, name, self.expected["prompts"][prompt], self.expected["length"],
                          is_stream)
        version = int(got.name.rpartition("@")[2])
        among = among or range(least, self.begun + 1)
        if version not in among:
            return f"{got.name} answered, and the versions that could are {list(among)}"
        if got.tag != self.tag_of(version):
            return f"{got.name} answered with the tag {got.tag}"
        wanted = self.expected["answers"][f"lora{self.adapters[version]}"][prompt]
        return None if got.tokens == wanted else f"{got.name} generated {got.tokens}, and PEFT {wanted}"

    def tag_of(self, version):
        """Of one that is being published: it is known when the command ends."""
        self.until(lambda: version in self.tags)
        return self.tags[version]

    @staticmethod
    def until(condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed("a condition did not come true")
            time.sleep(0.02)

    def comes(self, what, find, expected):
        """A check of what is so a moment after an answer: find() is asked until it gives that."""
        found = None

        def is_there():
            nonlocal found
            found = find()
            return found == expected
        with contextlib.suppress(Failed):       # then the check says what was found last
            self.until(is_there)
        self.check(what, found, expected)

    def versions_while_streams_run(self):
        self.publish(1)
        with self.asked(STREAMS, "while versions come"):
            times = [self.publish(n % PLAIN + 1)["timing"]["active_ms"] for n in range(1, VERSIONS)]
        times.sort()
        print(f"  {VERSIONS} versions came; a publication took {times[len(times) // 2]:.0f} ms (median)",
              flush=True)

    @contextlib.contextmanager
    def asked(self, clients, when, among=None):
        """All the time, by so many clients, of which half take streams.  `among`: as of wrong()."""
        is_over, wrong, count = threading.Event(), [], [0] * clients

        def ask(number):
            try:
                while not is_over.is_set():
                    why = self.wrong("policy", count[number] % 4, number % 2 == 0, among)
                    count[number] += 1
                    if why:
                        wrong.append(why)
            except Exception as e:
                wrong.append(f"{type(e).__name__}: {e}")

        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for number in range(clients):
                pool.submit(ask, number)
            try:
                yield
                before = list(count)                # some begin when all of it has happened
                self.until(lambda: wrong or all(now >= was + 3 for now, was in zip(count, before)))
            finally:
                is_over.set()
        print(f"  {sum(count)} answers to {clients} clients {when}", flush=True)
        self.check(f"{when}, each answer is exact for the version that it names, which was active, and none "
                   "fails", wrong, [])

    def served(self):
        return [int(tag.partition("@")[2].partition(":")[0]) for tag in self.status()[1]["served"]]

    def evictions(self):
        versions = list(range(self.done - KEEP, self.done + 1))
        self.comes("the active version and those kept before it are served", self.served, versions)
        wrong = [why for turn in range(ROUNDS) for version in versions
                 if (why := self.wrong(f"policy@{version}", prompt=turn % 4, among=[version]))]
        self.check(f"four versions in turn, {ROUNDS} times, with places for two: exact", wrong, [])

    def refusal(self):
        before = self.status()[1]
        why = (self.publish(LARGE, 1)["rollout"]["missing"] or [{}])[0]
        words = why.get("message", "")
        self.check("rank 64 fails with the server's words",
                   (why.get("code"), "rank 64" in words and "max_lora_rank" in words.replace("-", "_")),
                   ("version_failed", True))
        for adapter, sizes in (("-half", "all sizes halved"), ("-late", "one that is too large")):
            why = (self.publish(adapter, 1)["rollout"]["missing"] or [{}])[0]
            self.check(f"{sizes}: refused before it is decided", (why.get("code"), why.get("phase")),
                       ("version_failed", "stage"))
        self.check("and nothing of them is kept", self.status()[1], before)
        self.check("and the active version answers", self.wrong("policy", among=[self.done]), None)

    def kinds(self):
        release = self.kind.partition("@")[2] or self.release
        kinds = [(EMBEDDINGS, "embeddings and head"), (RSLORA, "rsLoRA"), (PATTERNS, "rsLoRA with patterns")]
        if "rank_pattern" not in Release("vllm", release).applies():
            self.check("patterns, which it would read over, are refused",
                       self.publish(kinds.pop()[0], 1)["rollout"]["missing"][0].get("code"),
                       "unsupported_feature")
        for adapter, kind in kinds:
            self.publish(adapter)
            self.check(f"{kind}: exact",
                       [self.wrong("policy", prompt=n, among=[self.done]) for n in range(3)], [None] * 3)

    def loaded_by_path(self):
        """By clients as they are: with a name of theirs for one version, or one that they use again."""
        post, older = self.post, self.served()[-2]
        self.check("a version that the server has is loaded by its path",
                   post("load_lora_adapter", "mine", lora_path=f"heddle://policy@{older}"), 200)
        self.check("and answers exactly", self.wrong("mine", among=[older]), None)
        self.check("without a version in the path it is the active one",
                   post("load_lora_adapter", "mine", lora_path="heddle://policy", load_inplace=True), 200)
        hits = self.counted("prefix_cache_hits_total")
        wrong = [self.wrong("mine", prompt=3, among=[self.done])]
        for n in (1, 2, 3):
            self.publish(n)
            wrong.append(self.wrong("mine", prompt=3, among=[self.done - 1]))
            post("load_lora_adapter", "mine", lora_path="heddle://policy", load_inplace=True)
            wrong += [self.wrong("mine", prompt=3, among=[self.done]) for _ in range(2)]
        self.check("one name that is loaded in place for each version: exact, the kept beginning too", wrong,
                   [None] * len(wrong))
        self.check("which was kept", self.counted("prefix_cache_hits_total") > hits, True)
        self.check("what is not Heddle's does not take a version's place",
                   post("load_lora_adapter", "mine", lora_path=str(self.models / "lora1"), load_inplace=True),
                   500)
        self.check("and nothing changed", self.wrong("mine", among=[self.done]), None)
        self.check("it is unloaded", post("unload_lora_adapter", "mine"), 200)
        given = ("policy", f"policy@{self.done}")
        self.check("the names that Heddle gives are not",
                   [post("unload_lora_adapter", name) for name in given], [400] * 2)
        self.check("and answer", [self.wrong(name, among=[self.done]) for name in given], [None] * 2)
        self.check("one that it has not is not found",
                   post("load_lora_adapter", "yours", lora_path="heddle://policy@999"), 404)

    def post(self, what, name, **body):
        request = urllib.request.Request(f"{self.url}/v1/{what}",
                                         json.dumps({"lora_name": name, **body}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status
        except urllib.error.HTTPError as e:
            return e.code

    def way_back(self):
        """While clients ask: each answer is of one of the two, and after the decision of that one."""
        older = self.served()[-2]
        with self.asked(STREAMS, "while the version before is active, and back", (older, self.done)):
            for version, command in ((older, ("rollback", f"policy@{older}")),
                                     (self.done, ("resume", "policy"))):
                told = subprocess.run([BIN / "heddle", *command, "--broker", self.broker,
                                       "--deadline", "120s", "-o", "json"],
                                      check=True, timeout=PATIENCE, capture_output=True, text=True).stdout
                self.check(f"`heddle {' '.join(command)}` moves no byte", json.loads(told)["bytes_moved"], 0)
                self.check("and then every answer is exact", [self.wrong("policy", n, n % 2 == 0, [version])
                                                              for n in range(4)], [None] * 4)

    def broker_killed(self):
        self.stage.end("broker", signal.SIGKILL)
        self.check("without a broker: exact", self.wrong("policy", among=[self.done]), None)
        self.start_broker(self.broker)
        self.publish(1)
        self.check("and a version that came when it was back: exact",
                   self.wrong("policy", among=[self.done]), None)

    def what_leaves(self):
        """A version is retired while a request names it."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            version, long = self.retired_under_way(pool)
            for _ in range(KEEP):
                self.publish_another()
            got = long.result()
        self.check("a request that names a retired version ends with it",
                   (got.tag, len(got.tokens), got.tokens[:self.expected["length"]]),
                   (self.tags[version], LONG, self.expected["answers"][f"lora{self.adapters[version]}"][0]))
        self.until(lambda: not self.status()[1]["leaving"])
        self.check("its name is gone", self.status_of(f"policy@{version}"), self.gone)
        self.comes("the process of the model holds the versions that are served, and no other",
                   self.held_by_ranks, KEEP + 1)

    def retired_under_way(self, pool):
        """(the version, the answer to come of a request that names it and goes on when it is retired).  Where
        no request was under way then, the next version is tried."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.until(lambda: len(self.served()) == KEEP + 1)      # else the first one may be gone now
            version = self.served()[0]
            tag = self.tags[version]
            long = pool.submit(self.long_answer, version)
            self.until(lambda tag=tag, long=long: self.told()[1]["requests"].get(tag) or long.done())
            self.pause()
            self.publish_another()
            self.until(lambda tag=tag, long=long: tag in self.status()[1]["leaving"] or long.done())
            if not long.done():
                return version, long
            self.go_on()
            long.result()
        raise Failed(f"no request was under way when its version was retired, in {PATIENCE:g} s")

    def long_answer(self, version):
        """The last one of requests that follow each other until the version's name is gone: however fast a
        server is, one of them is under way."""
        got = None
        while True:
            try:
                got = self.answer(self.url, f"policy@{version}", self.expected["prompts"][0], LONG, True)
            except urllib.error.HTTPError as e:
                if e.code != self.gone or got is None:
                    raise
                return got

    def publish_another(self):
        """Of model.py: not the one of the newest version."""
        self.publish(self.adapters[self.done] % PLAIN + 1)

    def pause(self):
        """Of generation, where an engine can."""

    def go_on(self):
        """After pause()."""

    def counted(self, name):
        """Of vLLM's metrics."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE) as answer:
            return sum(float(line.split()[-1]) for line in answer
                       if line.startswith(f"vllm:{name}{{".encode()))

    def status_of(self, name):
        try:
            self.answer(self.url, name, self.expected["prompts"][0], 1)
        except urllib.error.HTTPError as e:
            return e.code
        return 200

    def held_by_ranks(self):
        return regions_of(self.told()[1]["ranks"][0]["pid"])

    def end(self):
        self.stage.end(self.kind)
        self.comes("a server that is stopped leaves",
                   lambda: [t for t in self.events() if t in ("worker.left", "worker.lost")], ["worker.left"])
        self.stage.end("broker")

    def events(self):
        """The type of each, of the broker."""
        found = subprocess.run([BIN / "heddle", "events", "--broker", self.broker, "-o", "json"],
                               capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
        return [json.loads(line)["type"] for line in found.splitlines()]


def off(stage, site, kind):
    """The plugin off, in each of the ways in which it can be."""
    python = ROOT / "build/engines" / kind / "bin/python"
    done = subprocess.run([python, ROOT / "tests/engines/inside_off.py", kind.partition("@")[0]],
                          env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
                          timeout=PATIENCE, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-2000:]
    stage.check("inside: off in every way, with one line that says why, and nothing changed", found, [])


def run(trials, prepare):
    """`trials(stage, models, expected)` gives what has a run().  `prepare(stage, site)` comes before that."""
    def checks(stage, models):
        site = plugin_site(models.parent)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"     # the packages are those of another environment
        prepare(stage, site)
        stream.make_models(models)
        os.environ["PYTHONPATH"] = str(site)
        for trial in trials(stage, models, json.loads((models / "expected.json").read_text())):
            trial.run()

    return stream.run_checks(checks, "heddle-inside-")


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "vllm"
    return run(lambda *of: [Trial(*of, kind)], lambda stage, site: off(stage, site, kind))


if __name__ == "__main__":
    sys.exit(main())

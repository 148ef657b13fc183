# SPDX-License-Identifier: Apache-2.0
"""weights.py: vLLM's weight transfer with the backend `heddle`, over real HTTP.  Prints one line a check, and
exits with 1 when one fails.

Two servers, of two models with other weights; a trainer sends one of them the weights of the other one, and
its own.  Then it must answer with the logprobs, bit for bit, of the server that loaded those weights from the
files: also after a way back to an older tag, with LoRA on, and for a prompt whose beginning was kept.  vLLM's
spans say of each token the tag of its weights.  What comes out of order, and a version that does not fit the
model, is an error answer, and the weights stay.  Adapters of the plugin come back by themselves."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from inside import plugin_site
from stream import BIN, PATIENCE, ROOT, Failed, Stage, free_port, post, serve

BLOCK = 32                              # tokens: of what a server keeps of a prompt
OPTIONS = ("--weight-transfer-config", '{"backend": "heddle"}', "--block-size", str(BLOCK),
           "--enable-scale-out", "--max-model-len", "512")
PROMPTS = ([1, 2, 3, 4], [17, 5, 99, 230, 8, 8])
LONG = [(7 * n) % 500 for n in range(2 * BLOCK + 9)]
UNDER_WAY = 500                         # tokens of a request that goes on across an update


class Server:
    def __init__(self, stage, models, name):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        began = serve(stage, "vllm", _Base(models / name), port, *OPTIONS)
        stage.running[name] = stage.running.pop("vllm")
        print(f"vllm with {name}: up after {began:.0f} s", flush=True)

    def answers(self, model="base"):
        """All that is computed from the weights, to the last bit that JSON shows."""
        return [self.answer(prompt, model=model)["logprobs"] for prompt in PROMPTS]

    def answer(self, prompt, length=8, model="base"):
        return post(self.url + "/v1/completions",
                    {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0,
                     "ignore_eos": True, "logprobs": 5, "return_token_ids": True,
                     "return_tokens_as_token_ids": True, "detokenize": False})["choices"][0]

    def generated(self, prompt, length=8):
        """(tokens, [(the version of the weights, the first token of it, the one after its last)])"""
        got = post(self.url + "/inference/v1/generate",
                   {"token_ids": prompt, "model": "base",
                    "sampling_params": {"max_tokens": length, "temperature": 0, "ignore_eos": True,
                                        "detokenize": False}})["choices"][0]
        return got["token_ids"], [(span["version"], span["start"], span["end"])
                                  for span in got["weight_versions"]]

    def counted(self, name):
        """Of vLLM's metrics."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE) as answer:
            return sum(float(line.split()[-1]) for line in answer
                       if line.startswith(f"vllm:{name}{{".encode()))

    def paused_under_way(self, pool):
        """A request that has some of its tokens, not all of them, while the server is paused.  A fast server
        ends a request before the pause reaches it: then the next one is tried."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            before = self.counted("generation_tokens_total")
            request = pool.submit(self.generated, PROMPTS[0], UNDER_WAY)
            while self.counted("generation_tokens_total") == before and time.monotonic() < end:
                time.sleep(0.01)
            if self.call("pause?mode=keep") != 200:
                raise Failed("the server did not pause")
            if 0 < self.counted("generation_tokens_total") - before < UNDER_WAY:
                return request
            if self.call("resume") != 200:
                raise Failed("the server did not resume")
            request.result()
        raise Failed(f"no request of {UNDER_WAY} tokens was under way in a pause within {PATIENCE} s")

    def call(self, path, **body):
        """The status."""
        try:
            post(f"{self.url}/{path}", body)
        except urllib.error.HTTPError as e:
            return e.code
        return 200


class _Base:
    """serve() takes the folder above `base`."""

    def __init__(self, folder):
        self.folder = folder

    def __truediv__(self, _):
        return self.folder


def send(stage, broker, url, *models):
    stage.start("trainer", ROOT / "build/engines/vllm/bin/python", ROOT / "tests/engines/weights_trainer.py",
                broker, url, *models)
    tags = []
    for _ in models:
        line = stage.running["trainer"].stdout.readline().decode().strip()
        if not line:
            raise Failed(f"the trainer ended; its log ends:\n{stage.tail('trainer')}")
        tags.append(line)
    return tags


def what_a_tied_head_says(stage, models):
    """A server of a model whose head is tied to its embeddings ends at its start."""
    stage.start("tied", ROOT / "tests/engines/serve", "vllm", models / "tied", free_port(), *OPTIONS,
                is_read=False)
    if stage.running["tied"].wait(PATIENCE) == 0:
        return "it ended with 0"
    stage.running.pop("tied")
    return "whose head is tied" in (stage.folder / "tied.log").read_text(errors="replace")


def misfits(broker, models):
    """Versions that each miss one file of the model, and one of another shape; and what they are."""
    files = sorted((models / "base").glob("*.safetensors"))
    for missing in files:
        yield f"{missing.name} forgotten", publish(broker, *(file for file in files if file != missing))
    yield "other shapes", publish(broker, *sorted((models / "other").glob("*.safetensors")))


def publish(broker, *files):
    return published("--kind", "tensors", *files, "--adapter", "weights", "--broker", broker, "--takeover")


def published(*words):
    """The tag."""
    done = subprocess.run([BIN / "heddle", "publish", *words, "-o", "json"],
                          capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise Failed(f"publish ended with {done.returncode}: {done.stdout} {done.stderr}")
    return json.loads(done.stdout)["tag"]


def trial(stage, models):
    stage.start("broker", BIN / "heddle-broker", "--listen", "tcp://127.0.0.1:*", "--keep", "2", "--data",
                stage.folder / "data")
    broker = stage.line("broker")["endpoint"]
    os.environ.update(HEDDLE_BROKER=broker, HEDDLE_ADAPTERS="policy")
    base, other = Server(stage, models, "base"), Server(stage, models, "next")
    first, second = base.answers(), other.answers()
    stage.check("the two models answer differently", first != second, True)
    published(models / "lora", "--adapter", "policy", "--broker", broker)
    with_lora = [server.answers("policy") for server in (base, other)]
    stage.check("with an adapter, too", len({str(answers) for answers in (first, second, *with_lora)}), 4)
    stage.check("a head that is tied to the embeddings is refused at the start, on the CPU",
                what_a_tied_head_says(stage, models), True)

    kept = [server.answer(LONG)["logprobs"] for server in (base, other)]    # each once: nothing was kept
    base.answer(LONG)
    stage.check("the beginning of a long prompt is kept", base.counted("prefix_cache_hits_total") > 0, True)

    stage.check("an update before init", base.call("start_weight_update") >= 400, True)
    tags = send(stage, broker, base.url, models / "next", models / "base", models / "next")
    stage.check("bit for bit the model that was loaded from the files", base.answers() == second, True)
    stage.check("and nothing is kept of the weights before", base.answer(LONG)["logprobs"] == kept[1], True)
    stage.check("an adapter comes back by itself", base.answers("policy") == with_lora[1], True)
    told = json.loads(subprocess.run([BIN / "heddle", "versions", tags[1], "--broker", broker, "-o", "json"],
                                     capture_output=True, text=True, timeout=PATIENCE).stdout)
    stage.check("as versions of kind tensors", told["versions"][0]["kind"], "tensors")
    stage.check("vLLM's spans name the tag", base.generated(PROMPTS[0])[1], [(tags[2], 0, 8)])

    stage.check("a finish without a start", base.call("finish_weight_update") >= 400, True)
    stage.check("an update without a start", base.call("update_weights", update_info={"tag": tags[0]}) >= 400,
                True)
    stage.check("a start", base.call("start_weight_update"), 200)
    stage.check("a second start", base.call("start_weight_update") >= 400, True)
    wrong = tags[1].rpartition(":")[0] + ":000000000000"
    for what, tag in (("of another digest", wrong), ("that was never recorded", "weights@99"),
                      ("of another adapter", "other@1")):
        stage.check(f"a tag {what}", base.call("update_weights", update_info={"tag": tag}) >= 400, True)
        stage.check("  and a new start", base.call("start_weight_update"), 200)
    stage.check("the old weights answer meanwhile", base.answers() == second, True)

    stage.check("an older tag", base.call("update_weights", update_info={"tag": tags[1]}), 200)
    stage.end("trainer", 9)
    stage.check("until finish, also when the trainer was killed", base.answers() == second, True)
    log = (stage.folder / "vllm.log").read_text(errors="replace")       # of both servers
    stage.check("and the log names the one that is held", f"weights: {tags[1]} is held" in log, True)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        under_way = base.paused_under_way(pool)
        stage.check("an update in a pause, as docs/weights.md has it",
                    base.call("update_weights", update_info={"tag": tags[1]}), 200)
        stage.check("  and a finish", base.call("finish_weight_update", weight_version=tags[1]), 200)
        stage.check("  and a resume", base.call("resume"), 200)
        tokens, spans = under_way.result()
    stage.check("with a request under way, which goes on", len(tokens), UNDER_WAY)
    later = spans[-1][1]
    stage.check("and whose spans name both tags", (spans, 0 < later < UNDER_WAY),
                ([(tags[2], 0, later), (tags[1], later, UNDER_WAY)], True))
    stage.check("is a way back, bit for bit", base.answers() == first, True)
    stage.check("with the adapter, too", base.answers("policy") == with_lora[0], True)
    stage.check("and nothing is kept of the weights before", base.answer(LONG)["logprobs"] == kept[0], True)

    for what, tag in misfits(broker, models):
        stage.check(f"a version with {what}: a start", base.call("start_weight_update"), 200)
        stage.check("  no update", base.call("update_weights", update_info={"tag": tag}) >= 400, True)
        stage.check("  and no finish", base.call("finish_weight_update", weight_version=tag) >= 400, True)
        stage.check("  and the weights are whole", base.answers() == first, True)

    for _ in range(2):
        stage.check("a shutdown of the backend", base.call("shutdown_weight_transfer_engine"), 200)
    stage.check("after it a start is an error", base.call("start_weight_update") >= 400, True)
    stage.check("and the server answers", base.answers() == first, True)
    stage.check("with the tag of what it has", base.generated(PROMPTS[0])[1], [(tags[1], 0, 8)])


def main():
    with tempfile.TemporaryDirectory(prefix="heddle-weights.") as folder:
        stage, models = Stage(pathlib.Path(folder)), pathlib.Path(folder) / "models"
        site = plugin_site(stage.folder)
        os.environ.update(HEDDLE_KEYS=str(stage.folder / "keys"), PYTHONPATH=str(site),
                          VLLM_SERVER_DEV_MODE="1", VLLM_PLUGINS="heddle")
        subprocess.run([ROOT / "build/engines/common/bin/python", ROOT / "tests/engines/weights_model.py",
                        models], check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            trial(stage, models)
        except Failed as e:
            stage.bad += 1
            print(f"  FAIL  {e}", flush=True)
        finally:
            for name in list(stage.running):
                stage.end(name)
        if stage.bad and "HEDDLE_KEEP" in os.environ:
            subprocess.run(["cp", "-r", folder, os.environ["HEDDLE_KEEP"]])
    print(f"weights: {stage.good} good, {stage.bad} bad")
    return 1 if stage.bad or not stage.good else 0


if __name__ == "__main__":
    sys.exit(main())

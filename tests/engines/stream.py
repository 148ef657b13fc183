# SPDX-License-Identifier: Apache-2.0
"""stream.py vllm|sglang...: the plug against real servers.  Prints one line a check, and exits with 1 when
one fails.

For each server: a broker, the server, `python -m heddle.engine`, and `heddle publish` of one version after
the other, while requests name the first.  Asked under the name of
a version, the server must answer what PEFT generates with it (model.py): the newest, the one before it which
is kept, and the same after a way back and after the server was killed and started again.  A version that the
server cannot load fails with its words.  And the double of python/tests gives the same outcome as the server,
call by call."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("HEDDLE_BIN_DIR", ROOT / "build" / "bin"))
PLAIN = 4                                # adapters of model.py that both servers load; five more follow
# rsLoRA, ranks and alphas by pattern; rank 64; rsLoRA alone; embeddings and head; the head alone
PATTERNS, LARGE, RSLORA, EMBEDDINGS, HEAD = range(PLAIN + 1, PLAIN + 6)
PATIENCE = 300.0                         # a server on two busy cores

sys.path.insert(0, str(ROOT / "python" / "tests"))
import engine_double  # noqa: E402


class Failed(Exception):
    pass


class Stage:
    """Processes that are ended at the end, whatever happens."""

    def __init__(self, folder):
        self.folder, self.running = folder, {}
        self.lines = []                  # what the plug said
        self.good = self.bad = 0

    def start(self, name, *argv, is_read=True, is_written=False):
        """Its log is name.log; where its stdout is not read, that goes there too."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(list(map(str, argv)),
                                                  stdin=subprocess.PIPE if is_written else None,
                                                  stdout=subprocess.PIPE if is_read else log, stderr=log,
                                                  cwd=ROOT,
                                                  start_new_session=True)

    def line(self, name):
        line = self.running[name].stdout.readline()
        if not line:
            raise Failed(f"{name} ended with {self.running[name].wait()}; its log ends: {self.tail(name)}")
        return json.loads(line)

    def until(self, process, type, **data):
        while True:
            line = self.line(process)
            self.lines.append(line)
            if line.get("type", line["kind"]) == type and all(line.get(k, line.get("data", {}).get(k)) == v
                                                              for k, v in data.items()):
                return line

    def end(self, name, number=signal.SIGTERM):
        process = self.running.pop(name)
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()

    def tail(self, name):
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])

    def check(self, what, found, expected):
        if found == expected:
            self.good += 1
            print(f"  ok    {what}", flush=True)
        else:
            self.bad += 1
            print(f"  FAIL  {what}\n        expected {expected}\n        found    {found}", flush=True)


def ask_vllm(url, name, prompt, length):
    """(the name that the answer says, tokens)"""
    got = post(url + "/v1/completions",
               {"model": name, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True,
                                         "return_token_ids": True, "detokenize": False})
    return got["model"], got["choices"][0]["token_ids"]


def ask_sglang(url, name, prompt, length):
    """Its answers name no adapter; they carry the id of the request, so that the name goes there."""
    got = post(url + "/generate",
               {"rid": f"{name}/{time.monotonic_ns()}", "input_ids": prompt, "lora_path": name,
                                   "sampling_params": {"max_new_tokens": length, "temperature": 0,
                                                       "ignore_eos": True}})
    return got["meta_info"]["id"].rpartition("/")[0], got["output_ids"]


ASK = {"vllm": ask_vllm, "sglang": ask_sglang}


class Rollout:
    """Requests that name a version, six at a time, one after the other: there always is one."""

    def __init__(self, kind, url, name):
        self._ask = lambda: ASK[kind](url, name, [1, 2, 3], 48)[0] == name
        self._is_over, self._wrong = threading.Event(), []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(6)]

    def start(self):
        for thread in self._threads:
            thread.start()

    def _run(self):
        try:
            while not self._is_over.is_set():
                if not self._ask():
                    self._wrong.append("another name answered")
        except OSError as e:
            self._wrong.append(str(e))

    def end(self):
        """What went wrong."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        return self._wrong


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def make_models(models, *kind):
    with models.with_suffix(".log").open("wb") as log:
        subprocess.run([ROOT / "build/engines/common/bin/python", ROOT / "tests/engines/model.py", models,
                        str(PLAIN), *kind], check=True, cwd=ROOT, stderr=log)


def serve(stage, kind, models, port, *options):
    began = time.monotonic()
    stage.start(kind, ROOT / "tests/engines/serve", kind, models / "base", port, *options, is_read=False)
    while True:
        if stage.running[kind].poll() is not None:
            raise Failed(f"{kind} ended with {stage.running[kind].wait()}; its log ends:\n{stage.tail(kind)}")
        if time.monotonic() - began > PATIENCE:
            raise Failed(f"{kind} is not up after {PATIENCE:g} s; its log ends:\n{stage.tail(kind)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                return time.monotonic() - began
        except OSError:
            time.sleep(0.2)


def publish(broker, folder, wants):
    done = subprocess.run([BIN / "heddle", "publish", folder, "--adapter", "policy", "--broker", broker,
                           "--timeout", "60s", "--deadline", "120s", "-o", "json"],
                          capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != wants:
        raise Failed(f"publish {folder.name} ended with {done.returncode}: {done.stdout} {done.stderr}")
    return json.loads(done.stdout)


class Trial:
    """One server, a broker and the plug between them."""

    def __init__(self, stage, kind, models, expected):
        self.stage, self.kind, self.models, self.expected = stage, kind, models, expected
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.broker = ""

    def tokens(self, version, when):
        """Under the name of a version the server answers what PEFT generates with it: version N is always
        loraN."""
        name, adapter = f"policy@{version}", f"lora{version}"
        found = [ASK[self.kind](self.url, name, prompt, self.expected["length"])
                 for prompt in self.expected["prompts"]]
        self.stage.check(f"{self.kind}: {when}, {name} answers what PEFT generates with {adapter}", found,
                         [(name, tokens) for tokens in self.expected["answers"][adapter]])

    def publish(self, number, wants=0):
        return publish(self.broker, self.models / f"lora{number}", wants)

    def failure(self, number):
        """What the one worker says of a version that fails."""
        return (self.publish(number, 1)["rollout"]["missing"] or [{}])[0]

    def run(self):
        print(f"{self.kind}: up after {serve(self.stage, self.kind, self.models, self.port):.0f} s",
              flush=True)
        self.compare()
        self.start_plug()
        self.versions()
        active = self.refusals()
        self.way_back_and_restart(active)
        self.stage.check(f"{self.kind}: the plug ends with 0", self.stage.end("engine"), 0)
        self.stage.end("broker")
        self.stage.end(self.kind)

    def compare(self):
        folders = [str(self.models / f"lora{n}") for n in (1, 2, LARGE)]
        outcomes = engine_double.calls(self.kind, self.url, *folders)
        double = engine_double.Double(self.kind)
        self.stage.check(f"{self.kind}: the double does call by call what the server does",
                         engine_double.calls(self.kind, double.url, *folders), outcomes)
        double.stop()

    def start_plug(self):
        folder = self.stage.folder
        self.stage.start("broker", BIN / "heddle-broker", "--listen", "tcp://127.0.0.1:*", "--keep", "1",
                         "--data", folder / f"data-{self.kind}")
        self.broker = self.stage.line("broker")["endpoint"]
        self.stage.start("engine", sys.executable, "-m", "heddle.engine", f"--{self.kind}", self.url,
                         "--export", folder / f"x-{self.kind}",
                         "--broker", self.broker, "--load-timeout", "120s", "-o", "json")
        self.stage.until("engine", "ready")

    def versions(self):
        """While policy@1 is asked without a pause: what is retired with requests under way holds up nobody,
        and goes when they end."""
        rollout = Rollout(self.kind, self.url, "policy@1")
        self.stage.lines.clear()
        for n in range(1, PLAIN + 1):
            told = self.publish(n)
            loaded = self.stage.until("engine", "engine.loaded", name=f"policy@{n}")["data"]
            print(f"  policy@{n}: active {told['timing']['active_ms']:.0f} ms after publish began; load "
                  f"{loaded['load_ms']:.0f} ms, "
                  f"first token {loaded['answer_ms']:.0f} ms", flush=True)
            self.tokens(n, "newest")
            if n == 1:
                rollout.start()
            else:
                self.tokens(n - 1, "kept")
        gone = [line["data"]["name"] for line in self.stage.lines if line.get("type") == "engine.unloaded"]
        self.stage.check(f"{self.kind}: policy@1 stays while requests name it",
                         ("policy@1" in gone, rollout.end()), (False, []))
        if "policy@1" not in gone:
            self.stage.until("engine", "engine.unloaded", name="policy@1")

    def refusals(self):
        """The version that is active after them."""
        active = PLAIN
        if self.kind == "vllm":
            self.publish(PATTERNS)
            active = PATTERNS
            self.tokens(active, "rsLoRA with patterns")
        else:
            self.stage.check("sglang: rsLoRA, which it would read over, is refused",
                             self.failure(PATTERNS).get("code"), "unsupported_feature")
            self.stage.check("sglang: it does read over it (else heddle/engine/releases.py can have "
                             "it)", self.is_right_without_us(), False)
        why = self.failure(LARGE)
        words = why.get("message", "")
        self.stage.check(f"{self.kind}: rank 64 fails with the server's words",
                         (why.get("code"), "rank 64" in words,
                          "max_lora_rank" in words or "max-lora-rank" in words),
                         ("version_failed", True, True))
        self.tokens(active, "after a refusal")
        return active

    def is_right_without_us(self):
        adapter, server = f"lora{RSLORA}", engine_double.KINDS[self.kind](self.url)
        server.load(adapter, str(self.models / adapter), PATIENCE)
        found = [ASK[self.kind](self.url, adapter, prompt, self.expected["length"])[1]
                 for prompt in self.expected["prompts"]]
        server.unload(adapter, PATIENCE)
        return found == self.expected["answers"][adapter]

    def way_back_and_restart(self, active):
        subprocess.run([BIN / "heddle", "activate", f"policy@{active - 1}", "--broker", self.broker, "-q"],
                       check=True, timeout=PATIENCE,
                       stdout=subprocess.DEVNULL)
        self.tokens(active - 1, "after a way back")
        self.stage.end(self.kind, signal.SIGKILL)
        print(f"{self.kind}: killed; up again after "
              f"{serve(self.stage, self.kind, self.models, self.port):.0f} s", flush=True)
        self.stage.until("engine", "engine.loaded", name=f"policy@{active - 1}")
        self.tokens(active - 1, "killed and started again")


def run_checks(checks, prefix):
    """Calls checks(stage, models) in a folder of its own, which stays when one fails.  -> the exit status"""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    os.environ["HEDDLE_KEYS"] = str(folder / "keys")
    for name in ("HEDDLE_KEY", "HEDDLE_BROKER_KEY", "HEDDLE_BROKER", "HEDDLE_ADAPTERS", "VLLM_PLUGINS"):
        os.environ.pop(name, None)
    stage = Stage(folder)
    try:
        checks(stage, folder / "models")
    except (Failed, subprocess.SubprocessError, urllib.error.URLError) as e:
        stage.bad += 1
        print(f"  FAIL  {e}", flush=True)
    finally:
        for name in list(stage.running):
            stage.end(name, signal.SIGKILL)
    print(f"{stage.good} passed, {stage.bad} failed", flush=True)
    if stage.bad:
        print(f"logs: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return 1 if stage.bad else 0


def checks_of_engines(stage, models):
    make_models(models)
    expected = json.loads((models / "expected.json").read_text())
    for kind in sys.argv[1:]:
        Trial(stage, kind, models, expected).run()


if __name__ == "__main__":
    sys.exit(run_checks(checks_of_engines, "heddle-engines-"))

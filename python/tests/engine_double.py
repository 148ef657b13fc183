# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a vLLM or SGLang server, in this process: their interfaces for adapters, their errors word
by word, and faults on demand.

What it answers is what vLLM 0.32.0 (https://docs.vllm.ai/en/latest/features/lora/ and
vllm/entrypoints/openai/models/serving.py) and SGLang 0.5.23
(https://docs.sglang.io/docs/advanced_features/lora and sglang/srt/managers/tokenizer_control_mixin.py)
answer; tests/engines/run holds it against the real ones (`calls` below).  Where both say the same in other
words, `kind` chooses.
"""
from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import socket
import struct
import threading
import time
from collections import deque

from heddle.engine.servers import KINDS, Away, Refused

LOADS = {"vllm": "/v1/load_lora_adapter", "sglang": "/load_lora_adapter"}
UNLOADS = {"vllm": "/v1/unload_lora_adapter", "sglang": "/unload_lora_adapter"}
ASKS = {"vllm": "/v1/completions", "sglang": "/generate"}


class Double:
    """One server on loopback.

    names      served adapters -> path           log       (path, lora name) of every POST, in order
    faults     path -> what the next calls get: (status, words), ("text", answer), "hang", "reset", "garbage",
               or None for the real thing
    release    as the server tells it; None: it does not
    gate       clear it and POSTs wait           busy      names with requests under way: as SGLang, an unload
               waits for them, and
                                                           loads wait for the unload
    """

    def __init__(self, kind, *, max_rank=16, room=None, slots=4, port=0, runtime_updates=True, key=None,
                 release="as tested"):
        self.release = {"vllm": "0.32.0+cpu", "sglang": "0.5.23"}[kind] if release == "as tested" else release
        self.kind, self.max_rank, self.room, self.slots, self.key = kind, max_rank, room, slots, key
        self.runtime_updates = runtime_updates
        self.names, self.log, self.busy, self.deaf = {}, [], set(), set()
        self.update_lock = threading.Lock()
        self.faults = {path: deque() for table in (LOADS, UNLOADS, ASKS) for path in table.values()}
        self.faults["/v1/models"] = deque()
        self.gate = threading.Event()
        self.gate.set()
        self._port, self._server, self._connections = port, None, set()
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}"

    def start(self):
        double = self

        class Handler(_Handler):
            owner = double

        class Listener(http.server.ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

            def get_request(self):
                connection, address = super().get_request()
                double._connections.add(connection)
                return connection, address

            def handle_error(self, request, address):
                pass                     # the connections that stop() broke

        self._server = Listener(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01},
                         daemon=True).start()

    def stop(self):
        """As kill -9: nobody listens any more, open connections are reset, and what was loaded is
        forgotten."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.shutdown()
        server.server_close()
        for connection in list(self._connections):
            reset(connection)
        self._connections.clear()
        self.names.clear()

    def restart(self):
        self.stop()
        self.start()

    def posts(self, table):
        return [name for path, name in self.log if path == table[self.kind]]


def metrics(at, names=(), running=None, waiting=0, slots=4, engines=1):
    """What vLLM tells at /metrics after a step that ended `at`.  Names are in both lists, and stay under an
    older time."""
    line = ('vllm:lora_requests_info{max_lora="%d",running_lora_adapters="%s",'
            'waiting_lora_adapters="%s"} %r\n')
    count = 'vllm:num_requests_%s{engine="%d",model_name="base"} %r\n'
    now, running = ",".join(sorted(names)), len(names) if running is None else running
    return ("# HELP python_info Python platform information\n" + line % (slots, "old@1", "old@1", at - 9.0)
            + line % (slots, now, now, float(at)) + 'vllm:engine_sleep_state{engine="0"} 1.0\n'
            + "".join(count % (what, engine, float(value)) for engine in range(engines)
                      for what, value in (("running", running), ("waiting", waiting))))


def reset(connection):
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    except OSError:
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: Double
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        d = self.owner
        if self._is_faulty(self.path):
            return
        if not self._is_allowed():
            return
        if self.path == "/v1/models":
            base = {"id": "base", "object": "model", "root": "/models/base", "parent": None}
            cards = [{"id": name, "object": "model", "root": path, "parent": "base"}
                     for name, path in list(d.names.items())]
            self._say(200, {"object": "list", "data": [base, *cards]})
        elif self.path == "/server_info" and d.kind == "sglang":
            told = {} if d.release is None else {"version": d.release}
            self._say(200, {"enable_lora": d.runtime_updates, "max_loaded_loras": d.room,
                            "max_loras_per_batch": d.slots, **told})
        elif self.path == "/version" and d.kind == "vllm" and d.release is not None:
            self._say(200, {"version": d.release})
        elif self.path == "/v1/loads" and d.kind == "sglang":
            self._say(200, {"loads": [{"dp_rank": 0, "num_running_reqs": len(d.busy),
                                       "num_waiting_reqs": 0}]})
        elif self.path == "/metrics" and d.kind == "vllm":
            self._say(200, metrics(time.time(), d.busy, slots=d.slots))
        elif self.path in (LOADS[d.kind], UNLOADS[d.kind]) and (d.runtime_updates or d.kind == "sglang"):
            self._say(405, {"detail": "Method Not Allowed"})
        else:
            self._say(404, {"detail": "Not Found"})

    def do_POST(self):
        d = self.owner
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        name = body.get("lora_name") or body.get("model") or body.get("lora_path")
        d.log.append((self.path, name))
        if self._is_faulty(self.path):
            return
        d.gate.wait()
        if not self._is_allowed():
            return
        if self.path in (LOADS[d.kind], UNLOADS[d.kind]) and not d.runtime_updates and d.kind == "vllm":
            self._say(404, {"detail": "Not Found"})
        elif self.path in (LOADS[d.kind], UNLOADS[d.kind]):
            with d.update_lock if d.kind == "sglang" else contextlib.nullcontext():
                self._load(body) if self.path == LOADS[d.kind] else self._unload(name)
        elif self.path == ASKS[d.kind]:
            self._ask(name)
        else:
            self._say(404, {"detail": "Not Found"})

    # --- what the servers do ---------------------------------------------------------------------

    def _load(self, body):
        d, name, path = self.owner, body["lora_name"], body["lora_path"]
        if name in d.names:
            self._refuse(400, f"The lora adapter '{name}' has already been loaded. If you want to load the "
                              f"adapter in place, set 'load_inplace' to True.",
                         f"Failed to load LoRA adapter {name} because it is already loaded")
            return
        config = pathlib.Path(path, "adapter_config.json")
        if not config.exists():
            self._refuse(404, f"Loading lora {name} failed: No adapter found for {path}",
                         f"Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or "
                         f"end with '-' or '.' and the maximum length is 96: '{path}'.")
            return
        rank = json.loads(config.read_text())["r"]
        if rank > d.max_rank:
            self._refuse(500, f"LoRA rank {rank} is greater than max_lora_rank {d.max_rank}.",
                         f"LoRA adapter {name} with rank {rank} is incompatible with the current LoRA memory "
                         f"pool configuration. Please ensure that the "
                         "LoRA adapter's rank is within the configured `--max-lora-rank` and that the target "
                         "modules are included in `--lora-target-modules`.")
            return
        d.names[name] = path
        # SGLang drops the one that was used least recently
        if d.room is not None and len(d.names) > d.room:
            d.names.pop(next(iter(d.names)))
        self._say(200, f"Success: LoRA adapter '{name}' added successfully." if d.kind == "vllm"
                  else {"success": True, "error_message": ""})

    def _unload(self, name):
        d = self.owner
        if name not in d.names:
            self._refuse(404 if d.kind == "vllm" else 400, f"The lora adapter '{name}' cannot be found.",
                         f"LoRA with name {name} does not exist. Loaded LoRAs: odict_keys({list(d.names)})")
            return
        del d.names[name]
        while d.kind == "sglang" and name in d.busy and d._server is self.server:
            time.sleep(0.01)
        self._say(200, f"Success: LoRA adapter '{name}' removed successfully." if d.kind == "vllm"
                  else {"success": True, "error_message": ""})

    def _ask(self, name):
        d = self.owner
        if name not in d.names or name in d.deaf:
            if d.kind == "vllm":
                self._say(404, {"error": {"message": f"The model `{name}` does not exist. Valid aliases: "
                                                     f"base.", "type": "NotFoundError", "param": "model",
                                          "code": 404}})
            else:
                self._say(400, {"error": {"message": f"Got LoRA adapter that has never been loaded: "
                                                     f"{name}\nAll loaded adapters: dict_keys([])."}})
        elif d.kind == "vllm":
            self._say(200, {"model": name, "choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        else:
            self._say(200, {"output_ids": [7], "meta_info": {"id": "1", "completion_tokens": 1}})

    # --- how -------------------------------------------------------------------------------------

    def _is_faulty(self, path):
        queue = self.owner.faults.get(path)
        fault = queue.popleft() if queue else None
        if fault is None:
            return False
        if fault == "hang":
            while self.owner._server is not None and not self._is_closed():
                time.sleep(0.01)
        elif fault == "reset":
            reset(self.connection)
        elif fault[0] == "text":
            self._say(200, fault[1])
        elif fault == "garbage":
            self._say(200, "<html>a proxy's page</html>")
        else:
            self._say(fault[0],
                      {"error": {"message": fault[1], "type": "InternalServerError", "param": None,
                                 "code": fault[0]}})
        self.close_connection = True
        return True

    def _is_closed(self):
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _is_allowed(self):
        key = self.owner.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._say(401, {"error": "Unauthorized"})
        return False

    def _refuse(self, status, vllm, sglang):
        if self.owner.kind == "vllm":
            kinds = {400: "InvalidUserInput", 404: "NotFoundError", 500: "InternalServerError"}
            self._say(status, {"error": {"message": vllm, "type": kinds[status], "param": None,
                                         "code": status}})
        else:
            self._say(400, {"rid": None, "success": False, "error_message": sglang, "loaded_adapters": None})

    def _say(self, status, body):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True


def calls(kind, url, good, other, too_large):
    """What a server of that kind does with three PEFT directories, call by call: the same list from a real
    server and from its double."""
    server = KINDS[kind](url)
    found = []

    def call(what, *args):
        try:
            result = getattr(server, what)(*args, 60.0)
        except Refused as e:
            result = f"refused: {e.kind.value}{', taken' if e.taken else ''}"
        except Away:
            result = "away"
        found.append((what, *args, result))

    call("check")
    call("ask", "policy@1")
    call("load", "policy@1", good)
    call("ask", "policy@1")
    call("load", "policy@1", good)
    call("load", "policy@1", other)
    call("load", "policy@2", "/nowhere/at-all")
    call("load", "policy@3", too_large)
    call("load", "policy@4", other)
    call("ask", "policy@4")
    found.append(("listing", server.listing(60.0).names))
    call("unload", "policy@1")
    call("unload", "policy@1")
    call("unload", "never@1")
    found.append(("listing", server.listing(60.0).names))
    call("load", "policy@1", good)
    call("ask", "policy@1")
    call("unload", "policy@1")
    call("unload", "policy@4")
    found.append(("listing", server.listing(60.0).names))
    return found

# SPDX-License-Identifier: Apache-2.0
"""What the plug tells: lines for people or JSON on stdout, a log on stderr, and counters for Prometheus.

A line of JSON has the fields of `heddle events`; its `origin` is "engine"."""
from __future__ import annotations

import datetime
import http.server
import json
import logging
import os
import select
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any, TextIO

LEVELS = ("error", "warn", "info", "debug")
FORMATS = ("text", "json", "journal")
_PRIORITIES = (3, 4, 6, 7)               # of syslog(3), by level


def now_text() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Voice:
    """Any thread."""

    def __init__(self, *, is_json: bool, is_quiet: bool, level: str, worker: str,
                 log_format: str = "text") -> None:
        self._is_json, self._is_quiet, self._worker = is_json, is_quiet, worker
        self._format = log_format
        self._level = LEVELS.index(level)
        self._lock = threading.Lock()
        self._dropped = 0

    def ready(self, **fields: Any) -> None:
        line = {"schema": "heddle/1", "kind": "ready", "ok": True, "role": "engine", "pid": os.getpid(),
                **fields}
        adapters, servers = ", ".join(fields["adapters"]), ", ".join(s["url"] for s in fields["servers"])
        self._print(line, f"ready: {adapters} for {servers}")

    def event(self, type: str, adapter: str | None = None, version: int | None = None, *,
              code: str | None = None,
              message: str | None = None, **data: Any) -> None:
        line = {"schema": "heddle/1", "kind": "event", "ok": code is None, "origin": "engine",
                "at": now_text(), "type": type,
                "adapter": adapter, "version": version, "worker": self._worker, "code": code,
                "message": message, "data": data}
        subject = f" {adapter}@{version}" if adapter and version else f" {adapter}" if adapter else ""
        details = " ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                           for key, value in data.items())
        self._print(line, f"{type}{subject}  {details}".rstrip() + (f"  {message}" if message else ""))

    def log(self, level: str, id: str, text: str) -> None:
        """A line as broker and worker log it (`--log-format`)."""
        if LEVELS.index(level) > self._level:
            return
        one = "".join(c if c.isprintable() else "?" for c in text)
        if self._format == "json":
            line = json.dumps({"at": now_text(), "level": level, "event": id, "text": one})
        elif self._format == "journal":
            line = f"<{_PRIORITIES[LEVELS.index(level)]}>{id}: {one}"
        else:
            line = f"{now_text()} {level:5} {id} {text}"
        with self._lock:
            print(line, file=sys.stderr, flush=True)

    def error(self, error: Mapping[str, Any]) -> None:
        """The program ends with a failure."""
        if self._is_json:
            self._print({"schema": "heddle/1", "kind": "engine", "ok": False, "error": dict(error)}, "")
        if self._format != "text":
            parts = "".join(f"; {key}: {error[key]}" for key in ("expected", "found", "hint")
                            if error.get(key))
            self.log("error", "process.failed",
                     f"heddle.engine: {error['code']}: {error['message']}{parts}")
        elif not self._is_json:
            found = "".join(f"\n  {key}: {error[key]}" for key in ("expected", "found", "hint")
                            if error.get(key))
            with self._lock:
                print(f"heddle.engine: {error['code']}: {error['message']}{found}", file=sys.stderr,
                      flush=True)

    def _print(self, line: Mapping[str, Any], text: str) -> None:
        """A reader that stopped reading blocks nothing: lines are dropped and counted, and a gap is said when
        it reads again."""
        if self._is_quiet and not self._is_json:
            return
        with self._lock:
            try:
                if not select.select([], [sys.stdout], [], 0)[1]:
                    self._dropped += 1
                    return
                if self._dropped and self._is_json:
                    gap = {"schema": "heddle/1", "kind": "event", "ok": True, "origin": "engine",
                           "type": "gap", "data": {"dropped": self._dropped}}
                    print(json.dumps(gap), flush=True)
                self._dropped = 0
                print(json.dumps(line) if self._is_json else text, flush=True)
            except OSError:
                self._dropped += 1


class Relay(logging.Handler):
    """What the package logs, in this voice.  That no broker answers is the program's own to say."""

    def __init__(self, voice: Voice) -> None:
        super().__init__()
        self._voice = voice
        self.warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "no broker answers" in text:
            return
        self.warnings += record.levelno >= logging.WARNING
        level = "warn" if record.levelno == logging.WARNING else record.levelname.lower()
        self._voice.log(level if level in LEVELS else "error", "worker", text)


def say_warnings(voice: Voice) -> None:
    """From now on the warnings of Python, of any library, are lines of this log."""
    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int,
             file: TextIO | None = None, line: str | None = None) -> None:
        text = " ".join(str(message).split())
        voice.log("warn", "python.warning",
                  f"{category.__name__}: {text} ({os.path.basename(filename)}:{lineno})")
    warnings.showwarning = show


class Counters:
    """Any thread.  One series is a name and its labels."""

    HELP = {
        "heddle_engine_loads_total": "counter: adapters that a server loaded and answered for",
        "heddle_engine_load_seconds_total": "counter: time that those took, from the request to the first "
                                            "token",
        "heddle_engine_unloads_total": "counter: adapters that a server unloaded",
        "heddle_engine_refusals_total": "counter: loads and unloads that a server refused or did not answer",
        "heddle_engine_lost_total": "counter: adapters that a server had and has no more, as after a restart",
        "heddle_engine_rejects_total": "counter: versions that this plug refused",
        "heddle_engine_up": "gauge: 1 while the server answers",
        "heddle_engine_adapters": "gauge: adapters that the server lists",
        "heddle_engine_active_version": "gauge: the version that was decided and is served",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def add(self, name: str, by: float = 1, **labels: str) -> None:
        key = name, tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0) + by

    def put(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._values[name, tuple(sorted(labels.items()))] = value

    def text(self) -> str:
        with self._lock:
            values = sorted(self._values.items())
        lines = []
        for name, about in self.HELP.items():
            kind, _, words = about.partition(": ")
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            for (series, labels), value in values:
                if series == name:
                    lines.append(f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels)}}} "
                                 f"{value:.15g}")
        return "\n".join(lines) + "\n"

    def serve(self, host: str, port: int) -> http.server.ThreadingHTTPServer:
        """GET /metrics at that address, on a thread of its own.  OSError: it is taken."""
        counters = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = counters.text().encode() if self.path == "/metrics" else b""
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer((host, port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, name="heddle-metrics", daemon=True).start()
        return server

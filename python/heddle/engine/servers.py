# SPDX-License-Identifier: Apache-2.0
"""Stock inference servers, by their own HTTP interfaces: list, load, ask, unload.

    vLLM     GET /version, /v1/models, /metrics,
             POST /v1/load_lora_adapter, /v1/unload_lora_adapter, /v1/completions
    SGLang   GET /v1/models, /server_info, /v1/loads, POST /load_lora_adapter, /unload_lora_adapter, /generate

Calls block, each until its `timeout_s`, and are for one thread at a time.  Whatever a server does ends in a
result, in Refused (it answered, with its own words) or in Away (there was no answer)."""
from __future__ import annotations

import http.client
import io
import json
import re
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

from .plan import LAST_PAUSE_S, Kind
from .releases import PRODUCTS, Release

ANSWER_BYTES = 4 << 20                   # no answer that is read here is longer
WORDS = 400                              # of a server, in a message


class Refused(Exception):
    def __init__(self, words: str, kind: Kind, taken: bool = False) -> None:
        super().__init__(words)
        self.kind = kind
        self.taken = taken               # the name is loaded already


class Away(Exception):
    """No answer: no server listens there, the connection broke, or the time ran out."""


class Late(Away):
    """The time ran out; the server may be at it still."""


class Unfit(Exception):
    """The server lacks something that a restart with other options gives it."""

    def __init__(self, words: str, hint: str) -> None:
        super().__init__(words)
        self.hint = hint


@dataclass(frozen=True)
class Listing:
    names: dict[str, str]                # adapters that it serves -> the path each came from
    # how many it takes before it drops one by itself; None: no such limit
    room: int | None
    slots: int | None                    # how many can be used in one batch; None: not said
    release: Release


def clean(words: str) -> str:
    """On one line, and without what no line takes: control characters, and halves of characters."""
    whole = words.encode("utf-8", "replace").decode()
    return " ".join("".join(c for c in whole if c.isprintable() or c.isspace()).split())


def cut(words: str) -> str:
    """A server's words on one line, and not too many of them."""
    line = clean(words)
    return line if len(line) <= WORDS else line[: WORDS - 3] + "..."


def bare(key: str | None) -> str:
    """Without what is blank around it.  ValueError, which does not show it: no header takes such a key."""
    token = (key or "").strip()
    if not all("!" <= c <= "~" for c in token):
        raise ValueError("the key for the servers has blanks, control characters or others that are not "
                         "ASCII in it")
    return token


@dataclass
class _Idle:
    since: float                         # no request was seen to name it
    looked: float                        # last
    looks: int = 0
    step: float = -1.0                   # of the last one that counted


class Server:
    """What both have in common."""

    kind = ""
    load_path = unload_path = ""
    unknown = ""                         # what it says of a name that it does not have
    not_there = ""                       # hint where these paths are missing

    # Requests of one length that came together end together: the server then reports none running, until it
    # admits the next ones.  So one look that finds none is not enough.
    IDLE_S, IDLE_LOOKS = 1.0, 6
    FOLLOWED_S = 3 * LAST_PAUSE_S        # a look so long ago is of another time that the name was dropped

    def __init__(self, url: str, key: str | None = None) -> None:
        """ValueError: `url` is not an address of a server, or `key` not a key.  It goes with every request
        as a bearer token."""
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
                or not url.isascii() or not url.isprintable() or " " in url or not _is_host(parts.hostname)):
            raise ValueError(f"{url!r} is not an address of a server; expected http://HOST:PORT")
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError(f"{url!r} is the address for OpenAI's clients; expected that of the server, "
                             f"without /v1")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._is_tls = parts.scheme == "https"
        token = bare(key)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._release = Release(self.kind, None)
        self._room: int | None = None
        self._slots: int | None = None
        self._idle: dict[str, _Idle] = {}

    # --- what a plug asks for --------------------------------------------------------------------

    def check(self, timeout_s: float) -> None:
        """Away, or Unfit: it has no way to load adapters.  Reads the release.  To be asked again of a server
        that was away."""
        for path in (self.load_path, self.unload_path):
            status, _ = self._call("GET", path, None, timeout_s)
            if status == 404:
                raise Unfit(f"{self.url} has no {path}", self.not_there)
        about = self._about(timeout_s)
        text = about.get("version")
        is_release = isinstance(text, str) and re.fullmatch(r"[!-~]{1,64}", text)
        self._release = Release(self.kind, text if is_release else None)
        self._take_about(about)

    def _about(self, timeout_s: float) -> dict[str, Any]:
        """What it tells of itself, its release among it; nothing where it does not, or a proxy stands before
        it."""
        path = PRODUCTS[self.kind].path
        try:
            return _parse(self._get(path, timeout_s), path)
        except Refused:
            return {}

    def _take_about(self, about: dict[str, Any]) -> None:
        """Unfit."""

    def listing(self, timeout_s: float) -> Listing:
        """The adapters of /v1/models, which are the cards that name the model they are for."""
        cards = _parse(self._get("/v1/models", timeout_s), "/v1/models").get("data")
        if not isinstance(cards, list):
            raise Refused("/v1/models: no list of models", Kind.PASSING)
        names = dict(_name_and_path(str(c["id"]), str(c.get("root") or "")) for c in cards
                     if isinstance(c, dict) and c.get("parent") and c.get("id"))
        return Listing(names, self._room, self._slots, self._release)

    def load(self, name: str, path: str, timeout_s: float) -> None:
        """Returns when the server says that it has it.  Refused.taken: something has the name already."""
        self._post(self.load_path, {"lora_name": name, "lora_path": path}, timeout_s)

    def unload(self, name: str, timeout_s: float) -> None:
        """New requests for the name are refused from now on.  A name that is not there is no failure.
        Refused (WAITING): the server does it when the requests that name it are over; ask again."""
        try:
            self._post(self.unload_path, {"lora_name": name}, timeout_s)
        except Refused as e:
            if self.unknown not in str(e):
                raise

    def ask(self, name: str, timeout_s: float) -> None:
        """One token from that adapter.  Refused: it does not answer for the name."""
        raise NotImplementedError

    def is_busy(self, name: str, timeout_s: float) -> bool:
        """Whether requests that name it are under way, or may be.  A name counts as idle when there was
        nothing of it, nor anything that may be of it, at several looks in a row."""
        idle = self._idle.pop(name, None)        # a look that fails ends the row too
        step, now = self._look(name, timeout_s), time.monotonic()
        if step is None:
            return True
        if idle is None or now - idle.looked > self.FOLLOWED_S:
            idle = _Idle(now, now)
        self._idle = {n: other for n, other in self._idle.items() if now - other.looked <= self.FOLLOWED_S}
        self._idle[name] = idle
        idle.looked = now
        if step != idle.step:
            idle.looks, idle.step = idle.looks + 1, step
        if now - idle.since < self.IDLE_S or idle.looks < self.IDLE_LOOKS:
            return True
        del self._idle[name]
        return False

    def _look(self, name: str, timeout_s: float) -> float | None:
        """One look.  None: requests name it, or may.  Else when the step ended of which the server told: two
        looks at what one step left count as one."""
        raise NotImplementedError

    # --- how -------------------------------------------------------------------------------------

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s,
                                               context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _call(self, method: str, path: str, body: object | None, timeout_s: float) -> tuple[int, str]:
        """(status, text).  Away."""
        end = time.monotonic() + timeout_s
        connection = self._connect(max(timeout_s, 0.001))
        try:
            headers = dict(self._headers)
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.connect()
            sock = connection.sock
            sock.settimeout(_left(end))
            connection.request(method, self._path + path, None if body is None else json.dumps(body), headers)
            answer = http.client.HTTPResponse(sock, method=method)
            answer.fp = io.BufferedReader(_Punctual(sock, end))
            answer.begin()
            return answer.status, _read(answer).decode("utf-8", "replace")
        except TimeoutError:
            raise Late(f"no answer to {path} within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as e:
            words = (e.strerror if isinstance(e, OSError) else None) or str(e) or type(e).__name__
            raise Away(f"{path}: {cut(words)}") from None
        finally:
            connection.close()

    def _get(self, path: str, timeout_s: float) -> str:
        status, text = self._call("GET", path, None, timeout_s)
        if status != 200:
            raise self._refusal(status, path, text)
        return text

    def _post(self, path: str, body: object, timeout_s: float) -> str:
        status, text = self._call("POST", path, body, timeout_s)
        if status != 200:
            raise self._refusal(status, path, text)
        return text

    def _refusal(self, status: int, path: str, text: str) -> Refused:
        words = self._words(text)
        if status in (401, 403):
            return Refused(f"{path}: {status}, {words or 'not allowed'} (HEDDLE_ENGINE_KEY is its key)",
                           Kind.LASTING)
        if status == 404 and path in (self.load_path, self.unload_path) and words == "Not Found":
            return Refused(f"there is no {path}: {self.not_there}", Kind.LASTING)
        if status in (408, 425, 429, 502, 503, 504):
            return Refused(f"{path}: {status}, {words or http.client.responses[status]}", Kind.PASSING)
        kind = Kind.DOUBTFUL if status >= 500 else Kind.LASTING
        return Refused(words or f"{path}: status {status}", kind,
                       taken="already" in words and "loaded" in words)

    @staticmethod
    def _words(text: str) -> str:
        """{"error": {"message"}}, {"error_message"}, {"message"}, {"detail"}, or the text itself."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return cut(text)
        for key in ("error", "error_message", "message", "detail"):
            if isinstance(found, dict) and found.get(key):
                found = found[key]
        return cut(found if isinstance(found, str) else json.dumps(found))


class _Punctual(io.RawIOBase):
    """What a socket brings until `end`, then TimeoutError: line by line of the head and of the rest, however
    slowly it comes."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._end))
        return self._sock.recv_into(buffer)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_host(name: str) -> bool:
    """Whether it can be looked up at all: "a..b" cannot, nor a label of more than 63 letters."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def _name_and_path(name: str, path: str) -> tuple[str, str]:
    """As a server lists an adapter.  A name that no line takes is none of ours, wherever it came from, and is
    shown with escapes."""
    return (name, path) if name.isprintable() else (ascii(name)[1:-1], "")


def _read(answer: http.client.HTTPResponse) -> bytes:
    """All of it, within the limit."""
    parts: list[bytes] = []
    total = 0
    while total <= ANSWER_BYTES:
        part = answer.read1(65536)
        if not part:
            if answer.length:           # read1() is content with what there is
                raise http.client.IncompleteRead(b"".join(parts), answer.length)
            return b"".join(parts)
        parts.append(part)
        total += len(part)
    raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES} bytes")


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(f"{path}: no JSON object but {cut(text)[:80]!r}", Kind.PASSING)
    return found


@dataclass(frozen=True)
class _Told:
    """What a vLLM server tells of its requests, as they were when its last step ended."""

    engines: int                         # that count them; 0: it tells nothing
    at: float                            # when that step ended, by its clock
    names: frozenset[str]                # that requests name, as far as one of them has brought a token
    running_count: float
    waiting_count: float                 # of whatever names
    slots: int | None                    # None: told only after the first step

    @property
    def is_full(self) -> bool:
        return self.slots is not None and len(self.names) >= self.slots

    def is_anything(self, name: str) -> bool:
        """Whether some request names it, or may: of what waits, and of what has brought no token yet,
        only the number is known."""
        return bool(self.engines != 1 or name in self.names or self.is_full or self.waiting_count
                    or (self.running_count and not self.names))


class Vllm(Server):
    """Forgets a name at once when told to unload it; requests that were let in go on, and may load it from
    its path again."""

    kind = "vllm"
    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    unknown = "cannot be found"
    not_there = "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"

    _LINE = re.compile(r"^vllm:(lora_requests_info|num_requests_running|num_requests_waiting)\{(.*)\} "
                       r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)$", re.M)
    _LABEL = re.compile(r'(\w+)="([^"]*)"')

    def listing(self, timeout_s: float) -> Listing:
        if self._slots is None:
            self._slots = self._told(timeout_s).slots
        return super().listing(timeout_s)

    def ask(self, name: str, timeout_s: float) -> None:
        request = {"model": name, "prompt": [0], "max_tokens": 1, "temperature": 0, "detokenize": False}
        answered = _parse(self._post("/v1/completions", request, timeout_s), "/v1/completions").get("model")
        if answered != name:
            raise Refused(f"asked for {name}, {cut(str(answered))} answered", Kind.DOUBTFUL)

    def _look(self, name: str, timeout_s: float) -> float | None:
        told = self._told(timeout_s)
        if told.is_anything(name):
            return None
        return told.at if told.running_count else time.monotonic()

    def _told(self, timeout_s: float) -> _Told:
        """Of its metrics, which may be nowhere (--disable-log-stats, a proxy), or of several engines."""
        try:
            text = self._get("/metrics", timeout_s)
        except Refused:
            text = ""
        lines: dict[str, list[tuple[float, str]]] = {}
        for what, labels, value in self._LINE.findall(text):
            lines.setdefault(what, []).append((float(value), labels))
        running, waiting = lines.get("num_requests_running", []), lines.get("num_requests_waiting", [])
        at, newest = max(lines.get("lora_requests_info", []), default=(0.0, ""))
        info = dict(self._LABEL.findall(newest))
        names = ",".join(info.get(f"{what}_lora_adapters", "") for what in ("running", "waiting")).split(",")
        slots = info.get("max_lora", "")
        return _Told(len(running) if len(running) == len(waiting) else 0, at,
                     frozenset(filter(None, names)), sum(count for count, _ in running),
                     sum(count for count, _ in waiting), int(slots) if slots.isdecimal() else None)


class Sglang(Server):
    """Waits, when told to unload a name, until its requests are over; loads and unloads of others wait
    meanwhile, and a client that hangs up ends none of that.  It tells how many requests it has, and not which
    adapters they name."""

    kind = "sglang"
    load_path, unload_path = "/load_lora_adapter", "/unload_lora_adapter"
    unknown = "does not exist"
    not_there = "start a server that has it, with --enable-lora"

    def _take_about(self, about: dict[str, Any]) -> None:
        if about.get("enable_lora") is False:
            raise Unfit(f"{self.url} serves no adapters",
                        "start it with --enable-lora, --max-lora-rank and --lora-target-modules")
        room, slots = about.get("max_loaded_loras"), about.get("max_loras_per_batch")
        self._room = room if isinstance(room, int) else None
        self._slots = slots if isinstance(slots, int) else None

    def load(self, name: str, path: str, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        try:
            super().load(name, path, timeout_s)
        except Refused as e:
            if "incomplete unload" not in str(e):
                raise
            self.unload(name, end - time.monotonic())
            super().load(name, path, end - time.monotonic())

    def unload(self, name: str, timeout_s: float) -> None:
        try:
            super().unload(name, timeout_s)
        except Late:
            raise Refused("requests that name it are under way", Kind.WAITING) from None

    def _look(self, name: str, timeout_s: float) -> float | None:
        """Only where it has no request at all."""
        try:
            loads = _parse(self._get("/v1/loads", timeout_s), "/v1/loads").get("loads")
        except Refused:
            return None                  # it does not tell
        if not isinstance(loads, list) or not loads:
            return None
        if any(not isinstance(load, dict) or load.get(count) != 0 for load in loads
               for count in ("num_running_reqs", "num_waiting_reqs")):
            return None
        return time.monotonic()

    def ask(self, name: str, timeout_s: float) -> None:
        request = {"input_ids": [0], "lora_path": name,
                   "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        if "meta_info" not in _parse(self._post("/generate", request, timeout_s), "/generate"):
            raise Refused(f"/generate: no answer for {name}", Kind.DOUBTFUL)


KINDS: dict[str, type[Server]] = {"vllm": Vllm, "sglang": Sglang}

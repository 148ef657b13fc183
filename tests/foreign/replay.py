#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""replay.py ENDPOINT PID TOKEN: the clients of an older release against the broker of today.

tests/golden/session-v1.txt is what our programs and a broker said to each other when wire version 1 was new
(tests/foreign/record), a line a frame, in the order in which they passed:

    NAME > TYPE HEX   this client says so; every byte is that of then, but for the holes:
                      {token N} the token of the last WELCOME of client N, {epoch N} the epoch of N's last
                      HELLO_OK, {req N} the number of the last VERIFY that N heard, {seq N} counts N's
                      heartbeats: msgpack, a token in 9 bytes, others in the fewest
    NAME < TYPE HEX   this came then, and now the like of it does: readable by the tables of then
                      (tests/golden/wire-v1.md), every field that there was, of the same value; but tokens are
                      those of now, and what VARIES is only there
    NAME ~ TYPE HEX   this comes by time: once, often, not at all; whenever it does it is readable
    NAME x            this connection ends

Who has joined and is silent says the heartbeat of then.  The broker, process PID, has an empty registry."""
import re
import sys
import time

import msgpack
import zmq

import keys
import page
from page import ROOT

OLD = page.load("tests/golden/wire-v1.md")
VARIES = {"epoch", "lease_ms", "pid", "cluster", "heddle", "key", "nonce", "deadline_ms", "retry_ms",
          "message", "expected", "found", "hint", "next", "req of VERIFY"}
BEAT_S, PATIENCE_S = 1.0, 30
HOLE = re.compile(r"\{(\w+) (\w+)\}")


class Wrong(Exception):
    pass


def read_old(frame):
    """(name, fields) by the tables of then; keys that came later are skipped."""
    number, fields = msgpack.unpackb(frame, strict_map_key=True)
    if number not in OLD.messages:
        raise Wrong(f"type {number} is not of this wire version")
    wrong = OLD.wrong_with(number, fields, skip=True)
    if wrong:
        raise Wrong(f"{OLD.messages[number].name}: {wrong}")
    return OLD.messages[number].name, fields


class Client:
    def __init__(self, endpoint, name):
        self.name, self.seq, self.beat, self.kept = name, 0, None, []
        self.values = {}   # what holes are filled with: token, epoch, req
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        keys.give(self.socket)
        self.socket.connect(endpoint)

    def hear(self, frame):
        name, fields = read_old(frame)
        if name == "WELCOME":
            self.values["token"] = fields["token"]
        elif name == "HELLO_OK":
            self.values["epoch"] = fields["epoch"]
        elif name == "VERIFY":
            self.values["req"] = fields["req"]
        elif name == "BYE":
            self.beat = None
        self.kept.append((name, fields))


class Session:
    """All clients of the file, and which token of then is which of now."""

    def __init__(self, endpoint, beats):
        self.endpoint, self.beats, self.clients, self.tokens, self.gone = endpoint, beats, {}, {}, {}
        self.poller, self.beaten = zmq.Poller(), time.monotonic()

    def client(self, name):
        if name not in self.clients:
            self.clients[name] = Client(self.endpoint, name)
            self.poller.register(self.clients[name].socket, zmq.POLLIN)
        return self.clients[name]

    def fill(self, match):
        what, name = match.groups()
        client = self.clients.get(name) or self.gone[name]
        if what == "seq":
            client.seq += 1
            return msgpack.packb(client.seq).hex()
        value = client.values[what]
        return ("cf" + value.to_bytes(8, "big").hex()) if what == "token" else msgpack.packb(value).hex()

    def say(self, name, kind, text):
        client = self.client(name)
        client.socket.send(bytes.fromhex(HOLE.sub(self.fill, text)))
        if kind == "JOIN":
            client.beat = self.beats.get(name)

    def listen(self, until):
        """What has come goes to whom it is for; heartbeats are said meanwhile."""
        now = time.monotonic()
        if now - self.beaten >= BEAT_S:
            self.beaten = now
            for client in self.clients.values():
                if client.beat and "token" in client.values:
                    self.say(client.name, "HEARTBEAT", client.beat)
        ready = {s for s, _ in self.poller.poll(max(0, 1000 * (min(until, self.beaten + BEAT_S) - now)))}
        for client in self.clients.values():
            if client.socket in ready:
                client.hear(client.socket.recv())

    def await_like(self, name, kind, old):
        """The next message that is like the old one, whatever came before it."""
        client, end, last = self.client(name), time.monotonic() + PATIENCE_S, f"no {kind}"
        while True:
            for i, (got, fields) in enumerate(client.kept):
                unlike = self.unlike(kind, old, fields) if got == kind else None
                if got == kind and not unlike:
                    client.kept.pop(i)
                    if kind == "WELCOME":
                        self.tokens[old["token"]] = fields["token"]
                    return
                last = f"{kind}: {unlike}" if unlike else last
                if got == "ERROR" and kind != "ERROR":
                    raise Wrong(f"ERROR instead of {kind}: {fields}")
            if time.monotonic() > end:
                raise Wrong(last)
            self.listen(end)

    def unlike(self, kind, old, new):
        """Which field of a row is not as it was; None: all are."""
        for key, was in old.items():
            if not was and key not in new:
                continue
            if key not in new:
                return f"`{key}` is missing"
            now = new[key]
            if key in VARIES or f"{key} of {kind}" in VARIES:
                continue
            if key == "token":
                fits = kind == "WELCOME" or now == self.tokens.get(was)
            elif key == "body":
                wrong = lacks(msgpack.unpackb(was), msgpack.unpackb(now))
                if wrong:
                    return wrong
                fits = True
            elif isinstance(was, list) and was and isinstance(was[0], dict):
                if len(was) != len(now):
                    return f"`{key}` has {len(now)} rows"
                unlike = next(filter(None, (self.unlike(kind, w, n) for w, n in zip(was, now))), None)
                if unlike:
                    return f"`{key}`: {unlike}"
                fits = True
            else:
                fits = was == now
            if not fits:
                return f"`{key}` is {now!r}, was {was!r}"
        return None

    def end(self, name):
        client = self.gone[name] = self.clients.pop(name)
        self.poller.unregister(client.socket)
        client.socket.close(0)
        unexpected = [fields for kind, fields in client.kept if kind == "ERROR"]
        if unexpected:
            raise Wrong(f"{name} was told {unexpected}")


def lacks(old, new, at="body"):
    """A report is JSON: what an older reader finds in it must still be there, of the same kind."""
    if old is None or new is None:
        return None
    if (isinstance(old, bool) != isinstance(new, bool)
            or isinstance(old, (int, float)) != isinstance(new, (int, float))
            or not isinstance(old, (int, float)) and type(old) is not type(new)):
        return f"{at} is {new!r}, was {old!r}"
    if isinstance(old, dict):
        keys = [k for k in old if k not in new and at != "body.events[].data"]
        within = (lacks(old[k], new[k], f"{at}.{k}") for k in old if k in new)
        return f"{at} lacks {keys}" if keys else next(filter(None, within), None)
    if isinstance(old, list) and old:
        return lacks(old[0], new[0], at + "[]") if new else f"{at} is empty"
    is_fixed = at in ("body.schema", "body.kind", "body.ok")
    return f"{at} is {new!r}, was {old!r}" if is_fixed and old != new else None


def main(endpoint):
    text = (ROOT / "tests/golden/session-v1.txt").read_text().splitlines()
    lines = {n: line.split(None, 3) for n, line in enumerate(text, 1) if not line.startswith("#")}
    beats = {line[0]: line[3] for line in lines.values() if line[2:3] == ["HEARTBEAT"]}
    session, told = Session(endpoint, beats), 0
    said = {">": 0, "<": 0}
    for number, line in lines.items():
        name, mark = line[:2]
        try:
            if mark == ">":
                session.say(name, line[2], line[3])
            elif mark == "<":
                session.await_like(name, line[2], read_old(bytes.fromhex(line[3]))[1])
            elif mark == "x":
                session.end(name)
            else:
                read_old(bytes.fromhex(line[3]))
        except Wrong as wrong:
            print(f"FAIL line {number}, {' '.join(line[:3])}: {wrong}")
            return 1
        said[mark] = said.get(mark, 0) + 1
    kinds = {line[2] for line in lines.values() if line[1] != "x"}
    missing = sorted({m.name for m in OLD.messages.values()} - kinds)
    print(f"ok   {said['>']} frames of then were said, {said['<']} answers are like those of then, "
          f"{said['x']} connections, {len(kinds)} types")
    if missing:
        print(f"FAIL types that the session does not have: {missing}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""misdeeds.py ENDPOINT PID TOKEN: a client that does what docs/protocol.md, "Misdeeds", lists, and compares
each answer with the page's.  After each an honest client is answered and two sessions go on; after all rounds
the broker has the memory and the descriptors that it had after the first.

The broker, process PID, has policy@1, active, on a worker named w1; TOKEN is of its epoch before."""
import contextlib
import hashlib
import os
import pathlib
import re
import sys
import time

import msgpack
import zmq

import peer
from page import ROOT
from peer import *

SLOW = {29, 42, 49, 50}   # done in the first round only
WARM, ROUNDS = 8, 24      # rounds until the broker's memory has its size; rounds over which it keeps it
# events and ended versions, which it remembers, take 45 a round: a leak of 300 bytes a bad frame takes more
MORE_KIB = 1536
IDLE_CONNECTIONS = 1024   # without a session: so many the broker remembers
NOTHING, CUT_OFF = (0, {}), (-1, {})
deeds = {}


# --- the page ---

def rows_of_page():
    """{number: (misdeed, answer, of)} as the page lists them; `of` is "it" or "0" or empty."""
    text = (ROOT / "docs/protocol.md").read_text().split("## Misdeeds", 1)[1].split("\n## ", 1)[0]
    return {int(n): (what, answer, of)
            for n, what, answer, of
            in re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|(?: (\S+))? +\|$", text, re.M)}


def misdeed(deed):
    deeds[int(deed.__name__.split("_")[1])] = deed
    return deed


def answer_text(answer):
    number, fields = answer
    if answer == NOTHING:
        return "nothing"
    if answer == CUT_OFF:
        return "the connection ends"
    word = fields.get("code") if number == ERROR else fields.get("reason") or fields.get("state")
    return name_of(number) + (f" `{word}`" if word else "")


# --- what the deeds are made of ---

def digest_of(text):
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def publication(adapter, text, **more):
    part = {"payload_bytes": 8192, "manifest_bytes": 100, "manifest_digest": digest_of("manifest of " + text)}
    return {"adapter": adapter, "request_id": text, "digest": digest_of(text), "parts": [part], "step": -1,
            "data_bytes": 14, "tensor_count": 2,
            "chunk_count": 1, "kind": "lora", "meta": [{"key": "run", "value": "7"}], **more}


def packed_map(*pairs):
    """A map by hand, so that a key may come twice or be no text."""
    return bytes([0x80 | len(pairs)]) + b"".join(msgpack.packb(k) + msgpack.packb(v) for k, v in pairs)


def frame(number, fields):
    return b"\x92" + msgpack.packb(number) + fields


def golden():
    lines = (ROOT / "tests/golden/messages.txt").read_text().split("\n")
    return {name: bytes.fromhex(text) for name, text in (line.split() for line in lines if line)}


def next_answer(client):
    """What is heard next, past what is told unasked."""
    while True:
        answer = client.receive()
        if answer[0] not in (ANNOUNCE, COMMIT, SOURCES, RETIRE, ABORT, ROLLOUT, RELEASE):
            return answer


class Answers(list):
    """What was heard, each beside the type that it should name in `of`, and with fields that it must have."""

    def hear(self, client, sent, **fields):
        self.add(next_answer(client), sent, **fields)

    def add(self, answer, sent=0, **fields):
        self.append((answer, sent, fields))

    def say(self, client, number, **fields):
        client.req += 1
        client.send(number, req=client.req, **fields)
        self.hear(client, number, req=client.req)

    def send(self, client, number, **fields):
        client.send(number, **fields)
        (self.hear(client, number, token=fields["token"], version=0) if "token" in fields
         else self.hear(client, number))

    def raw(self, client, *frames):
        for f in frames:
            client.socket.send(f)
            self.hear(client, 0, req=0)


class World:
    """One honest client of each role, for the whole run."""

    def __init__(self, endpoint, pid, stale):
        self.endpoint, self.pid, self.stale, self.seq, self.count = endpoint, pid, stale, 0, 0
        self.admin = Peer(endpoint, ADMIN)
        self.worker, self.publisher = Peer(endpoint, WORKER), Peer(endpoint, PUBLISHER)
        self.worker.join("honest", "paper")
        self.worker.welcomed()
        self.publisher.open("paper", "author", address=b"nowhere")
        self.epoch = self.publisher.welcomed()["epoch"]
        number, self.published = self.publisher.say(PUBLISH, token=self.publisher.token,
                                                    **publication("paper", "first", step=10))
        assert number == PUBLISHED, self.published
        self.take("paper", 1, digest_of("first"))

    def take(self, adapter, version, digest):
        """Up to ACTIVE, on trust."""
        token = {"token": self.worker.token, "version": version, "adapter": adapter, "digest": digest}
        self.worker.await_type(ANNOUNCE, version=version)
        self.worker.send(STAGED, **token)
        self.worker.send(ACTIVE, decision=self.worker.await_type(COMMIT, version=version)["decision"],
                         **token)
        self.publisher.await_type(ROLLOUT, version=version, active_count=1)

    def peer(self, role=None, **more):
        return Peer(self.endpoint, role, **more)

    @contextlib.contextmanager
    def session(self, role, *names, **more):
        """A member of its own, gone afterwards."""
        with self.peer(role) as client:
            (client.join if role == WORKER else client.open)(*names, **more)
            client.welcomed()
            yield client
            client.leave()

    def new_text(self, of):
        self.count += 1
        return f"{of}.{self.count}"

    def goes_on(self):
        """What is wrong with the honest ones; None where nothing is."""
        self.seq += 1
        try:
            self.worker.beat(self.seq)
            self.publisher.beat(self.seq)
            self.admin.greet(ADMIN)   # misdeed 50 makes the broker forget it
            status = self.admin.ask("status")[0]
        except Silence as silence:
            return str(silence)
        return None if status["broker"]["pid"] == self.pid and status["ok"] else f"status: {status}"


# --- order ---

@misdeed
def deed_1(world, answers):
    with world.peer() as c:
        answers.say(c, QUERY, op="status")
        answers.say(c, JOIN, name="early", adapters=[{"adapter": "paper"}])
        c.send(HEARTBEAT, token=world.worker.token, seq=1)
        answers.hear(c, HEARTBEAT)


@misdeed
def deed_2(world, answers):
    with world.peer() as c:
        for wire_min, wire_max in ((2, 3), (5, 9)):
            c.hello(WORKER, wire_min, wire_max)
            answers.hear(c, HELLO, expected="1 to 1", found=f"{wire_min} to {wire_max}",
                         hint="upgrade the broker")
        c.hello(WORKER, 0, 0)
        answers.hear(c, HELLO, expected="1 to 1", found="0 to 0", hint="upgrade the peer")


@misdeed
def deed_3(world, answers):
    with world.session(WORKER, "early", "paper") as c:
        c.leave()
        c.join("early", "paper")
        answers.hear(c, JOIN, req=c.req)
        c.send(LEAVE, token=c.token)
        answers.hear(c, LEAVE)
        c.greet(WORKER)
        c.join("early", "paper")
        c.welcomed()


@misdeed
def deed_4(world, answers):
    with world.session(WORKER, "eager", "paper") as c:
        about = {"token": c.token, "version": 77, "adapter": "paper"}
        for number, more in ((STAGED, {"digest": bytes(32)}), (ACTIVE, {"digest": bytes(32), "decision": 1}),
                             (NACK, {"code": "no_slot"}), (NEED_SOURCES, {})):
            c.send(number, **about, **more)
            answers.hear(c, number, version=77, adapter="paper")
        c.send(STAGED, token=c.token, version=1, adapter="policy", digest=bytes(32))
        answers.hear(c, STAGED, version=1, adapter="policy")


@misdeed
def deed_5(world, answers):
    c = world.worker
    c.send(ACTIVE, token=c.token, version=1, decision=9, adapter="paper", digest=digest_of("first"))
    answers.hear(c, ACTIVE, version=1)


@misdeed
def deed_6(world, answers):
    """Said twice, or unasked: the next that is heard answers the heartbeat behind it."""
    c, about = world.worker, {"token": world.worker.token, "version": 1, "adapter": "paper",
                              "digest": digest_of("first")}
    for number, more in ((ACTIVE, {"decision": 1}), (VERIFIED, {"req": 99}), (PING, {})):
        c.send(number, **(about if number != PING else {"nonce": 1}), **more)
        c.send(HEARTBEAT, token=c.token, seq=1)
        number, fields = c.receive()
        answers.add(NOTHING if (number, fields) == (HEARTBEAT_OK, {"token": c.token, "seq": 1})
                    else (number, fields))


# --- role ---

@misdeed
def deed_7(world, answers):
    with world.peer() as c:
        c.hello(9)
        answers.hear(c, 0)


@misdeed
def deed_8(world, answers):
    with world.peer(ADMIN) as c:
        answers.say(c, JOIN, name="odd", adapters=[{"adapter": "paper"}])
        answers.say(c, OPEN, adapter="spare", writer="odd")
        c.greet(WORKER)
        answers.say(c, OPEN, adapter="spare", writer="odd")
        c.greet(PUBLISHER)
        answers.say(c, JOIN, name="odd", adapters=[{"adapter": "paper"}])


@misdeed
def deed_9(world, answers):
    frames = golden()
    with world.peer(ADMIN) as c:
        for name in """HELLO_OK WELCOME PEERS HEARTBEAT_OK BYE PUBLISHED ANNOUNCE SOURCES COMMIT ABORT RETIRE
                       RELEASE ROLLOUT REPORT VERIFY ERROR""".split():
            c.socket.send(frames[name])
            answers.hear(c, peer.PAGE.numbers[name])


@misdeed
def deed_10(world, answers):
    c, about = world.publisher, {"token": world.publisher.token, "version": 1, "adapter": "paper"}
    for number, more in ((STAGED, {"digest": digest_of("first")}),
                         (ACTIVE, {"digest": digest_of("first"), "decision": 1}),
                         (NACK, {"code": "no_slot"}), (NEED_SOURCES, {}), (VERIFIED, {})):
        c.send(number, **about, **more)
        answers.hear(c, number)


@misdeed
def deed_11(world, answers):
    for c, adapter in ((world.worker, "paper"), (world.publisher, "policy")):
        answers.say(c, PUBLISH, token=c.token, **publication(adapter, "stolen"))


@misdeed
def deed_12(world, answers):
    with world.peer(ADMIN) as c:
        answers.say(c, QUERY, op="destroy")
        answers.say(c, QUERY, op="activate", name="paper")
        answers.say(c, QUERY, op="verify", name="paper", version=1, expected="h1:zz")


@misdeed
def deed_13(world, answers):
    with world.peer(ADMIN) as c:
        for op, more in (("versions", {"name": "nobody"}), ("workers", {"name": "nobody"}),
                         ("wait", {"name": "nobody"}),
                         ("activate", {"name": "paper", "version": 9999}),
                         ("rollback", {"name": "nobody"}), ("resume", {"name": "nobody"}),
                         ("pull", {"name": "nobody"}), ("pull", {"name": "paper", "version": 9999}),
                         ("verify", {"name": "nobody", "version": 1})):
            answers.say(c, QUERY, op=op, **more)


# --- tokens ---

@misdeed
def deed_14(world, answers):
    with world.peer(WORKER) as c:
        for token in (world.epoch << 32 | 0xffffffff, world.epoch + 1 << 32 | 1, 2 ** 64 - 1):
            answers.send(c, HEARTBEAT, token=token, seq=1)
            answers.send(c, LEAVE, token=token)


@misdeed
def deed_15(world, answers):
    with world.session(WORKER, "gone", "paper") as c:
        over = c.token
        c.leave()
        c.greet(WORKER)
        answers.send(c, HEARTBEAT, token=over, seq=1)
        answers.send(c, STAGED, token=over, version=1, adapter="paper", digest=digest_of("first"))
        c.join("gone", "paper")
        c.welcomed()


@misdeed
def deed_16(world, answers):
    with world.peer(WORKER) as c:
        answers.send(c, HEARTBEAT, token=world.stale, seq=1)
        answers.send(c, ACTIVE, token=world.stale, version=1, decision=1, adapter="policy", digest=bytes(32))


@misdeed
def deed_17(world, answers):
    with world.peer(WORKER) as c:
        answers.send(c, LEAVE, token=world.worker.token)
        c.send(NACK, token=world.worker.token, version=1, adapter="paper", code="no_slot")
        answers.hear(c, NACK, token=world.worker.token)
        answers.send(c, LEAVE, token=world.publisher.token)


@misdeed
def deed_18(world, answers):
    with world.session(WORKER, "twice", "paper") as c:
        before = c.token
        c.join("twice", "paper", prev_token=before, epoch=world.epoch)
        c.welcomed()
        c.send(STAGED, token=before, version=1, adapter="paper", digest=digest_of("first"))
        c.send(LEAVE, token=before)
        for number in (STAGED, LEAVE):
            answers.hear(c, number, token=before, version=0)


@misdeed
def deed_19(world, answers):
    with world.session(PUBLISHER, "one", "author") as c:
        first = c.token
        c.open("two", "author")
        c.welcomed()
        c.send(HEARTBEAT, token=first, seq=1)
        answers.hear(c, HEARTBEAT, token=first)


@misdeed
def deed_20(world, answers):
    world.worker.beat(1)
    with world.peer(WORKER) as c:
        c.join("honest", "paper")
        answers.hear(c, JOIN, req=c.req, worker="honest", retriable=True)


@misdeed
def deed_21(world, answers):
    world.publisher.beat(1)
    with world.peer(PUBLISHER) as c:
        c.open("paper", "thief")
        answers.hear(c, OPEN, req=c.req, adapter="paper", retriable=True)


# --- counts ---

@misdeed
def deed_22(world, answers):
    many = [{"adapter": f"a{i}"} for i in range(257)]
    with world.peer(WORKER) as c:
        for number, fields in ((JOIN, {"name": "wide", "adapters": many}),
                               (JOIN, {"name": "wide", "adapters": many[:1], "labels": ["a=b"] * 33}),
                               (PUBLISH,
                                {"token": 1,
                                 **publication("paper", "x", meta=[{"key": f"k{i}"} for i in range(33)])}),
                               (PUBLISH, {"token": 1, **publication("paper", "x", tensor_count=1000001)}),
                               (QUERY, {"op": "wait", "name": "paper", "workers": ["w"] * 1025}),
                               (JOIN, {"name": "wide", "adapters": many[:1], "slots": 65})):
            c.send(number, req=1, **fields)
            answers.hear(c, 0, req=0)


@misdeed
def deed_23(world, answers):
    with world.peer(WORKER) as c:
        answers.say(c, JOIN, name="odd")
        answers.say(c, JOIN, name="odd", adapters=[{"adapter": "paper"}, {"adapter": "paper"}])


@misdeed
def deed_24(world, answers):
    with world.peer(WORKER) as c:
        c.join("narrow", "paper", slots=1)
        answers.hear(c, JOIN, req=c.req, found="1")


@misdeed
def deed_25(world, answers):
    with world.peer(ADMIN) as c:
        for head in (b"\xdd", b"\xdb", b"\xc6"):   # a list, a text, a bin: of 2^32 - 1
            answers.raw(c, b"\x92\x03\x81\xa8adapters" + head + b"\xff\xff\xff\xff")


@misdeed
def deed_26(world, answers):
    c, whole = world.publisher, publication("paper", "in.halves")
    for parts in (whole["parts"] * 2, []):
        answers.say(c, PUBLISH, token=c.token, **{**whole, "parts": parts})


@misdeed
def deed_27(world, answers):
    c = world.publisher
    part = publication("paper", "x")["parts"][0]
    for more in ({"parts": [{**part, "payload_bytes": 0}]}, {"parts": [{**part, "manifest_bytes": 0}]},
                 {"parts": [{**part, "payload_bytes": 8191}]},
                 {"data_bytes": 8193}, {"request_id": ""}, {"step": -2},
                 {"meta": [{"key": "run"}, {"key": "run", "value": "8"}]}):
        answers.say(c, PUBLISH, token=c.token, **publication("paper", "malformed", **more))


@misdeed
def deed_28(world, answers):
    with world.peer(ADMIN) as c:
        for i in range(64):
            c.send(QUERY, req=1000 + i, op="wait", name="paper", version=1, min=9, deadline_ms=2 ** 32 - 1)
        answers.say(c, QUERY, op="wait", name="paper", version=1, min=9)


@misdeed
def deed_29(world, answers):
    crowd = [world.peer(ADMIN) for _ in range(16)]
    for c in crowd:
        for i in range(64):
            c.send(QUERY, req=i, op="wait", name="paper", version=1, min=9, deadline_ms=2 ** 32 - 1)
        c.send(QUERY, req=64, op="status")
        while c.receive()[0] != REPORT:   # places of connections that closed a moment ago may be missing
            pass
    for c in crowd:
        c.close()
    end = time.monotonic() + PATIENCE_S
    answer = world.admin.say(QUERY, op="wait", name="paper", version=1)
    while (answer[0] == ERROR and answer[1]["code"] == "limit" and answer[1]["retriable"]
           and time.monotonic() < end):
        time.sleep(0.05)   # a closed connection is gone when the broker's side of it has seen so
        answer = world.admin.say(QUERY, op="wait", name="paper", version=1)
    answers.add(answer)


# --- names and sizes ---

@misdeed
def deed_30(world, answers):
    with world.peer(WORKER) as c:
        for name in ("../etc", "", " ", "-rf", ".", "ä", "a/b", "a\0b", "a\n"):
            c.join(name, "paper")
            answers.hear(c, 0, req=0)
            answers.add(world_says(c, QUERY, op="versions", name=name) if name else answers[-1][0])


def world_says(c, number, **fields):
    c.send(number, req=5, **fields)
    return c.receive()


@misdeed
def deed_31(world, answers):
    with world.peer(WORKER) as c:
        for label in ("zone", "zone=", "=eu", "zone=a b", "zo ne=eu"):
            c.join("labelled", "paper", labels=[label])
            answers.hear(c, JOIN, req=c.req)


@misdeed
def deed_32(world, answers):
    with world.peer(WORKER) as c:
        for text in ("n" * 129, "n" * 65536):
            c.join(text, "paper")
            answers.hear(c, 0, req=0)
        c.join("big", "paper", address=bytes(1025))
        answers.hear(c, 0, req=0)
        c.join("big", "paper", export_dir="d" * 4097)
        answers.hear(c, 0, req=0)
        c.send(PUBLISH, token=1, **publication("paper", "x", config=bytes(524289)))
        answers.hear(c, 0, req=0)


@misdeed
def deed_33(world, answers):
    with world.peer(ADMIN) as c:
        with c.watched() as is_cut_off:
            c.socket.send(frame(QUERY, packed_map(("op", "status"), ("padding", bytes(2 ** 20)))))
            answers.add(CUT_OFF if is_cut_off() else NOTHING)


@misdeed
def deed_34(world, answers):
    with world.peer(ADMIN) as c:
        for fields in ({"token": 1.0, "seq": 1}, {"token": -1, "seq": 1}, {"token": "1", "seq": 1},
                       {"token": None, "seq": 1}, {"token": True, "seq": 1},
                       {"token": 1, "seq": 1, "adapters": {}}, {"token": 1, "seq": 1, "adapters": [1]}):
            c.send(HEARTBEAT, **fields)
            answers.hear(c, 0)
        for digest in (bytes(31), bytes(33), "d" * 32):
            c.send(STAGED, token=1, version=1, adapter="paper", digest=digest)
            answers.hear(c, 0)
        c.send(HELLO, wire_min=1, wire_max=1, role=ADMIN, life=bytes(15))
        answers.hear(c, 0)


# --- shapes ---

@misdeed
def deed_35(world, answers):
    status = msgpack.packb("op") + msgpack.packb("status")
    flat = [msgpack.packb({"op": "status", **{f"k{i}": 0 for i in range(64)}}),
            msgpack.packb({"op": "status", "k": [0] * 65536})]
    deep = [b"\x82" + status + b"\xa1k" + b"\x91" * levels + b"\x90" for levels in (6, 3000, 500000)]
    with world.peer(ADMIN) as c:
        answers.raw(c, *(frame(QUERY, fields) for fields in flat + deep))


@misdeed
def deed_36(world, answers):
    with world.peer(ADMIN) as c:
        for whole in golden().values():
            cuts = [whole[:n] for n in range(1, len(whole), max(1, len(whole) // 16))]
            for cut in cuts:
                c.socket.send(cut)
            for cut in cuts:
                answers.hear(c, 0, req=0)


@misdeed
def deed_37(world, answers):
    good = packed_map(("token", 1), ("seq", 1))
    with world.peer(ADMIN) as c:
        answers.raw(c, b"\xc1", b"\x92\x06\xc1", frame(HEARTBEAT, good) + b"\0", b"\x93\x06" + good + b"\0",
                    b"\x91\x06", good, b"\x06", b"\xa1x",
                    frame("6", good), frame(-6, good), frame(6.0, good), frame(HEARTBEAT, b"\x90"),
                    frame(HEARTBEAT, packed_map(("token", 1), ("seq", 1), ("k", msgpack.ExtType(5, b"x")))),
                    frame(HEARTBEAT, packed_map(("token", 1), ("seq", 1), (7, 1))),
                    frame(HEARTBEAT, packed_map(("token", 1), ("seq", 1), (None, 1))),
                    b"\x92\x17\x82\xa2op\xa6status\xa1k\xa2\xff\xfe")


@misdeed
def deed_38(world, answers):
    with world.peer(ADMIN) as c:
        for number in (0, 29, 99, 2 ** 32, 2 ** 64 - 1):
            answers.raw(c, frame(number, b"\x80"))


@misdeed
def deed_39(world, answers):
    with world.peer(ADMIN) as c:
        answers.raw(c, frame(HEARTBEAT, packed_map(("token", 1), ("seq", 1), ("seq", 2))),
                    frame(HEARTBEAT,
                          packed_map(("token", 1), ("seq", 1), ("adapters", []), ("adapters", []))),
                    frame(QUERY, packed_map(("op", "status"), ("unknown", 1), ("unknown", 1))))


@misdeed
def deed_40(world, answers):
    with world.peer(ADMIN) as c:
        answers.raw(c, *(frame(number, b"\x80") for number in (HELLO, JOIN, OPEN, HEARTBEAT, LEAVE, PUBLISH,
                                                               NEED_SOURCES, STAGED, ACTIVE, NACK,
                                                               QUERY, VERIFIED)))


@misdeed
def deed_41(world, answers):
    with world.peer(ADMIN) as c:
        c.socket.send_multipart([frame(HEARTBEAT, packed_map(("token", 1), ("seq", 1))), b"more"])
        answers.hear(c, 0)
        answers.raw(c, b"")


@misdeed
def deed_42(world, answers):
    with world.peer(routing_id=b"w1") as c:
        c.hello(ADMIN)
        c.send(QUERY, req=1, op="status")
        answers.add(NOTHING if not c.socket.poll(300) else c.receive())


# --- once more ---

@misdeed
def deed_43(world, answers):
    with world.session(WORKER, "again", "paper") as c:
        for role in (WORKER, ADMIN, PUBLISHER, WORKER):
            c.hello(role)
            answers.hear(c, 0)
            c.beat(1)


@misdeed
def deed_44(world, answers):
    c = world.publisher
    for token in (c.token, world.stale):
        c.send(PUBLISH, token=token, **publication("paper", "first", step=10))
        answers.hear(c, 0, version=1, created=0, digest=digest_of("first"), key=world.published["key"])


@misdeed
def deed_45(world, answers):
    answers.say(world.publisher, PUBLISH, token=world.publisher.token,
                **publication("paper", "first", step=10, digest=digest_of("other")))


@misdeed
def deed_46(world, answers):
    again = publication("paper", "first", step=10, request_id="another")
    answers.say(world.publisher, PUBLISH, token=world.publisher.token, **again)


@misdeed
def deed_47(world, answers):
    answers.say(world.publisher, PUBLISH, token=world.publisher.token,
                **publication("paper", "older", step=9))


@misdeed
def deed_48(world, answers):
    text = world.new_text("spoiled")
    with (world.session(WORKER, "liar", "spoiled") as w,
          world.session(PUBLISHER, "spoiled", "author", address=b"nowhere") as p):
        number, published = p.say(PUBLISH, token=p.token, **publication("spoiled", text))
        version = published["version"]
        w.await_type(ANNOUNCE, version=version)
        w.send(STAGED, token=w.token, version=version, adapter="spoiled", digest=digest_of("a lie"))
        answers.hear(w, STAGED, version=version)
        p.await_type(ROLLOUT, version=version, state="failed")


@misdeed
def deed_49(world, answers):
    text = world.new_text("nowhere")
    with world.session(PUBLISHER, "policy", "vandal", address=b"UCX\0 that it is not") as p:
        number, published = p.say(PUBLISH, token=p.token, **publication("policy", text, deadline_ms=1000))
        while (answer := p.receive())[1].get("state") in (None, "staging"):
            pass
        answers.add(answer, version=published["version"])
    w1 = world.admin.ask("workers", name="w1")[0]
    assert w1["state"] == "ready" and w1["adapters"][0]["version"] == 1, w1


@misdeed
def deed_50(world, answers):
    """The one that the broker remembers longest without a word goes first: here the first of them, by
    then."""
    with world.peer(ADMIN) as first:
        for _ in range(IDLE_CONNECTIONS):
            world.peer(ADMIN).close()
        answers.say(first, QUERY, op="status")


@misdeed
def deed_51(world, answers):
    answers.say(world.publisher, PUBLISH, token=world.publisher.token,
                **publication("paper", world.new_text("weights"), step=10, kind="tensors"))
    with world.peer(PUBLISHER) as other:
        answers.say(other, OPEN, adapter="paper", writer="of-weights", kind="tensors")


# --- the run ---

def wrong_with(answers, documented, of):
    for answer, sent, fields in answers:
        number, got = answer
        if answer_text(answer) != documented:
            return f"{answer_text(answer)} {got}"
        if of == "it" and got.get("of") != sent or of == "0" and got.get("of", 0) != 0:
            return f"`of` {got.get('of', 0)} for a {name_of(sent)}: {got}"
        for key, value in fields.items():
            if got.get(key, 0) != value:
                return f"{key} {got.get(key, 0)!r} is not {value!r}: {got}"
    return None if answers else "no answer was looked at"


def one_round(world, rows, show):
    failed = 0
    for n, (what, documented, of) in rows.items():
        answers = Answers()
        try:
            deeds[n](world, answers)
            wrong = wrong_with(answers, documented, of)
        except (Silence, AssertionError, KeyError) as broken:
            wrong = f"{type(broken).__name__}: {broken}"
        wrong = wrong or world.goes_on() or ("; ".join(peer.astray) if peer.astray else None)
        if wrong:
            print(f"FAIL {n:3} {what}: documented {documented}; {wrong}")
        elif show:
            print(f"ok   {n:3} {what}: "
                  f"{answer_text(answers[0][0])}{f', {len(answers)} times' if len(answers) > 1 else ''}")
        peer.astray.clear()
        failed += bool(wrong)
    return failed


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def settled_descriptors(pid, wanted):
    """Connections that were closed here are closed there a moment later."""
    end = time.monotonic() + PATIENCE_S
    while (count := descriptors(pid)) > wanted and time.monotonic() < end:
        time.sleep(0.05)
    return count


def main(endpoint, pid, stale):
    rows = rows_of_page()
    if set(rows) != set(deeds) or len(rows) < 40:
        print(f"FAIL the page lists {sorted(rows)}, here are {sorted(deeds)}")
        return 1
    world = World(endpoint, pid, stale)
    before = descriptors(pid)
    failed = one_round(world, rows, True)
    if failed:
        return 1
    quick = {n: row for n, row in rows.items() if n not in SLOW}
    failed += sum(one_round(world, quick, False) for _ in range(WARM))
    kib = resident_kib(pid)
    failed += sum(one_round(world, quick, False) for _ in range(ROUNDS))
    fds, more = settled_descriptors(pid, before), resident_kib(pid) - kib
    sanitized = "libasan" in pathlib.Path(f"/proc/{pid}/maps").read_text()   # keeps what was freed
    checks = [(f"descriptors: {before} before the first misdeed, {fds} after the last", fds <= before),
              (f"resident: {kib} KiB after {1 + WARM} rounds, {more} KiB more after {ROUNDS} "
               f"more{', not judged: sanitized' if sanitized else ''}",
               sanitized or more <= MORE_KIB)]
    for text, holds in checks:
        print(f"{'ok  ' if holds else 'FAIL'}     {text}")
        failed += not holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

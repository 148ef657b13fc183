#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client.py ENDPOINT: a client of the broker from docs/protocol.md alone (pip install pyzmq msgpack).

It asks what there is, joins as a worker, takes a version through its messages up to ACTIVE, leaves; then does what it must
not, and compares each answer with the documented one.  Bytes of versions are not its business: it says STAGED on trust.
The broker has policy@1, active, on a worker named w1."""
import os
import socket
import sys
import time

import msgpack
import zmq

HELLO, HELLO_OK, JOIN, OPEN, WELCOME, HEARTBEAT, HEARTBEAT_OK, LEAVE, BYE, PUBLISH = range(1, 11)
ANNOUNCE, STAGED, COMMIT, ACTIVE, QUERY, REPORT, ERROR, PING = 12, 15, 16, 17, 23, 24, 27, 28
WORKER, PUBLISHER, ADMIN = 1, 2, 3
PATIENCE_MS = 10000
failed = 0


def check(text, holds, found=None):
    global failed
    print(f"{'ok' if holds else 'FAIL'}   {text}" + ("" if holds else f": found {found}"))
    failed += not holds


class Client:
    def __init__(self, endpoint, routing_id=None):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        if routing_id:
            self.socket.routing_id = routing_id
        self.socket.connect(endpoint)
        self.req, self.life, self.token = 0, os.urandom(16), 0

    def send(self, number, **fields):
        self.socket.send(msgpack.packb([number, fields]))

    def receive(self, patience_ms=PATIENCE_MS):
        """(type, fields) of the next message but PING; (None, {}) when none comes."""
        end = time.monotonic() + patience_ms / 1000
        while self.socket.poll(max(0, int(1000 * (end - time.monotonic())))):
            number, fields = msgpack.unpackb(self.socket.recv())
            if number != PING:
                return number, fields
        return None, {}

    def await_type(self, number):
        """The fields of the next message of this type; others are passed over, an ERROR ends the wait."""
        while True:
            got, fields = self.receive()
            if got == number:
                return fields
            if got in (None, ERROR):
                raise SystemExit(f"FAIL   waiting for message {number}: got {got} {fields}")

    def hello(self, role, wire_min=1, wire_max=1):
        self.send(HELLO, wire_min=wire_min, wire_max=wire_max, role=role, pid=os.getpid(), life=self.life, heddle="foreign",
                  host=socket.gethostname())

    def greet(self, role):
        self.hello(role)
        return self.await_type(HELLO_OK)

    def join(self, name, adapter="policy", **more):
        self.req += 1
        self.send(JOIN, req=self.req, name=name, adapters=[{"adapter": adapter}], backend="none", **more)

    def ask(self, op, **fields):
        """The whole list behind a question, page after page."""
        rows, page = [], {"more": True}
        while page.get("more"):
            self.req += 1
            cursor = {"after": page.get("next", 0), "after_name": page.get("next_name", "")}
            self.send(QUERY, req=self.req, op=op, **cursor, **fields)
            page = self.await_type(REPORT)
            assert page["req"] == self.req
            body = msgpack.unpackb(page["body"])
            rows += body.get(op, [body])
        return rows


def one_life(endpoint):
    admin = Client(endpoint)
    hello = admin.greet(ADMIN)
    check("HELLO is answered with a wire version, an epoch and a lease", hello["wire"] == 1 and hello["epoch"] > 0 and
          hello["lease_ms"] > 0, hello)
    versions = admin.ask("versions", name="policy", limit=1)
    check("versions of policy: number 1 is active", [v["version"] for v in versions] == [1] and versions[0]["state"] == "active", versions)

    worker = Client(endpoint)
    worker.greet(WORKER)
    worker.join("foreign")
    welcome = worker.await_type(WELCOME)
    worker.token = token = welcome["token"]
    check("the token carries the epoch", token >> 32 == welcome["epoch"] == hello["epoch"], welcome)
    decision = welcome["adapters"][0]
    digest = bytes(decision["digest"])
    check("WELCOME tells the decision: 1, naming version 1", (decision["adapter"], decision["decision"], decision["version"]) ==
          ("policy", 1, 1), decision)
    check("with the digest that the question showed", "h1:" + digest.hex() == versions[0]["digest"], decision)
    announce = worker.await_type(ANNOUNCE)
    check("ANNOUNCE names the worker that has the bytes", announce["version"] == 1 and bytes(announce["digest"]) == digest and
          any(s["kind"] == 2 and s["name"] == "w1" for s in announce["sources"]), announce)

    worker.send(STAGED, token=token, version=1, adapter="policy", digest=digest)
    commit = worker.await_type(COMMIT)
    check("STAGED is followed by the COMMIT of decision 1", (commit["version"], commit["decision"], bytes(commit["digest"])) == (1, 1, digest), commit)
    worker.send(ACTIVE, token=token, version=1, decision=1, adapter="policy", digest=digest)
    for seq in (1, 2):
        worker.send(HEARTBEAT, token=token, seq=seq, adapters=[{"adapter": "policy"}])
        beat = worker.await_type(HEARTBEAT_OK)
        check(f"heartbeat {seq} is acknowledged", beat == {"token": token, "seq": seq}, beat)
    me = admin.ask("workers", name="foreign")[0]
    check("the broker tells others: ready, current, version 1", (me["state"], me["current"], me["adapters"][0]["version"]) ==
          ("ready", True, 1), me)

    rival = Client(endpoint)
    rival.greet(WORKER)
    rival.join("foreign")
    _, error = rival.receive()
    check("a live worker's name is refused, and when to ask again is said", error.get("code") == "worker_alive" and
          error["retriable"] and error["retry_ms"] > 0 and error["of"] == JOIN and error["req"] == rival.req, error)

    worker.send(LEAVE, token=token, req=77)
    check("LEAVE is answered with BYE", worker.await_type(BYE) == {"token": token, "req": 77})
    me = admin.ask("workers", name="foreign")[0]
    check("and the broker says so", me["state"] == "left", me)
    return token


def refused(text, client, code, **fields):
    """The next answer is an ERROR of this code with these fields; what is not there counts as 0."""
    number, error = client.receive()
    right = number == ERROR and error["code"] == code and all(error.get(k, 0) == v for k, v in fields.items())
    check(f"{text}: {code}", right, (number, error))


def frame_of(number, *pairs):
    """A message by hand, so that a key may come twice."""
    packed = b"".join(msgpack.packb(k) + msgpack.packb(v) for k, v in pairs)
    return b"\x92" + msgpack.packb(number) + bytes([0x80 | len(pairs)]) + packed


def misdeeds(endpoint, stale):
    c = Client(endpoint)
    c.send(QUERY, req=5, op="status")
    refused("a question before HELLO", c, "protocol", of=QUERY, req=5)
    c.hello(WORKER, wire_min=2, wire_max=3)
    refused("a client of other wire versions", c, "wire_version", of=HELLO, expected="1 to 1", found="2 to 3")
    c.hello(9)
    refused("a role that there is not", c, "limit")

    c.greet(ADMIN)
    c.join("foreign")
    refused("JOIN of an admin", c, "denied", of=JOIN, req=c.req)
    c.greet(WORKER)
    c.send(OPEN, req=6, adapter="policy", writer="foreign")
    refused("OPEN of a worker", c, "denied", of=OPEN, req=6)
    c.send(COMMIT, token=1, version=1, decision=9, adapter="policy", digest=bytes(32))
    refused("a COMMIT from a client", c, "protocol", of=COMMIT)
    c.send(HEARTBEAT, token=stale, seq=1)
    refused("a token whose session is over", c, "fenced", of=HEARTBEAT, token=stale, version=0)
    c.join("foreign", slots=1)
    refused("a worker with one slot", c, "too_few_slots", of=JOIN, retriable=0)

    c.send(99)
    refused("a type that there is not", c, "protocol", of=0, req=0)
    c.socket.send(b"\xc1")
    refused("a byte that msgpack reserves", c, "protocol")
    c.socket.send(b"\x92\x06\x81\xa3se")
    refused("a frame cut short", c, "protocol")
    c.socket.send(b"\x92\x06\x81\xa8adapters\xdd\xff\xff\xff\xff")
    refused("a list of 2^32-1 rows in 17 bytes", c, "protocol")
    c.send(JOIN, name="foreign", adapters=[{"adapter": f"a{i}"} for i in range(257)])
    refused("257 subscriptions", c, "limit")
    c.join("../etc")
    refused("a name that is a path", c, "protocol", found="../etc")
    c.join("foreign", labels=["zone"])
    refused("a label that is no pair", c, "bad_name", of=JOIN, req=c.req)
    c.socket.send(frame_of(HEARTBEAT, ("token", 1), ("seq", 1), ("seq", 2)))
    refused("a key twice in a map", c, "protocol")
    c.socket.send(frame_of(HEARTBEAT, ("seq", 1)))
    refused("a required key that is not there", c, "protocol")
    c.socket.send_multipart([msgpack.packb([HEARTBEAT, {"token": 1, "seq": 1}]), b"more"])
    refused("a message of two frames", c, "protocol")
    c.socket.send(b"")
    refused("an empty frame", c, "protocol")

    masked = Client(endpoint, routing_id=b"w1")
    masked.hello(ADMIN)
    c.send(HEARTBEAT, token=stale, seq=2)
    refused("and stale tokens go on being refused", c, "fenced", token=stale)
    check("a routing id of one's own choice is not answered", masked.receive(500)[0] is None)
    unknown = [QUERY, {"op": "status", "req": 8, "colour": [1, {"of": "paint"}]}]
    c.socket.send(msgpack.packb(unknown))
    check("a key that is not known is skipped, and the broker serves on", c.await_type(REPORT)["req"] == 8)


if __name__ == "__main__":
    misdeeds(sys.argv[1], one_life(sys.argv[1]))
    sys.exit(1 if failed else 0)

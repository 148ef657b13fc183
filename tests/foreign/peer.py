# SPDX-License-Identifier: Apache-2.0
"""A connection to the broker, from docs/protocol.md alone: one DEALER, one msgpack value a message.

Whatever the broker says to anybody is held against the tables of the page: what is not as they say is kept in
`astray`."""
import contextlib
import os
import socket
import time

import msgpack
import zmq
import zmq.utils.monitor

import keys
import page

PAGE = page.load()
globals().update(PAGE.numbers)   # HELLO, HELLO_OK ... PING as the page numbers them
WORKER, PUBLISHER, ADMIN = 1, 2, 3
PATIENCE_S = 20
astray = []


def name_of(number):
    return PAGE.messages[number].name if number in PAGE.messages else str(number)


class Silence(Exception):
    pass


class Peer:
    def __init__(self, endpoint, role=None, routing_id=None, life=None):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        if routing_id:
            self.socket.routing_id = routing_id
        keys.give(self.socket)
        self.socket.connect(endpoint)
        self.req, self.life, self.token, self.passed = 0, life or os.urandom(16), 0, []
        if role:
            self.greet(role)

    def close(self):
        self.socket.close(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- what is said ---

    def send(self, number, **fields):
        self.socket.send(msgpack.packb([number, fields]))

    def say(self, number, **fields):
        """A message with a request number of its own, and the answer to it."""
        self.req += 1
        self.send(number, req=self.req, **fields)
        return self.receive()

    def hello(self, role, wire_min=1, wire_max=1, **more):
        self.send(HELLO, wire_min=wire_min, wire_max=wire_max, role=role, pid=os.getpid(), life=self.life,
                  heddle="foreign", host=socket.gethostname(), **more)

    def greet(self, role):
        self.hello(role)
        return self.await_type(HELLO_OK)

    def join(self, name, *adapters, **more):
        self.req += 1
        self.send(JOIN, req=self.req, name=name, adapters=[{"adapter": a} for a in adapters],
                  **{"backend": "none", **more})

    def open(self, adapter, writer="stranger", **more):
        self.req += 1
        self.send(OPEN, req=self.req, adapter=adapter, writer=writer, **{"backend": "none", **more})

    def welcomed(self):
        """Follows JOIN or OPEN."""
        welcome = self.await_type(WELCOME)
        self.token = welcome["token"]
        return welcome

    def beat(self, seq):
        self.send(HEARTBEAT, token=self.token, seq=seq)
        return self.await_type(HEARTBEAT_OK, seq=seq)

    def leave(self):
        self.send(LEAVE, token=self.token)
        self.await_type(BYE)

    def ask(self, op, **fields):
        """The whole list behind a question, page after page."""
        rows, part = [], {"more": True}
        while part.get("more"):
            self.req += 1
            self.send(QUERY, req=self.req, op=op, after=part.get("next", 0),
                      after_name=part.get("next_name", ""), **fields)
            part = self.await_type(REPORT, req=self.req)
            body = msgpack.unpackb(part["body"])
            rows += body.get(op, [body])
        return rows

    # --- what is heard ---

    def receive(self, patience_s=PATIENCE_S):
        """(type, fields) of the next message but PING; Silence when none comes."""
        end = time.monotonic() + patience_s
        while self.socket.poll(max(0, int(1000 * (end - time.monotonic())))):
            number, fields = heard(self.socket.recv_multipart())
            if number != PING:
                return number, fields
        raise Silence("nothing was heard")

    def await_type(self, wanted, **values):
        """The fields of the next message of this type with these values; others are kept for later, an ERROR
        ends the wait."""
        fits = lambda number, fields: number == wanted and all(fields.get(k) == v for k, v in values.items())
        for i, message in enumerate(self.passed):
            if fits(*message):
                return self.passed.pop(i)[1]
        while True:
            number, fields = self.receive()
            if fits(number, fields):
                return fields
            if number == ERROR:
                raise Silence(f"waited for {name_of(wanted)}, heard {fields}")
            self.passed.append((number, fields))

    @contextlib.contextmanager
    def watched(self):
        """Gives a function: did the broker end the connection?  (A new one is made at once, with nothing said
        on it.)"""
        monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        yield lambda: (monitor.poll(1000 * PATIENCE_S)
                       and zmq.utils.monitor.recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED)
        self.socket.disable_monitor()
        monitor.close(0)


def heard(frames):
    if len(frames) != 1:
        astray.append(f"a message of {len(frames)} frames")
    number, fields = msgpack.unpackb(frames[0], strict_map_key=True)
    wrong = PAGE.wrong_with(number, fields)
    if wrong:
        astray.append(f"{name_of(number)}: {wrong}")
    return number, fields

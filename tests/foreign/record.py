#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""record.py BROKER FILE: stands between a broker and its clients and, when its standard input ends, writes
down what they said: the file that replay.py plays (its notation stands there).  A line "cut" on standard
input ends all connections.

Left out: heartbeats and NEED_SOURCES of a version after the first of a connection.  What comes by time is
marked as such, and told once: PING, each ROLLOUT but the last of a version, SOURCES after the first.  Where a
client says what it was told, a token, an epoch or the number of a question, a hole takes the place of the
bytes."""
import sys

import msgpack
import zmq

import keys
import page

PAGE = page.load()
ROLES = {1: "W", 2: "P", 3: "A"}


def record(broker):
    """[(client, direction, frame)] in the order in which they passed, until standard input ends."""
    passed, endpoint, line = [], "tcp://127.0.0.1:*", "cut\n"
    while line == "cut\n":
        context = zmq.Context()
        clients = context.socket(zmq.ROUTER)
        clients.bind(endpoint)
        if not passed:
            endpoint = clients.last_endpoint.decode()
            print(endpoint, flush=True)
        line = pass_on(context, broker, clients, passed)
        context.destroy(linger=0)
    return passed


def pass_on(context, broker, clients, passed):
    """Until a line is read: the line."""
    poller, lines, owners = zmq.Poller(), {}, {}
    poller.register(clients, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready is clients:
                client, frame = clients.recv_multipart()
                if client not in lines:
                    line = lines[client] = context.socket(zmq.DEALER)
                    keys.give(line)
                    line.connect(broker)
                    owners[line] = client
                    poller.register(line, zmq.POLLIN)
                passed.append((client, ">", frame))
                lines[client].send(frame)
            elif ready in owners:
                frame = ready.recv()
                passed.append((owners[ready], "<", frame))
                clients.send_multipart([owners[ready], frame])
            else:
                return sys.stdin.readline()


class Writer:
    def __init__(self):
        self.names, self.counts, self.tokens, self.said = {}, {}, {}, set()

    def name(self, client, number, fields):
        if client not in self.names:
            role = ROLES[fields["role"]]
            self.counts[role] = self.counts.get(role, 0) + 1
            self.names[client] = f"{role}{self.counts[role]}"
        return self.names[client]

    def with_holes(self, name, number, fields, frame):
        """What the client was told before, as it stands in its frame."""
        text = frame.hex()
        for token, owner in self.tokens.items():
            text = text.replace("cf" + token.to_bytes(8, "big").hex(), "{token " + owner + "}")
        hole = {"VERIFIED": "req", "HEARTBEAT": "seq", "JOIN": "epoch",
                "OPEN": "epoch"}.get(PAGE.messages[number].name)
        if hole in fields:
            key = msgpack.packb(hole).hex()
            text = text.replace(key + msgpack.packb(fields[hole]).hex(), key + "{" + f"{hole} {name}" + "}")
        return text

    def is_over(self, passed, at):
        """Nothing is said after this by the client, nor to it, but PING."""
        client = passed[at][0]
        return not any(c == client and PAGE.messages[msgpack.unpackb(f)[0]].name != "PING"
                       for c, _, f in passed[at + 1:])

    def line(self, passed, at):
        client, direction, frame = passed[at]
        number, fields = msgpack.unpackb(frame)
        kind, name = PAGE.messages[number].name, self.name(client, number, fields)
        once = (name, kind, fields.get("version"))
        is_first = once not in self.said
        self.said.add(once)
        if kind in ("HEARTBEAT", "HEARTBEAT_OK", "NEED_SOURCES") and not is_first:
            return None
        if kind == "WELCOME":
            self.tokens[fields["token"]] = name
        by_time = (kind == "PING" or kind == "SOURCES" and not is_first or fields.get("state") == "staging"
                   or kind == "ROLLOUT" and any(
                       c == client and d == "<" and (m := msgpack.unpackb(f))[0] == number
                       and m[1]["version"] == fields["version"] for c, d, f in passed[at + 1:]))
        if by_time and (name, kind, "~") in self.said:
            return None
        if by_time:
            self.said.add((name, kind, "~"))
        text = self.with_holes(name, number, fields, frame) if direction == ">" else frame.hex()
        return f"{name} {'~' if by_time else direction} {kind} {text}"


def main(broker, path):
    passed, writer = record(broker), Writer()
    with open(path, "w") as f:
        for at, (client, _, _) in enumerate(passed):
            line = writer.line(passed, at)
            if line:
                f.write(line + "\n")
            if writer.is_over(passed, at) and not (line and " PING " in line):
                f.write(f"{writer.names[client]} x\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

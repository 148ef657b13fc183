#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count_proxy.py BROKER: stands between a broker and its clients, passes every frame on and counts them by
type.

Prints the endpoint for clients, then, for each line that it reads, one JSON object: how many messages of each
type there were since the one before, type names as in docs/protocol.md.  Each client gets a connection of its
own to the broker."""
import collections
import json
import sys

import msgpack
import zmq

NAMES = """- HELLO HELLO_OK JOIN OPEN WELCOME HEARTBEAT HEARTBEAT_OK LEAVE BYE PUBLISH PUBLISHED ANNOUNCE
SOURCES NEED_SOURCES STAGED COMMIT ACTIVE NACK ABORT RETIRE RELEASE ROLLOUT QUERY REPORT VERIFY VERIFIED ERROR
PING PEERS""".split()

context = zmq.Context.instance()
clients = context.socket(zmq.ROUTER)
port = clients.bind_to_random_port("tcp://127.0.0.1")
poller = zmq.Poller()
poller.register(clients, zmq.POLLIN)
poller.register(sys.stdin, zmq.POLLIN)
lines, owners = {}, {}   # client's id -> its connection, and back
seen = collections.Counter()


def count(frame):
    number = msgpack.unpackb(frame)[0]
    seen[NAMES[number] if number < len(NAMES) else f"TYPE_{number}"] += 1
    return frame


def line_of(client):
    if client not in lines:
        line = lines[client] = context.socket(zmq.DEALER)
        line.connect(sys.argv[1])
        owners[line] = client
        poller.register(line, zmq.POLLIN)
    return lines[client]


print(f"tcp://127.0.0.1:{port}", flush=True)
while True:
    for ready, _ in poller.poll():
        if ready is clients:
            client, frame = clients.recv_multipart()
            line_of(client).send(count(frame))
        elif ready in owners:
            clients.send_multipart([owners[ready], count(ready.recv())])
        elif not sys.stdin.readline():
            context.destroy(linger=0)
            sys.exit(0)
        else:
            print(json.dumps(seen, sort_keys=True), flush=True)
            seen.clear()

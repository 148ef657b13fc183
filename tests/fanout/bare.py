# SPDX-License-Identifier: Apache-2.0
"""bare.py receive BYTES, bare.py send BYTES ADDRESS...: a transfer by bare sockets, without digests or
versions.

A receiver takes bytes from the sender (star), or from the receiver before it and passes each block on
(chain).  Commands come as lines on stdin; times go to stdout (CLOCK_MONOTONIC, one for the whole machine):

    receive   prints "ready"; reads `connect [ADDRESS]`, of the next in the chain; prints "ready"; then, for
              each `star` or `chain`, the time of its end
    send      connects to all; prints "ready"; then, for each `star` or `chain`, the time of its start"""
import socket
import sys
import time

STAR, CHAIN = 7001, 7002
BLOCK = 65536


def connect(address, port):
    s = socket.create_connection((address, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def say(what):
    print(what, flush=True)


def blocks(view):
    return (view[at:at + BLOCK] for at in range(0, len(view), BLOCK))


def take(source, view, following):
    for block in blocks(view):
        if source.recv_into(block, len(block), socket.MSG_WAITALL) != len(block):
            sys.exit("the source ended")
        if following:
            following.sendall(block)


def receive(count):
    view, listeners = memoryview(bytearray(b"\1") * count), {}
    for name, port in (("star", STAR), ("chain", CHAIN)):
        listeners[name] = socket.create_server(("", port))
    say("ready")
    words = input().split()
    following = connect(words[1], CHAIN) if len(words) > 1 else None
    sources = {name: listener.accept()[0] for name, listener in listeners.items()}
    say("ready")
    for line in sys.stdin:
        how = line.strip()
        take(sources[how], view, following if how == "chain" else None)
        say(time.monotonic())


def send(count, addresses):
    view = memoryview(bytearray(b"\1") * count)
    star, first = [connect(a, STAR) for a in addresses], connect(addresses[0], CHAIN)
    say("ready")
    for line in sys.stdin:
        say(time.monotonic())
        for block in blocks(view):
            for s in star if line.strip() == "star" else [first]:
                s.sendall(block)


if sys.argv[1] == "receive":
    receive(int(sys.argv[2]))
else:
    send(int(sys.argv[2]), sys.argv[3:])

# SPDX-License-Identifier: Apache-2.0
"""What the peers share: systems that others use for Heddle's work, BYTES from one sender to COUNT receivers.

    NAME.py check                                      exit 0; or prints why it cannot run here, and exit 77
    NAME.py send BYTES ADDRESS COUNT                   on the sender's host
    NAME.py receive BYTES ADDRESS COUNT SENDER RANK    on each receiver's host; RANK from 1

All are started at once.  Each prints "ready" when it is connected, and memory has been touched.  Then a line
on stdin begins a round, the receivers' first.  Each prints a time (CLOCK_MONOTONIC, one for the machine): the
sender when it begins, a receiver when all bytes are in memory of its own.  A sender that learns of all ends
prints two times, start and end, and its receivers print none.  The end of stdin ends them.

Peers verify nothing and have no versions, as they come.  `tests/fanout/run --peers NAME,...` runs them."""
import fcntl
import os
import socket
import struct
import sys
import time

SKIPPED = 77
WAIT_S = 60
SIOCGIFADDR = 0x8915


# What a library prints to stdout must not look like a time.
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(*times):
    print(*times, file=OUT, flush=True)


def rounds():
    """A number for each round, from 1."""
    say("ready")
    for number, _ in enumerate(sys.stdin, 1):
        yield number


def now():
    return time.monotonic()


def interface_of(address):
    """Of this host; some libraries want a name in place of an address."""
    with socket.socket() as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return "lo"


def dial(address, port):
    """The sender may be slower to start."""
    end = now() + WAIT_S
    while True:
        try:
            return socket.create_connection((address, port))
        except OSError:
            if now() > end:
                raise
            time.sleep(0.05)


def lacks(*modules):
    """Why it cannot run: the first of these modules that is not there; None: all are."""
    for name in modules:
        try:
            __import__(name)
        except ImportError as why:
            return f"{why} (pip install {name})"
    return None


def main(check, send, receive):
    words = sys.argv[1:]
    if words[:1] == ["check"]:
        why = check()
        say(why or "ok")
        sys.exit(SKIPPED if why else 0)
    role, count, address, others = words[0], int(words[1]), words[2], int(words[3])
    if role == "send":
        send(count, address, others)
    else:
        receive(count, address, others, words[4], int(words[5]))

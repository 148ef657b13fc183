# SPDX-License-Identifier: Apache-2.0
"""CURVE of a connection, from docs/protocol.md, "Keys": the broker's public key and a pair of this side, out
of the ring $HEDDLE_KEYS.

A broker without keys has made no ring, and needs none."""
import os
import pathlib


def read(path):
    """{"public": ..., "secret": ...} of a key file: a word and 40 characters of Z85 a line."""
    lines = [line.split() for line in path.read_text().splitlines()
             if line.strip() and not line.startswith("#")]
    return {line[0]: line[1].encode() for line in lines}


def give(socket):
    ring = pathlib.Path(os.environ.get("HEDDLE_KEYS", "/nowhere"))
    if not (ring / "broker.key").exists():
        return
    own = read(ring / "client.key")
    socket.curve_serverkey = read(ring / "broker.key")["public"]
    socket.curve_publickey, socket.curve_secretkey = own["public"], own["secret"]

# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX: each receiver reads all bytes from the sender's registered memory."""
import importlib
import os
import pickle
import struct

import peer

PORT = 7016
MODULES = "nixl", "nixl_cu12", "nixl_cu13"    # the last two are whole without torch and CUDA


def api():
    """The first that is installed; None: none is."""
    for name in MODULES:
        try:
            return importlib.import_module(f"{name}._api")
        except ImportError:
            continue
    return None


def check():
    return None if api() else "none of NIXL's packages is installed (pip install --no-deps nixl-cu12)"


def agent_of(name, address):
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("UCX_NET_DEVICES", peer.interface_of(address))
    return api().nixl_agent(name, api().nixl_agent_config(backends=["UCX"]))


def memory_of(agent, count):
    import ctypes
    memory = (ctypes.c_char * count).from_buffer(bytearray(b"\1") * count)
    at = ctypes.addressof(memory)
    agent.register_memory(agent.get_reg_descs([(at, count, 0, "")], mem_type="DRAM"))
    return memory, agent.get_xfer_descs([(at, count, 0)], mem_type="DRAM")


def put(link, value):
    data = pickle.dumps(value)
    link.sendall(struct.pack("!I", len(data)) + data)


def take(link):
    with link.makefile("rb") as stream:
        return pickle.loads(stream.read(struct.unpack("!I", stream.read(4))[0]))


def send(count, address, others):
    import socket
    agent = agent_of("sender", address)
    memory, descs = memory_of(agent, count)
    listener, links = socket.create_server((address, PORT)), []
    for _ in range(others):
        link = listener.accept()[0]
        put(link, (agent.get_agent_metadata(), agent.get_serialized_descs(descs)))
        links.append(link)
    for _ in peer.rounds():
        peer.say(peer.now())
        for link in links:
            link.sendall(b"!")
    os._exit(0)    # its library faults when it is taken down


def receive(count, address, others, sender, rank):
    agent = agent_of(f"receiver{rank}", address)
    memory, descs = memory_of(agent, count)
    link = peer.dial(sender, PORT)
    metadata, remote = take(link)
    name = agent.add_remote_agent(metadata)
    remote = agent.deserialize_descs(remote)
    read = agent.initialize_xfer("READ", descs, remote, name, b"")
    for _ in peer.rounds():
        link.recv(1)
        state = agent.transfer(read)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(read)
        if state == "ERR":
            raise SystemExit("the transfer failed")
        peer.say(peer.now())
    os._exit(0)


peer.main(check, send, receive)

# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ: the sender sends blocks of 1 MiB to each receiver in turn."""
import peer

PORT, BLOCK = 7011, 1 << 20


def send(count, address, others):
    import zmq
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 4)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)    # a full queue waits, and drops nothing
    router.bind(f"tcp://{address}:{PORT}")
    view = memoryview(bytearray(b"\1") * count)
    receivers = [router.recv_multipart()[0] for _ in range(others)]
    for _ in peer.rounds():
        peer.say(peer.now())
        for at in range(0, count, BLOCK):
            for receiver in receivers:
                router.send_multipart([receiver, view[at:at + BLOCK]], copy=False)


def receive(count, address, others, sender, rank):
    import zmq
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, 4)
    dealer.connect(f"tcp://{sender}:{PORT}")
    dealer.send(b"here")
    view = memoryview(bytearray(b"\1") * count)
    for _ in peer.rounds():
        at = 0
        while at < count:
            block = dealer.recv(copy=False).buffer
            view[at:at + len(block)] = block
            at += len(block)
        peer.say(peer.now())


peer.main(lambda: peer.lacks("zmq"), send, receive)

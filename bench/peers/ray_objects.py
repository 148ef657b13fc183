# SPDX-License-Identifier: Apache-2.0
"""Ray's object store: the driver puts an array, an actor on each host gets it and copies it into memory of
its own.  Warm: the actors have run before, and have got an object."""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import peer

PORT, PR_SET_PDEATHSIG = 7014, 1
NODES_S = 100    # until all nodes are there: many start on few cores
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def start(count, address, rank, *words):
    """A Ray node of this host, which ends with this process."""
    ray = os.path.join(os.path.dirname(sys.executable), "ray")
    command = [ray, "start", "--block", f"--node-ip-address={address}", "--num-cpus=1", "--num-gpus=0",
               f"--object-store-memory={max(100 << 20, 6 * count)}",
               f"--resources={json.dumps({f'rank{rank}': 1})}", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True,
                            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM))


def stop(node):
    """At once: a node that is asked to end drains for half a minute."""
    os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def send(count, address, others):
    import numpy
    import ray
    work = tempfile.mkdtemp(prefix="hr.", dir="/tmp")    # names of its sockets must be short
    node = start(count, address, 0, "--head", f"--port={PORT}", "--include-dashboard=false",
                 f"--temp-dir={work}")
    try:
        peer.dial(address, PORT).close()
        ray.init(address=f"{address}:{PORT}", _node_ip_address=address, log_to_driver=False)
        end = peer.now() + NODES_S
        while sum(n["Alive"] for n in ray.nodes()) <= others:
            if peer.now() > end:
                raise SystemExit("not all nodes of Ray came")
            time.sleep(0.2)

        @ray.remote(num_cpus=0)
        class Taker:
            def __init__(self):
                self.memory = numpy.ones(count, numpy.uint8)

            def take(self, refs):
                numpy.copyto(self.memory, ray.get(refs[0]))
                return time.monotonic()

        takers = [Taker.options(resources={f"rank{r}": 1}).remote() for r in range(1, others + 1)]
        array = numpy.ones(count, numpy.uint8)
        for _ in range(2):
            ref = ray.put(array)
            ray.get([t.take.remote([ref]) for t in takers])
        for _ in peer.rounds():
            begun = peer.now()
            ref = ray.put(array)
            peer.say(begun, max(ray.get([t.take.remote([ref]) for t in takers])))
    finally:
        stop(node)
        shutil.rmtree(work, ignore_errors=True)


def receive(count, address, others, sender, rank):
    peer.dial(sender, PORT).close()
    node = start(count, address, rank, f"--address={sender}:{PORT}")
    try:
        for _ in peer.rounds():
            pass
    finally:
        stop(node)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))    # so that its nodes are ended
peer.main(lambda: peer.lacks("ray", "numpy"), send, receive)

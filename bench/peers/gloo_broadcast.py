# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo: a broadcast of one flat tensor, what trainers have at hand on a CPU."""
import os

import peer

PORT = 7012


def run(count, address, others, sender, rank):
    os.environ["GLOO_SOCKET_IFNAME"] = peer.interface_of(address)
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{sender}:{PORT}", rank=rank, world_size=others + 1)
    tensor = torch.full((count,), 1 if rank == 0 else 0, dtype=torch.uint8)
    dist.broadcast(tensor, 0)    # connections are made by the first
    for _ in peer.rounds():
        if rank == 0:
            peer.say(peer.now())
        dist.broadcast(tensor, 0)
        if rank:
            peer.say(peer.now())


def send(count, address, others):
    run(count, address, others, address, 0)


peer.main(lambda: peer.lacks("torch"), send, run)

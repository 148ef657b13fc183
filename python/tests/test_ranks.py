# SPDX-License-Identifier: Apache-2.0
"""Sharded training: every rank calls publish, rank 0's outcome is everybody's.  Two processes over gloo; the main path is FSDP2."""
import json
import os
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import heddle
import models
from conftest import FIXTURES, Process

RANK = """
    sys.path.insert(0, sys.argv[1])
    import heddle, torch, torch.distributed as dist, models
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    os.environ.update(RANK=sys.argv[3], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
    name, rank = sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))

    def sharded(kind="plain"):
        model = models.lora(kind)
        for layer in model.base_model.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def tell(**what):
        print(json.dumps(what), flush=True)

    def failure(call):
        try:
            call()
            return None
        except Exception as e:
            return [type(e).__name__, getattr(e, "code", None), str(e)[:200]]

    world = dist.group.WORLD
    with heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish") as pub:
        model = sharded()
        config = open(sys.argv[5], "rb").read()
        ver = pub.publish(model, step=1, config=config)
        tell(tag=ver.tag, digest=ver.digest, sharded=sum(hasattr(p, "device_mesh") for p in model.parameters()))
        got = ver.wait(min=1, timeout=60)
        tell(active=got.active_count, workers=got.workers)

        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)     # real steps: FSDP gathers and frees meanwhile
        for step in range(2):
            model(input_ids=torch.arange(24).reshape(2, 12) % 64, labels=torch.arange(24).reshape(2, 12) % 64).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ver = pub.publish(model, step=2 + step, config=config)
            tell(digest=ver.digest, want=None)
        full = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone() for k, v in __import__("peft").get_peft_model_state_dict(model).items()}
        if rank == 0:
            heddle_digest = ver.digest
            direct = heddle.Publisher(adapter=name + "-direct")
            tell(full=direct.publish_tensors(full, config).digest)
            direct.close()
        # outcomes of rank 0, and of one that cannot
        tell(failed=failure(lambda: pub.publish(model, step=1)))                                    # step_back: the broker said it to rank 0
        tell(failed=failure(lambda: pub.publish(model, peft_adapter="default" if rank == 0 else "none")))
        tell(failed=failure(lambda: pub.publish(model if rank == 1 else models.base())))
        tell(failed=failure(lambda: pub.publish_dir("/nowhere")))
        tell(failed=failure(lambda: heddle.Publisher("tcp://127.0.0.1:9", adapter=name, process_group=world, timeout=0.3)))
        tell(failed=failure(lambda: pub.publish_dir(sys.argv[6], step=9).wait(quorum=5, timeout=0.3)))
        tell(alone=failure(lambda: heddle.Publisher(adapter=name + f"-alone-{rank}").publish(model)))
        tell(tag=pub.publish(model, step=10, config=config).tag)
    dist.destroy_process_group()
"""


def test_fsdp2_every_rank_publishes(broker, adapter, tmp_path):
    import socket
    import textwrap
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    model = models.lora()
    model.save_pretrained(tmp_path / "saved")
    config = tmp_path / "saved" / "adapter_config.json"
    path = tmp_path / "rank.py"
    path.write_text("import json, os, sys\n" + textwrap.dedent(RANK))
    with heddle.Worker(adapters=[adapter], name="ranks", apply="auto") as w:
        ranks = [Process([sys.executable, str(path), os.path.dirname(models.__file__), adapter, str(r), str(port), str(config), str(FIXTURES / "dora")],
                         stderr=(tmp_path / f"rank{r}.log").open("wb")) for r in range(2)]
        try:
            zero, one = ([r.json(120)] for r in ranks)
            for r, said in ((ranks[0], zero), (ranks[1], one)):
                said += [r.json(120) for _ in range(3 + (r is ranks[0]) + 6 + 2)]
                assert r.end(sign=None) == 0
        except AssertionError:
            print(*((tmp_path / f"rank{r}.log").read_text()[-3000:] for r in range(2)), sep="\n----\n")
            raise
        full = zero.pop(4)["full"]
        assert zero == one, "what rank 0 met is what every rank met"
        first, active, step1, step2, back, absent, none, nowhere, away, late, alone, last = zero
        assert first["digest"] == heddle.safetensors.check(tmp_path / "saved").digest and first["sharded"] > 0
        assert active == {"active": 1, "workers": ["ranks"]}
        assert len({first["digest"], step1["digest"], step2["digest"]}) == 3 and step2["digest"] == full
        assert [x["failed"][:2] for x in (back, absent, none, nowhere, away, late)] == [
            ["Conflict", "step_back"], ["NotFound", "not_found"], ["UsageError", "usage"], ["NotFound", "not_found"], ["Unavailable", "unavailable"],
            ["Deadline", "deadline"]]
        assert alone["alone"][0] == "UsageError" and "process_group" in alone["alone"][2]
        assert w.wait_current(30)[adapter].tag == last["tag"]


def test_a_process_group_needs_torch_distributed(broker, adapter):
    with pytest.raises(heddle.UsageError, match="not initialised"):
        heddle.Publisher(adapter=adapter, process_group=object())

# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed ZeRO-3 on two ranks of a CPU.  Its first start compiles, for a minute (TORCH_EXTENSIONS_DIR)."""
import importlib.util
import os
import socket
import sys
import textwrap

import pytest

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("deepspeed is not installed", allow_module_level=True)
pytest.importorskip("peft")

import heddle
import models
from conftest import Process

RANK = """
    sys.path.insert(0, sys.argv[1])
    name, rank = sys.argv[2], int(sys.argv[3])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=sys.argv[4], DS_ACCELERATOR="cpu")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                # DeepSpeed talks on stdout
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    import deepspeed, heddle, models
    from peft import get_peft_model_state_dict
    model = models.lora()
    config = open(sys.argv[5], "rb").read()
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config={
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False})
    with heddle.Publisher(adapter=name, process_group=dist.group.WORLD) as pub:
        first = pub.publish(engine, step=1, config=config)
        ids = torch.arange(24).reshape(2, 12) % 64
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        second = pub.publish(engine, step=2, config=config)
        with deepspeed.zero.GatheredParameters(trained):
            full = {k: v.clone() for k, v in get_peft_model_state_dict(model).items()}
        want = None
        if rank == 0:
            with heddle.Publisher(adapter=name + "-whole") as alone:
                want = alone.publish_tensors(full, config).digest
        print(json.dumps({"taken apart": all(p.numel() == 0 for p in trained), "first": first.digest,
                          "second": second.digest, "want": want}), file=out, flush=True)
    dist.destroy_process_group()
"""


def test_every_rank_publishes(broker, adapter, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    models.lora().save_pretrained(tmp_path / "saved")
    path = tmp_path / "rank.py"
    path.write_text("import json, os, sys\n" + textwrap.dedent(RANK))
    ranks = [Process([sys.executable, str(path), os.path.dirname(models.__file__), adapter, str(r), str(port),
                      str(tmp_path / "saved/adapter_config.json")],
                     stderr=(tmp_path / f"rank{r}.log").open("wb")) for r in range(2)]
    zero, one = (r.json(600) for r in ranks)
    assert [r.end(sign=None) for r in ranks] == [0, 0]
    assert zero["taken apart"] and one["taken apart"]
    assert zero["first"] == one["first"] == heddle.safetensors.check(tmp_path / "saved").digest
    assert zero["second"] == one["second"] == zero["want"] != zero["first"]

# SPDX-License-Identifier: Apache-2.0
"""Sharded training: every rank calls publish, rank 0's outcome is everybody's.  Two processes over gloo; the
main path is FSDP2.
"""
import json
import os
import signal
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import heddle
import models
from conftest import FIXTURES, PROGRAM, Process

PRELUDE = """
    sys.path.insert(0, sys.argv[1])
    import heddle, torch, torch.distributed as dist, models
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    name, rank = sys.argv[2], int(sys.argv[3])
    os.environ.update(RANK=sys.argv[3], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
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
        except BaseException as e:
            return [type(e).__name__, getattr(e, "code", None), str(e)[:500], type(e.__cause__).__name__]

    world = dist.group.WORLD
"""

def test_the_bytes_of_a_shard_are_its_values():
    from heddle._collective import _bytes_of
    values = torch.arange(6.0).reshape(2, 3)
    for lazy, wanted in ((torch._neg_view(values), -values),
                         (torch.complex(values, values).conj(), torch.complex(values, -values)),
                         (torch._neg_view(values).t(), -values.t())):
        assert lazy.is_neg() or lazy.is_conj()
        assert torch.equal(_bytes_of(lazy).view(wanted.dtype), wanted.contiguous().reshape(-1))


RANK = """
    with heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish") as pub:
        model = sharded()
        config = open(sys.argv[5], "rb").read()
        ver = pub.publish(model, step=1, config=config)
        tell(tag=ver.tag, digest=ver.digest,
             sharded=sum(hasattr(p, "device_mesh") for p in model.parameters()))
        got = ver.wait(min=1, timeout=60)
        tell(active=got.active_count, workers=got.workers)

        # real steps: FSDP gathers and frees meanwhile
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for step in range(2):
            model(input_ids=torch.arange(24).reshape(2, 12) % 64,
                  labels=torch.arange(24).reshape(2, 12) % 64).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ver = pub.publish(model, step=2 + step, config=config)
            tell(digest=ver.digest, want=None)
        full = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).clone()
                for k, v in __import__("peft").get_peft_model_state_dict(model).items()}
        if rank == 0:
            heddle_digest = ver.digest
            direct = heddle.Publisher(adapter=name + "-direct")
            tell(full=direct.publish_tensors(full, config).digest)
            direct.close()
        # outcomes of rank 0, and of one that cannot
        # step_back: the broker said it to rank 0
        tell(failed=failure(lambda: pub.publish(model, step=1)))
        tell(failed=failure(lambda: pub.publish(model, peft_adapter="default" if rank == 0 else "none")))
        tell(failed=failure(lambda: pub.publish(model if rank == 1 else models.base())))
        tell(failed=failure(lambda: pub.publish_dir("/nowhere")))
        with heddle.Publisher(adapter=name + "-weights", process_group=world, kind="tensors") as weights:
            tell(failed=failure(lambda: weights.publish_each([("w", "F32", (2,))],
                                                             [("w", torch.zeros(2))])))
        tell(failed=failure(lambda: heddle.Publisher("tcp://127.0.0.1:9", adapter=name, process_group=world,
                                                     timeout=0.3)))
        tell(failed=failure(lambda: pub.publish_dir(sys.argv[6], step=9).wait(quorum=5, timeout=0.3)))
        tell(alone=failure(lambda: heddle.Publisher(adapter=name + f"-alone-{rank}").publish(model)))
        tell(tag=pub.publish(model, step=10, config=config).tag)
    dist.barrier()                      # gloo's threads of one rank may meet the end of the other's
    dist.destroy_process_group()
"""

# Each fault on one rank ends the call on both with it; the group is whole afterwards, so that the next call
# is made.
FAULTS = """
    from heddle import _collective
    from unittest import mock

    def boom(*args, **how):
        raise torch.OutOfMemoryError("no memory (of the test)")

    def on(where, target, what):
        return mock.patch.object(target, what, boom) if rank == where else mock.patch.object(target,
                                                                                             "nothing", 0,
                                                                                             create=True)

    with heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish") as pub:
        model = sharded()
        with on(1, _collective, "_piece"):              # the layout, of a new plan
            tell(failed=failure(lambda: pub.publish(model)))
        pub.publish(model)
        with on(1, torch, "cat"):                       # what a rank sends
            tell(failed=failure(lambda: pub.publish(model)))
        with on(0, _collective.Collective, "device_for"):       # where rank 0 receives
            tell(failed=failure(lambda: pub.publish(model)))
        with on(0, _collective.Shards, "place"):
            tell(failed=failure(lambda: pub.publish(model)))
        with on(0, _collective, "_part"):
            tell(failed=failure(lambda: pub.publish(model)))
        tell(version=pub.publish(model).version)

        # ranks that do not hold the same adapter
        other = models.lora(dtype="bf16" if rank == 1 else "f32")
        tell(failed=failure(lambda: pub.publish(other)))
        other = models.lora(lora_alpha=16 + rank)
        tell(failed=failure(lambda: pub.publish(other)))
        tell(version=pub.publish(model).version)

        # equal pieces are rank 0's alone: nothing is sent
        same = models.lora()
        if rank == 1:
            models.stir(same, 99)
        sent = []
        transfer = _collective.Collective.transfer
        with mock.patch.object(_collective.Collective, "transfer",
                               lambda self, send, into: (sent.append((send is None, len(into))),
                                                         transfer(self, send, into))):
            digest = pub.publish(same, config=b'{"peft_type": "LORA", "r": 8}').digest
        tell(sent=sent, digest=digest)
    print(json.dumps({"left": rank}), flush=True)
    sys.stdin.readline()
    dist.destroy_process_group()
"""

WAITS = """
    import datetime, signal, threading, time
    short = dist.new_group(timeout=datetime.timedelta(seconds=2))
    with heddle.Publisher(adapter=name, process_group=short) as pub:
        ver = pub.publish(models.lora(), step=1)
        tell(failed=failure(lambda: ver.wait(timeout=5)))               # longer than the group is patient
        for who in (1, 0):
            began = machine_time()
            if rank == who:
                threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            failed = failure(lambda: ver.wait(timeout=60))
            tell(failed=failed, late=machine_time() - began > 30)
        tell(version=pub.publish(models.stir(models.lora(), 3), step=2).version)
    dist.barrier()
    os._exit(0)             # gloo's threads may abort an interpreter that ends; what is tested is over
"""

KILLED = """
    import datetime
    short = dist.new_group(timeout=datetime.timedelta(seconds=30))
    with heddle.Publisher(adapter=name, process_group=short) as pub:
        model = sharded()
        pub.publish(model)
        if rank == 1:
            where = sys.argv[5]
            def end(*args, **how):
                os._exit(7)
            if where == "pack":
                torch.cat = end
            else:
                dist.batch_isend_irecv = end
        tell(failed=failure(lambda: pub.publish(models.stir(model, 5))))
    os._exit(0)
"""


CLOSED = """
    pub = heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish")
    model = models.lora()
    ver = pub.publish(model)
    if rank == 1:
        pub.close()
    for call in (lambda: pub.publish(model), lambda: pub.publish_dir(sys.argv[5]),
                 lambda: ver.wait(timeout=5)):
        tell(failed=failure(call))
    pub.close()
    os._exit(0)
"""

CLOSED_IN_A_WAIT = """
    import threading, time
    for who in (0, 1):
        pub = heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish")
        ver = pub.publish(models.lora())
        began = machine_time()
        if rank == who:
            threading.Timer(0.5, pub.close).start()
        failed = failure(lambda: ver.wait(timeout=30))
        tell(failed=failed, late=machine_time() - began > 20)
        pub.close()
        dist.barrier()
    os._exit(0)
"""

STOPPED = """
    pub = heddle.Publisher(adapter=name, process_group=world, if_unchanged="publish")
    model = models.lora()
    pub.publish(model)
    tell(pid=os.getpid())
    sys.stdin.readline()
    try:
        pub.publish(model)
    except BaseException as e:
        tell(failed=type(e).__name__)
"""


def start(tmp_path, code, *args):
    """Two ranks of it."""
    import socket
    import textwrap
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    path = tmp_path / "rank.py"
    path.write_text(PROGRAM + textwrap.dedent(PRELUDE) + textwrap.dedent(code))
    return [Process([sys.executable, str(path), os.path.dirname(models.__file__), args[0], str(r), str(port),
                     *map(str, args[1:])],
                    stderr=(tmp_path / f"rank{r}.log").open("wb")) for r in range(2)]


@pytest.fixture
def ranks(tmp_path):
    """ranks(code, adapter, ...): two processes, which are ended; their last words where the test fails."""
    started = []

    def run(code, *args):
        started.extend(start(tmp_path, code, *args))
        return started
    yield run
    for r, it in enumerate(started):
        if it.process.poll() is None:
            it.process.kill()
            it.process.wait()
        print((tmp_path / f"rank{r}.log").read_text()[-2000:])


def test_a_fault_on_one_rank_is_everybodys(broker, adapter, ranks):
    two = ranks(FAULTS, adapter)
    zero, one = ([r.json(120) for _ in range(10)] for r in two)
    sent = [said.pop(9) for said in (zero, one)]
    assert zero == one
    for fault in zero[:5]:
        assert fault["failed"][0] == "OutOfMemoryError" and "of the test" in fault["failed"][2]
    assert zero[5] == {"version": 2}
    assert zero[6]["failed"][:2] == ["UsageError", "usage"] and "rank 1" in zero[6]["failed"][2]
    assert "q_proj" in zero[6]["failed"][2] and "BF16" in zero[6]["failed"][2]
    assert zero[7]["failed"][:2] == ["UsageError", "usage"] and "lora_alpha" in zero[7]["failed"][2]
    assert zero[8] == {"version": 3}
    assert sent[0]["sent"] == sent[1]["sent"] == [[True, 0]] and sent[0]["digest"] == sent[1]["digest"]
    with heddle.Publisher(adapter=adapter + "-whole") as alone:
        assert sent[0]["digest"] == alone.publish(models.lora(),
                                                  config=b'{"peft_type": "LORA", "r": 8}').digest
    for r in two:
        r.say("go")
    assert [r.end(sign=None) for r in two] == [0, 0]


def test_waits_of_ranks_end(broker, adapter, ranks):
    two = ranks(WAITS, adapter)
    zero, one = ([r.json(120) for _ in range(4)] for r in two)
    assert ([said[0]["failed"][1] for said in (zero, one)] == ["no_workers"] * 2
            or [s[0]["failed"][1] for s in (zero, one)] == ["deadline"] * 2)
    assert [said[1]["failed"][0] for said in (zero, one)] == ["HeddleError", "KeyboardInterrupt"]
    assert zero[1]["failed"][1] == "interrupted" and "another rank" in zero[1]["failed"][2]
    assert [said[2]["failed"][0] for said in (zero, one)] == ["KeyboardInterrupt", "HeddleError"]
    assert not any(said[i]["late"] for said in (zero, one) for i in (1, 2))
    assert zero[3] == one[3] == {"version": 2}
    assert [r.end(sign=None) for r in two] == [0, 0]


@pytest.mark.parametrize("where", ["pack", "transfer"])
def test_a_rank_that_is_gone_is_told(broker, adapter, ranks, where):
    zero, one = ranks(KILLED, adapter, where)
    failed = zero.json(120)["failed"]
    assert failed[:2] == ["Unavailable",
                          "unavailable"] and failed[3].endswith("Error") and "cannot reach" in failed[2]
    assert zero.end(sign=None) == 0 and one.end(sign=None) == 7


def test_closed_on_one_rank_is_closed_on_every_one(broker, adapter, ranks):
    two = ranks(CLOSED, adapter, FIXTURES / "plain")
    for said in ([r.json(120) for _ in range(3)] for r in two):
        assert [s["failed"][0] for s in said] == ["Closed"] * 3
    assert [r.end(sign=None) for r in two] == [0, 0]


def test_closed_during_a_wait_on_one_rank_ends_it_on_every_one(broker, adapter, ranks):
    with heddle.Worker(adapters=[adapter]):             # somebody to wait for
        two = ranks(CLOSED_IN_A_WAIT, adapter)
        for said in ([r.json(120) for _ in range(2)] for r in two):
            assert [(s["failed"][0], s["late"]) for s in said] == [("Closed", False)] * 2
        assert [r.end(sign=None) for r in two] == [0, 0]


class Alone:
    """A process group of this process alone; `gather` is what its collective does."""

    def __init__(self, gather):
        self.all_gather_object = lambda told, value, group: gather(told)


def _collective(gather):
    from heddle._collective import Collective
    made = Collective.__new__(Collective)
    made.rank, made.size, made.group, made._caught, made._dist = 0, 1, None, None, Alone(gather)
    return made


def test_a_ctrl_c_that_comes_in_a_turn_is_the_first_of_two():
    comes = threading.Event()
    group = _collective(lambda _: comes.wait(20))       # a peer that stands still
    second = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), group.one_call():
        second.start()
        group.in_turns(lambda: signal.raise_signal(signal.SIGINT), lambda: None)
    assert not comes.is_set() and group._caught is None
    comes.set()


def test_a_ctrl_c_while_the_ranks_hear_of_a_failure_is_raised_and_none_of_the_next_call():
    failure = heddle.Unavailable("on another rank", code="unavailable", exit=6)
    is_heard = threading.Event()

    def handle(*_):
        is_heard.set()
        raise KeyboardInterrupt

    def fail(told):
        os.kill(os.getpid(), signal.SIGINT)
        is_heard.wait(20)
        told[:] = [(False, failure)]
    before = signal.signal(signal.SIGINT, handle)
    try:
        group = _collective(fail)
        for call in (lambda: group.in_turns(lambda: None, lambda: None), lambda: group.agree(lambda: (1, 2))):
            with pytest.raises(KeyboardInterrupt), group.one_call():
                call()
            is_heard.clear()
    finally:
        signal.signal(signal.SIGINT, before)
    group._dist = Alone(lambda told: told.__setitem__(0, (True, 2)))
    with group.one_call():
        assert group.agree(lambda: (1, 2)) == (1, [2])


def test_two_ctrl_c_end_a_rank_whose_peer_stands_still(broker, adapter, ranks):
    zero, one = ranks(STOPPED, adapter)
    pids = [r.json(120)["pid"] for r in (zero, one)]
    os.kill(pids[1], signal.SIGSTOP)
    zero.say("go")
    for _ in range(2):
        time.sleep(1)                   # the first is kept for the next word, which never comes
        os.kill(pids[0], signal.SIGINT)
    assert zero.json(20) == {"failed": "KeyboardInterrupt"}
    zero.end(sign=None, timeout=20)


def test_fsdp2_every_rank_publishes(broker, adapter, tmp_path):
    model = models.lora()
    model.save_pretrained(tmp_path / "saved")
    config = tmp_path / "saved" / "adapter_config.json"
    with heddle.Worker(adapters=[adapter], name="ranks", apply="auto") as w:
        ranks = start(tmp_path, RANK, adapter, config, FIXTURES / "dora")
        try:
            zero, one = ([r.json(120)] for r in ranks)
            for r, said in ((ranks[0], zero), (ranks[1], one)):
                said += [r.json(120) for _ in range(3 + (r is ranks[0]) + 7 + 2)]
                assert r.end(sign=None) == 0
        except AssertionError:
            print(*((tmp_path / f"rank{r}.log").read_text()[-3000:] for r in range(2)), sep="\n----\n")
            raise
        full = zero.pop(4)["full"]
        assert zero == one, "what rank 0 met is what every rank met"
        first, active, step1, step2, back, absent, none, nowhere, each, away, late, alone, last = zero
        assert first["digest"] == heddle.safetensors.check(tmp_path / "saved").digest and first["sharded"] > 0
        assert active == {"active": 1, "workers": ["ranks"]}
        assert len({first["digest"], step1["digest"], step2["digest"]}) == 3 and step2["digest"] == full
        assert [x["failed"][:2] for x in (back, absent, none, nowhere, each, away, late)] == [
            ["Conflict", "step_back"], ["NotFound", "not_found"], ["UsageError", "usage"],
            ["NotFound", "not_found"], ["UsageError", "usage"], ["Unavailable", "unavailable"],
            ["Deadline", "deadline"]]
        assert "publish_each" in each["failed"][2]
        assert alone["alone"][0] == "UsageError" and "process_group" in alone["alone"][2]
        assert w.wait_current(30)[adapter].tag == last["tag"]


def test_a_process_group_needs_torch_distributed(broker, adapter):
    with pytest.raises(heddle.UsageError, match="not initialised"):
        heddle.Publisher(adapter=adapter, process_group=object())

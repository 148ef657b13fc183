# SPDX-License-Identifier: Apache-2.0
"""heddle.records has every field of docs/json.md and of real answers, and None where they may be null."""
import dataclasses
import json
import re
import subprocess
import types
import typing

import pytest

import heddle
from conftest import BIN, FIXTURES, ROOT
from heddle import _native
from heddle import records as r
from heddle.errors import named

PAGE = (ROOT / "docs" / "json.md").read_text()
KINDS = {"error": r.Reason, "rollout": r.RolloutInfo, "missing": r.Lacking, "adapter": r.AdapterInfo,
         "version": r.VersionInfo,
         "copy": r.Copy, "source": r.Source, "worker": r.WorkerInfo, "subscription": r.Subscription,
         "status": r.Status, "brokers": r.Brokers,
         "wait": r.WaitResult, "activate": r.ActivateResult, "verify": r.VerifyResult, "events": r.Event}


def rows(section):
    found = re.search(rf"^### {section}$(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert found, section
    return re.findall(r"^\| `([^`]+)` \| (.+?) \| .*\|$", found.group(1), re.M)


def step(hint, name):
    """The hint of a field, looking through Optional and lists."""
    while not dataclasses.is_dataclass(hint):
        inside = [a for a in typing.get_args(hint) if a not in (type(None), ...)]
        assert inside, f"{hint} has no fields"
        hint = inside[0]
    hints = typing.get_type_hints(hint)
    assert name in hints or name + "_" in hints, f"{hint.__name__} has no {name}"
    return hints.get(name, hints.get(name + "_"))


@pytest.mark.parametrize("section", KINDS)
def test_every_field_that_is_documented_is_there(section):
    told = rows(section)
    assert len(told) >= 3
    for path, kind in told:
        hint = KINDS[section]
        for part in path.split("."):
            hint = step(hint, part.removesuffix("[]"))
        if kind.endswith("?"):
            is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
            assert is_union and type(None) in typing.get_args(hint), f"{path} may be null"


def test_the_fields_of_one_version_are_there():
    for path, _ in rows("versions"):
        if "[]." in path:
            hint = r.VersionInfo
            for part in path.split("[].")[1].split("."):
                hint = step(hint, part)


def told(*command):
    return json.loads(subprocess.run([BIN / "heddle", *command, "-o", "json"], capture_output=True, text=True,
                                     timeout=60).stdout)


def plain(value):
    if dataclasses.is_dataclass(value):
        return {f.name.rstrip("_"): plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


MOVES = ("_ms", "_bytes", ".bytes_in", ".bytes_out", ".now_at")        # from one question to the next


def covers(theirs, ours, where):
    """Every field of the command's is ours, and equal where it does not change by itself."""
    if isinstance(theirs, dict) and not where.endswith(("meta", "labels", "config", "data")):
        lacking = set(theirs) - set(ours) - {"schema", "kind", "ok", "error"}
        assert not lacking, f"{where}: {lacking}"
        for k in set(theirs) & set(ours):
            covers(theirs[k], ours[k], f"{where}.{k}")
    elif isinstance(theirs, list):
        assert len(theirs) == len(ours), where
        for a, b in zip(theirs, ours):
            covers(a, b, where)
    elif not where.endswith(MOVES):
        assert theirs == ours, where


def test_answers_are_those_of_the_command_line(broker, adapter):
    with heddle.Worker(adapters=[adapter], name="told", labels={"zone": "a"}, apply="auto"), \
            heddle.Publisher(adapter=adapter) as pub, heddle.Admin() as adm:
        pub.publish_dir(FIXTURES / "plain", step=3, meta={"run": "x"}).wait(min=1, timeout=60)
        covers(told("versions", adapter)["versions"], plain(adm.versions(adapter)), "versions")
        covers(told("versions", f"{adapter}@1")["versions"], plain(adm.versions(f"{adapter}@1")), "version")
        covers(told("workers", "told")["workers"], plain(adm.workers("told")), "workers")
        covers(told("adapters")["adapters"], plain(adm.adapters()), "adapters")
        covers(told("brokers"), plain(adm.brokers()), "brokers")
        covers(told("status"), plain(adm.status()), "status")
        covers(told("wait", adapter), plain(adm.wait(adapter)), "wait")
        covers(told("verify", adapter), plain(adm.verify(adapter)), "verify")
        covers(told("activate", f"{adapter}@1"), plain(adm.activate(f"{adapter}@1")), "activate")
        event = subprocess.run([BIN / "heddle", "events", "--limit", "1", "-o", "json"], capture_output=True,
                               timeout=60).stdout
        covers(json.loads(event), plain(next(adm.events(limit=1))), "event")
        assert (adm.status().broker.now_at and adm.status().broker.restored is None
                and adm.status().warnings == ())
        with pytest.raises(dataclasses.FrozenInstanceError):
            adm.status().broker.pid = 1
        with pytest.raises(heddle.RolloutFailed) as e:
            adm.verify(adapter, expected="h1:" + "0" * 64)
        assert e.value.code == "digest_mismatch" and [w.match for w in e.value.answer.workers] == [False]
        with pytest.raises(heddle.Deadline) as e:
            adm.wait(adapter, quorum=5, deadline=0.2)
        assert e.value.answer.need_count == 5 and e.value.answer.have_count == 1


def test_what_a_worker_says_names_arguments_of_python():
    said = "all 2 slots are in use; hint: release snapshots, or run the worker with more opts.slots"
    row = r.decode(r.Copy, {"worker": "w1", "message": said})
    assert row.message == said.replace("opts.slots", "slots=")
    assert named("opts.deadline_ms and opts.max_rate_bytes") == "deadline= and max_rate="
    assert _native.spoken("run the worker with more opts.slots") == "run the worker with a larger slots="
    assert _native.spoken("publish it again, with opts.step 7") == "publish it again, with step=7"


def test_what_is_wrong_with_a_broker_is_decoded():
    status = {"broker": {"restored": {"from": "w", "at": "T", "message": "knows more"}}, "count": {},
              "adapters": [],
              "warnings": [{"at": "T", "name": "broker.other_cluster", "message": "somebody"}]}
    found = r.decode(r.Status, status)
    assert found.broker.restored == r.Restored("w", "T", "knows more")
    assert found.warnings == (r.Notice("T", "broker.other_cluster", "somebody"),)


def test_a_version_is_staged_in_a_group_when_each_rank_has_it(adapter, broker):
    """With `as-ready` one of two ranks does not decide; both do."""
    how = {"adapters": [adapter], "apply": "auto", "group": "engine", "ranks": 2}
    with heddle.Publisher(adapter=adapter, activation="as-ready") as pub, heddle.Admin() as adm:
        with heddle.Worker(name="rank0", rank=0, **how) as one:
            ver = pub.publish_dir(FIXTURES / "plain")
            ver.wait(phase="staged", quorum=1, timeout=60)
            assert adm.workers("rank0")[0].group == r.Group("engine", 0, 2)
            assert adm.versions(ver.tag)[0].state == "staging" and one.current(adapter) is None
            with heddle.Worker(name="rank1", rank=1, **how) as other:
                other.wait_current(60)
                one.wait_current(60)
                assert one.current(adapter).tag == other.current(adapter).tag == ver.tag
    with pytest.raises(heddle.UsageError, match="a rank is of a group"):
        heddle.Worker(adapters=[adapter], rank=1, ranks=2)
    with pytest.raises(heddle.UsageError, match="rank 2 of 2"):
        heddle.Worker(adapters=[adapter], group="engine", rank=2, ranks=2)

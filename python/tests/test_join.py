# SPDX-License-Identifier: Apache-2.0
"""Worker(join=...): one string names the broker and has the worker's own key entered."""
import json
import os
import subprocess
import sys

import pytest
from conftest import BIN, until

import heddle


def test_a_worker_joins_by_one_string(broker, adapter, tmp_path, monkeypatch):
    own = dict(os.environ)

    def command(*args):
        told = subprocess.run([BIN / "heddle", *args, "-q", "-o", "json"], check=True, env=own,
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        return json.loads(told.stdout)

    made = command("invite", "--role", f"worker:{adapter}", "--name", adapter[:100])
    monkeypatch.delenv("HEDDLE_BROKER")
    monkeypatch.setenv("HEDDLE_KEYS", str(tmp_path / "ring"))      # as on another host
    file = tmp_path / "join"
    file.write_text(made["join"] + "\n")
    file.chmod(0o600)
    for name, join in (("one", made["join"]), ("two", f"@{file}")):
        with heddle.Worker(adapters=[adapter], name=name, join=join):
            until(lambda: any(w["name"] == name and w["state"] == "ready"
                              for w in command("workers")["workers"]), "it has joined")
    rows = {row["name"]: row for row in command("keys", "list")["keys"]}
    assert rows[adapter[:100]]["invitation"]["used_count"] == 1        # one key, for both
    assert os.stat(tmp_path / "ring" / "client.key").st_mode & 0o777 == 0o600
    with pytest.raises(heddle.HeddleError) as torn:
        heddle.Worker(adapters=[adapter], join=made["join"][:-1])
    assert torn.value.code == "usage" and made["join"][20:60] not in str(torn.value)
    with pytest.raises(heddle.HeddleError) as both:
        heddle.Worker(broker.endpoint, adapters=[adapter], join=made["join"])
    assert both.value.code == "usage" and "join" in str(both.value)


def test_the_variable_does_not_reach_children(broker, adapter, tmp_path):
    made = json.loads(subprocess.run(
        [BIN / "heddle", "invite", "--role", f"worker:{adapter}", "-q", "-o", "json"], check=True,
        stdout=subprocess.PIPE).stdout)
    environment = {name: value for name, value in os.environ.items() if name != "HEDDLE_BROKER"}
    program = """
import os, subprocess, sys
import heddle
for name in "12":           # the second one needs it as well
    with heddle.Worker(adapters=[sys.argv[1]], name=sys.argv[1][-24:] + name, apply="auto") as w:
        while w.stats()["joined"] is None:
            next(w.updates(timeout=0.1), None)
print(subprocess.run(["env"], stdout=subprocess.PIPE, text=True).stdout, dict(os.environ))
"""
    told = subprocess.run([sys.executable, "-c", program, adapter], check=True, stdout=subprocess.PIPE,
                          text=True, env={**environment, "HEDDLE_JOIN": made["join"],
                                          "HEDDLE_KEYS": str(tmp_path / "ring")}).stdout
    assert "HEDDLE_KEYS" in told and made["join"][20:60] not in told and "HEDDLE_JOIN" not in told


@pytest.mark.parametrize("how", [{"broker": "{}"}, {"adapters": ["{}"]}, {"name": "{}"},
                                 {"labels": {"a": "{} b"}}, {"accepts": ["{}"]}, {"host_share": "{}"}])
def test_an_error_does_not_repeat_a_string_that_came_where_none_is_expected(adapter, how):
    secret = "heddle-join-1:" + "pQ5-_x" * 40

    def filled(given):
        if isinstance(given, dict):
            return {key: filled(value) for key, value in given.items()}
        return [filled(v) for v in given] if isinstance(given, list) else given.format(secret)
    with pytest.raises(heddle.HeddleError) as e:
        heddle.Worker(**{"adapters": [adapter], **filled(how)})
    assert secret[20:40] not in str(e.value) and secret[20:40] not in repr(e.value)

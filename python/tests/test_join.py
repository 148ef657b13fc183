# SPDX-License-Identifier: Apache-2.0
"""Worker(join=...): one string names the broker and has the worker's own key entered."""
import json
import os
import subprocess

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

# SPDX-License-Identifier: Apache-2.0
"""What a program that uses the package sees of its types: mistakes are found, and right calls are right."""
import pathlib
import subprocess
import sys

import pytest

import heddle

RIGHT = """
import heddle
pub = heddle.Publisher(adapter="policy", activation="as-ready", if_unchanged="fail")
version: str = heddle.__version__
async def ask(adm: heddle.AsyncAdmin) -> int:
    return (await adm.wait("policy", phase="staged", quorum=2, deadline=1.0)).have_count
def lacking(e: heddle.HeddleError) -> int:
    return len(e.rollout.missing) if e.rollout is not None else 0
heddle.safetensors.publish(pub, "out", step=3)
heddle.peft.load_into(None, {})
for u in heddle.Worker(adapters=["policy"], apply="auto").updates():
    assert u.phase in ("active", "retired")
"""
WRONG = {
    'heddle.Publishr(adapter="policy")': "attr-defined",
    'heddle.Publisher(activation="some")': "arg-type",
    'heddle.Publisher(if_unchanged="maybe")': "arg-type",
    'heddle.Worker(apply="never")': "arg-type",
    'heddle.Admin().wait("policy", phase="done")': "arg-type",
    'heddle.AsyncAdmin().wait("policy", quorm=2)': "call-arg",
    'heddle.AsyncAdmin().verify("policy", expect="h1:")': "call-arg",
    'heddle.AsyncAdmin().activate("policy", dryrun=True)': "call-arg",
    'heddle.safetensors.publish(heddle.Publisher(), "out", stepp=3)': "call-arg",
    'next(heddle.Worker().updates()).phase == "arived"': "comparison-overlap",
    'heddle.HeddleError("m").rollout.missing': "union-attr",
}


def test_a_program_of_a_user_is_checked(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    home = pathlib.Path(heddle.__file__).parents[1]
    path = {} if home.name == "site-packages" else {"MYPYPATH": str(home)}
    said = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                           "--ignore-missing-imports",
                           "--cache-dir", str(tmp_path / "cache"),
                           str(program)], capture_output=True, text=True, cwd=tmp_path,
                          env=path, timeout=300).stdout.splitlines()
    first = RIGHT.count("\n") + 1
    for line, (text, code) in enumerate(WRONG.items(), first):
        assert any(f"program.py:{line}:" in it and f"[{code}]" in it for it in said), (text, said)
    assert {it.split(":")[1]
            for it in said if ": error:" in it} == {str(n) for n in range(first, first + len(WRONG))}, said

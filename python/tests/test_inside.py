# SPDX-License-Identifier: Apache-2.0
"""What plugins inside engines share: the header that says a version, and names of an engine that are looked
for.  The leader is in test_vllm.py and test_sglang.py, with what each engine does.
"""
from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

import pytest

from heddle._inside import answers, leader, seams, switch


@dataclass(eq=False)
class Named:
    tag: str
    uses: int = 0


@pytest.mark.parametrize("takes, expected", [((), None), ((1,), b"policy@1:abc"),
                                             ((1, 2, 1), b"policy@1:abc, policy@2:abc")])
@pytest.mark.parametrize("is_early", [True, False])
def test_the_head_waits_for_the_request(takes, expected, is_early):
    """SGLang sends the head of a stream before it looks at the request."""
    versions, sent = {n: Named(f"policy@{n}:abc") for n in (1, 2)}, []

    async def app(scope, receive, send):
        start = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
        if is_early:
            await send(start)
        for n in takes:
            answers.current().add(versions[n])
        if not is_early:
            await send(start)
        for body in (b"1", b"2"):
            await send({"type": "http.response.body", "body": body})
        assert all(versions[n].uses == 1 for n in takes)

    async def send(message):
        sent.append(message)

    async def nothing():
        raise AssertionError("not of a request")
    asyncio.run(answers.Middleware(app, nothing, nothing, waits=True)({"type": "http"}, None, send))
    assert [message.get("body") for message in sent] == [None, b"1", b"2"]
    headers = dict(sent[0]["headers"])
    assert headers.pop(b"a") == b"b" and headers == ({answers.HEADER: expected} if expected else {})
    assert [v.uses for v in versions.values()] == [0, 0]


def test_the_log_says_once_that_there_is_no_session_and_once_that_there_is():
    session = leader.Session()
    assert session.line(False, 10.0) is None and session.line(False, 14.9) is None
    assert "HEDDLE_BROKER" in session.line(False, 15.0)
    assert session.line(False, 16.0) is None and session.line(False, 99.0) is None
    assert "again" in session.line(True, 100.0)
    assert session.line(True, 101.0) is None
    assert session.line(False, 102.0) is None and session.line(True, 106.9) is None, "it came back soon"
    assert session.line(False, 107.0) is None and "HEDDLE_BROKER" in session.line(False, 112.0)


def test_the_leader_begins_and_ends_with_the_server():
    log = []

    async def say(what):
        log.append(what)
    middleware = answers.Middleware(lambda *_: say("serves"), lambda: say("stop"),
                                            lambda: say("start"))
    asyncio.run(middleware({"type": "lifespan"}, None, None))
    assert log == ["start", "serves", "stop"]


def maker(of):
    @functools.wraps(of)
    def made():
        return [used_inside(a) for a in of]     # noqa: F821
    return made


@pytest.mark.parametrize("seam, words", [
    (seams.Function("json", "dumps", ("obj",), uses=("encode",)), None),
    (seams.Function(__name__, "maker", ("of",), uses=("wraps", "made", "used_inside")), None),
    (seams.Function(__name__, "maker", ("of",), uses=("made", "used_outside")),
     f"{__name__}.maker does not use used_outside"),
    (seams.Function("json", "dumps", ("object",)), "json.dumps takes obj"),
    (seams.Function("json", "dumps", ("obj",), uses=("decode",)), "json.dumps does not use decode"),
    (seams.Function("json", "gone", ()), "json has no gone"),
    (seams.Global("no_module", "a"), "no_module has no a"),
    (seams.Function("json", "JSONEncoder.encode", ("self", "o")), None),
    (seams.Attribute("json", "JSONEncoder", "whatever"), None),
    (seams.Attribute("json", "Gone", "whatever"), "json has no Gone")])
def test_names_of_an_engine_are_looked_for(seam, words):
    assert seams.missing([seam]) == ([words] if words else [])


@pytest.mark.parametrize("checks, words, log", [
    ((), None, ["on"]), ((None, None), None, ["on"]), ((None, "no GPU", "later"), "no GPU", []),
    ((None, KeyError("a")), "KeyError: 'a'", [])])
def test_the_first_check_that_says_why_keeps_a_plugin_off(checks, words, log):
    done = []

    def check(what):
        if isinstance(what, Exception):
            raise what
        return what
    assert switch.why_not(lambda: done.append("on"), *(functools.partial(check, c) for c in checks)) == words
    assert done == log
    assert switch.why_not(lambda: check(OSError("no place"))) == "OSError: no place"


@pytest.mark.parametrize("broker, adapters, words", [
    ("", "policy", "HEDDLE_BROKER does not say"), ("tcp://a:1", " , ", "HEDDLE_ADAPTERS names no adapter"),
    ("tcp://a:1", "a, b", None)])
def test_what_turns_a_plugin_on_is_in_the_environment(monkeypatch, broker, adapters, words):
    monkeypatch.setenv("HEDDLE_BROKER", broker)
    monkeypatch.setenv("HEDDLE_ADAPTERS", adapters)
    found = switch.what_is_missing()
    assert (found is None) if words is None else (words in found)
    assert switch.adapters() == {"policy": ["policy"], " , ": [], "a, b": ["a", "b"]}[adapters]

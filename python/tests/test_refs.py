# SPDX-License-Identifier: Apache-2.0
"""References to a version: the tag that every sample carries, and what has one."""
import asyncio
import dataclasses

import pytest

import heddle
from conftest import FIXTURES


@pytest.fixture
def served(broker, adapter):
    with heddle.Worker(adapters=[adapter], apply="auto") as w, heddle.Publisher(adapter=adapter) as pub:
        first = pub.publish_dir(FIXTURES / "plain")
        first.wait(min=1, timeout=60)
        second = pub.publish_dir(FIXTURES / "dora")
        second.wait(min=1, timeout=60)
        yield pub, first, second, w


def asked(name, ref, **how):
    async def run():
        async with heddle.AsyncAdmin() as adm:
            return await getattr(adm, name)(ref, **how)
    return asyncio.run(run())


def test_a_tag_is_the_version_that_it_came_from(served):
    _, first, second, w = served
    with w.acquire(second.adapter) as sample, heddle.Admin() as adm:
        for ref in (second.tag, second, sample, w.current(second.adapter), adm.versions(second.tag)[0]):
            for found in (adm.versions(ref), asked("versions", ref)):
                assert [v.tag for v in found] == [second.tag]
            assert adm.wait(ref).version == asked("wait", ref).version == 2
            assert adm.verify(ref).version == asked("verify", ref).version == 2
        assert adm.activate(first.tag).to == 1 and w.current(first.adapter).tag == first.tag
        assert asked("activate", second).to == 2
        assert next(a.held for a in adm.adapters() if a.name == second.adapter) is None


def test_a_tag_of_other_bytes_is_not_found(served):
    _, first, second, w = served
    other = f"{second.adapter}@1:{second.tag[-12:]}"
    with heddle.Admin() as adm:
        for ask in (adm.versions, adm.wait, adm.verify, adm.activate, lambda ref: asked("activate", ref)):
            for ref in (other, dataclasses.replace(first, tag=other)):
                with pytest.raises(heddle.NotFound, match="has another digest") as e:
                    ask(ref)
                assert (e.value.expected, e.value.found) == (other, first.tag)
        assert adm.versions(second)[0].state == "active"
        for wrong in (first.tag[:-1], f"{first.adapter}:{first.tag[-12:]}", None, 5, heddle):
            with pytest.raises(heddle.UsageError):
                adm.versions(wrong)
    assert w.current(second.adapter).version == 2


def test_a_publisher_reports_of_a_version(served):
    pub, first, second, _ = served
    assert pub.report(second).active_count == pub.report(2).active_count == 1
    assert pub.report(first) == pub.report(1)
    with pytest.raises(heddle.UsageError, match="another adapter") as e:
        pub.report(dataclasses.replace(second, adapter="other", tag="other@2:3f9a1c20d4e1"))
    assert e.value.found == "other@2:3f9a1c20d4e1"
    with pytest.raises(heddle.UsageError, match="own versions") as e:
        pub.report(second.tag)
    assert (e.value.found, e.value.hint) == (second.tag, "Admin.versions takes a tag")
    with pytest.raises(heddle.NotFound):
        pub.report(dataclasses.replace(second, version=9))

# SPDX-License-Identifier: Apache-2.0
"""The plug's decisions (heddle/engine/plan.py), in virtual time."""
import random

import pytest

from heddle.engine import names
from heddle.engine.plan import Activate, Discard, Kind, Load, Plan, Reject, Staged, State, Unload

DIR = "/x"


def path(version, adapter="policy"):
    return f"{DIR}/{adapter}@{version}-{version:012x}"


def name(version, adapter="policy"):
    return f"{adapter}@{version}"


def adapter_of(at):
    found = names.read_folder(at, DIR)
    return found.adapter if found else None


class Rig:
    """A plan with servers that do what they are told, unless told otherwise."""

    def __init__(self, count=1, room=None, load_s=60.0, drain_s=30.0, up=True):
        self.now, self.room = 0.0, room
        self.plan = Plan([f"http://s{i}" for i in range(count)], load_s=load_s, drain_s=drain_s,
                         adapter_of=adapter_of)
        self.has = [{} for _ in range(count)]
        if up:
            for i in range(count):
                self.see(i)

    def see(self, i):
        return self.plan.seen(self.now, i, self.has[i], self.room)

    def arrive(self, version, adapter="policy"):
        self.plan.arrived(self.now, adapter, version, name(version, adapter), path(version, adapter))

    def step(self, after=0.0):
        self.now += after
        return self.plan.step(self.now)

    def done(self, i):
        job = self.plan.servers[i].job
        if isinstance(job, Load):
            self.has[i][job.name] = job.path
            self.plan.loaded(self.now, i)
        else:
            self.has[i].pop(job.name, None)
            self.plan.unloaded(self.now, i)

    def settle(self):
        """Everything that can be done is done; returns the answers to the worker, and what was discarded."""
        said = []
        for _ in range(200):
            actions = self.step()
            if not actions:
                return said
            for action in actions:
                if isinstance(action, (Load, Unload)):
                    self.done(action.server)
                elif isinstance(action, Activate):
                    self.plan.activated(self.now, action.adapter, action.number)
                    said.append(action)
                else:
                    said.append(action)
        raise AssertionError("it never comes to rest")

    def serve(self, version):
        """Arrives, is staged, is activated."""
        self.arrive(version)
        assert self.settle() == [Staged("policy", version)]
        assert self.plan.commit(self.now, "policy", version)
        said = self.settle()
        assert said[0] == Activate("policy", version)
        return said

    def state(self, version, adapter="policy"):
        v = self.plan.versions.get((adapter, version))
        return v and v.state


def test_staged_when_the_server_answers_for_the_name_and_not_before():
    r = Rig()
    r.arrive(57)
    assert r.step() == [Load(0, "policy@57", path(57), 60.0)]
    assert r.step(5.0) == []
    r.done(0)
    assert r.step() == [Staged("policy", 57)]
    assert r.step(1000.0) == [] and r.state(57) is State.STAGED


def test_all_servers_must_have_it_before_it_is_staged():
    r = Rig(3)
    r.arrive(1)
    assert [a.server for a in r.step()] == [0, 1, 2]
    r.done(0)
    r.done(2)
    assert r.step() == []
    r.done(1)
    assert r.step() == [Staged("policy", 1)]


def test_one_refusal_rejects_with_the_servers_words_and_unloads_at_the_others():
    r = Rig(2)
    r.arrive(1)
    r.step()
    r.done(0)
    r.plan.refused(r.now, 1, "LoRA rank 64 is greater than max_lora_rank 16.", Kind.LASTING)
    actions = r.step()
    assert actions == [Reject("arrived", "policy", 1, "http://s1: LoRA rank 64 is greater than max_lora_rank "
                                                      "16."), Unload(0, "policy@1", False)]
    r.done(0)
    # whether it is at the second one is known when that has been looked at
    assert r.step() == []
    r.see(1)
    assert r.step() == [Discard(path(1))]
    assert r.has == [{}, {}] and r.plan.is_idle()


def test_what_was_loaded_and_does_not_answer_is_unloaded():
    r = Rig()
    r.arrive(1)
    r.step()
    r.has[0]["policy@1"] = path(1)
    r.plan.refused(r.now, 0, "The model `policy@1` does not exist.", Kind.LASTING)
    assert r.step() == [Reject("arrived", "policy", 1, "http://s0: The model `policy@1` does not exist.")]
    r.see(0)
    r.now += 1.0
    assert r.settle() == [Discard(path(1))] and r.has == [{}]


def test_a_server_that_blames_itself_is_asked_three_times():
    r = Rig()
    r.arrive(1)
    for _ in range(2):
        assert isinstance(r.step(1.0)[0], Load)
        r.plan.refused(r.now, 0, "out of memory", Kind.DOUBTFUL)
        assert r.step() == []           # a pause first
    assert isinstance(r.step(1.0)[0], Load)
    r.plan.refused(r.now, 0, "out of memory", Kind.DOUBTFUL)
    assert r.step()[0] == Reject("arrived", "policy", 1, "http://s0: out of memory")


def test_other_words_are_another_failure():
    r = Rig()
    r.arrive(1)
    for i in range(8):
        assert isinstance(r.step(3.0)[0], Load)
        r.plan.refused(r.now, 0, f"failure {i % 2}", Kind.DOUBTFUL)
    assert r.state(1) is State.LOADING


def test_a_passing_refusal_is_tried_until_the_deadline_with_growing_pauses():
    r = Rig(load_s=20.0)
    r.arrive(1)
    times = []
    while True:
        actions = r.step()
        if any(isinstance(a, Reject) for a in actions):
            break
        if actions:
            times.append(r.now)
            r.plan.refused(r.now, 0, "503, starting", Kind.PASSING)
        r.now = r.plan.wake()
    pauses = [round(b - a, 3) for a, b in zip(times, times[1:])]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0] and max(pauses) == 2.0
    assert r.now == 20.0 and actions[0].words == "http://s0: 503, starting"


def test_nothing_wakes_for_what_is_over():
    r = Rig(2)
    r.arrive(1)
    r.step()
    r.plan.refused(r.now, 0, "bad rank", Kind.LASTING)
    r.done(1)
    r.settle()
    assert r.step(10.0) == [] and r.plan.wake() == float("inf")


def test_a_server_that_does_not_finish_is_named_at_the_deadline():
    r = Rig(2, load_s=10.0)
    r.arrive(1)
    r.step()
    r.done(0)
    assert r.plan.wake() == 10.0
    assert r.step(10.0)[0] == Reject("arrived", "policy", 1,
                                     "http://s1: does not answer for policy@1 after 10 s")
    r.done(0)
    r.plan.refused(r.now, 1, "no answer", Kind.PASSING)          # its call ends at last
    r.see(1)
    assert r.settle() == [Discard(path(1))]


def test_a_server_that_is_away_at_the_deadline_is_named_with_the_reason():
    r = Rig(2, load_s=10.0)
    r.plan.away(0.0, 1, "/v1/models: Connection refused")
    r.arrive(1)
    assert r.settle() == []
    assert r.step(10.0)[0].words == "http://s1: /v1/models: Connection refused"


def test_commit_activates_and_the_old_one_goes_on_answering():
    r = Rig()
    r.serve(1)
    r.serve(2)
    assert (r.state(1), r.state(2)) == (State.KEPT, State.ACTIVE)
    assert set(r.has[0]) == {"policy@1", "policy@2"}


def test_a_way_back_needs_no_load():
    r = Rig()
    r.serve(1)
    r.serve(2)
    assert r.plan.commit(r.now, "policy", 1)
    assert r.step() == [Activate("policy", 1)]
    r.plan.activated(r.now, "policy", 1)
    assert (r.state(1), r.state(2)) == (State.ACTIVE, State.KEPT)


def test_a_commit_of_a_version_that_is_not_here_has_to_arrive_first():
    r = Rig()
    assert not r.plan.commit(0.0, "policy", 1)
    r.serve(1)
    r.plan.gone(r.now, "policy", 1)
    assert not r.plan.commit(r.now, "policy", 1)


def test_retired_is_unloaded_and_then_discarded():
    r = Rig(2)
    r.serve(1)
    r.serve(2)
    r.plan.gone(r.now, "policy", 1)
    assert [a for a in r.step()] == [Unload(0, "policy@1", False), Unload(1, "policy@1", False)]
    r.done(0)
    assert not any(isinstance(a, Discard) for a in r.step())     # the other one still has it
    r.done(1)
    assert r.step() == [Discard(path(1))]


def test_unloading_waits_for_requests_until_the_drain_time_is_over():
    r = Rig(drain_s=30.0)
    r.serve(1)
    r.serve(2)
    r.plan.gone(r.now, "policy", 1)
    gone = r.now
    while True:
        job = next((a for a in r.step() if isinstance(a, Unload)), None)
        if job and job.force:
            break
        if job:
            r.plan.refused(r.now, 0, "requests that name it are under way", Kind.PASSING)
        r.now = max(r.plan.wake(), r.now)
        assert r.now < gone + 40
    assert r.now >= gone + 30.0


def test_draining_holds_up_no_load():
    r = Rig()
    r.serve(1)
    r.serve(2)
    r.plan.gone(r.now, "policy", 1)
    r.step()
    r.plan.refused(r.now, 0, "busy", Kind.PASSING)
    r.arrive(3)
    assert r.step() == [Load(0, "policy@3", path(3), r.now + 60.0)]


def test_a_server_that_waits_for_requests_fails_no_version():
    """As SGLang: an unload waits for the requests of its name, and loads wait meanwhile."""
    r = Rig(2, load_s=8.0, drain_s=3.0)
    r.serve(1)
    r.serve(2)
    r.plan.gone(r.now, "policy", 1)
    r.step(3.5)
    r.plan.refused(r.now, 0, "under way", Kind.PASSING)
    r.done(1)
    assert Unload(0, "policy@1", True) in r.step(1.0)
    r.arrive(3)
    assert r.step() == [Load(1, "policy@3", path(3), r.now + 8.0)]
    r.done(1)
    del r.has[0]["policy@1"]             # it forgets the name at once
    for _ in range(30):                  # much longer than load_s
        r.plan.refused(r.now, 0, "under way", Kind.WAITING)
        assert r.see(0) == []
        assert all(action == Unload(0, "policy@1", True)
                   for action in r.step(0.05)), "no load, no refusal, no discard"
        r.step(2.0)
        assert r.plan.servers[0].job == Unload(0, "policy@1", True)
    r.done(0)
    actions = r.step()
    assert actions == [Load(0, "policy@3", path(3), actions[0].deadline),
                       Discard(path(1))] and actions[0].deadline > r.now + 7.0
    r.done(0)
    assert Staged("policy", 3) in r.settle()


def test_a_server_that_dies_while_it_waits_is_done_with_it():
    r = Rig(load_s=8.0)
    r.serve(1)
    r.serve(2)
    r.plan.gone(r.now, "policy", 1)
    r.step()
    r.plan.refused(r.now, 0, "under way", Kind.WAITING)
    r.has[0] = {}
    r.plan.away(r.now, 0, "Connection refused")
    r.see(0)
    assert r.settle() == [Discard(path(1))] and set(r.has[0]) == {"policy@2"}


def test_a_failed_rollout_takes_the_loading_version_away():
    r = Rig()
    r.arrive(1)
    r.step()
    r.plan.gone(r.now, "policy", 1)
    assert r.step() == []               # the load is under way: what comes of it is unloaded
    r.done(0)
    assert r.settle() == [Discard(path(1))] and r.has == [{}]


def test_a_restarted_server_gets_everything_again_the_active_first():
    r = Rig()
    r.serve(1)
    r.serve(2)
    r.arrive(3)
    r.settle()
    r.plan.away(r.now, 0, "Connection refused")
    assert r.step() == []
    r.has[0] = {}
    assert sorted(r.see(0)) == ["policy@1", "policy@2", "policy@3"]
    order = []
    while actions := r.step():
        order += [a.name for a in actions]
        r.done(0)
    assert order == ["policy@2", "policy@3", "policy@1"]


def test_a_restart_in_the_middle_of_a_load():
    r = Rig(2)
    r.arrive(1)
    r.step()
    r.done(0)
    r.plan.refused(r.now, 1, "Connection reset by peer", Kind.PASSING)
    r.plan.away(r.now, 1, "Connection refused")
    assert r.step(5.0) == []
    r.see(1)
    assert r.settle() == [Staged("policy", 1)]


def test_a_restart_between_staged_and_commit_delays_activation_until_it_is_loaded_again():
    r = Rig(2)
    r.arrive(1)
    assert r.settle() == [Staged("policy", 1)]
    r.has[1] = {}
    r.plan.away(r.now, 1, "Connection refused")
    r.plan.commit(r.now, "policy", 1)
    assert r.step(3.0) == []
    assert r.see(1) == ["policy@1"]
    assert r.step() == [Load(1, "policy@1", path(1), r.now - 3.0 + 60.0)]
    r.done(1)
    assert r.step() == [Activate("policy", 1)]


def test_a_commit_that_a_server_never_carries_out_is_refused_as_a_commit():
    r = Rig(load_s=10.0)
    r.serve(1)
    r.arrive(2)
    r.settle()
    r.plan.away(r.now, 0, "Connection refused")
    r.plan.commit(r.now, "policy", 2)
    assert r.step(10.0) == [Reject("commit", "policy", 2, "http://s0: Connection refused")]
    assert (r.state(1), r.state(2)) == (State.ACTIVE, State.STAGED)


def test_an_overtaken_activation_leaves_what_was_active():
    r = Rig()
    r.serve(1)
    r.arrive(2)
    r.settle()
    r.plan.commit(r.now, "policy", 2)
    assert r.step() == [Activate("policy", 2)]
    r.plan.overtaken(r.now, "policy", 2)
    assert (r.state(1), r.state(2)) == (State.ACTIVE, State.STAGED)
    assert r.step() == []


def test_a_commit_of_the_active_version_is_answered_as_any_other():
    """The decision went back to it while another one was being switched to."""
    r = Rig(2)
    r.serve(1)
    r.arrive(2)
    r.settle()
    r.plan.away(r.now, 1, "Connection refused")
    r.plan.commit(r.now, "policy", 2)
    assert r.step() == []
    assert r.plan.commit(r.now, "policy", 1)
    r.see(1)
    assert set(r.step()) == {Activate("policy", 1), Activate("policy", 2)}
    r.plan.overtaken(r.now, "policy", 2)
    r.plan.activated(r.now, "policy", 1)
    assert (r.state(1), r.state(2)) == (State.ACTIVE, State.STAGED)
    assert r.step() == [] and r.plan.is_idle()


def test_one_version_is_active_however_decisions_go_to_and_fro():
    r = Rig()
    r.serve(1)
    r.arrive(2)
    r.settle()
    for version in (2, 1, 2):
        r.plan.commit(r.now, "policy", version)
    r.plan.activated(r.now, "policy", 2)
    r.plan.overtaken(r.now, "policy", 1)
    assert (r.state(1), r.state(2)) == (State.KEPT, State.ACTIVE)


def test_an_arrival_that_is_said_again_is_answered_again():
    r = Rig()
    r.arrive(1)
    assert r.settle() == [Staged("policy", 1)]
    r.arrive(1)
    assert r.step() == [Staged("policy", 1)]


def test_names_of_an_earlier_run_are_taken_over():
    r = Rig(up=False)
    r.has[0] = {"policy@7": path(7), "policy@8": path(8)}
    r.see(0)
    assert r.step(100.0) == []          # nothing of it is unloaded before something is active
    r.arrive(8)
    assert r.step() == [Staged("policy", 8)]       # no load
    r.plan.commit(r.now, "policy", 8)
    r.step()
    r.plan.activated(r.now, "policy", 8)
    assert r.settle() == [] and r.has[0] == {"policy@8": path(8)}


def test_the_same_name_with_another_content_of_ours_is_replaced():
    r = Rig(up=False)
    r.has[0] = {"policy@8": f"{DIR}/policy@8-{999:012x}"}
    r.see(0)
    r.arrive(8)
    assert r.step() == [Unload(0, "policy@8", True)]
    r.done(0)
    assert r.settle() == [Staged("policy", 8)] and r.has[0] == {"policy@8": path(8)}


def test_a_name_that_somebody_else_loaded_is_left_alone_and_refused():
    r = Rig(up=False)
    r.has[0] = {"policy@8": "/home/me/lora", "other": "/home/me/other"}
    r.see(0)
    r.arrive(8)
    said = [a for a in r.settle() + r.settle() if isinstance(a, Reject)]
    assert [a.words for a in said] == ["http://s0: policy@8 is taken: loaded from /home/me/lora"]
    assert r.has[0] == {"policy@8": "/home/me/lora", "other": "/home/me/other"}


def test_room_is_made_by_what_is_kept():
    r = Rig(room=2)
    r.serve(1)
    r.serve(2)
    r.arrive(3)
    assert r.step() == [Unload(0, "policy@1", True)]
    r.done(0)
    assert r.settle() == [Staged("policy", 3)] and set(r.has[0]) == {"policy@2", "policy@3"}
    r.plan.commit(r.now, "policy", 1)   # and a way back loads it again
    r.plan.gone(r.now, "policy", 3)
    assert Activate("policy", 1) in r.settle()


def test_what_was_unloaded_for_room_is_not_loaded_for_nothing():
    r = Rig(room=2)
    r.serve(1)
    r.serve(2)
    r.serve(3)
    assert r.settle() == [] and set(r.has[0]) == {"policy@2", "policy@3"}


def test_no_room_is_a_reason_that_names_who_has_it():
    r = Rig(room=2)
    r.has[0]["mine"] = "/home/me/lora"
    r.see(0)
    r.serve(1)
    r.arrive(2)
    said = r.settle() + r.settle()
    assert said[0] == Reject("arrived", "policy", 2,
                             "http://s0: takes 2 adapters and has them: policy@1 active, mine")


def test_two_adapters_do_not_disturb_each_other():
    r = Rig()
    r.serve(1)
    r.arrive(1, "critic")
    r.settle()
    assert r.plan.commit(r.now, "critic", 1)
    assert r.settle() == [Activate("critic", 1)]
    assert (r.state(1), r.state(1, "critic")) == (State.ACTIVE, State.ACTIVE)


def test_when_the_session_ends_nothing_is_unloaded():
    r = Rig()
    r.serve(1)
    r.plan.left(r.now)
    assert r.settle() == [] and set(r.has[0]) == {"policy@1"}
    r.arrive(1)                         # the next session finds it as it is
    assert r.step() == [Staged("policy", 1)]


def test_a_server_that_stays_away_keeps_no_directory():
    r = Rig(2)
    r.serve(1)
    r.serve(2)
    r.plan.away(r.now, 1, "Connection refused")
    r.plan.gone(r.now, "policy", 1)
    assert r.settle() == [Discard(path(1))]
    r.see(1)                            # it was not restarted: what it has of ours goes now
    r.settle()
    assert set(r.has[1]) == {"policy@2"}


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events_comes_to_rest_with_every_server_alike(seed):
    """Invariants: a server has one job; STAGED and ACTIVATE only when every server has that content under
    that name; nothing that is in use is discarded; and when the world stays still, each server has what is
    wanted and nothing of ours besides."""
    rng = random.Random(seed)
    count, room = rng.choice([1, 2, 3]), rng.choice([None, 3, 4])
    r = Rig(count, room=room, load_s=30.0, drain_s=5.0)
    version, active = 0, None

    def check(action):
        if isinstance(action, (Staged, Activate)):
            for s in r.plan.servers:
                assert s.up and s.has[name(action.number)] == path(action.number)
        if isinstance(action, Discard):
            assert all(action.path not in s.has.values() for s in r.plan.servers if s.up)
            assert all(v.path != action.path or v.state is State.DROPPED for v in r.plan.versions.values())

    for _ in range(300):
        r.now += rng.choice([0, 0.05, 0.5, 3])
        what, i = rng.randrange(10), rng.randrange(count)
        s = r.plan.servers[i]
        staged = [v.number for v in r.plan.versions.values() if v.state is State.STAGED]
        if what == 0 and sum(v.state is not State.DROPPED for v in r.plan.versions.values()) < 3:
            version += 1
            r.arrive(version)
        elif what == 1 and staged:
            r.plan.commit(r.now, "policy", rng.choice(staged))
        elif what == 2:
            kept = [v.number for v in r.plan.versions.values()
                    if v.state in (State.KEPT, State.STAGED, State.LOADING)]
            if kept:
                r.plan.gone(r.now, "policy", rng.choice(kept))
        elif what == 3 and s.up and s.job is None:
            r.has[i] = {}
            r.plan.away(r.now, i, "Connection refused")
        elif what == 4 and s.job is None:
            r.see(i)
        elif what == 5 and s.job:
            r.plan.refused(r.now, i, "no", rng.choice(list(Kind)))
        elif what >= 6 and s.job:
            r.done(i)
        for action in r.step():
            check(action)
            if isinstance(action, Activate):
                r.plan.activated(r.now, "policy", action.number)
                active = action.number
    for _ in range(400):
        r.now += 1.0
        for i in range(count):
            r.done(i) if r.plan.servers[i].job else r.see(i)
        for action in r.step():
            check(action)
            if isinstance(action, Activate):
                r.plan.activated(r.now, "policy", action.number)
                active = action.number
    wanted = {v.name: v.path for v in r.plan.versions.values()}
    for i in range(count):
        assert set(r.has[i].items()) <= set(wanted.items()) or active is None
        if active and ("policy", active) in r.plan.versions:
            assert r.has[i][name(active)] == path(active)
    if room is None and active:
        assert all(has == wanted for has in r.has)


@pytest.mark.parametrize("text, why",
                         [("policy", "has no {version}"), ("{version}{x}", "names 'x'"),
                          ("{version", "is not a template"), ("{version!z}", "not a template"),
                                       ("-{version}", "letter or digit first"),
                          ("{adapter} {version}", "letters, digits"), ("{version:x>400}", "makes"),
                                       ("{version.x}", "names 'version.x'")])
def test_templates_that_would_not_do(text, why):
    with pytest.raises(ValueError, match=why):
        names.Template(text, ["policy"])


def test_templates():
    assert names.Template(names.DEFAULT, ["policy"]).name("policy", 57, "h1:" + "ab" * 32) == "policy@57"
    assert names.Template("v{version}-{digest}", ["policy"]).name("policy", 57,
                                                                  "h1:" + "ab" * 32) == "v57-abababababab"
    by_step = names.Template("{adapter}-v{step}", ["policy"])
    assert by_step.name("policy", 57, "h1:" + "ab" * 32, 400) == "policy-v400"
    assert names.Template("{version}-{step:06d}", ["policy"]).name("policy", 57, "h1:" + "ab" * 32,
                                                                   400) == "57-000400"
    with pytest.raises(ValueError, match="there are 2 adapters"):
        names.Template("v{version}", ["policy", "critic"])


def test_folders_say_their_content():
    folder = names.folder("my.policy-2", 57, "h1:" + "0f" * 32)
    assert names.read_folder(f"/x/{folder}", "/x") == ("my.policy-2", 57, "0f0f0f0f0f0f")
    for other in ("/x/policy@57", "/y/" + folder, "/x/y/" + folder, "/x/policy@57-xyz", "", "policy"):
        assert names.read_folder(other, "/x") is None

# SPDX-License-Identifier: Apache-2.0
"""What comes of every call to a server, and of every way in which it can fail (heddle/engine/servers.py)."""
import socket
import threading
import time
import types
from collections import deque

import pytest

from conftest import FIXTURES, at_most
from engine_double import ASKS, LOADS, UNLOADS, Double, calls, metrics
from heddle.engine.plan import Kind
from heddle.engine.releases import PRODUCTS, Content, Release, content_of
from heddle.engine.servers import KINDS, Away, Late, Refused, Sglang, Unfit, Vllm

PLAIN = str(FIXTURES / "plain")


@pytest.fixture(params=["vllm", "sglang"])
def double(request):
    it = Double(request.param)
    yield it
    it.gate.set()
    it.stop()


@pytest.fixture
def server(double):
    return KINDS[double.kind](double.url)


def test_load_ask_unload(double, server):
    server.check(5)
    server.load("policy@1", PLAIN, 5)
    server.ask("policy@1", 5)
    assert server.listing(5).names == {"policy@1": PLAIN}
    server.unload("policy@1", 5)
    assert server.listing(5).names == {}
    with pytest.raises(Refused) as e:
        server.ask("policy@1", 5)
    assert e.value.kind is Kind.LASTING


def test_it_tells_its_release(double, server):
    assert server.listing(5).release.text is None       # not asked yet
    server.check(5)
    assert server.listing(5).release == Release(double.kind, double.release)
    for fault in ("garbage", ("text", '{"version": 32}'), ("text", '{"version": "0.32.0 \\u001b[31m"}'),
                  ("text", "[]"), (503, "busy"), (401, "no")):
        double.faults[PRODUCTS[double.kind].path] = deque([fault])
        server.check(5)
        assert server.listing(5).release.text is None, fault


@pytest.mark.parametrize("config", [b"", b"[]", b"{", b"[" * 100000, b'{"target_modules": 7}',
                                    b'{"target_modules": [null, {}]}', b"\xff"])
def test_nonsense_in_a_config_names_no_module(config):
    found = content_of(["rslora"], config, ["m.lm_head.lora_A.weight", "layers.0.q.lora_A.weight"])
    assert found == Content(frozenset({"rslora"}), ("lm_head",))


def test_the_base_model_is_no_adapter(double, server):
    assert server.listing(5).names == {}


def test_already_loaded_is_told_apart(double, server):
    server.load("policy@1", PLAIN, 5)
    with pytest.raises(Refused, match="already") as e:
        server.load("policy@1", PLAIN, 5)
    assert e.value.taken and e.value.kind is Kind.LASTING


def test_unknown_path(double, server):
    with pytest.raises(Refused, match="/nowhere") as e:
        server.load("policy@1", "/nowhere", 5)
    assert not e.value.taken and e.value.kind is Kind.LASTING


def test_a_rank_that_is_too_large(double, server, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 64}')
    with pytest.raises(Refused, match="64") as e:
        server.load("policy@1", str(tmp_path), 5)
    # vLLM blames itself
    assert e.value.kind is (Kind.DOUBTFUL if double.kind == "vllm" else Kind.LASTING)


def test_unloading_what_is_not_there_is_done(double, server):
    server.unload("policy@1", 5)


@pytest.mark.parametrize("status, kind",
                         [(400, Kind.LASTING), (422, Kind.LASTING), (429, Kind.PASSING), (500, Kind.DOUBTFUL),
                          (502, Kind.PASSING),
                                          (503, Kind.PASSING), (504, Kind.PASSING)])
def test_statuses(double, server, status, kind):
    for table, call in ((LOADS, lambda: server.load("policy@1", PLAIN, 5)),
                        (ASKS, lambda: server.ask("policy@1", 5)),
                        (UNLOADS, lambda: server.unload("policy@1", 5))):
        double.faults[table[double.kind]].append((status, "what the server says"))
        with pytest.raises(Refused, match="what the server says") as e:
            call()
        assert e.value.kind is kind and not e.value.taken


@pytest.mark.parametrize("fault", ["hang", "reset"])
def test_no_answer(double, server, fault):
    for table, call in ((LOADS, lambda t: server.load("policy@1", PLAIN, t)),
                        (ASKS, lambda t: server.ask("policy@1", t)),
                        (UNLOADS, lambda t: server.unload("policy@1", t))):
        double.faults[table[double.kind]].append(fault)
        words = "no answer to .* within 0.3 s" if fault == "hang" else "reset|closed|aborted"
        if (double.kind, table, fault) == ("sglang", UNLOADS, "hang"):
            words = "under way"          # it does not answer before the requests of that name are over
        with at_most(3), pytest.raises((Away, Refused), match=words):
            call(0.3)


def test_nobody_listens(double, server):
    double.stop()
    with pytest.raises(Away, match="refused"):
        server.check(5)
    with pytest.raises(Away, match="refused"):
        server.load("policy@1", PLAIN, 5)


def test_an_answer_that_drips_ends_at_the_deadline():
    listener = socket.create_server(("127.0.0.1", 0))

    def drip():
        connection, _ = listener.accept()
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.02)
        except OSError:
            pass

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    began = time.monotonic()
    with at_most(3), pytest.raises(Away, match="within 0.5 s"):
        Vllm(f"http://127.0.0.1:{listener.getsockname()[1]}").load("policy@1", PLAIN, 0.5)
    assert time.monotonic() - began > 0.4
    thread.join(5)
    listener.close()


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nX: ",
                                       b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"])
def test_a_head_that_drips_ends_at_the_deadline(beginning):
    listener = socket.create_server(("127.0.0.1", 0))

    def drip():
        connection, _ = listener.accept()
        try:
            connection.sendall(beginning)
            while True:
                connection.sendall(b"a")
                time.sleep(0.02)
        except OSError:
            pass

    server = Vllm(f"http://127.0.0.1:{listener.getsockname()[1]}")
    found = []

    def load():
        try:
            server.load("policy@1", PLAIN, 0.5)
        except Away as e:
            found.append(str(e))

    threading.Thread(target=drip, daemon=True).start()
    caller = threading.Thread(target=load, daemon=True)
    began = time.monotonic()
    caller.start()
    caller.join(10)
    listener.close()
    assert not caller.is_alive() and time.monotonic() - began >= 0.4
    assert found == ["no answer to /v1/load_lora_adapter within 0.5 s"]


def test_an_answer_that_breaks_off_is_none():
    listener = socket.create_server(("127.0.0.1", 0))

    def break_off():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}")

    threading.Thread(target=break_off, daemon=True).start()
    with pytest.raises(Away):
        Vllm(f"http://127.0.0.1:{listener.getsockname()[1]}").load("policy@1", PLAIN, 30)
    listener.close()


def test_an_answer_without_end_is_not_taken_in():
    listener = socket.create_server(("127.0.0.1", 0))

    def flood():
        connection, _ = listener.accept()
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" " * 65536)
        except OSError:
            pass

    threading.Thread(target=flood, daemon=True).start()
    with pytest.raises(Away, match="an answer of more than"):
        Vllm(f"http://127.0.0.1:{listener.getsockname()[1]}").load("policy@1", PLAIN, 30)
    listener.close()


def test_what_is_no_json_is_refused_and_shown(double, server):
    double.faults["/v1/models"].append("garbage")
    with pytest.raises(Refused, match="a proxy's page") as e:
        server.listing(5)
    assert e.value.kind is Kind.PASSING


def test_json_without_bottom(double, server):
    deep = "[" * 200000
    double.faults["/v1/models"].append(("text", deep))
    with pytest.raises(Refused):
        server.listing(5)
    double.faults[LOADS[double.kind]].append(("text", deep))
    server.load("policy@1", PLAIN, 5)    # what a server says when all is well is nobody's business
    assert 0 < len(server._words(deep)) <= 400 and server._words("") == ""


@pytest.mark.parametrize("answer", [
    (404, "Not Found"), (401, "Unauthorized"), (503, "no upstream"), "garbage", ("text", ""),
    ("text", "\x00{"),
    ("text", "# HELP python_info\npython_info{version=\"3.12\"} 1.0\n"),
    ("text", "vllm:num_requests_running{} NaN\nvllm:num_requests_waiting{} NaN\n"),
    ("text", "vllm:num_requests_running{} 1.2.3\nvllm:num_requests_waiting{} 0.0\n"),
    ("text", "vllm:lora_requests_info{running_lora_adapters=\"\"} 1.7e+09\n"),
    ("text", metrics(1.7e9, engines=2))])
def test_a_vllm_that_does_not_tell_may_be_busy(answer):
    double = Double("vllm")
    server = Vllm(double.url)
    double.faults["/metrics"] = deque([answer] * 10)
    server.IDLE_S, server.IDLE_LOOKS = 0, 2
    assert [server.is_busy("policy@1", 5) for _ in range(10)] == [True] * 10
    assert [server.is_busy("policy@1", 5) for _ in range(2)] == [True, False], "now it tells"
    double.stop()


@pytest.mark.parametrize("may_be", [{"waiting": 1}, {"running": 1}, {"names": ["policy@2"], "waiting": 3}])
def test_requests_of_vllm_that_are_told_by_number_may_be_of_any_name(may_be):
    double = Double("vllm")
    server = Vllm(double.url)
    double.faults["/metrics"] = deque(("text", metrics(1.7e9 + i, **may_be)) for i in range(10))
    server.IDLE_S, server.IDLE_LOOKS = 0, 2
    assert [server.is_busy("policy@1", 5) for _ in range(10)] == [True] * 10
    assert [server.is_busy("policy@1", 5) for _ in range(2)] == [True, False]
    double.stop()


def test_one_step_of_vllm_is_looked_at_once_while_requests_run():
    double = Double("vllm")
    server = Vllm(double.url)
    server.IDLE_S, server.IDLE_LOOKS = 0, 3

    def looks(*steps, **running):
        double.faults["/metrics"] = deque(("text", metrics(1.7e9 + step, **running)) for step in steps)
        return [server.is_busy("policy@1", 5) for _ in steps]
    assert looks(1, 1, 1, 1, 1, 1, 2, 2, 3, names=["policy@2"]) == [True] * 8 + [False], "in one long step"
    assert looks(4, 4, 4) == [True, True, False], "without requests there are no steps"
    double.stop()


def test_a_vllm_that_has_made_no_step_yet_is_idle():
    double = Double("vllm")
    server = Vllm(double.url)
    text = "".join(f'vllm:num_requests_{what}{{engine="0"}} 0.0\n' for what in ("running", "waiting"))
    double.faults["/metrics"] = deque([("text", text)] * 3)
    assert server.listing(5).slots is None
    server.IDLE_S, server.IDLE_LOOKS = 0, 1
    assert server.is_busy("policy@1", 5) is False
    double.stop()


def test_long_words_are_cut(double, server):
    double.faults[LOADS[double.kind]].append((500, "line\n" * 1000))
    with pytest.raises(Refused) as e:
        server.load("policy@1", PLAIN, 5)
    assert len(str(e.value)) <= 400 and "\n" not in str(e.value)


@pytest.mark.parametrize("said, heard", [("bad \0 rank", "bad rank"), ("bad \ud800 rank", "bad ? rank"),
                                         ("bad\x1b[31m \u202erank\x85", "bad[31m rank"),
                                         ("Rang zu gro\u00df \u2260 8", "Rang zu gro\u00df \u2260 8")])
def test_words_that_no_line_takes(double, server, said, heard):
    double.faults[LOADS[double.kind]].append((400, said))
    with pytest.raises(Refused) as e:
        server.load("policy@1", PLAIN, 5)
    assert str(e.value) == heard


def test_names_that_no_line_takes_are_counted_and_none_of_ours(double, server):
    double.names = {"policy@1": PLAIN, "x\0\ud800": PLAIN, "policy@2\n": PLAIN}
    assert server.listing(5).names == {"policy@1": PLAIN, "x\\x00\\ud800": "", "policy@2\\n": ""}


def test_a_status_line_that_no_line_takes():
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"SMTP \0 what?\r\n\r\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(Away, match=r"^/v1/models: SMTP what\?$"):
        Sglang(f"http://127.0.0.1:{listener.getsockname()[1]}").listing(5)
    listener.close()


def test_vllm_without_runtime_updating_is_unfit_and_says_what_to_do():
    double = Double("vllm", runtime_updates=False)
    server = Vllm(double.url)
    with pytest.raises(Unfit) as e:
        server.check(5)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in e.value.hint
    with pytest.raises(Refused, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1") as refused:
        server.load("policy@1", PLAIN, 5)
    assert refused.value.kind is Kind.LASTING
    double.stop()


def test_sglang_without_lora_is_unfit():
    double = Double("sglang", runtime_updates=False)
    with pytest.raises(Unfit, match="serves no adapters") as e:
        Sglang(double.url).check(5)
    assert "--enable-lora" in e.value.hint
    double.stop()


def test_the_limits_of_a_server():
    double = Double("sglang", room=5, slots=3)
    server = Sglang(double.url)
    server.check(5)
    assert (server.listing(5).room, server.listing(5).slots) == (5, 3)
    double.stop()
    double = Double("vllm", slots=2)
    assert (Vllm(double.url).listing(5).room, Vllm(double.url).listing(5).slots) == (None, 2)
    double.stop()


def test_vllm_tells_who_is_busy_by_its_newest_line():
    double = Double("vllm")
    double.busy = {"policy@1", "policy@2"}
    server = Vllm(double.url)
    assert [server.is_busy(name, 5) for name in ("policy@1", "policy@2")] == [True, True]
    assert server.is_busy("policy@3", 5), "what only waits for room may be told nowhere"
    server.IDLE_S, server.IDLE_LOOKS = 0, 1
    assert [server.is_busy(name, 5) for name in ("policy@3", "old@1")] == [False, False]
    double.stop()


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds): so much later."""
    now = [1000.0]
    monkeypatch.setattr("heddle.engine.servers.time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def later(seconds):
        now[0] += seconds
    return later


def test_a_name_of_vllm_is_idle_when_there_was_room_for_a_while_and_nothing_of_it(clock):
    double = Double("vllm", slots=2)
    server = Vllm(double.url)
    server.IDLE_LOOKS = 3

    def looks(busy, *pauses):
        double.busy, found = set(busy), []
        for pause in pauses:
            clock(pause)
            found.append(server.is_busy("policy@1", 5))
        return found
    assert looks(["policy@1"], 0) == [True]
    assert looks([], 0.1, 0.9) == [True, True]
    assert looks(["policy@1"], 0.2) == [True], "it is busy again"
    assert looks([], 0.1, 0.9, 0.2) == [True, True, False]
    assert looks([], 0.1, 0.1, 0.1, 0.9) == [True, True, True, False], "so long at least"
    assert looks([], 0.1, 5, 0.1) == [True, True, False], "and so often"
    assert looks(["policy@2", "policy@3"], 0.1, 2, 2) == [True] * 3, "what is in no batch may wait for room"
    assert looks(["policy@2"], 0.1, 2, 2) == [True, True, False]
    assert looks([], 0.1, 60, 2, 2) == [True, True, True, False], "nobody followed the first look up"
    server.is_busy("policy@4", 5)
    clock(60)
    assert server.is_busy("policy@5", 5) and set(server._idle) == {"policy@5"}
    double.stop()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_moment_between_two_rounds_of_requests_is_not_idle(kind, clock, monkeypatch):
    """Six that came together end together, and each asks again: their server has none for a moment."""
    double = Double(kind)
    server = KINDS[kind](double.url)

    def is_busy(pause, *names):
        double.busy = set(names)
        clock(pause)
        return server.is_busy("policy@1", 5)
    for _ in range(8):
        assert is_busy(0.5, "policy@1") and is_busy(0.5) and is_busy(0.5)
    assert [is_busy(1) for _ in range(3)] == [True] * 3
    with monkeypatch.context() as m:
        m.setattr(server, "_look", lambda *_: (_ for _ in ()).throw(Late("no answer within 5 s")))
        with pytest.raises(Away):
            server.is_busy("policy@1", 5)
    assert [is_busy(1) for _ in range(6)] == [True] * 5 + [False], "six looks in a row"
    double.stop()


def test_sglang_tells_only_whether_it_is_busy_at_all():
    double = Double("sglang")
    server = Sglang(double.url)
    server.IDLE_S, server.IDLE_LOOKS = 0, 1
    assert not server.is_busy("policy@1", 5)
    double.busy = {"policy@2"}
    assert server.is_busy("policy@1", 5)
    for answer in ('{"loads": []}', '{"loads": [{}]}', '{"loads": 1}', "[",
                   '{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 2}]}'):
        double.busy = set()
        double.faults["/v1/loads"] = deque([("text", answer)])
        assert server.is_busy("policy@1", 5), answer     # it does not tell, or has requests that wait
    double.stop()


def test_sglang_takes_an_unload_on_and_is_asked_again():
    double = Double("sglang")
    server = Sglang(double.url)
    for name in ("policy@1", "policy@2"):
        server.load(name, PLAIN, 5)
    double.busy = {"policy@1"}
    for _ in range(2):
        with pytest.raises(Refused) as e:
            server.unload("policy@1", 0.2)
        assert e.value.kind is Kind.WAITING
    assert set(server.listing(5).names) == {"policy@2"}
    with pytest.raises(Away):
        server.load("policy@3", PLAIN, 0.2)
    double.busy = set()
    server.unload("policy@1", 5)
    double.stop()


def test_another_model_that_answers_is_refused():
    double = Double("vllm")
    double.faults["/v1/completions"].append((200, "x"))
    with pytest.raises(Refused, match="asked for policy@1, None answered"):
        Vllm(double.url).ask("policy@1", 5)
    double.stop()


def test_sglang_finishes_an_unload_that_was_cut_off_before_it_loads_again():
    double = Double("sglang")
    double.faults["/load_lora_adapter"].append((400, "LoRA adapter 'policy@1' has an incomplete unload. "
                                                     "Retry the unload before loading it again."))
    Sglang(double.url).load("policy@1", PLAIN, 5)
    assert [path for path, _ in double.log] == ["/load_lora_adapter", "/unload_lora_adapter",
                                                "/load_lora_adapter"]
    double.stop()


def test_a_key_goes_with_every_request(double):
    double.key = "secret"
    good, bad = KINDS[double.kind](double.url, "secret"), KINDS[double.kind](double.url, "guess")
    good.check(5)
    good.load("policy@1", PLAIN, 5)
    good.ask("policy@1", 5)
    with pytest.raises(Refused, match="HEDDLE_ENGINE_KEY") as e:
        bad.listing(5)
    assert e.value.kind is Kind.LASTING


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:99999", "http://x?y", "http://a b",
                                 "http://h\u00e4", "http://a..b:1", "http://.a:1",
                                 f"http://{'a' * 64}.com:80", "http://h/\a", "h\t:1"])
def test_addresses_that_are_none(url):
    with pytest.raises(ValueError):
        Vllm(url)


@pytest.mark.parametrize("url, shown",
                         [("127.0.0.1:8000", "http://127.0.0.1:8000"),
                          ("http://me:secret@h:1/base/", "http://h:1/base"), ("https://h", "https://h"),
                          ("http://h.:1", "http://h.:1"), ("http://[::1%lo]:1", "http://[::1%lo]:1")])
def test_addresses(url, shown):
    assert Vllm(url).url == shown


def test_the_double_answers_every_call_of_the_comparison(double, tmp_path):
    """tests/engines/run makes the same calls to the real servers, and wants the same list."""
    (tmp_path / "adapter_config.json").write_text('{"r": 64}')
    found = calls(double.kind, double.url, PLAIN, str(FIXTURES / "plain"), str(tmp_path))
    assert [what for what, *_ in found].count("load") == 7 and ("listing", {}) in found
    assert "away" not in [row[-1] for row in found]

# SPDX-License-Identifier: Apache-2.0
"""What a process of Python does to Heddle: Ctrl-C, fork, the end of the interpreter, imports, threads."""
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from conftest import FIXTURES, Broker, at_most, machine_time, until

# Each wait, as a program would be in it.  The program prints "in" before it, and then how it ended.
WAITS = {
    "open of a publisher": "heddle.Publisher('tcp://127.0.0.1:9', adapter=name, timeout=60)",
    "wait of a version": "pub.publish_dir(fixture).wait(timeout=60)",
    "updates": "next(heddle.Worker(adapters=[name]).updates())",
    "wait_current": "heddle.Worker(adapters=[name], apply='auto').wait_current(60)",
    "admin wait": "heddle.Admin().wait(name + '@1', deadline=60)",
    "admin activate": "heddle.Admin().activate(name + '@1', deadline=60)",
    "admin status": "heddle.Admin('tcp://127.0.0.1:9', timeout=60).status()",
    "admin events": "[None for _ in heddle.Admin().events(follow=True)]",
    "async updates": "asyncio.run(first(heddle.Worker(adapters=[name])))",
    "async admin": "asyncio.run(heddle.AsyncAdmin('tcp://127.0.0.1:9', timeout=60).status())",
    "async wait": "asyncio.run(heddle.AsyncAdmin().wait(name + '@1', deadline=60))",
    "async activate": "asyncio.run(heddle.AsyncAdmin().activate(name + '@1', deadline=60))",
    "async events": "asyncio.run(follow(heddle.AsyncAdmin()))",
}
# ... where a worker stands still that has version 1
VERIFIES = {
    "admin verify": "heddle.Admin().verify(name + '@1', deadline=60)",
    "async verify": "asyncio.run(heddle.AsyncAdmin().verify(name + '@1', deadline=60))",
}
# ... where the broker stands still: what is made before that, and the call
STOPPED = {
    "publish of a directory": ("None", "pub.publish_dir(fixture, deadline=60)"),
    "publish of tensors": ("dict.fromkeys(pair, __import__('numpy').ones((8, 8), 'float32'))",
                           "pub.publish_tensors(it, '{\"peft_type\": \"LORA\"}', deadline=60)"),
    "publish of a model": ("__import__('models').lora()", "pub.publish(it, deadline=60)"),
    "close": ("None", "pub.close()"),
}
INTERRUPTED = """
    import asyncio, gc, heddle, signal
    name, fixture, what, tests = sys.argv[1:5]
    def handler(*args):
        print(f"handler at {{machine_time():.3f}} s", file=sys.stderr)
        signal.default_int_handler(*args)
    signal.signal(signal.SIGINT, handler)
    sys.path.append(tests)
    pub = heddle.Publisher(adapter=name, close_timeout=9, activation="manual")
    if what.endswith(" wait"):
        pub.publish_dir(fixture)
    if what.endswith(" activate"):                  # a worker that does not say that it has switched
        w = heddle.Worker(adapters=[name])
        ver = pub.publish_dir(fixture)
        assert next(w.updates()).staged()
        ver.wait("staged", timeout=60)
    pair = ["base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight"]
    it = {make}
    gc.disable()            # a collection of all that torch has made takes 0.2 s
    print("opened", flush=True)
    sys.stdin.readline()
    async def first(w):
        async for u in w.updates():
            pass
    async def follow(adm):
        async for e in adm.events(follow=True):
            pass
    print("in", flush=True)
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_every_wait_within_100_ms(broker, adapter, program, what):
    _interrupt(program, adapter, what, WAITS[what], broker.endpoint)


@pytest.mark.parametrize("what", ["updates", "admin wait", "async wait"])
def test_signals_are_left_to_the_main_thread(broker, adapter, program, what):
    """One that another thread took would not end the wait of the main one."""
    it = program(INTERRUPTED.format(call=WAITS[what], make="None"), adapter, FIXTURES / "plain", what,
                 pathlib.Path(__file__).parent, env={**os.environ, "HEDDLE_BROKER": broker.endpoint})
    assert it.line() == "opened", it.log.read_text()
    it.say("go")
    assert it.line() == "in"
    _settle(it.pid)
    threads = [int(t) for t in os.listdir(f"/proc/{it.pid}/task") if int(t) != it.pid]
    takers = []
    for thread in threads:
        status = pathlib.Path(f"/proc/{it.pid}/task/{thread}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        if not blocked >> signal.SIGINT - 1 & 1:
            takers.append(status.partition("Name:")[2].split()[0])
    assert threads and not takers
    os.kill(it.pid, signal.SIGINT)
    assert it.line() == "interrupted", it.log.read_text()
    assert it.end(sign=None, timeout=30) == 0, it.log.read_text()


@pytest.mark.parametrize("what", VERIFIES)
def test_ctrl_c_while_a_worker_stands_still(still, adapter, program, what):
    _interrupt(program, adapter, what, VERIFIES[what], still.endpoint)



@pytest.mark.parametrize("what", STOPPED)
def test_ctrl_c_while_the_broker_stands_still(own, adapter, program, what):
    if what.endswith("model") and not all(map(importlib.util.find_spec, ("torch", "peft"))):
        pytest.skip("torch and peft are not installed")
    make, call = STOPPED[what]
    _interrupt(program, adapter, what, call, own.endpoint, make, lambda: os.kill(own.pid, signal.SIGSTOP))


def _interrupt(program, adapter, what, call, endpoint, make="None", before=lambda: None):
    it = program(INTERRUPTED.format(call=call, make=make), adapter, FIXTURES / "plain", what,
                 pathlib.Path(__file__).parent, env={**os.environ, "HEDDLE_BROKER": endpoint})
    assert it.line() == "opened", it.log.read_text()
    before()
    it.say("go")
    assert it.line() == "in"
    _settle(it.pid)
    start = machine_time()
    os.kill(it.pid, signal.SIGINT)
    assert it.line() == "interrupted", it.log.read_text()
    end = machine_time()
    assert end - start < 0.1, f"{what}: from {start:.3f} s to {end:.3f} s\n{it.log.read_text()}"
    assert it.end(sign=None, timeout=30) == 0, it.log.read_text()


def _settle(pid, thread=None):
    """Until the program sleeps in its wait: its thread (None: the main one) has used no processor time for a
    while.
    """
    def ticks():
        with open(f"/proc/{pid}/task/{thread or pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return fields[0], fields[11], fields[12]
    last, same, end = None, 0, time.monotonic() + 30
    while same < 10:
        assert time.monotonic() < end
        now = ticks()
        same = same + 1 if now == last and now[0] == "S" else 0
        last = now
        time.sleep(0.02)


def test_ctrl_c_while_another_thread_is_in_the_handle_leaves_what_close_frees(broker, adapter, program):
    """The wait looks up from its poll, and finds the other one in its way."""
    it = program("""
        import heddle, threading
        pub = heddle.Publisher(adapter=sys.argv[1], close_timeout=0.1)
        ver = pub.publish_dir(sys.argv[2])
        heddle.publisher._LOOK_AGAIN = 0.05
        def hold():
            while True:
                with pub._lock:
                    if pub._pollers:
                        print("held", flush=True)
                        sys.stdin.readline()
                        return
                time.sleep(0.001)
        threading.Thread(target=hold).start()
        with heddle.Worker(adapters=[sys.argv[1]]):     # somebody to wait for
            try:
                ver.wait(timeout=None)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            pub.close()
            print(pub._freed.is_set(), flush=True)
    """, adapter, FIXTURES / "plain")
    assert it.line() == "held", it.log.read_text()
    time.sleep(0.5)                         # longer than the wait polls
    os.kill(it.pid, signal.SIGINT)
    assert it.line(20) == "interrupted", it.log.read_text()
    it.say("let go")
    assert it.line(20) == "True", it.log.read_text()
    assert it.end(sign=None, timeout=20) == 0, it.log.read_text()


@pytest.fixture
def own(own_keys, tmp_path):
    """A broker of the test's own, which it may stop."""
    it = Broker(tmp_path, "--lease", "2s")
    yield it
    os.kill(it.pid, signal.SIGCONT)
    assert it.end() == 0


@pytest.fixture
def still(own_keys, adapter, program, tmp_path):
    """A broker of the test's own, and a worker with version 1 that stands still, and is not lost for a
    minute.
    """
    it = Broker(tmp_path, "--lease", "60s")
    worker = program("""
        import heddle, signal
        name, fixture = sys.argv[1:3]
        with heddle.Worker(adapters=[name], name="still", apply="auto") as w:
            with heddle.Publisher(adapter=name) as pub:
                pub.publish_dir(fixture).wait(timeout=60)
            print("stands", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
    """, adapter, FIXTURES / "plain", env={**os.environ, "HEDDLE_BROKER": it.endpoint})
    assert worker.line() == "stands", worker.log.read_text()
    yield it
    os.kill(it.pid, signal.SIGCONT)
    assert it.end() == 0


def test_a_broker_with_another_registry_ends_a_publisher_and_says_so(own_keys, adapter, program, tmp_path):
    """A trainer may not publish for hours: its log tells at once, and its next call raises."""
    listen = f"ipc://{tmp_path}/broker"
    it = Broker(tmp_path, "--lease", "1s", listen=listen)
    trainer = program("""
        import heddle
        with heddle.Publisher(adapter=sys.argv[1]) as pub:
            print("open", flush=True)
            sys.stdin.readline()
            try:
                pub.publish_dir(sys.argv[2], deadline=5)
            except heddle.Conflict as e:
                print(e.code, e, e.hint, flush=True)
    """, adapter, FIXTURES / "plain", env={**os.environ, "HEDDLE_BROKER": listen})
    assert trainer.line() == "open", trainer.log.read_text()
    it.end()
    shutil.rmtree(tmp_path / "data")
    it = Broker(tmp_path, "--lease", "1s", listen=listen)
    what = f"the broker at {listen} came back with another registry"
    until(lambda: f"publisher.ended: {what}" in trainer.log.read_text(), "the log says it")
    trainer.say("publish")
    said = trainer.line()
    assert said.startswith("request_conflict ") and what in said and "publish there again" in said
    assert it.end() == 0


CLOSES = {
    "updates": ("heddle.Worker(adapters=[name])", "list(it.updates())"),
    "wait_current": ("heddle.Worker(adapters=[name + '-none'], apply='auto')", "it.wait_current(60)"),
    "admin wait": ("heddle.Admin()", "it.wait(name, min=2, deadline=60)"),
    "admin events": ("heddle.Admin()", "list(it.events(follow=True))"),
    "wait of a version": ("heddle.Publisher(adapter=name + '-2')",
                          "it.publish_dir(fixture).wait(timeout=60)"),
    "stopped: publish": ("heddle.Publisher(adapter=name + '-2')", "it.publish_dir(fixture, deadline=60)"),
    "stopped: status": ("heddle.Admin(timeout=60)", "it.status()"),
}
CLOSING = """
    import faulthandler, heddle, signal, threading
    name, fixture, how = sys.argv[1:4]
    pub = heddle.Publisher(adapter=name, close_timeout=0.1)
    pub.publish_dir(fixture)
    it = {make}
    if how == "handler":
        signal.signal(signal.SIGUSR1, lambda *_: it.close())
    print("opened", flush=True)
    sys.stdin.readline()
    def call():
        try:
            {call}
            print("ended", flush=True)
        except heddle.Closed:
            print("closed", flush=True)
    if how == "handler":
        print("in", threading.get_native_id(), flush=True)
        call()
    else:
        thread = threading.Thread(target=lambda: (print("in", threading.get_native_id(), flush=True), call()),
                                  daemon=True)
        thread.start()
        sys.stdin.readline()
    if how == "thread":
        it.close()
        thread.join()
    it.close()
"""


@pytest.mark.parametrize("how", ["handler", "thread", "exit"])
@pytest.mark.parametrize("what", CLOSES)
def test_close_ends_what_is_under_way_from_wherever_it_comes(own, adapter, program, what, how):
    """From a handler on the very thread that is in the call, from another thread, and from the end of the
    interpreter.
    """
    make, call = CLOSES[what]
    it = program(CLOSING.format(make=make, call=call), adapter, FIXTURES / "plain", how,
                 env={**os.environ, "HEDDLE_BROKER": own.endpoint})
    assert it.line() == "opened", it.log.read_text()
    if what.startswith("stopped"):
        os.kill(own.pid, signal.SIGSTOP)
    it.say("go")
    word, thread = it.line().split()
    assert word == "in"
    _settle(it.pid, int(thread))
    with at_most(6, "the end of the program"):
        with at_most(2, what):
            it.say("close") if how != "handler" else os.kill(it.pid, signal.SIGUSR1)
            # at the end of the interpreter a daemon thread says no more
            if how != "exit":
                assert it.line() == ("ended" if what == "updates" else "closed"), it.log.read_text()
        # closing may wait for a broker, and for a publisher's turn to leave
        if what.startswith("stopped"):
            os.kill(own.pid, signal.SIGCONT)
        assert it.end(sign=None) == 0, it.log.read_text()


@pytest.mark.parametrize("kind", ["BaseException", "RuntimeError", "IndexError"])
def test_a_handler_that_raises_in_close_leaves_what_the_next_close_frees(broker, program, kind):
    """Just before a helper thread is started, just after, and at any moment at all; what it raises comes as
    it is, no thread is lost, the program ends.
    """
    it = program("""
        import builtins, heddle, random, signal, types
        from heddle import _calls
        class Stop(getattr(builtins, sys.argv[1])):
            pass
        is_armed = False
        def stop(*_):
            if is_armed:
                raise Stop("can't start new thread") from KeyError()
        for sign in (signal.SIGUSR1, signal.SIGALRM):
            signal.signal(sign, stop)
        real, hidden = _calls._thread, []
        def interrupted(how):
            global is_armed
            made = heddle.Admin()
            hidden.extend(_calls._idle)
            _calls._idle.clear()
            word = "closed"
            try:
                is_armed = True
                how()
                made.close()
                is_armed = False
            except Stop as e:
                word = f"stopped, {type(e.__cause__).__name__}"
            is_armed = False
            _calls._thread = real
            signal.setitimer(signal.ITIMER_REAL, 0)
            made.close()
            return word if made._freed.is_set() else "not freed"
        def put(moment):
            _calls._thread = types.SimpleNamespace(start_new_thread=moment)
        def before(*_):
            signal.raise_signal(signal.SIGUSR1)
        def after(*what):
            real.start_new_thread(*what)
            signal.raise_signal(signal.SIGUSR1)
        for moment in (before, after):
            print(interrupted(lambda: put(moment)), flush=True)
        soon = lambda: signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 6e-4))
        print({interrupted(soon) for _ in range(100)} <= {"closed", "stopped, KeyError"}, flush=True)
        while len(sys._current_frames()) - 1 != len(hidden) + len(_calls._idle):
            time.sleep(0.002)
        print("none is lost", flush=True)
    """, kind)
    assert [it.line(20) for _ in range(4)] == ["stopped, KeyError"] * 2 + ["True", "none is lost"], (
        it.log.read_text())
    assert it.end(sign=None, timeout=20) == 0, it.log.read_text()


def test_what_is_done_twice_is_done():
    """The second time while a waiter passes the first on to the next."""
    from heddle._calls import Done
    done = Done()

    def again(_, event, function):
        if event == "c_return" and function.__name__ in ("acquire", "get"):
            sys.setprofile(None)
            done.set()
    first = threading.Timer(0.1, done.set)
    first.start()
    sys.setprofile(again)
    try:
        assert done.wait(20)
    finally:
        sys.setprofile(None)
    first.join()
    assert done.wait(0)


@pytest.mark.parametrize("has_threads", [True, False])
def test_what_was_asked_for_beside_a_call_is_over_with_it(has_threads):
    from heddle import _calls
    if not has_threads:
        was = threading.stack_size(1 << 47)             # more than there are addresses
    began, done = threading.Event(), []

    def fail():
        assert not has_threads or began.wait(20)
        raise KeyError

    def other():
        began.set()
        time.sleep(0.05)
        done.append(threading.current_thread() is threading.main_thread())
        return 2
    try:
        assert _calls.beside(lambda: None, other) == 2 and (has_threads or done == [True])
        del done[:]
        began.clear()
        with pytest.raises(KeyError):
            _calls.beside(fail, other)
        assert done == ([False] if has_threads else [])
    finally:
        if not has_threads:
            threading.stack_size(was)


def test_beside_a_call_is_a_new_thread(monkeypatch):
    """One that was woken would often be put on the caller's core."""
    from heddle import _calls
    monkeypatch.setattr(_calls, "_idle", [])
    seen = set()
    for _ in range(5):
        ready = threading.Event()

        def other():
            seen.add(threading.current_thread() is threading.main_thread())
            ready.set()
        _calls.beside(lambda: ready.wait(20), other)
    assert seen == {False} and _calls._idle == [], "none is left behind, to be woken the next time"


def test_a_handler_closes_a_publisher_that_makes_its_admin_handle(broker, adapter, program):
    it = program("""
        import heddle, heddle.admin, signal
        pub = heddle.Publisher(adapter=sys.argv[1])
        with heddle.Worker(adapters=[sys.argv[1]], apply="auto"):
            rollout = pub.publish_dir(sys.argv[2]).wait()
        signal.signal(signal.SIGUSR1, lambda *_: pub.close())
        make = heddle.admin.Admin.__init__
        def making(*args, **how):
            signal.raise_signal(signal.SIGUSR1)
            make(*args, **how)
        heddle.admin.Admin.__init__ = making
        print(rollout.workers, pub.closed, flush=True)
    """, adapter, FIXTURES / "plain")
    assert it.line(20) == "() True", it.log.read_text()
    assert it.end(sign=None, timeout=20) == 0, it.log.read_text()


def test_ctrl_c_while_the_first_rank_pauses_before_it_tries_to_open_again(broker, adapter, program):
    """The ranks open on a helper thread, which has no C handle in the pause."""
    holder = program("""
        import heddle
        pub = heddle.Publisher(adapter=sys.argv[1])
        print("open", flush=True)
        time.sleep(60)
    """, adapter)
    assert holder.line() == "open"
    holder.process.kill()
    holder.process.wait()
    it = program("""
        import heddle, heddle.publisher
        from heddle import _collective
        class One(_collective.Collective):
            def __init__(self, group):
                self.rank, self.size, self._caught = 0, 1, None
            def tell_all(self, value):
                return [value]
        _collective.Collective, _collective._on_this_stream = One, lambda call: call
        heddle.publisher._HELD_S = 30
        forget = heddle.Publisher._forget_start
        def told(pub):
            forget(pub)
            print("pauses", flush=True)
        heddle.Publisher._forget_start = told
        try:
            heddle.Publisher(adapter=sys.argv[1], process_group=object(), timeout=90)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """, adapter)
    assert it.line() == "pauses", it.log.read_text()
    os.kill(it.pid, signal.SIGINT)
    assert it.line(20) == "interrupted" and it.end(sign=None, timeout=20) == 0, it.log.read_text()


# What waits 0.8 s: of a worker that has version 1 of `name`-2 and serves none, and of one that stands still.
WITHOUT_GIL = {
    "updates": "next(w.updates(timeout=T), None)",
    "async updates": "asyncio.run(take(w))",
    "wait_current": "w.wait_current(T)",
    "wait of a version": "ver.wait(timeout=T)",
    "open of a publisher": "heddle.Publisher('tcp://127.0.0.1:9', adapter=name, timeout=T)",
    "admin wait": "adm.wait(name + '-2@1', deadline=T)",
    "admin verify": "adm.verify(name + '@1', deadline=T)",
    "async wait": "asyncio.run(ask(name + '-2@1'))",
    "admin activate": "adm.activate(name + '-2@1', deadline=T)",
    "stopped: status": "adm.status()",
    "stopped: publish": "pub.publish_dir(bf16, deadline=T)",
}
WITH_A_SECOND = """
    import asyncio, heddle, threading
    name, plain, bf16 = sys.argv[1:4]
    T = 0.8
    w, adm = heddle.Worker(adapters=[name + "-2"]), heddle.Admin(timeout=T)
    pub = heddle.Publisher(adapter=name + "-2", activation="manual", close_timeout=0.1)
    ver = pub.publish_dir(plain)
    assert next(w.updates()).staged()
    ver.wait("staged", timeout=60)
    adm.status()
    async def take(w):
        assert [u async for u in w.updates(timeout=T)] == []
    async def ask(ref):
        async with heddle.AsyncAdmin() as adm:
            await adm.wait(ref, deadline=T)
    def beside(wait):
        took, start = [], time.monotonic()
        def run():
            try:
                wait()
            except heddle.HeddleError:
                pass
            took.append(time.monotonic() - start)
        thread = threading.Thread(target=run)
        thread.start()
        longest, last = 0.0, machine_time()
        while not took:
            time.sleep(0.001)
            now = machine_time()
            longest, last = max(longest, now - last), now
        thread.join()
        print(json.dumps({"longest": longest, "took": took[0]}), flush=True)
"""


def test_a_second_thread_runs_while_one_waits(still, adapter, program):
    waits = "".join(f"    sys.stdin.readline(); beside(lambda: {call})\n" for call in WITHOUT_GIL.values())
    it = program(WITH_A_SECOND + waits, adapter, FIXTURES / "plain", FIXTURES / "bf16",
                 env={**os.environ, "HEDDLE_BROKER": still.endpoint})
    for what in WITHOUT_GIL:
        if what.startswith("stopped"):
            os.kill(still.pid, signal.SIGSTOP)
        it.say("go")
        got = it.json()
        assert got["took"] > 0.6, f"{what}: it does not wait: {got}"
        # a wait that kept the GIL would last as long as the wait
        assert got["longest"] < 0.5, f"{what}: {got}"
    os.kill(still.pid, signal.SIGCONT)
    assert it.end(sign=None) == 0, it.log.read_text()


def test_after_a_fork_every_call_raises(broker, adapter, program):
    it = program("""
        import asyncio, heddle, threading
        name, fixture = sys.argv[1:3]
        w, pub, adm = heddle.Worker(adapters=[name],
                                    apply="auto"), heddle.Publisher(adapter=name), heddle.Admin()
        ver = pub.publish_dir(fixture)
        ver.wait(min=1, timeout=60)
        a = w.acquire(name)
        view = next(iter(a.tensors.values()))
        again = w.acquire(name)
        made = asyncio.run(asyncio.sleep(0, heddle.AsyncAdmin()))
        busy = heddle.Admin()
        def ask():                               # other threads are in calls meanwhile
            try:
                with w._lock, pub._lock, again._hold._lock:
                    busy.wait(name, min=2, deadline=60)
            except heddle.Closed:
                pass
        asks = threading.Thread(target=ask)
        asks.start()
        while busy._current is None:
            time.sleep(0.001)
        if os.fork() == 0:
            calls = {"publish": lambda: pub.publish_dir(fixture), "wait": ver.wait,
                     "acquire": lambda: w.acquire(name), "updates": lambda: w.updates(),
                     "stats": w.stats, "status": adm.status, "events": lambda: next(adm.events()),
                     "open": lambda: heddle.Admin(), "worker": lambda: heddle.Worker(adapters=[name]),
                     "publisher": lambda: heddle.Publisher(adapter=name), "enter": lambda: pub.__enter__(),
                     "rehash": a.rehash, "export": lambda: a.export("/tmp/none/of/this"),
                     "view": lambda: view.data, "tensors": lambda: again.tensors,
                     "busy": busy.status, "fileno": w.fileno,
                     "async": lambda: asyncio.run(asyncio.wait_for(made.status(), 5))}
            wrong = []
            for what, call in calls.items():
                try:
                    call()
                    wrong.append(what)
                except heddle.ForkError as e:
                    assert "spawn" in str(e)
            for it in (w, pub, adm):
                it.close()
            a.release()
            again.release()
            del view, a, again
            print(json.dumps({"wrong": wrong}), flush=True)
            sys.exit(0)                          # with all of the interpreter's end
        pid, status = os.wait()
        assert status == 0, status
        busy.close()
        asks.join()
        asyncio.run(made.close())
        with again:                              # the parent goes on
            assert again.rehash() == ver.digest
        assert pub.publish_dir(fixture).reason == "unchanged" and adm.status().count.writers >= 1
        a.release()
        print(json.dumps({"parent": "well"}), flush=True)
    """, adapter, FIXTURES / "plain")
    assert it.json() == {"wrong": []}, it.log.read_text()
    assert it.json() == {"parent": "well"}, it.log.read_text()
    assert it.end(sign=None) == 0, it.log.read_text()


def test_a_fork_before_the_first_use_is_no_matter(broker, adapter, program):
    it = program("""
        import heddle
        if os.fork() == 0:
            with heddle.Admin() as adm:
                print(json.dumps(adm.status().broker.state), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
    """, adapter)
    assert it.json() == "ready"
    assert it.end(sign=None) == 0, it.log.read_text()


@pytest.mark.parametrize("how", ["end", "exit", "exception", "SIGINT"])
def test_everything_is_closed_at_the_end_of_the_interpreter(broker, adapter, program, how):
    import heddle
    it = program("""
        import heddle, signal
        name, fixture, how = sys.argv[1:4]
        w, pub, adm = heddle.Worker(adapters=[name], name="end-" + how,
                                    apply="auto"), heddle.Publisher(adapter=name), heddle.Admin()
        pub.publish_dir(fixture).wait(min=1, timeout=60)
        a = w.acquire(name)
        kept = a.tensors
        more = a.numpy() if "numpy" in sys.argv else [t.data for t in kept.values()]
        adm.status()
        updates = w.updates()
        print("ready", flush=True)
        if how == "exit":
            sys.exit(3)
        if how == "exception":
            raise RuntimeError("on purpose")
        if how == "SIGINT":
            [None for u in updates]
    """, adapter, FIXTURES / "plain", how)
    assert it.line() == "ready", it.log.read_text()
    status = it.end(sign=signal.SIGINT if how == "SIGINT" else None, timeout=20)
    assert status == {"end": 0, "exit": 3, "exception": 1, "SIGINT": -signal.SIGINT}[how], it.log.read_text()
    assert "Fatal" not in it.log.read_text()
    with heddle.Admin() as adm:                      # it left: nobody had to wait for a lease
        assert adm.workers(f"end-{how}")[0].state == "left"
        assert adm.adapters()[[a.name for a in adm.adapters()].index(adapter)].writer is None


def _pythons():
    """This one, and later ones that are installed: from 3.12 on an interpreter that ends starts no threads.
    """
    yield pytest.param(sys.executable, id="this")
    for minor in (12, 13, 14):
        beside = pathlib.Path(sys.base_prefix).parent.glob(f"*/bin/python3.{minor}")
        found = next(map(str, beside), None) or shutil.which(f"python3.{minor}")
        runs = found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
        without = pytest.mark.skip(reason=f"no python3.{minor} is installed beside this one")
        yield pytest.param(found, id=f"3.{minor}", marks=[] if runs else [without])


@pytest.mark.parametrize("refuses", ["nobody", "the-system"])
@pytest.mark.parametrize("python", list(_pythons()))
def test_what_is_open_is_closed_by_an_interpreter_that_starts_no_threads(tmp_path, python, refuses):
    """Without cffi, which those interpreters may lack: a handle with a close of its own."""
    code = """
        import sys, threading, types
        ffi = types.SimpleNamespace(NULL=None)
        sys.modules["_cffi_backend"] = types.SimpleNamespace(FFI=lambda *_, **__: ffi)
        from heddle import _handle
        class Open(_handle.Handle):
            def _close_native(self, ptr):
                print("closed", ptr)
            def _interrupt_native(self, ptr):
                pass
        kept = [Open(), Open()]
        kept[0]._is_endless = False
        for i, it in enumerate(kept):
            it._opened(i)
        if sys.argv[1] == "the-system":
            threading.stack_size(1 << 47)               # more than there are addresses
    """
    import heddle
    (tmp_path / "heddle").symlink_to(pathlib.Path(heddle.__file__).parent)
    got = subprocess.run([python, "-W", "default", "-B", "-c", textwrap.dedent(code), refuses],
                         env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
                         timeout=60)
    assert (got.returncode, got.stdout.split("\n"), got.stderr) == (0, ["closed 1", "closed 0", ""], "")


def test_a_thread_in_updates_ends_with_the_main_one(broker, adapter, program):
    """One that is no daemon: the interpreter waits for it."""
    it = program("""
        import heddle, threading
        name, fixture = sys.argv[1:3]
        w, pub = heddle.Worker(adapters=[name]), heddle.Publisher(adapter=name)
        def listen():
            list(w.updates())
            print("listened", flush=True)
        def train():
            while threading.main_thread().is_alive():
                time.sleep(0.002)
            print(pub.publish_dir(fixture).version, flush=True)
        for work in (listen, train):
            threading.Thread(target=work).start()
        while not w._pollers:
            time.sleep(0.002)
        raise RuntimeError("main died")
    """, adapter, FIXTURES / "plain")
    assert sorted([it.line(20), it.line(20)]) == ["1", "listened"], it.log.read_text()
    assert it.end(sign=None, timeout=20) == 1 and "main died" in it.log.read_text()


def test_what_was_not_closed_is_said(broker, adapter, program):
    it = program("""
        import heddle
        w = heddle.Worker(adapters=[sys.argv[1]])
        del w
        print("dropped", flush=True)
    """, adapter)
    assert it.line() == "dropped"
    assert it.end(sign=None) == 0
    assert "ResourceWarning: <heddle.Worker" in it.log.read_text() and "was not closed" in it.log.read_text()


def test_with_warnings_as_errors_what_was_dropped_is_closed_and_rejected(broker, adapter, program):
    it = program("""
        import gc, heddle, warnings
        name, fixture = sys.argv[1:3]
        warnings.simplefilter("error")
        pub = heddle.Publisher(adapter=name, close_timeout=0.1)
        adm = heddle.Admin()
        dropped = heddle.Worker(adapters=[name + "-2"], name="dropped-" + name)
        def joined(who):
            while not any(w.name == who for w in adm.workers()):
                time.sleep(0.002)
        joined("dropped-" + name)
        del dropped
        state = [w.state for w in adm.workers() if w.name == "dropped-" + name]
        with heddle.Worker(adapters=[name], name="asks-" + name) as w:
            joined("asks-" + name)
            ver = pub.publish_dir(fixture)
            update = next(w.updates())
            assert update.phase == "arrived"
            del update
            try:
                ver.wait(min=1, timeout=20)
            except heddle.HeddleError as e:
                print(json.dumps({"state": state, "code": e.code, "text": str(e)}), flush=True)
        pub.close()
        adm.close()
    """, adapter, FIXTURES / "plain")
    got = it.json()
    assert (got["state"], got["code"]) == (["left"], "version_failed"), got
    assert "left arrived unanswered" in got["text"], got
    assert it.end(sign=None) == 0, it.log.read_text()
    log = it.log.read_text()
    assert "ResourceWarning: <heddle.Worker" in log and "RuntimeWarning" in log, log


def test_nothing_is_imported_before_it_is_used(broker, adapter, program):
    it = program("""
        names = ("torch", "numpy", "peft", "safetensors", "transformers", "asyncio.base_events_none",
                 "deepspeed", "trl", "libucx")
        def loaded():
            return sorted(n for n in names if n in sys.modules)
        import heddle
        assert loaded() == [], loaded()
        heddle.doctor()
        import heddle.peft, heddle.safetensors
        with (heddle.Worker(adapters=[sys.argv[1]], apply="auto") as w,
              heddle.Publisher(adapter=sys.argv[1]) as pub, heddle.Admin() as adm):
            ver = pub.publish_dir(sys.argv[2])
            ver.wait(min=1, timeout=60)
            with w.acquire(sys.argv[1]) as a:
                assert sum(len(t.data) for t in a.tensors.values()) == ver.data_bytes
                a.export(sys.argv[3])
            adm.verify(f"{sys.argv[1]}@1")
        assert heddle.safetensors.check(sys.argv[3]).digest == ver.digest
        print(json.dumps(loaded()), flush=True)
    """, adapter, FIXTURES / "plain", "/tmp/" + adapter)
    try:
        assert it.json() == [], it.log.read_text()
        assert it.end(sign=None) == 0
    finally:
        subprocess.run(["rm", "-rf", "/tmp/" + adapter], check=True)


def test_import_costs_little(program):
    """Without compiling or parsing anything, and without loading the library or cffi."""
    it = program("""
        start = machine_time()
        import heddle
        took = machine_time() - start
        loaded = any("libheddle" in line for line in open("/proc/self/maps"))
        bound = [m for m in ("_cffi_backend", "heddle._native") if m in sys.modules]
        heddle.Worker, heddle.updates.FEATURES, heddle.__version__      # each name is there all the same
        assert set(heddle.__all__) <= set(dir(heddle)) and "heddle._native" in sys.modules
        print(json.dumps({"took": took, "loaded": loaded, "bound": bound,
                          "pycparser": "pycparser" in sys.modules}), flush=True)
    """)
    got = it.json()
    assert not got["loaded"] and not got["bound"] and not got["pycparser"] and got["took"] < 2.0, got


def test_a_library_that_cannot_be_used_is_a_sentence(tmp_path):
    (tmp_path / "libheddle.so.0").write_bytes(b"no library")
    for path, word in ((tmp_path / "libheddle.so.0", "HEDDLE_LIBRARY"),
                       (tmp_path / "none.so", "HEDDLE_LIBRARY")):
        code = textwrap.dedent("""
            import heddle
            d = heddle.doctor()
            assert not d.ok and d.ucx is None, d
            print(d.problems[0])
            try:
                heddle.Admin()
            except heddle.HeddleError as e:
                print(e.code)
        """)
        got = subprocess.run([sys.executable, "-c", code], env={**os.environ, "HEDDLE_LIBRARY": str(path)},
                             capture_output=True, text=True, timeout=60)
        assert word in got.stdout and got.stdout.splitlines()[-1] == "internal", got


def test_no_plugin_is_a_sentence():
    code = "import heddle; d = heddle.doctor(); print(d.ok, d.heddle, d.problems[0])"
    got = subprocess.run([sys.executable, "-c", code], env={**os.environ, "HEDDLE_PLUGIN_DIR": "/nowhere"},
                         capture_output=True, text=True, timeout=60)
    assert got.stdout.startswith("False") and "HEDDLE_PLUGIN_DIR" in got.stdout, got

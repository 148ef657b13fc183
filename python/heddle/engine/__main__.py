# SPDX-License-Identifier: Apache-2.0
"""The command line of the plug."""
from __future__ import annotations

import argparse
import io
import logging
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import heddle
from heddle.errors import HeddleError
from heddle.updates import FEATURES

from . import names
from .exports import Exports
from .plug import Plug, Times, unexpected
from .say import FORMATS, LEVELS, Counters, Relay, Voice, say_warnings
from .servers import KINDS, Server, bare
from .session import Session

ABOUT = """\
Loads each version of an adapter into stock inference servers under a name of its own, and tells Heddle when
every one of them answers for it.  The servers must see the export directory; DUR is 500ms, 30s, 5m or
seconds."""
NOTES = """\
environment:
  HEDDLE_BROKER, HEDDLE_BROKER_KEY, HEDDLE_KEY, HEDDLE_KEYS   as for heddle worker
  HEDDLE_ENGINE_KEY                                           sent to the servers as a bearer token

vLLM has to be started with --enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment; SGLang
with --enable-lora, --max-lora-rank and --lora-target-modules.

Prints a line when it has joined and every server answers, then one for each thing that happens.  Ends with 0
on SIGTERM and SIGINT; the servers go on with what they have, and the next start takes it over.  Other exit
statuses are those of heddle.

examples:
  python -m heddle.engine --vllm http://127.0.0.1:8000 --export /dev/shm/heddle
  python -m heddle.engine --sglang http://127.0.0.1:30000 --sglang http://127.0.0.1:30001 --adapter policy \\
      --adapter critic --served-name '{adapter}@{version}' --export /dev/shm/heddle -o json
"""
# How long requests of an unwanted version get.  SGLang loads nothing while it waits for those that take
# longer.
DRAINS = {"vllm": 30.0, "sglang": 600.0}
SLOTS = 64                               # at most, of a worker for an adapter
PATIENCE_S = 5.0                         # with a broker that does not answer, until that is said
HELP = "python -m heddle.engine --help"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


class Usage(HeddleError):
    """The command line is wrong."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(message, code="usage", exit=2, hint=HELP)


def duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time between 1ms and 1440m")
    return seconds


def address(text: str) -> tuple[str, int]:
    """"9400" or "HOST:9400"."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT or HOST:PORT")
    return host or "127.0.0.1", int(port)


def size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)(?:([kMG])(i?))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size")
    unit = 1024 if found[3] else 1000
    return int(found[1]) * int(unit ** (" kMG".index(found[2]) if found[2] else 0))


def label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class _AddServer(argparse.Action):
    def __call__(self, parser: Any, space: Any, value: Any, option: str | None = None) -> None:
        space.servers = [*(space.servers or []), ((option or "").lstrip("-"), value)]


def parser() -> argparse.ArgumentParser:
    p = _Parser(prog="python -m heddle.engine", description=ABOUT, epilog=NOTES,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False, add_help=False)
    main = p.add_argument_group("options")
    for kind, port in (("vllm", 8000), ("sglang", 30000)):
        main.add_argument(f"--{kind}", metavar="URL", dest="servers", action=_AddServer,
                          help=f"a {kind} server, as http://127.0.0.1:{port}; may be given again, and beside "
                               f"the other kind")
    main.add_argument("--export", metavar="DIR", required=True,
                      help="where versions are written for the servers to load; best in memory")
    main.add_argument("--server-dir", metavar="DIR",
                      help="how the servers see the export directory; default: as it is here")
    main.add_argument("--adapter", metavar="NAME", action="append",
                      help="subscribe to this adapter; may be given again [policy]")
    main.add_argument("--served-name", metavar="TEMPLATE", default=names.DEFAULT,
                      help="of {adapter}, {version}, {step} and {digest}: what requests name [%(default)s]")
    main.add_argument("--accept", metavar="FEATURE", action="append", default=[], choices=FEATURES,
                      help="take versions that have it, though the servers are not known to load it rightly")
    main.add_argument("--load-timeout", metavar="DUR", type=duration, default=60.0,
                      help="a version that some server does not answer for after so long is rejected [60s]")
    main.add_argument("--drain", metavar="DUR", type=duration,
                      help="requests of an unwanted version get so long [30s; with SGLang 10m]")
    main.add_argument("--probe", metavar="DUR", type=duration, default=2.0,
                      help="between two looks at a server [2s]")
    main.add_argument("--away", metavar="DUR", type=duration, default=float("inf"),
                      help="this worker leaves when a server was away for so long, until it is back; what it "
                           "alone has is lost then [never]")
    main.add_argument("--metrics", metavar="[HOST:]PORT", type=address,
                      help="serve counters for Prometheus there; default host 127.0.0.1")
    worker = p.add_argument_group("options of the worker")
    worker.add_argument("--name", metavar="NAME", help="of this worker; default <host>-<pid>")
    worker.add_argument("--label", metavar="K=V", type=label, action="append", default=[],
                        help="shown by heddle workers; may be given again")
    worker.add_argument("--slots", metavar="N", type=int,
                        help="versions in memory for each adapter, at the servers too; default 2 + the "
                             "broker's --keep")
    worker.add_argument("--broker", metavar="EP[,EP]",
                        help="where the broker listens [tcp://127.0.0.1:7700] ($HEDDLE_BROKER)")
    worker.add_argument("--broker-key", metavar="KEY", help="the broker's public key ($HEDDLE_BROKER_KEY)")
    worker.add_argument("--key", metavar="FILE", help="the secret key of this worker ($HEDDLE_KEY)")
    worker.add_argument("--join-timeout", metavar="DUR", type=duration,
                        help="give up while another worker has the name; default never")
    worker.add_argument("--max-rate", metavar="SIZE", type=size,
                        help="bytes per second, each way by itself; default no limit")
    worker.add_argument("--data-device", metavar="IF",
                        help="network interface of the tensor bytes; default the one to the broker")
    worker.add_argument("--host-share", metavar="DIR",
                        help="directory, mode 0700, in which processes of this host share memory; default: "
                             "in a network namespace")
    worker.add_argument("--own-memory", action="store_true",
                        help="copy every version, also one that another process of this host has in memory")
    worker.add_argument("--no-relay", action="store_true",
                        help="other workers fetch from this one only where no other process has the version")
    worker.add_argument("--verify", choices=("host", "each"), default="host",
                        help="what is not copied: digested by one process of this host for all, or by this "
                             "worker itself [host]")
    worker.add_argument("--insecure", action="store_true", help="allow addresses that are not loopback")
    common = p.add_argument_group("common options")
    common.add_argument("-o", "--output", choices=("table", "json"), default="table",
                        help="json: every line is an object [table]")
    common.add_argument("-q", "--quiet", action="store_true", help="print and log only what is wrong")
    common.add_argument("--log-level", choices=LEVELS, default="info", help="what is logged on stderr [info]")
    common.add_argument("--log-format", choices=FORMATS, default="text",
                        help="how: for people, as an object on each line, or with the priority in front for "
                             "systemd's journal [text]")
    common.add_argument("-h", "--help", action="help", help="show this text and exit")
    common.add_argument("--version", action="version", version=f"heddle {heddle.__version__}",
                        help="show the version and exit")
    return p


class Program:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.adapters: list[str] = options.adapter or ["policy"]
        self.name: str = options.name or f"{os.uname().nodename}-{os.getpid()}"
        self.voice = Voice(is_json=options.output == "json", is_quiet=options.quiet,
                           level="warn" if options.quiet else options.log_level,
                           worker=self.name, log_format=options.log_format)
        self.counters = Counters()
        self.servers = self._make_servers()
        self._check_adapters()
        self.template = self._usage(names.Template, options.served_name, self.adapters)
        self._check_worker()
        self.relay = Relay(self.voice)
        log = logging.getLogger("heddle")
        log.addHandler(self.relay)
        log.setLevel(logging.DEBUG)
        log.propagate = False

    def _check_adapters(self) -> None:
        for name in self.adapters:
            if not names.is_adapter(name):
                raise Usage(f"{name!r} is not a name of an adapter", code="bad_name", exit=2,
                            expected="letters, digits and . _ -, at most 128, a letter or digit first",
                            hint="name another with --adapter")
        if len(set(self.adapters)) != len(self.adapters):
            raise Usage("an adapter is named twice", code="usage", exit=2, found=" ".join(self.adapters),
                        hint="name each once")

    def _check_worker(self) -> None:
        """What the worker would refuse when every server is up, which may be minutes from now."""
        o = self.options
        if o.slots is not None and not 1 <= o.slots <= SLOTS:
            raise Usage(f"a worker has no {o.slots} slots", code="usage", exit=2,
                        expected=f"--slots 1 to {SLOTS}", found=str(o.slots), hint=HELP)
        for what, word in [("worker", self.name), *(("label", word) for pair in o.label for word in pair)]:
            if not names.is_adapter(word):
                raise Usage(f"{word!r} is not a name of a {what}", code="bad_name", exit=2, hint=HELP,
                            expected="letters, digits and . _ -, at most 128, a letter or digit first")
        for path in (o.export, o.server_dir or ""):
            if path != path.encode("utf-8", "replace").decode():
                raise Usage(f"{ascii(path)} is not UTF-8, and servers take paths in UTF-8", code="usage",
                            exit=2, hint="name another directory")
        found = [name for _, name in socket.if_nameindex()]
        if o.data_device is not None and o.data_device not in found:
            raise HeddleError(f"there is no network interface {o.data_device}", code="internal", exit=9,
                              expected=f"one of {', '.join(found)}", found=o.data_device,
                              hint="name the interface of the data plane: --data-device", retriable=True)
        # address and keys; nothing is asked
        heddle.Admin(o.broker, broker_key=o.broker_key, key=o.key).close()

    @staticmethod
    def _usage(make: Any, *args: Any, hint: str = HELP) -> Any:
        try:
            return make(*args)
        except ValueError as e:
            raise Usage(str(e), code="usage", exit=2, hint=hint) from None

    def _make_servers(self) -> list[Server]:
        if not self.options.servers:
            raise Usage("no server is named", code="usage", exit=2, expected="--vllm URL or --sglang URL",
                        hint=HELP)
        key = self._usage(bare, os.environ.get("HEDDLE_ENGINE_KEY"), hint="look at HEDDLE_ENGINE_KEY")
        made = [self._usage(KINDS[kind], url, key) for kind, url in self.options.servers]
        if len({server.url for server in made}) != len(made):
            raise Usage("a server is named twice", code="usage", exit=2,
                        found=" ".join(server.url for server in made), hint="name each once")
        return made

    def run(self) -> None:
        o = self.options
        exports = Exports(o.export, self.adapters, o.server_dir)
        drain_s = o.drain or max(DRAINS[server.kind] for server in self.servers)
        times = Times(load_s=o.load_timeout, drain_s=drain_s, probe_s=o.probe, away_s=o.away)
        plug = Plug(self.servers, self.template, exports, self.adapters, accepted=o.accept, times=times,
                    voice=self.voice, counters=self.counters)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: plug.stop())
        metrics = self._serve_metrics()
        plug.start()
        try:
            while plug.wait_up() and not self._serve(plug):
                self.voice.event("worker.left",
                                 message="a server is away; this worker joins again when it is back")
        finally:
            plug.close()
            exports.close()
            if metrics:
                metrics.shutdown()

    def _serve(self, plug: Plug) -> bool:
        """One session with the broker.  True: it is over for good, by a signal or by `heddle drain`."""
        o = self.options
        session = Session(broker=o.broker, adapters=self.adapters, name=self.name,
                          labels=dict(o.label) or None, slots=o.slots or 0,
                          max_rate=o.max_rate, join_timeout=o.join_timeout, data_device=o.data_device,
                          own_memory=o.own_memory, verify_each=o.verify == "each", host_share=o.host_share,
                          no_relay=o.no_relay,
                          insecure=o.insecure, broker_key=o.broker_key, key=o.key)
        began, warnings = time.monotonic(), self.relay.warnings
        is_told = False

        def tell() -> bool:
            nonlocal is_told
            if not is_told and time.monotonic() - began >= PATIENCE_S and self.relay.warnings == warnings:
                is_told = True           # once
                self._say_waiting()
            return self._say_ready(session, plug)

        try:
            return plug.run(session, tell)
        finally:
            session.close()

    def _say_waiting(self) -> None:
        broker = self.options.broker or os.environ.get("HEDDLE_BROKER") or "tcp://127.0.0.1:7700"
        self.voice.log("warn", "worker.waiting",
                       f"no broker answers at {broker} within {PATIENCE_S:.1f} s; waiting for one")

    def _say_ready(self, session: Session, plug: Plug) -> bool:
        """False: no broker has admitted the worker yet."""
        joined = session.joined()
        if joined is None:
            return False
        self.voice.ready(name=self.name, token=joined["token"], cluster=joined["cluster"],
                         adapters=self.adapters, export_dir=str(self.options.export),
                         servers=[{"kind": s.kind, "url": s.url, "release": release.text}
                                  for s, release in zip(self.servers, plug.releases)],
                         served_name=self.template.text,
                         accepts=sorted(plug.applies()), transport=session.transport())
        return True

    def _serve_metrics(self) -> Any:
        if self.options.metrics is None:
            return None
        host, port = self.options.metrics
        try:
            served = self.counters.serve(host, port)
        except OSError as e:
            raise HeddleError(f"cannot serve metrics at {host}:{port}: {e.strerror}", code="address_in_use",
                              exit=9,
                              hint="name another with --metrics") from None
        self.voice.log("info", "metrics.ready", f"http://{host}:{served.server_port}/metrics")
        return served


def _values(asked: list[str], *names: str) -> list[str]:
    """What an option is given on a command line that the parser may refuse."""
    after = [asked[i + 1] for i, word in enumerate(asked[:-1]) if word in names]
    parts = [word.partition("=") for word in asked]
    return after + [value for name, equals, value in parts if name in names and equals]


def main(arguments: Sequence[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):             # a locale that is not UTF-8 ends nothing
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = list(arguments)
    is_json = "json" in _values(asked, "-o", "--output") or "-ojson" in asked
    formats = [value for value in _values(asked, "--log-format") if value in FORMATS] or ["text"]
    voice = Voice(is_json=is_json, is_quiet=False, level="info", worker="", log_format=formats[-1])
    say_warnings(voice)
    try:
        program = Program(parser().parse_args(asked))
        program.run()
    except HeddleError as e:
        return _fail(voice, e)
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return _fail(voice, HeddleError(f"{unexpected(e)} at {os.path.basename(at.filename)}:{at.lineno}",
                                        code="internal", exit=9,
                                        hint="this is a fault of the program; the servers go on, and the "
                                             "next start takes over what they have"))
    return 0


def _fail(voice: Voice, e: HeddleError) -> int:
    fields = ("code", "exit", "adapter", "version", "worker", "phase", "expected", "found", "hint",
              "retriable")
    voice.error({**{name: getattr(e, name) for name in fields}, "message": e.message})
    return e.exit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""heddle top on a terminal: its views, keys and sizes; a transfer as it moves; a broker that ends and comes back;
how it ends."""
import os
import re
import subprocess

from screen import BIN, WORK, Screen, ask, check, start, until

broker, ready = start("heddle-broker", "--listen", "tcp://127.0.0.1:*", "--data", str(WORK / "data"),
                      "--lease", "2s")
address = ready["endpoint"]
os.environ["HEDDLE_BROKER"] = address
for name in ("w1", "w2"):
    start("heddle-worker", "--adapter", "policy", "--name", name, "--own-memory", "--max-rate", "8M",
          "--label", f"node=gpu-{name}")
for version, shape in (("v1", "tiny"), ("v2", "tiny"), ("v3", "qwen2.5-0.5b")):
    subprocess.run([BIN / "mkadapter", "--shape", shape, "--rank", "16", "--seed", version[1], WORK / version],
                   check=True, stdout=subprocess.DEVNULL)
check(ask("publish", f"{WORK}/v1", "--adapter", "policy").returncode == 0, "a version is there")


def row(screen, first):
    """The words of the row that begins so."""
    return next((line.split() for line in screen.lines if line.startswith(first + " ")), [])


s = Screen("top", "--period", "200ms", "--timeout", "500ms", columns=120, term="linux")
s.shows("[1:adapters]", "it begins with the adapters")
until(lambda: row(s, "policy")[1:5] == ["1", "1", "active", "2/2"], "with what is active and how many serve it")
check(s.lines[0].startswith("1 adapter, 2 workers ready, 0 lost, 0 transfers  tcp://"), "the first line counts", s)
ask("publish", f"{WORK}/v2", "--adapter", "policy")
until(lambda: row(s, "policy")[1:2] == ["2"], "and what changes is shown")
ask("rollback", "policy")
until(lambda: any(line.startswith("policy is held at policy@1") for line in s.lines[15:]), "what needs a person is at the bottom")
check("(`heddle resume policy` ends that)" in " ".join(s.text.split()), "with the command that ends it", s)
ask("resume", "policy")
until(lambda: "is held" not in s.text and row(s, "policy")[1:2] == ["2"], "until it does not")
s.keys("\r")
s.shows("of adapter policy", "Enter opens the workers of an adapter")
until(lambda: row(s, "w1")[1:5] == ["ready", "policy", "2", "active"] and row(s, "w2"), "each in a row")
s.keys("\x1b[B\r")
s.shows("worker w2", "and a worker, which an arrow selected")
s.shows("serves    version 2, active", "with all about it")
s.shows("labels      node=gpu-w2", "its labels, too")
s.keys("\x1b")
until(lambda: row(s, "w1"), "Esc goes back")
s.keys("r")
until(lambda: [line[:2] for line in s.lines if line.startswith("w")] == ["w2", "w1"], "r sorts in reverse")
s.keys("/W1\r")
until(lambda: row(s, "w1") and not row(s, "w2"), "a filter keeps what has its text")
s.keys("3")
s.keys("\x1b")
s.shows("(none)", "there are no transfers")

publisher = subprocess.Popen([BIN / "heddle", "publish", WORK / "v3", "--adapter", "policy"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
until(lambda: row(s, "w1")[1:3] == ["policy", "3"] and row(s, "w1")[4] == "%", "a transfer is a row")
done = row(s, "w1")[3]
until(lambda: row(s, "w1") and row(s, "w1")[3] != done, "that moves")
until(lambda: "/s" in " ".join(row(s, "w1")), "at a rate")
until(lambda: "(none)" in s.text, "until all is there", 60)
publisher.wait()

s.keys("2")
s.resize(9, 50)
until(lambda: row(s, "w1") and s.lines[8].startswith("Enter open") and all(len(x) <= 50 for x in s.lines),
      "a small terminal has what fits")
s.resize(3, 20)
until(lambda: s.lines[2].startswith("Enter open"), "a tiny one too")
s.resize(30, 140)
until(lambda: "node=gpu-w1" in row(s, "w1") and "LABELS" in s.lines[2], "a wide one has labels")
until(lambda: row(s, "w1") and row(s, "w2") and s.lines[29].startswith("Enter open"),
      "a large one has all again")

broker.kill()
broker.wait()
s.shows(f"the broker at {address} does not answer; waiting for it", "a lost broker is said")
check(row(s, "w1"), "and the last answer stays", s)
s.keys("1")
until(lambda: row(s, "policy"), "keys go on")
start("heddle-broker", "--listen", address, "--data", str(WORK / "data"), "--lease", "2s")
until(lambda: "does not answer" not in s.text and "2 workers ready" in s.text, "it goes on when the broker is back")
s.resize(24, 80)
until(lambda: re.search(r" \d\d:\d\d:\d\dZ$", s.lines[0]), "80 columns have the whole time")
s.resize(24, 40)
until(lambda: re.search(r"workers ready  \d\d:\d\d:\d\dZ$", s.lines[0]), "and so have 40")
s.resize(24, 80)
s.keys("?")
s.shows("sort by another column", "? shows the keys")
shown = " ".join(s.text.split())
check("Home, End (k j g G): select a row." in shown and "any key but those that scroll ends that" in shown,
      "whole, at 80 columns", s)
check(not any(line.startswith(" ") for line in s.lines[3:23]), "and no line of it is wrapped", s)
s.resize(10, 80)
until(lambda: "Adapters" not in s.text and s.lines[9].startswith("Enter open"), "a low terminal has its beginning")
s.keys("G")
s.shows("Without a terminal", "and the rest of it below")
check("DUR" not in s.text, "which ends there: the words of options are for --help", s)
s.resize(24, 80)
s.keys("x")
until(lambda: row(s, "policy"), "another key ends it")
start("heddle-worker", "--adapter", "policy", "--name", "w3", "--on-stage",
      "echo 'the first of all the words of a long reason and its last word' >&2; exit 9")
s.keys("2")
until(lambda: len(row(s, "w3")) > 5, "a row says what is wrong, at 80 columns")
check("WHY" in s.lines[2], "in its column", s)
s.keys("g")       # the order is reversed
until(lambda: "its last word" in " ".join(s.text.split()) and len(row(s, "w1")) > 4,
      "of the selected row all of it, below the others")
s.resize(10, 80)
until(lambda: "its last word" not in s.text and len(row(s, "w1")) > 4, "a low terminal has the rows")
s.resize(24, 80)
s.keys("G")
until(lambda: len(row(s, "w1")) > 4 and "its last word" not in s.text, "and no other one's")
s.keys("g\r")
until(lambda: "its last word" in " ".join(s.text.split()), "and Enter has all of it")
s.keys("q")
check(s.ends() == 0, "q ends it")

s = Screen("top", term="vt100")
s.shows("[1:adapters]", "an old terminal will do")
s.keys("\x03")
check(s.ends() == 130, "Ctrl-C ends it")

options = os.environ.get("ASAN_OPTIONS", "")
os.environ["ASAN_OPTIONS"] = f"{options}:detect_leaks=0"    # of an unknown terminal ncurses leaves a block behind
s = Screen("top", term="no-such-terminal")
check(s.ends() == 2 and "TERM" in s.text, "a terminal that is not known is refused", s)
os.environ["ASAN_OPTIONS"] = options
done = ask("top")
check(done.returncode == 2 and "heddle workers --watch" in done.stderr, "so is none at all")
s = Screen("top", "--broker", "tcp://127.0.0.1:1", "--timeout", "200ms", term="linux")
check(s.ends() == 7, "an address without a broker is said at once")

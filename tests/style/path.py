#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The path of a version in docs/architecture.md is a chain.  Each line of the list between its two markers is
a file and a function that this file alone defines.  An earlier function of the same section leads to it: by a
call of its name, or as the word at the end of the line says.  Prints what is wrong; exits with 1.

  call      an application calls it: a function of the library
  message   a frame of another process comes: a table or an argument names the function
  turn      the loop calls it in each turn: likewise
  table     an earlier step calls the member of a table of operations that is set to the function
  queue     an earlier step hands its name to the loop's thread

A step is indented by two columns more than the last step before it that leads to it; one that no step leads
to is at the margin."""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
ROOMS = "broker client core formats memory proto sidecar trainer_client transfer wire worker".split()
LIST = re.compile(r"^<!-- path of a version -->$(.*)^<!-- end of the path -->$", re.M | re.S)
STEP = re.compile(r"^([a-z_/]+\.c)( +)([a-z_0-9]+)(?: +([a-z]+))?$")
LEG = re.compile(r"^[A-Z].*:$")         # a heading within the list
MARGIN = 34                             # where the first step of a section begins
WORDS = {"call", "message", "turn", "table", "queue"}
MOST, MOST_OVER_NETWORK = 130, 60       # each is to be read in a few minutes
QUIET = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.S)


@functools.lru_cache(None)
def source(name):
    """The file without comments and texts, which name functions that they do not call."""
    return QUIET.sub(" ", (ROOT / name).read_text())


@functools.lru_cache(None)
def defined(name, function):
    """(is static, body) of a definition, which begins a line; None without one."""
    head = re.search(rf"^([a-z_][^;{{}}()\n]*)\b{function}\([^;{{]*\)\s*\{{", source(name), re.M)
    if not head:
        return None
    text = source(name)
    line_end = text.find("\n", head.end())
    one_line = text[head.end():line_end].rstrip().endswith("}")
    end = line_end if one_line else text.index("\n}", head.end())
    return "static" in head[1], text[head.end():end]


@functools.lru_cache(None)
def homonyms(name, function):
    """Other files that define a function of that name: a reader would look for it there as well."""
    files = (str(f.relative_to(ROOT)) for room in ROOMS for f in (ROOT / room).rglob("*.c"))
    return [f for f in files if f != name and f"{function}(" in source(f) and defined(f, function)]


def calls(caller, step):
    """A static function is called from its own file alone; one of the same name there hides any other."""
    (name, function), (its_name, its_function) = step, caller
    if its_name != name and (defined(name, function)[0] or defined(its_name, function)):
        return False
    return re.search(rf"(?<![.>\w]){function}\(", defined(its_name, its_function)[1])


def is_named(step, text):
    """The text names the function without calling it: in a table, or as an argument."""
    return re.search(rf"(?<![.>\w]){step[1]}\b(?!\s*\()", text)


@functools.lru_cache(None)
def files_of(step):
    """The files that may name the function: its own alone, where it is static."""
    if defined(*step)[0]:
        return [step[0]]
    return [str(f.relative_to(ROOT)) for room in ROOMS for f in (ROOT / room).rglob("*.c")]


def members(step):
    """The members of tables that are set to the function."""
    setting = re.compile(rf"\.(\w+) = {step[1]}\b")
    return {member for file in files_of(step) for member in setting.findall(source(file))}


def leads(caller, step, word):
    """True when an earlier step leads to this one as the word says."""
    body = defined(*caller)[1]
    if word == "table":
        return any(re.search(rf"(?:->|\.){member}\(", body) for member in members(step))
    if word == "queue":
        return is_named(step, body)
    return not word and calls(caller, step)


def is_begun(step, word):
    """True when the step is reached as the word says, without an earlier one."""
    if word == "call":
        return step[1].startswith("heddle_")
    return any(is_named(step, source(file)) for file in files_of(step))


found = LIST.search(PAGE.read_text())
if not found:
    sys.exit(f"path: {PAGE.name} has no list between its markers")
wrong, counts, before, is_over_network = [], [0, 0], [], False
for line in filter(None, (line.strip() for line in found[1].splitlines())):
    match = STEP.match(line)
    if not match:
        if LEG.match(line):
            before, is_over_network = [], line.startswith("Over a network: ")
        elif line != "```":
            wrong.append(f"{line!r} is neither a step nor a leg")
        continue
    counts[is_over_network] += 1
    name, gap, function, word = match.groups()
    step, column = (name, function), len(name) + len(gap)
    if not (ROOT / name).is_file():
        wrong.append(f"{function}: there is no file {name}")
        continue
    if not defined(*step):
        wrong.append(f"{name} defines no function {function}")
        continue
    if word and word not in WORDS:
        wrong.append(f"{function}: {word} is not one of {' '.join(sorted(WORDS))}")
    elif word and any(calls(caller, step) for caller, _ in before):
        wrong.append(f"{function}: an earlier step calls it, so that '{word}' is wrong")
    from_here = word in ("call", "message", "turn")
    callers = (at + 1 for caller, at in reversed(before) if leads(caller, step, word))
    depth = 0 if from_here else next(callers, None)
    if depth is None or (from_here and not is_begun(step, word)):
        wrong.append(f"{function}: it is not reached by '{word}'" if word else
                     f"{name}: no earlier step of its section calls {function}")
    elif column != MARGIN + 2 * depth:
        wrong.append(f"{function}: it begins in column {column}, a step at depth {depth} in column "
                     f"{MARGIN + 2 * depth}")
    wrong += [f"{other} defines {function} too, as {name} does" for other in homonyms(*step)]
    before.append((step, depth or 0))
for count, most in zip(counts, (MOST, MOST_OVER_NETWORK), strict=True):
    if not 20 <= count <= most:
        wrong.append(f"{count} steps; 20 to {most} are expected")
print("\n".join(f"{PAGE.name}: {w}" for w in wrong) if wrong else f"path: {sum(counts)} steps are a chain")
sys.exit(1 if wrong else 0)

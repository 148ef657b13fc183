# SPDX-License-Identifier: Apache-2.0
"""Option tables as the programs print them (core/option.h, option_dump)."""
import dataclasses
import re
import subprocess


@dataclasses.dataclass
class Option:
    table: str      # own | common
    name: str
    letter: str
    kind: str       # flag text duration size integer quorum list choice
    value: str
    env: str
    default: str
    doc: str

    @property
    def takes_value(self):
        return self.kind != "flag"

    @property
    def choices(self):
        """Words that may be given as they are: of `all|N|P%|none` all and none."""
        words = [w for w in self.value.split("|") if re.fullmatch(r"[a-z][a-z-]*", w)]
        return words if "|" in self.value or self.kind == "choice" else []


@dataclasses.dataclass
class Table:
    command: str    # "publish"
    brief: str      # one line, from the list of commands
    program: str = ""
    usage: str = ""
    summary: str = ""
    epilog: str = ""
    arguments: list = dataclasses.field(default_factory=list)
    options: list = dataclasses.field(default_factory=list)

    @property
    def actions(self):
        """Of `list | add KEY | revoke KEY`: list, add, revoke; none where the first argument is no action."""
        is_action = self.arguments[:1] == ["ACTION"]
        return [part.split()[0] for part in self.usage.split(" | ")] if is_action else []

    @property
    def page(self):
        return self.program.replace(" ", "-")


def dump(*command):
    done = subprocess.run([*command, "--dump-options"], check=True, capture_output=True, text=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def read_tables(bindir):
    """command -> Table, in the order of `heddle --help`."""
    tables = {}
    for _, command, brief in dump(bindir / "heddle"):
        t = tables[command] = Table(command, re.sub(r" \(heddle-[a-z]+\)$", "", brief))
        for key, *fields in dump(bindir / "heddle", command):
            if key == "option":
                t.options.append(Option(*fields))
            elif key == "argument":
                t.arguments.append(fields[0])
            else:
                setattr(t, key, fields[0])
    return tables

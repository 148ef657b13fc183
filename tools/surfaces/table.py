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
    kind: str       # flag text duration period size integer quorum list choice
    value: str
    env: str
    default: str
    doc: str

    @property
    def takes_value(self):
        """In the next word; that of a period, which may be left out, is in the same."""
        return self.kind not in ("flag", "period")

    @property
    def choices(self):
        """Words that may be given as they are: of `all|N|P%|none` all and none."""
        words = [w for w in self.value.split("|") if re.fullmatch(r"[a-z][a-z0-9.-]*", w)]
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
    notes: list = dataclasses.field(default_factory=list)   # lines: exit statuses, environment, examples

    def note(self, head):
        """Lines of the paragraph of the notes that begins so; the first without its head."""
        for paragraph in "\n".join(self.notes).split("\n\n"):
            if paragraph.startswith(head):
                return paragraph[len(head):].strip("\n").split("\n")
        return []

    @property
    def environment(self):
        """(variable, what it is, default) of each row."""
        rows = [re.fullmatch(r"  (\S+) {2,}(.*?)(?: \[(.*)\])?", line) for line in self.note("Environment:")]
        return [m.groups() for m in rows]

    @property
    def examples(self):
        """[command, what it is for]; that is beside it, and on lines below."""
        found = []
        for line in self.note("Examples:"):
            if line.startswith(" " * 10):
                found[-1][1] = f"{found[-1][1]} {line.strip()}".strip()
            else:
                command, *comment = re.split(r" {3,}", line.strip(), maxsplit=1)
                found.append([command, "".join(comment)])
        return found

    @property
    def actions(self):
        """Of `list | add KEY | revoke KEY`: list, add, revoke; none where no action comes first."""
        is_action = self.arguments[:1] == ["ACTION"]
        return [part.split()[0] for part in self.usage.split(" | ")] if is_action else []

    @property
    def page(self):
        return self.program.replace(" ", "-")


def dump(*command):
    done = subprocess.run([*command, "--dump-options"], check=True, capture_output=True, text=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def read_overview(bindir):
    """What `heddle --help` tells of all commands together."""
    return Table("", "", "heddle", notes=[f[0] for key, *f in dump(bindir / "heddle") if key == "note"])


def read_rows(table, rows):
    for key, *fields in rows:
        if key == "option":
            table.options.append(Option(*fields))
        elif key == "argument":
            table.arguments.append(fields[0])
        elif key == "note":
            table.notes.append(fields[0])
        else:
            setattr(table, key, fields[0])
    return table


def read_program(bindir, name, brief):
    """Of a program that is not a command of heddle."""
    return read_rows(Table(name, brief), dump(bindir / name))


def read_tables(bindir):
    """command -> Table, in the order of `heddle --help`."""
    tables = {}
    for key, command, *brief in dump(bindir / "heddle"):
        if key != "command":
            continue
        table = Table(command, re.sub(r" \(heddle-[a-z]+\)$", "", brief[0]))
        tables[command] = read_rows(table, dump(bindir / "heddle", command))
    return tables

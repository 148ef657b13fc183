# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md as data: its messages, rows and misdeeds, and what in a message breaks its tables."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Field = collections.namedtuple("Field", "key kind required limit size")
Message = collections.namedtuple("Message", "number name fields")


def number_of(text):
    power = re.fullmatch(r"2\^(\d+)(-1)?", text)
    return 2 ** int(power[1]) - bool(power[2]) if power else int(text)


def field_of(key, kind, limit):
    """A line of a table: `limit` is of a number, the bytes of a text or the rows of a list; `size` of each
    text in a list."""
    required = kind.endswith(", required")
    kind = kind.removesuffix(", required")
    words = limit.replace(" bytes", "").split(" of ")
    return Field(key, kind, required, number_of(words[0]) if words[0] else None,
                 number_of(words[1]) if words[1:] else None)


def tables_of(text):
    """{heading: fields} of every table of keys: the headings are "HELLO" or "row part"."""
    tables = {}
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        if "| key | kind | limit |" in body:
            lines = re.findall(r"^\| `(\w+)` \| ([^|]+?) \| ([^|]*?) +\| ", body.replace("|  |", "|   |"),
                               re.M)
            tables[heading.replace("`", "")] = [field_of(*line) for line in lines]
    return tables


class Page:
    def __init__(self, text):
        tables = tables_of(text)
        self.rows = {k.removeprefix("row "): f for k, f in tables.items() if k.startswith("row ")}
        numbered = [k.split() for k in tables if k[0].isdigit()]
        self.messages = {int(n): Message(int(n), name, tables[f"{n} {name}"]) for n, name in numbered}
        self.numbers = {m.name: n for n, m in self.messages.items()}

    def numbered(self):
        return {n: m.name for n, m in self.messages.items()}

    def wrong_with(self, number, fields, skip=False):
        """What in a message that was heard is not as the page says; None where nothing is.  skip: keys that
        are not known are well."""
        if number not in self.messages:
            return f"type {number} is not on the page"
        return wrong_row(self, self.messages[number].fields, fields, skip)


def wrong_row(page, table, row, skip):
    if not isinstance(row, dict):
        return f"{row!r} is no map"
    known = {f.key for f in table}
    if set(row) - known and not skip:
        return f"keys {sorted(set(row) - known)} are not on the page"
    for field in table:
        if field.key not in row:
            if field.required:
                return f"`{field.key}` is required"
            continue
        wrong = wrong_value(page, field, row[field.key], skip)
        if wrong:
            return f"`{field.key}`: {wrong}"
    return None


def wrong_text(value, limit, required):
    if not isinstance(value, str) or "\0" in value or len(value.encode()) > limit or (required and not value):
        return f"{value!r} is no such text"
    return None


def wrong_value(page, field, value, skip):
    kind = field.kind
    if kind in ("u64", "i64"):
        least = 0 if kind == "u64" else -field.limit
        return (None if type(value) is int and least <= value <= field.limit
                else f"{value!r} is not in {least}..{field.limit}")
    if kind == "bool":
        return None if isinstance(value, bool) else f"{value!r} is no bool"
    if kind == "text":
        return wrong_text(value, field.limit, field.required)
    if kind == "name":
        return (None if isinstance(value, str) and (NAME.fullmatch(value) or not (value or field.required))
                else f"{value!r} is no name")
    if kind in ("bin", "key16", "digest"):
        fits = {"key16": lambda n: n == 16, "digest": lambda n: n == 32,
                "bin": lambda n: n <= (field.limit or 0)}[kind]
        return None if isinstance(value, bytes) and fits(len(value)) else f"{value!r} is no {kind}"
    if not isinstance(value, list) or len(value) > field.limit:
        return f"{value!r} is not a list of at most {field.limit}"
    if kind == "texts":
        return next(filter(None, (wrong_text(v, field.size, False) for v in value)), None)
    if kind == "u64s":
        return None if all(type(v) is int and v >= 0 for v in value) else f"{value!r} are no numbers"
    return next(filter(None, (wrong_row(page, page.rows[kind.removeprefix("list of ")], v, skip)
                              for v in value)), None)


def load(name="docs/protocol.md"):
    return Page((ROOT / name).read_text())

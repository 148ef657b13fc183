# SPDX-License-Identifier: Apache-2.0
"""heddle-errors(7), from the table of docs/operations.md."""
import re

ROW = re.compile(r"^\| `([a-z_]+)` \| (\d+) \| (yes|no) \| (.*?) \| (.*?) \| (.*?) \|$", re.M)
HEAD = """.\\" SPDX-License-Identifier: Apache-2.0
.\\" Made by tools/surfaces from the table in docs/operations.md.
.Dd November 21, 2026
.Dt HEDDLE-ERRORS 7
.Os Heddle
.Sh NAME
.Nm heddle-errors
.Nd what each error code means, and what to do
.Sh DESCRIPTION
Every failure has one of these codes: the first word of the message,
.Li .error.code
with
.Fl o Cm json ,
.Fa code
in the library.
Behind each stand the exit status,
and whether the same call may succeed later without a change;
then what it comes from, and what to do.
The longer story is in
.Pa operations.md ,
which lies with the other pages in
.Pa share/doc/heddle .
.Bl -tag -width Ds
"""
TAIL = """.El
.Sh SEE ALSO
.Xr heddle 1 ,
.Xr heddle_error 3 ,
.Xr heddle 7
"""


def plain(text):
    """Markdown of a cell as one line of mdoc text; a link is where to read on."""
    text = re.sub(r"^\[([^\]]+)\]\(#", r"see [\1](#", text)
    text = re.sub(r"\[([^\]]+)\]\(#[^)]+\)", r'"\1" in operations.md', text)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    text = text.replace("`", "").replace("*", "").replace("–", "nothing").replace("…", "...")
    text = text.replace("\\", "\\e").strip()
    return f"\\&{text}" if text[:1] in ".'" else text


def sentence(cell):
    text = plain(cell)
    first = text[:1] if cell[:1] == "`" or cell.startswith("[security") else text[:1].upper()
    return re.sub(r"([.;]) ", r"\1\n", first + text[1:] + ("" if text.endswith(".") else "."))


def page(operations):
    section = operations.split("\n## Errors\n", 1)[1].split("\n## ", 1)[0]
    items = []
    for name, status, again, _, cause, cure in ROW.findall(section):
        items.append(f".It {name} Pq {status}{', again' if again == 'yes' else ''}")
        items += [sentence(cause), ".Pp", sentence(cure)]
    return HEAD + "\n".join(items) + "\n" + TAIL

# SPDX-License-Identifier: Apache-2.0
"""A public header as a list of what it declares, each with the comment that stands before it."""
import dataclasses
import re


@dataclasses.dataclass
class Function:
    name: str
    result: str
    parameters: list
    comment: str


@dataclasses.dataclass
class Header:
    name: str       # "heddle/publisher.h"
    brief: str      # first sentence of its comment
    intro: list     # paragraphs
    functions: list
    types: list     # source texts of structs, enums and constants


COMMENT = re.compile(r"/\*.*?\*/", re.S)
ITEM = re.compile(
    r"(?P<comment>/\*(?:(?!\*/).)*\*/)"
    r"|HEDDLE_API\s+(?P<function>[^;]+);"
    r"|(?P<type>typedef\s+(?:struct|enum)\b[^;{]*\{(?:[^{}]|\{[^{}]*\})*\}\s*\w+\s*;|typedef\s+[^;{]+;)"
    r"|(?P<define>\#define(?:[^\n\\]|\\\n?)*\n)", re.S)


def plain(comment):
    """The words of a comment, without its frame."""
    lines = comment[2:-2].split("\n")
    return "\n".join(re.sub(r"^\s*\* ?", "", line).strip() for line in lines).strip()


def laid_out(comment):
    """Its paragraphs: lines joined, but for those that are indented, which stay as they are."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment[2:-2].strip().split("\n")]
    return [p if p.startswith("  ") else " ".join(p.split("\n"))
            for p in re.split(r"\n\n+", "\n".join(lines))]


def function(text, comment):
    m = re.match(r"(?P<result>.*?[\s*])(?P<name>heddle_\w+)\((?P<args>.*)\)$", " ".join(text.split()), re.S)
    return Function(m["name"], m["result"].strip(), [a.strip() for a in m["args"].split(",")], comment)


def read(path):
    text = re.sub(r"^\/\* clang-format (?:on|off) \*\/\n", "", path.read_text(), flags=re.M)
    paragraphs = laid_out(COMMENT.findall(text)[1])
    name, brief = paragraphs[0].split(": ", 1)
    body = text[text.index('extern "C" {\n#endif') + len('extern "C" {\n#endif'):]
    found, comment = Header(name, brief.rstrip("."), paragraphs[1:], [], []), ""
    for m in ITEM.finditer(body):
        if m["comment"]:
            comment = plain(m["comment"])
            note = m["comment"]
            continue
        if m["function"]:
            found.functions.append(function(m["function"], comment))
        elif m["type"] or (m["define"] and not re.match(r"#define (X|HEDDLE_API)\b", m["define"])):
            source = m["type"] or m["define"].rstrip()
            found.types.append((note + "\n" if comment else "") + source)
        comment = ""
    return found

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages are plain technical English: threads, processes and peers are not persons.  No string literal of C
or Python (messages, help texts, docstrings), no comment of the Python that is installed, and no page, nor the
name of a test that a page cites, has a word of WORDS.  What is not a thing "is not a thing": "is no thing"
reads as if there were none.
Prints the places and exits with 1.

What a message says: what failed, where, what was expected, what was found, what to do."""
import ast
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = re.compile(r"\b(nobody|whoever|somebody|anybody|everybody|heard\s+of|mended|"
                   r"(?:is|are|was|were)\s+told|"
                   r"(?<!there )(?<!there\n)(?:is|are|was|were)\s+no\s+(?!longer)[a-z]\w*)\b", re.I)
C = """include/heddle core proto formats wire memory transfer client worker sidecar trainer_client cli broker
       http bench tools examples""".split()
PYTHON = "python/heddle python/tools tools examples bench".split()
INSTALLED = "python/heddle"
SHELL = "tools examples .ci".split()
PAGES = """*.md docs/*.md docs/man/* python/*.md examples/*/*.md deploy/**/* http/page/*""".split()
CITED = re.compile(r"`[a-z/_]+(?:\.c|\.py)?: [a-z0-9_]+`")         # a test
# A comment, or a literal: what begins first ends first.
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.S)


def strings_of_c(text):
    """-> (line, text) of each literal; what the compiler would join, with only space between, is one."""
    joined, line, last = "", 0, 0
    for m in C_TOKEN.finditer(text):
        if not m[0].startswith('"'):
            continue
        if joined and text[last:m.start()].strip(" \t\n\\"):
            yield line, joined
            joined = ""
        line = line if joined else text.count("\n", 0, m.start()) + 1
        joined, last = joined + m[0][1:-1], m.end()
    if joined:
        yield line, joined


def strings_of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def comments_of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def text_of_page(text):
    yield 1, CITED.sub(lambda cited: cited[0].replace("_", " "), text)


def strings_of_shell(text):
    """Every line that is no comment: most of them are words that are printed."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#"):
            yield number, line


def is_script(path, of):
    if path.suffix:
        return False
    with open(path, "rb") as f:
        first = f.readline()
    return first.startswith(b"#!") and of in first


def sources():
    """-> (path, what reads its strings)"""
    for place in C:
        yield from ((p, strings_of_c) for p in sorted((ROOT / place).rglob("*.[ch]")))
    for place in PYTHON:
        for p in sorted((ROOT / place).rglob("*")):
            if p.is_file() and p.name != "_abi.py" and (p.suffix == ".py" or is_script(p, b"python")):
                yield p, strings_of_python
    for place in SHELL:
        yield from ((p, strings_of_shell) for p in sorted((ROOT / place).rglob("*"))
                    if p.is_file() and (p.suffix == ".sh" or is_script(p, b"sh")))
    for pattern in PAGES:
        pages = [p for p in sorted(ROOT.glob(pattern)) if p.is_file()]
        if not pages:
            sys.exit(f"words: no pages {pattern}")
        yield from ((p, text_of_page) for p in pages)
    yield from ((p, comments_of_python) for p in sorted((ROOT / INSTALLED).rglob("*.py")))


wrong, count = [], 0
for path, strings in sources():
    for number, said in strings(path.read_text()):
        count += 1
        said = said.replace("\\n", "  ")
        for m in WORDS.finditer(said):
            at = number + said.count("\n", 0, m.start())
            wrong.append(f'{path.relative_to(ROOT)}:{at}: "{" ".join(m[0].split())}" in a text for people')
print("\n".join(wrong) if wrong else f"words: {count} texts are free of {WORDS.pattern}")
sys.exit(1 if wrong or count < 1000 else 0)

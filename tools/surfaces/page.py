# SPDX-License-Identifier: Apache-2.0
"""Manual pages in mdoc(7).  A page is a made part between two marks and a part written by hand around it,
kept as it is."""
import re
import textwrap

BEGIN = '.\\" begin: made by tools/surfaces'
END = '.\\" end: made by tools/surfaces'
DATE = "November 21, 2026"


def renew(path, made, rest):
    """The page with its made parts replaced, one or several; a page that is not there yet begins with `rest`
    below the last of them."""
    parts = [f"{BEGIN}\n{m.rstrip()}\n{END}\n" for m in ([made] if isinstance(made, str) else made)]
    if not path.exists():
        title = path.stem.upper()
        return (f'.\\" SPDX-License-Identifier: Apache-2.0\n.Dd {DATE}\n.Dt {title} {path.suffix[1:]}\n'
                f'.Os Heddle\n{"".join(parts)}{rest}')
    by_hand = re.split(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", path.read_text(), flags=re.DOTALL)
    if len(by_hand) != len(parts) + 1:
        raise SystemExit(f"{path}: has not {len(parts)} of the marks: {BEGIN}")
    return by_hand[0] + "".join(part + after for part, after in zip(parts, by_hand[1:]))


# ---- text -> roff --------------------------------------------------------------------------------

def escape(line):
    line = line.replace("\\", "\\e")
    line = re.sub(r"(?<![\w-])--(?=[a-z])", r"\\-\\-", line)
    return "\\&" + line if line[:1] in (".", "'") else line


def prose(text):
    """Sentences on lines of their own, as mdoc wants them; a blank line is a paragraph."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        sentences = re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))
        paragraphs.append("\n".join(line for s in sentences for line in marked(s)))
    return "\n.Pp\n".join(paragraphs)


def marked(text):
    """Lines of at most 78 columns; a function's name is a macro on a line of its own."""
    for part in re.split(r"\s*(\(?heddle_\w+\(\)[.,;:)]*)\s*", text):
        m = re.match(r"(\(?)(heddle_\w+)\(\)(.*)", part)
        if m:
            yield f".Fn {' '.join([*m[1], m[2], *m[3]])}"
        else:
            yield from (escape(line) for line in textwrap.wrap(part, 78, break_long_words=False,
                                                               break_on_hyphens=False))


def sentence(text):
    """A line of an option table as a sentence."""
    if not re.match(r"[A-Z]+\b", text) and not re.match(r"[a-z]+[-_:]", text):
        text = text[:1].upper() + text[1:]
    return text if text[-1:] in ".!?" else text + "."


def literal(text):
    return ".Bd -literal\n" + "\n".join(escape(line) for line in text.split("\n")) + "\n.Ed"


def introduction(paragraphs):
    """What is indented in the header stands as it is."""
    made = ""
    for p in paragraphs:
        if p.startswith("  "):
            made += "\n" + literal(p)
        else:
            made += ("\n.Pp\n" if made else "") + prose(p)
    return made.lstrip("\n")


def value(text):
    """all|N|P%|none -> Cm all | Ar N | Ar P% | Cm none"""
    words = [(("Cm " if re.fullmatch(r"[a-z][a-z-]*", w) else "Ar ") + w) for w in text.split("|")]
    return " | ".join(words)


# ---- commands ------------------------------------------------------------------------------------

def synopsis(table):
    lines = ([".Nm heddle", f".Cm {table.command}"] if table.program.startswith("heddle ")
             else [f".Nm {table.program}"])
    for optional, flag, operand, word in re.findall(r"\[([^\]]+)\]|--([a-z-]+)(?: ([A-Z]+))?|(\S+)",
                                                    table.usage):
        m = re.match(r"--([a-z-]+)(?: ([A-Z]+))?$", optional)
        if m:
            lines.append(f".Op Fl Fl {m[1]}" + (f" Ar {m[2]}" if m[2] else ""))
        elif optional:
            lines.append(".Op Ar " + optional.replace("...", " ...").strip())
        elif flag:
            lines.append(f".Fl Fl {flag}" + (f" Ar {operand}" if operand else ""))
        else:
            lines.append("|" if word == "|" else "." + value(word.replace("...", " ...")))
    return "\n".join(lines)


def option(o):
    short = f"Fl {o.letter} , " if o.letter else ""
    of = f" Ns Op Ns = Ns Ar {o.value}" if o.kind == "period" else f" {value(o.value)}" if o.value else ""
    lines = [f".It {short}Fl Fl {o.name}{of}", prose(sentence(o.doc))]
    if o.default and o.default not in ("-1",):
        lines += ["The default is", f".Ql {o.default} ."]
    if o.env:
        lines += ["Another default may be given in the variable", f".Ev {o.env} ."]
    return "\n".join(lines)


def command(table):
    own = [option(o) for o in table.options if o.table == "own"]
    common = [option(o) for o in table.options if o.table == "common"]
    parts = [".Sh NAME", f".Nm {table.page}", f".Nd {table.brief}", ".Sh SYNOPSIS", synopsis(table),
             ".Sh DESCRIPTION", prose(table.summary)]
    if own:
        parts += [".Pp", "The options are:", ".Bl -tag -width Ds", *own, ".El"]
    parts += [".Pp", "Common options:", ".Bl -tag -width Ds", *common, ".El"]
    if table.epilog:
        parts += [".Pp", prose(table.epilog)]
    if table.environment:
        parts += [environment(table)]
    return "\n".join(parts + [exit_status(table), examples(table)])


def command_rest(table):
    return ".Sh SEE ALSO\n.Xr heddle 1\n"


def environment(table):
    lines = [".Sh ENVIRONMENT", ".Bl -tag -width Ds"]
    for name, text, default in table.environment:
        lines += [f".It Ev {name}", prose(sentence(text))]
        lines += [prose(f"Default: {default}.")] if default else []
    return "\n".join(lines + [".El"])


def exit_status(table):
    return (f'.Sh EXIT STATUS\n{prose(" ".join(table.note("Exit status:")))}\n'
            'What each means for all commands is in\n.Xr heddle 1 .')


def shell(command):
    """In lines that fit; what is quoted stays in one."""
    lines = ["$"]
    for word in re.findall(r"(?:'[^']*'|[^\s'])+", command):
        if len(lines[-1]) + 1 + len(word) > 74 and len(lines[-1]) > 20:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def examples(table):
    """What a command is for goes above it; commands that need no words follow each other."""
    parts, block = [".Sh EXAMPLES"], []

    def end_block():
        if block:
            parts.extend([".Bd -literal -offset indent", *map(escape_literal, block), ".Ed"])
            block.clear()

    for command, comment in table.examples:
        if comment:
            end_block()
            parts.append(prose(re.sub(r"[.]?$", "" if comment.endswith("?") else ":", sentence(comment),
                                      count=1)))
        block.extend(shell(command))
        if comment:
            end_block()
    end_block()
    return "\n".join(parts)


def escape_literal(line):
    return line.replace("\\", "\\e")


def overview(tables):
    lines = [".Sh NAME", ".Nm heddle", ".Nd LoRA adapters from trainers to every rollout worker, by version",
             ".Sh SYNOPSIS",
             ".Nm", ".Ar COMMAND", ".Op Ar OPTION ...", ".Nm", ".Cm help", ".Op Ar COMMAND", ".Nm",
             ".Fl Fl version",
             ".Sh DESCRIPTION", "The commands are, each with a page of its own:", ".Bl -tag -width Ds"]
    for t in tables.values():
        lines += [f".It Xr {t.page} 1", prose(sentence(t.brief))]
    return "\n".join(lines + [".El"])


def overview_rest():
    return ".Sh SEE ALSO\n.Xr heddle 7\n"


# ---- the library ---------------------------------------------------------------------------------

def prototype(f):
    lines = [f".Ft {quoted(f.result)}", f".Fo {f.name}"]
    return "\n".join(lines + [f'.Fa {quoted(p)}' for p in f.parameters] + [".Fc"])


def quoted(text):
    return f'"{text}"' if " " in text else text


def wrapped_source(source):
    """A comment is laid out anew; at the end of a line that is too long, it goes above that line."""
    out = []
    source = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"\s*\n\s*\*? ?", " ", m[0]), source, flags=re.S)
    for line in source.replace("\\\n", "\n").split("\n"):
        m = re.match(r"(\s*)(.*?)\s*/\* (.*) \*/$", line)
        if len(line) > 76 and m:
            out += textwrap.wrap(f"/* {m[3]} */", 76, initial_indent=m[1], subsequent_indent=m[1] + "   ")
            if not m[2]:
                continue
            line = m[1] + m[2]
        out += textwrap.wrap(line.rstrip(), 76, subsequent_indent="        ", break_long_words=False,
                             break_on_hyphens=False) or [""]
    return "\n".join(out)


def error_rows(source):
    """HEDDLE_ERRORS(X) as a list for people."""
    rows = re.findall(r'X\((\w+), \d+, "(\w+)", (\d+), \w+, (\d),[\s\\]*"([^"]+)"\)', source)
    if len(rows) != len(re.findall(r"\bX\(\w+, \d", source)):
        raise SystemExit("heddle/error.h: not every line of HEDDLE_ERRORS can be read")
    lines = [".Bl -tag -width Ds"]
    for name, text_name, status, retriable, text in rows:
        lines += [f".It Dv HEDDLE_ERR_{name} Pq Li {text_name} Ns No , exit {status}"
                  + (", retriable" if retriable == "1" else ""), prose(sentence(text))]
    return "\n".join(lines + [".El"])


def library(h):
    names = [f.name for f in h.functions]
    parts = [".Sh NAME", *[f".Nm {n} ," for n in names[:-1]], f".Nm {names[-1]}", f".Nd {h.brief}",
             ".Sh SYNOPSIS", f".In {h.name}",
             *[prototype(f) for f in h.functions], ".Sh DESCRIPTION", introduction(h.intro),
             ".Bl -tag -width Ds"]
    for f in h.functions:
        if not f.comment:
            raise SystemExit(f"{h.name}: {f.name} has no comment before it: it is what its manual page says")
        parts += [f".It Fn {f.name}", prose(f.comment)]
    parts.append(".El")
    tables = [t for t in h.types if "HEDDLE_ERRORS(X)" in t]
    sources = [wrapped_source(t) for t in h.types if t not in tables]
    if sources:
        parts += [".Ss Types", "As they stand in the header:", literal("\n".join(sources))]
    if tables:
        parts += [".Ss Errors", error_rows(tables[0])]
    return "\n".join(parts)


def library_rest(h):
    return (".Sh RETURN VALUES\nFunctions that return\n.Vt int\nreturn\n.Dv HEDDLE_OK\n(0) or a negative "
            "code of\n.Xr heddle_error 3 ;\n"
            ".Fn heddle_last_error\nthen tells what, where, what was expected, what was found, and what to "
            "do.\n"
            ".Sh SEE ALSO\n.Xr heddle 7\n")

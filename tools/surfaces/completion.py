# SPDX-License-Identifier: Apache-2.0
"""Shell completion for bash and zsh."""

NOTE = "# Made from the programs' option tables by tools/surfaces; edits here are lost."
FOLDERS = {"DIR"}           # values and arguments that are directories
FILES = {"BEFORE", "AFTER", "FILE", "KEY|FILE", "CMD"}   # or may be a file
INTERFACES = {"IF"}
DAEMONS = ("broker", "worker")


def words(o):
    return ([f"-{o.letter}"] if o.letter else []) + [f"--{o.name}"]


def kind_of(value):
    """dir, file or if: what the system is asked for; else None."""
    kinds = {"dir": FOLDERS, "file": FILES, "if": INTERFACES}
    return next((kind for kind, values in kinds.items() if value in values), None)


# ---- bash ----------------------------------------------------------------------------------------

def bash_values(tables):
    """(command:option -> what to offer), the same rows of several commands together."""
    rows = {}
    for t in tables:
        for o in t.options:
            if o.takes_value:
                offer = f"@{kind_of(o.value)}" if kind_of(o.value) else " ".join(o.choices)
                for w in words(o):
                    rows.setdefault((w, offer), []).append(t.command)
    lines = []
    for (word, offer), commands in sorted(rows.items()):
        patterns = "|".join(f"{c}:{word}" for c in commands)
        lines.append(f"    {patterns}) echo '{offer}' ;;")
    return "\n".join(lines)


def bash_action(t):
    """The first word is an action; what comes after it, where that is a file."""
    first = f"""mapfile -t COMPREPLY < <(compgen -W '{' '.join(t.actions)}' -- "$cur")"""
    here = f"[[ ${{COMP_WORDS[COMP_CWORD - 1]}} == ?(*heddle-){t.command} ]]"
    if not FILES & set(t.arguments):
        return f"{here} && {first}"
    rest = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")'
    return f"if {here}; then {first}; else {rest}; fi"


def bash(tables, maker):
    """`maker`: a program that is no command of heddle."""
    every = [*tables.values(), maker]
    options = "\n".join(f"    {t.command}) echo '{' '.join(w for o in t.options for w in words(o))}' ;;"
                        for t in every)
    actions = "".join(f"""    {t.command}:*) {bash_action(t)} ;;
""" for t in tables.values() if t.actions)
    folders = "|".join(f"{t.command}:*" for t in every if FOLDERS & set(t.arguments))
    return f"""\
# SPDX-License-Identifier: Apache-2.0
{NOTE}
# bash completion for heddle, heddle-broker, heddle-worker, heddle-bench, mkadapter; needs nothing but bash

_heddle_options() {{ # _heddle_options COMMAND: its options
  case $1 in
{options}
  esac
}}

# _heddle_values COMMAND OPTION: what it may be, @dir, @file or @if (interface); fails when it takes no value
_heddle_values() {{
  case $1:$2 in
{bash_values(every)}
    *) return 1 ;;
  esac
}}

_heddle() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command='' values i
  # bash takes --option=value apart
  if [ "$cur" = = ]; then cur=''; elif [ "$prev" = = ]; then prev=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  case ${{COMP_WORDS[0]##*/}} in
    heddle-*) command=${{COMP_WORDS[0]##*/heddle-}}; command=${{command#heddle-}} ;;
    {maker.program}) command={maker.command} ;;
    *)
      for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
          -*)
            if _heddle_values status "${{COMP_WORDS[i]}}" >/dev/null; then
              [ "${{COMP_WORDS[i + 1]}}" = = ] && i=$((i + 1))
              i=$((i + 1))
            fi ;;
          *) command=${{COMP_WORDS[i]}}; break ;;
        esac
      done ;;
  esac
  COMPREPLY=()
  if values=$(_heddle_values "${{command:-status}}" "$prev"); then
    case $values in
      @dir) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
      @file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
      @if) mapfile -t COMPREPLY < <(cd /sys/class/net 2>/dev/null && compgen -d -- "$cur") ;;
      *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
    esac
    return
  fi
  case $command:$cur in
    :-*) mapfile -t COMPREPLY < <(compgen -W "$(_heddle_options status)" -- "$cur") ;;
    :*) mapfile -t COMPREPLY < <(compgen -W '{' '.join(tables)} help' -- "$cur") ;;
    help:*) mapfile -t COMPREPLY < <(compgen -W '{' '.join(tables)}' -- "$cur") ;;
    *:-*) mapfile -t COMPREPLY < <(compgen -W "$(_heddle_options "$command")" -- "$cur") ;;
{actions}    {folders}) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
  esac
}}
complete -o default -F _heddle heddle heddle-broker heddle-worker heddle-bench {maker.program}
"""


# ---- zsh -----------------------------------------------------------------------------------------

def zsh_quoted(text):
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_action(value, choices):
    kinds = {"dir": "_files -/", "file": "_files", "if": "_net_interfaces"}
    return kinds.get(kind_of(value)) or (f"({' '.join(choices)})" if choices else " ")


def zsh_option(o):
    doc = zsh_quoted(o.doc)
    several = "*" if o.kind == "list" else ""
    rest = f":{zsh_quoted(o.value)}:{zsh_action(o.value, o.choices)}" if o.takes_value else ""
    if o.letter:
        both = f"-{o.letter},--{o.name}{'=' if o.takes_value else ''}"
        return f"'(-{o.letter} --{o.name})'{{{both}}}'[{doc}]{rest}'"
    return f"'{several}--{o.name}{'=' if o.takes_value else ''}[{doc}]{rest}'"


def zsh_argument(t, name):
    if name == "ACTION":
        return f"({' '.join(t.actions)})"
    return zsh_action(name, ()).strip() or f"_message {name}"


def zsh_function(t):
    lines = [f"_heddle_{t.command}() {{", "  _arguments -s -S \\"]
    lines += [f"    {zsh_option(o)} \\" for o in t.options]
    # a bare message as the first argument's action would keep options from being completed there
    lines += [f"    '{i}:{a}:{zsh_argument(t, a)}' \\" for i, a in enumerate(t.arguments, 1)]
    lines[-1] = lines[-1][:-2]
    return "\n".join(lines + ["}"])


def zsh(tables, maker):
    described = "\n".join(f"      '{t.command}:{zsh_quoted(t.brief)}'" for t in tables.values())
    functions = "\n\n".join(zsh_function(t) for t in [*tables.values(), maker])
    common = [zsh_option(o)
              for o in next(iter([t for t in tables.values() if t.command == "status"])).options]
    return f"""\
#compdef heddle heddle-broker heddle-worker heddle-bench {maker.program}
# SPDX-License-Identifier: Apache-2.0
{NOTE}

{functions}

_heddle() {{
  local state curcontext=$curcontext
  local -a commands
  if [[ $service == heddle-* || $service == {maker.program} ]]; then
    _heddle_${{service#heddle-}}
    return
  fi
  _arguments -C -s -S -A "-*" \\
    {(" " + chr(92) + chr(10) + "    ").join(common)} \\
    '1:command:->command' '*::argument:->arguments' && return
  case $state in
    command)
      commands=(
{described}
      'help:how to use a command'
      )
      _describe command commands ;;
    arguments)
      curcontext="${{curcontext%:*}}-$words[1]:"
      if [[ $words[1] == help ]]; then
        _values command {' '.join(tables)}
      elif (( $+functions[_heddle_$words[1]] )); then
        _heddle_$words[1]
      fi ;;
  esac
}}

_heddle "$@"
"""

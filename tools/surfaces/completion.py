# SPDX-License-Identifier: Apache-2.0
"""Shell completion for bash and zsh."""

NOTE = "# Made from the programs' option tables by tools/surfaces; edits here are lost."
FOLDERS = {"DIR"}           # values and arguments that are directories
FILES = {"BEFORE", "AFTER", "FILE", "KEY|FILE", "CMD", "DIR|FILE..."}   # or may be a file
INTERFACES = {"IF"}
NAMES = {"adapter": "adapters", "worker": "workers", "context": "contexts"}     # options with known values
REFS = {"REF", "NAME@V"}                                # arguments that name an adapter or a version
DAEMONS = ("broker", "worker")


def words(o):
    return ([f"-{o.letter}"] if o.letter else []) + [f"--{o.name}"]


def kind_of(value):
    """dir, file or if: what the system is asked for; else None."""
    kinds = {"dir": FOLDERS, "file": FILES, "if": INTERFACES}
    return next((kind for kind, values in kinds.items() if value in values), None)


def asked_of(o):
    """adapters, workers, contexts or refs: what is asked for, to complete this option's value; else None."""
    return "refs" if "NAME@V" in o.value else NAMES.get(o.name) if o.value == "NAME" else None


def first_name(t):
    """The function that completes a command's first argument, where the broker knows it; else None."""
    first = t.arguments[0] if t.arguments else None
    if first in REFS:
        return f"_heddle_refs {first}"
    if t.command == "rollback":     # NAME, as a rule
        return "_heddle_refs REF"
    if t.command in ("resume", "forget", "check"):
        return "_heddle_names adapters"
    return "_heddle_names workers" if t.command in ("workers", "drain") else None


# ---- bash ----------------------------------------------------------------------------------------

def bash_values(tables):
    """(command:option -> what to offer), the same rows of several commands together."""
    rows = {}
    for t in tables:
        for o in t.options:
            if o.takes_value:
                kind = kind_of(o.value) or asked_of(o)
                offer = f"@{kind}" if kind else " ".join(o.choices)
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
    here = "[ $given = 0 ]"
    if t.command == "context":
        return f"if {here}; then {first}; else _heddle_names contexts; fi"
    if not FILES & set(t.arguments):
        return f"{here} && {first}"
    rest = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")'
    return f"if {here}; then {first}; else {rest}; fi"


def bash_names(t):
    """The first argument is a name that the broker knows; what comes after it, where that is a folder."""
    if not FOLDERS & set(t.arguments):
        return first_name(t)
    rest = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur")'
    return f"if [ $given = 0 ]; then {first_name(t)}; else {rest}; fi"


def bash(tables, maker):
    """`maker`: a program that is not a command of heddle."""
    every = [*tables.values(), maker]
    options = "\n".join(f"    {t.command}) echo '{' '.join(w for o in t.options for w in words(o))}' ;;"
                        for t in every)
    actions = "".join(f"""    {t.command}:*) {bash_action(t)} ;;
""" for t in tables.values() if t.actions)
    actions += "".join(f"""    {t.command}:*) {bash_names(t)} ;;
""" for t in tables.values() if first_name(t))
    others = [t for t in every if not first_name(t) and not t.actions]
    folders, files = ("|".join(f"{t.command}:*" for t in others if of & set(t.arguments))
                      for of in (FOLDERS, FILES))
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

# _heddle_names KIND [NAME]: the adapters, workers or versions of NAME that begin with $cur; none where the
# broker does not answer soon.  What it answers is data: nothing of it is expanded.
_heddle_names() {{
  local option value name with=()
  compopt +o default 2>/dev/null
  for option in broker broker-key key context; do
    [[ $COMP_LINE =~ [[:space:]]--$option[=[:space:]]+([^[:space:]]+) ]] || continue
    value=${{BASH_REMATCH[1]//[\\'\\"]/}}
    with+=("--$option=$value")
  done
  [ "$1" != contexts ] || with=()
  while read -r name; do
    [[ $name == "$cur"* && $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] && COMPREPLY+=("$name")
  done < <(command heddle complete "$@" "${{with[@]}}" --timeout 500ms </dev/null 2>/dev/null)
}}

# _heddle_refs REF|NAME@V: an adapter, or one of its versions.  bash may take NAME@V apart (COMP_WORDBREAKS).
_heddle_refs() {{
  local name
  if [ "$cur" = @ ]; then cur=''; _heddle_names versions "$prev"
  elif [ "$prev" = @ ]; then _heddle_names versions "${{COMP_WORDS[COMP_CWORD - 2]}}"
  elif [[ $cur == *@* ]]; then
    name=${{cur%%@*}} cur=${{cur#*@}}
    _heddle_names versions "$name"
    COMPREPLY=("${{COMPREPLY[@]/#/$name@}}")
  else
    _heddle_names adapters
    if [ "$1" = NAME@V ]; then compopt -o nospace 2>/dev/null; COMPREPLY=("${{COMPREPLY[@]/%/@}}"); fi
  fi
}}

_heddle() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command='' values i
  local words=() joins='' given=0
  # bash takes words apart at : = and @ (COMP_WORDBREAKS): those before the cursor, whole again
  for ((i = 0; i < COMP_CWORD; i++)); do
    if [[ ${{COMP_WORDS[i]}} == +([:=@]) ]]; then words[-1]+=${{COMP_WORDS[i]}} joins=1
    elif [ "$joins" ]; then words[-1]+=${{COMP_WORDS[i]}} joins=''
    else words+=("${{COMP_WORDS[i]}}")
    fi
  done
  case ${{words[0]##*/}} in
    heddle-*) command=${{words[0]##*heddle-}} ;;
    {maker.program}) command={maker.command} ;;
  esac
  # given: arguments of the command that are complete
  for ((i = 1; i < ${{#words[@]}}; i++)); do
    case ${{words[i]}} in
      -*=*) ;;
      -*) if _heddle_values "${{command:-status}}" "${{words[i]}}" >/dev/null; then i=$((i + 1)); fi ;;
      *) if [ "$command" ]; then given=$((given + 1)); else command=${{words[i]}}; fi ;;
    esac
  done
  if [[ $joins || $cur == +([:=@]) ]] && [ $given -gt 0 ]; then given=$((given - 1)); fi
  if [ "$cur" = = ]; then cur=''; elif [ "$prev" = = ]; then prev=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  COMPREPLY=()
  if values=$(_heddle_values "${{command:-status}}" "$prev"); then
    case $values in
      @dir) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
      @file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
      @refs) _heddle_refs REF ;;
      @adapters | @workers | @contexts) _heddle_names "${{values#@}}" ;;
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
    {files}) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  esac
}}
complete -o default -F _heddle heddle heddle-broker heddle-worker heddle-bench {maker.program}
"""


# ---- zsh -----------------------------------------------------------------------------------------

def zsh_quoted(text):
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_action(value, choices, asked=None):
    if asked:
        return " _heddle_refs REF" if asked == "refs" else f" _heddle_names {asked}"
    kinds = {"dir": "_files -/", "file": "_files", "if": "_net_interfaces"}
    return kinds.get(kind_of(value)) or (f"({' '.join(choices)})" if choices else " ")


def zsh_option(o):
    doc = zsh_quoted(o.doc)
    several = "*" if o.kind == "list" else ""
    rest = f":{zsh_quoted(o.value)}:{zsh_action(o.value, o.choices, asked_of(o))}" if o.takes_value else ""
    if o.kind == "period":
        return f"'--{o.name}=-[{doc}]::{zsh_quoted(o.value)}: '"
    if o.letter:
        both = f"-{o.letter},--{o.name}{'=' if o.takes_value else ''}"
        return f"'(-{o.letter} --{o.name})'{{{both}}}'[{doc}]{rest}'"
    return f"'{several}--{o.name}{'=' if o.takes_value else ''}[{doc}]{rest}'"


def zsh_argument(t, name):
    if name == "ACTION":
        return f"({' '.join(t.actions)})"
    if t.command == "context":
        return " _heddle_names contexts"
    if name == t.arguments[0] and first_name(t):
        return f" {first_name(t)}"
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

# the broker's answer into reply; nothing where it does not answer soon
_heddle_ask() {{
  local option
  local -a with match mbegin mend
  for option in broker broker-key key context; do
    [[ ${{BUFFER:-$words}} =~ "[[:space:]]--${{option}}[=[:space:]]+([^[:space:]]+)" ]] || continue
    with+=("--$option=${{(Q)match[1]}}")
  done
  [[ $1 != contexts ]] || with=()
  reply=(${{(f)"$(command heddle complete "$@" $with --timeout 500ms 2>/dev/null </dev/null)"}})
}}

_heddle_names() {{
  local -a reply
  _heddle_ask $1
  compadd -a reply
}}

_heddle_refs() {{
  local -a reply
  if [[ $PREFIX == *@* ]]; then
    _heddle_ask versions ${{PREFIX%%@*}}
    compadd -- ${{PREFIX%%@*}}@${{^reply}}
    return
  fi
  _heddle_ask adapters
  if [[ $1 == NAME@V ]]; then compadd -S '' -- ${{^reply}}@; else compadd -a reply; fi
}}

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

# SPDX-License-Identifier: Apache-2.0
# Made from the programs' option tables by tools/surfaces; edits here are lost.
# bash completion for heddle, heddle-broker, heddle-worker, heddle-bench, mkadapter; needs nothing but bash

_heddle_options() { # _heddle_options COMMAND: its options
  case $1 in
    broker) echo '--listen --data --store --store-ca --store-cert --store-key --store-user --store-cluster --store-lease --advertise --lease --keep --plan --keys --admin-key --http --http-token --http-cert --http-key --insecure --timeout -o --output -q --quiet --log-level --log-format -h --help --version' ;;
    worker) echo '--adapter --name --label --kinds --slots --export --export-keep --on-stage --on-activate --hook-timeout --data-device --max-rate --host-share --own-memory --no-relay --verify --join-timeout --join --drain --exit-when-idle --http --http-token --http-cert --http-key --ready-lag --insecure --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level --log-format -h --help --version' ;;
    publish) echo '--adapter --kind --step --activation --deadline --wait --if-unchanged --request-id --writer --takeover --allow-step-back --meta --stay --max-rate --data-device --host-share --insecure --dry-run --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    status) echo '--check --watch --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    brokers) echo '--watch --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    check) echo '--min-workers --max-lag --max-age --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    doctor) echo '--data-device --host-share --export --join --insecure --listen --data --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    top) echo '--period --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    adapters) echo '--watch --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    versions) echo '--all --watch --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    workers) echo '--all --watch --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    events) echo '-f --follow --since --adapter --worker --failed --last --limit --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    wait) echo '--phase --quorum --min --worker --exact --deadline --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    activate) echo '--deadline --wait --dry-run --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    rollback) echo '--to --deadline --wait --dry-run --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    resume) echo '--deadline --wait --dry-run --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    forget) echo '--dry-run --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    drain) echo '--label --dry-run --cancel --wait --deadline --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    pull) echo '--deadline --max-rate --data-device --host-share --insecure --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    verify) echo '--dir --deadline --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    keygen) echo '--out --show -o --output -q --quiet --log-level -h --help --version' ;;
    keys) echo '--role --name --entered --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    invite) echo '--role --uses --ttl --name --address --broker --context --broker-key --key --timeout -o --output -q --quiet --log-level -h --help --version' ;;
    context) echo '--broker --broker-key --key --default-timeout --default-output --use -o --output -q --quiet --log-level -h --help --version' ;;
    registry) echo '--data --store --store-ca --store-cert --store-key --store-user --move --timeout -o --output -h --help --version' ;;
    bench) echo '--row --repeat --smoke --alone --own-memory --pin --python --data -o --output -q --quiet --log-level -h --help --version' ;;
    mkadapter) echo '--shape -r --rank --narrow -s --seed --tensors -f --force -q --quiet -h --help --version' ;;
  esac
}

# _heddle_values COMMAND OPTION: what it may be, @dir, @file or @if (interface); fails when it takes no value
_heddle_values() {
  case $1:$2 in
    publish:--activation) echo 'all as-ready manual' ;;
    worker:--adapter|publish:--adapter|events:--adapter) echo '@adapters' ;;
    invite:--address) echo '' ;;
    broker:--admin-key) echo '@file' ;;
    broker:--advertise) echo '' ;;
    worker:--broker|publish:--broker|status:--broker|brokers:--broker|check:--broker|doctor:--broker|top:--broker|adapters:--broker|versions:--broker|workers:--broker|events:--broker|wait:--broker|activate:--broker|rollback:--broker|resume:--broker|forget:--broker|drain:--broker|pull:--broker|verify:--broker|keys:--broker|invite:--broker|context:--broker) echo '' ;;
    worker:--broker-key|publish:--broker-key|status:--broker-key|brokers:--broker-key|check:--broker-key|doctor:--broker-key|top:--broker-key|adapters:--broker-key|versions:--broker-key|workers:--broker-key|events:--broker-key|wait:--broker-key|activate:--broker-key|rollback:--broker-key|resume:--broker-key|forget:--broker-key|drain:--broker-key|pull:--broker-key|verify:--broker-key|keys:--broker-key|invite:--broker-key|context:--broker-key) echo '@file' ;;
    worker:--context|publish:--context|status:--context|brokers:--context|check:--context|doctor:--context|top:--context|adapters:--context|versions:--context|workers:--context|events:--context|wait:--context|activate:--context|rollback:--context|resume:--context|forget:--context|drain:--context|pull:--context|verify:--context|keys:--context|invite:--context) echo '@contexts' ;;
    broker:--data|doctor:--data|registry:--data|bench:--data) echo '@dir' ;;
    worker:--data-device|publish:--data-device|doctor:--data-device|pull:--data-device) echo '@if' ;;
    publish:--deadline|wait:--deadline|activate:--deadline|rollback:--deadline|resume:--deadline|drain:--deadline|pull:--deadline|verify:--deadline) echo '' ;;
    context:--default-output) echo 'table json' ;;
    context:--default-timeout) echo '' ;;
    verify:--dir) echo '@dir' ;;
    worker:--drain) echo '' ;;
    worker:--exit-when-idle) echo '' ;;
    worker:--export|doctor:--export) echo '@dir' ;;
    worker:--export-keep) echo '' ;;
    worker:--hook-timeout) echo '' ;;
    worker:--host-share|publish:--host-share|doctor:--host-share|pull:--host-share) echo '@dir' ;;
    broker:--http|worker:--http) echo '' ;;
    broker:--http-cert|worker:--http-cert) echo '@file' ;;
    broker:--http-key|worker:--http-key) echo '@file' ;;
    broker:--http-token|worker:--http-token) echo '@file' ;;
    publish:--if-unchanged) echo 'fail skip publish' ;;
    worker:--join|doctor:--join) echo '' ;;
    worker:--join-timeout) echo '' ;;
    broker:--keep) echo '' ;;
    worker:--key|publish:--key|status:--key|brokers:--key|check:--key|doctor:--key|top:--key|adapters:--key|versions:--key|workers:--key|events:--key|wait:--key|activate:--key|rollback:--key|resume:--key|forget:--key|drain:--key|pull:--key|verify:--key|keys:--key|invite:--key|context:--key) echo '@file' ;;
    broker:--keys) echo '@dir' ;;
    publish:--kind) echo 'lora tensors' ;;
    worker:--kinds) echo 'lora tensors all' ;;
    worker:--label|drain:--label) echo '' ;;
    events:--last) echo '' ;;
    broker:--lease) echo '' ;;
    events:--limit) echo '' ;;
    broker:--listen|doctor:--listen) echo '' ;;
    broker:--log-format|worker:--log-format) echo 'text json journal' ;;
    broker:--log-level|worker:--log-level|publish:--log-level|status:--log-level|brokers:--log-level|check:--log-level|doctor:--log-level|top:--log-level|adapters:--log-level|versions:--log-level|workers:--log-level|events:--log-level|wait:--log-level|activate:--log-level|rollback:--log-level|resume:--log-level|forget:--log-level|drain:--log-level|pull:--log-level|verify:--log-level|keygen:--log-level|keys:--log-level|invite:--log-level|context:--log-level|bench:--log-level) echo 'error warn info debug' ;;
    check:--max-age) echo '' ;;
    check:--max-lag) echo '' ;;
    worker:--max-rate|publish:--max-rate|pull:--max-rate) echo '' ;;
    publish:--meta) echo '' ;;
    wait:--min) echo '' ;;
    check:--min-workers) echo '' ;;
    worker:--name|keys:--name|invite:--name) echo '' ;;
    mkadapter:--narrow) echo '' ;;
    worker:--on-activate) echo '@file' ;;
    worker:--on-stage) echo '@file' ;;
    keygen:--out) echo '@file' ;;
    broker:--output|worker:--output|publish:--output|status:--output|brokers:--output|check:--output|doctor:--output|top:--output|adapters:--output|versions:--output|workers:--output|events:--output|wait:--output|activate:--output|rollback:--output|resume:--output|forget:--output|drain:--output|pull:--output|verify:--output|keygen:--output|keys:--output|invite:--output|context:--output|registry:--output|bench:--output) echo 'table json' ;;
    top:--period) echo '' ;;
    wait:--phase) echo 'staged active' ;;
    broker:--plan) echo 'auto star chain two-tree' ;;
    bench:--python) echo '@file' ;;
    wait:--quorum) echo 'all' ;;
    mkadapter:--rank) echo '' ;;
    worker:--ready-lag) echo '' ;;
    bench:--repeat) echo '' ;;
    publish:--request-id) echo '' ;;
    keys:--role|invite:--role) echo '' ;;
    bench:--row) echo '' ;;
    mkadapter:--seed) echo '' ;;
    mkadapter:--shape) echo 'tiny qwen2.5-0.5b qwen3-8b llama-3.1-8b llama-3.1-70b qwen3-30b-a3b deepseek-v3' ;;
    events:--since) echo '' ;;
    worker:--slots) echo '' ;;
    publish:--step) echo '' ;;
    broker:--store|registry:--store) echo '' ;;
    broker:--store-ca|registry:--store-ca) echo '@file' ;;
    broker:--store-cert|registry:--store-cert) echo '@file' ;;
    broker:--store-cluster) echo '' ;;
    broker:--store-key|registry:--store-key) echo '@file' ;;
    broker:--store-lease) echo '' ;;
    broker:--store-user|registry:--store-user) echo '@file' ;;
    mkadapter:--tensors) echo '' ;;
    broker:--timeout|worker:--timeout|publish:--timeout|status:--timeout|brokers:--timeout|check:--timeout|doctor:--timeout|top:--timeout|adapters:--timeout|versions:--timeout|workers:--timeout|events:--timeout|wait:--timeout|activate:--timeout|rollback:--timeout|resume:--timeout|forget:--timeout|drain:--timeout|pull:--timeout|verify:--timeout|keys:--timeout|invite:--timeout|registry:--timeout) echo '' ;;
    rollback:--to) echo '@refs' ;;
    invite:--ttl) echo '' ;;
    invite:--uses) echo '' ;;
    worker:--verify) echo 'host each' ;;
    publish:--wait|activate:--wait|rollback:--wait|resume:--wait) echo 'all none' ;;
    events:--worker|wait:--worker) echo '@workers' ;;
    publish:--writer) echo '' ;;
    broker:-o|worker:-o|publish:-o|status:-o|brokers:-o|check:-o|doctor:-o|top:-o|adapters:-o|versions:-o|workers:-o|events:-o|wait:-o|activate:-o|rollback:-o|resume:-o|forget:-o|drain:-o|pull:-o|verify:-o|keygen:-o|keys:-o|invite:-o|context:-o|registry:-o|bench:-o) echo 'table json' ;;
    mkadapter:-r) echo '' ;;
    mkadapter:-s) echo '' ;;
    *) return 1 ;;
  esac
}

# _heddle_names KIND [NAME]: the adapters, workers or versions of NAME that begin with $cur; none where the
# broker does not answer soon.  What it answers is data: nothing of it is expanded.
_heddle_names() {
  local option value name with=()
  compopt +o default 2>/dev/null
  for option in broker broker-key key context; do
    [[ $COMP_LINE =~ [[:space:]]--$option[=[:space:]]+([^[:space:]]+) ]] || continue
    value=${BASH_REMATCH[1]//[\'\"]/}
    with+=("--$option=$value")
  done
  [ "$1" != contexts ] || with=()
  while read -r name; do
    [[ $name == "$cur"* && $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] && COMPREPLY+=("$name")
  done < <(command heddle complete "$@" "${with[@]}" --timeout 500ms </dev/null 2>/dev/null)
}

# _heddle_refs REF|NAME@V: an adapter, or one of its versions.  bash may take NAME@V apart (COMP_WORDBREAKS).
_heddle_refs() {
  local name
  if [ "$cur" = @ ]; then cur=''; _heddle_names versions "$prev"
  elif [ "$prev" = @ ]; then _heddle_names versions "${COMP_WORDS[COMP_CWORD - 2]}"
  elif [[ $cur == *@* ]]; then
    name=${cur%%@*} cur=${cur#*@}
    _heddle_names versions "$name"
    COMPREPLY=("${COMPREPLY[@]/#/$name@}")
  else
    _heddle_names adapters
    if [ "$1" = NAME@V ]; then compopt -o nospace 2>/dev/null; COMPREPLY=("${COMPREPLY[@]/%/@}"); fi
  fi
}

_heddle() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' values i
  local words=() joins='' given=0
  # bash takes words apart at : = and @ (COMP_WORDBREAKS): those before the cursor, whole again
  for ((i = 0; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} == +([:=@]) ]]; then words[-1]+=${COMP_WORDS[i]} joins=1
    elif [ "$joins" ]; then words[-1]+=${COMP_WORDS[i]} joins=''
    else words+=("${COMP_WORDS[i]}")
    fi
  done
  case ${words[0]##*/} in
    heddle-*) command=${words[0]##*heddle-} ;;
    mkadapter) command=mkadapter ;;
  esac
  # given: arguments of the command that are complete
  for ((i = 1; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      -*=*) ;;
      -*) if _heddle_values "${command:-status}" "${words[i]}" >/dev/null; then i=$((i + 1)); fi ;;
      *) if [ "$command" ]; then given=$((given + 1)); else command=${words[i]}; fi ;;
    esac
  done
  if [[ $joins || $cur == +([:=@]) ]] && [ $given -gt 0 ]; then given=$((given - 1)); fi
  if [ "$cur" = = ]; then cur=''; elif [ "$prev" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
  COMPREPLY=()
  if values=$(_heddle_values "${command:-status}" "$prev"); then
    case $values in
      @dir) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
      @file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
      @refs) _heddle_refs REF ;;
      @adapters | @workers | @contexts) _heddle_names "${values#@}" ;;
      @if) mapfile -t COMPREPLY < <(cd /sys/class/net 2>/dev/null && compgen -d -- "$cur") ;;
      *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur") ;;
    esac
    return
  fi
  case $command:$cur in
    :-*) mapfile -t COMPREPLY < <(compgen -W "$(_heddle_options status)" -- "$cur") ;;
    :*) mapfile -t COMPREPLY < <(compgen -W 'broker worker publish status brokers check doctor top adapters versions workers events wait activate rollback resume forget drain pull verify keygen keys invite context registry bench help' -- "$cur") ;;
    help:*) mapfile -t COMPREPLY < <(compgen -W 'broker worker publish status brokers check doctor top adapters versions workers events wait activate rollback resume forget drain pull verify keygen keys invite context registry bench' -- "$cur") ;;
    *:-*) mapfile -t COMPREPLY < <(compgen -W "$(_heddle_options "$command")" -- "$cur") ;;
    keys:*) if [ $given = 0 ]; then mapfile -t COMPREPLY < <(compgen -W 'list add revoke' -- "$cur"); else compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); fi ;;
    context:*) if [ $given = 0 ]; then mapfile -t COMPREPLY < <(compgen -W 'list add use remove' -- "$cur"); else _heddle_names contexts; fi ;;
    registry:*) if [ $given = 0 ]; then mapfile -t COMPREPLY < <(compgen -W 'export import' -- "$cur"); else compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); fi ;;
    bench:*) if [ $given = 0 ]; then mapfile -t COMPREPLY < <(compgen -W 'run list compare' -- "$cur"); else compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); fi ;;
    check:*) _heddle_names adapters ;;
    versions:*) _heddle_refs REF ;;
    workers:*) _heddle_names workers ;;
    wait:*) _heddle_refs REF ;;
    activate:*) _heddle_refs NAME@V ;;
    rollback:*) _heddle_refs REF ;;
    resume:*) _heddle_names adapters ;;
    forget:*) _heddle_names adapters ;;
    drain:*) _heddle_names workers ;;
    pull:*) if [ $given = 0 ]; then _heddle_refs REF; else compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); fi ;;
    verify:*) _heddle_refs REF ;;
    mkadapter:*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    publish:*) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  esac
}
complete -o default -F _heddle heddle heddle-broker heddle-worker heddle-bench mkadapter

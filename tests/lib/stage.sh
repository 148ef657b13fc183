# SPDX-License-Identifier: Apache-2.0
# Real processes for the demo and the black-box tests: start them, wait until they are ready, end them, leave nothing.
# Before sourcing: LOGS (kept) and WORK (removed at the end) name folders.

export HEDDLE_KEYS=$WORK/keys   # never the user's own
export XDG_CONFIG_HOME=$WORK/config
unset HEDDLE_KEY HEDDLE_BROKER_KEY HEDDLE_CONTEXT

declare -A PID=()

cleanup() {
  trap - EXIT INT TERM
  local pids=()
  for name in "${!PID[@]}"; do pids+=("${PID[$name]}"); done
  for pid in "${pids[@]:-}"; do [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; done
  for pid in "${pids[@]:-}"; do [ -n "$pid" ] && timeout 5 tail --pid="$pid" -f /dev/null 2>/dev/null; done
  for pid in "${pids[@]:-}"; do [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; done
  wait 2>/dev/null
  rm -rf "$WORK"
}
trap cleanup EXIT
trap 'echo; echo "interrupted: stopping what was started"; exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND...: runs it and waits for its first line, which it leaves in LINE
start() {
  local name=$1 fd
  shift
  mkfifo "$WORK/$name.fifo"
  "$@" >"$WORK/$name.fifo" 2>>"$LOGS/$name.err" &
  PID[$name]=$!
  exec {fd}<"$WORK/$name.fifo"
  rm "$WORK/$name.fifo"
  if ! IFS= read -r -t 15 LINE <&"$fd"; then
    printf '   FAIL  %s did not get ready; its log: %s\n' "$name" "$LOGS/$name.err"
    tail -3 "$LOGS/$name.err" | sed 's/^/         /'
    exit 1
  fi
  printf '%s\n' "$LINE" >>"$LOGS/$name.out"
  cat <&"$fd" >>"$LOGS/$name.out" &
  exec {fd}<&-
}
ask() { heddle "$@" --broker "$BROKER" -o json 2>>"$LOGS/ask.err"; }
# stop NAME [SIGNAL]: ends it and waits; its exit status is the result
stop() {
  local pid=${PID[$1]} code
  kill "-${2:-TERM}" "$pid"
  wait "$pid" 2>/dev/null
  code=$?
  unset "PID[$1]"
  return "$code"
}
# bytes_in NAME: what a worker has fetched, by a heartbeat that came after the call
bytes_in() {
  local since worker end=$((SECONDS + 20))
  since=$(date +%s%3N)
  until worker=$(ask workers "$1" | jq -e --argjson t "$(($(date +%s%3N) - since))" '.workers[] | select(.state == "ready" and .heartbeat_age_ms < $t)'); do
    [ "$SECONDS" -lt "$end" ] || { echo 0; return 1; }
  done
  jq .counters.bytes_in <<<"$worker"
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make demo: the main job with real processes, each step checked.  Ends with 0 only when every step passed.
set -uo pipefail
cd "$(dirname "$0")/../.."
BIN=$PWD/build/bin
LOGS=$PWD/build/demo
rm -rf "$LOGS"
mkdir -p "$LOGS"
WORK=$(mktemp -d "${TMPDIR:-/tmp}/heddle-demo.XXXXXX")
unset HEDDLE_BROKER
export PATH="$BIN:$PATH"
RESULTS=()
FAILED=0
LEASE=2s

. tests/lib/stage.sh

# ---- what a step looks like ------------------------------------------------------------------------------------

say() { printf '   %s\n' "$*"; }
step() { printf '\n%s\n' "$*"; STEP=$*; STEP_OK=1; }
check() { # check TEXT COMMAND...: the command's success is the answer
  local text=$1
  shift
  if "$@" >>"$LOGS/checks.log" 2>&1; then printf '   ok    %s\n' "$text"; else printf '   FAIL  %s\n' "$text"; STEP_OK=0; fi
}
end() { # closes a step
  if [ "$STEP_OK" = 1 ]; then RESULTS+=("PASS  $STEP"); else RESULTS+=("FAIL  $STEP"); FAILED=1; fi
}
# --own-memory: on one host a worker would use the memory of the trainer; here each fetches, as on a host of its own.
worker() { # worker NAME [OPTION...]: TRANSPORT is left as it says, BORN as it is shown
  local name=$1
  shift
  start "$name" heddle worker --broker "$BROKER" --adapter policy --name "$name" --own-memory "$@"
  TRANSPORT=$(jq -r '.transport | "\(.backend) \(.ucx) over \(.devices | join(","))"' <<<"$LINE")
  BORN="worker $name  pid ${PID[$name]}  $TRANSPORT${1:+  $1}"
}
start_worker() { worker "$@" && say "$BORN"; }
broker() { # broker ENDPOINT
  start broker heddle broker --listen "$1" --data "$WORK/registry" --lease "$LEASE"
  BROKER=$(jq -r .endpoint <<<"$LINE")
  BORN="broker     pid ${PID[broker]}  $BROKER  epoch $(jq -r .epoch <<<"$LINE"), lease $LEASE (default 4s: here, so that the dead are given up sooner)"
}
start_broker() { broker "$@" && say "$BORN"; }
mb() { awk -v b="$1" 'BEGIN { printf "%.1f MB", b / 1e6 }'; }
adapter() { [ -d "$WORK/v$1" ] || mkadapter --shape qwen2.5-0.5b --rank 16 --seed "$1" "$WORK/v$1" >>"$LOGS/mkadapter.log"; }
gpu() { if [ -e /dev/nvidia0 ]; then echo "a GPU that is not used"; else echo "no GPU"; fi; }
# staged_on VERSION NAME...: the ms from its announcement until the last of these had it staged, by their own account
staged_on() {
  local v=$1
  shift
  ask versions "policy@$v" | jq -r '[.versions[0].workers[] | select(.worker | IN($ARGS.positional[])) | .timing | [.announce_ms, .connect_ms, .fetch_ms, .verify_ms, .stage_ms] | map(. // 0) | add] | max * 10 | round / 10' --args "$@"
}
active_is() { ask adapters | jq -e --argjson v "$1" '.adapters[] | select(.name == "policy") | .active.version == $v'; }

# ---- 1 ----------------------------------------------------------------------------------------------------------

DEMO_START=$(date +%s)
printf 'Heddle demo: LoRA versions from a trainer to workers; logs in %s\n' "$LOGS"
step "1  the machine"
adapter 1
broker 'tcp://127.0.0.1:*' && BROKER_BORN=$BORN
worker w1 --export "$WORK/w1" && W1_BORN=$BORN
say "$(nproc) cores, $TRANSPORT, $(gpu); $(heddle --version)"
say "adapter: $(tail -1 "$LOGS/mkadapter.log")"
check "the adapter is 17.6 MB in 336 tensors" grep -q '^336 tensors, 17596416 bytes' "$LOGS/mkadapter.log"
end

# ---- 2 ----------------------------------------------------------------------------------------------------------

step "2  one broker, four workers, versions 1 to 3"
say "$BROKER_BORN"
say "$W1_BORN"
start_worker w2 --export "$WORK/w2"
start_worker w3
start w4 demo-reader --broker "$BROKER" --adapter policy --name w4
say "worker w4  pid ${PID[w4]}  a program on the library: takes the active version 20 times a second and hashes it"
for v in 2 3 4 5; do adapter "$v"; done
say "w1 and w2 export: they write and sync a PEFT directory of their own before they say staged, and a version is staged when all are"
for v in 1 2 3; do
  [ "$v" = 3 ] && CONTENT=$(bytes_in w3)
  out=$(ask publish "$WORK/v$v" --adapter policy --step "$((v * 100))")
  cost=$(demo-filecost "$WORK/v$v/adapter_model.safetensors" "$WORK")
  say "$(jq -r '"version \(.version): \(.data_bytes) bytes, staged \(.timing.staged_ms) ms, active \(.timing.active_ms) ms on \(.rollout.active_count) workers"' <<<"$out")"
  say "  staged in memory (w3, w4) after $(staged_on "$v" w3 w4) ms, with the export (w1, w2) after $(staged_on "$v" w1 w2) ms of the announcement"
  say "  a file of the same bytes just now: write $(jq .write_ms <<<"$cost") ms, read $(jq .read_ms <<<"$cost") ms (one reader, no sync, no check, no switch)"
  check "version $v is active on all four" jq -e --argjson v "$v" '.ok and .version == $v and .rollout.active_count == 4' <<<"$out"
done
end

# ---- 3 ----------------------------------------------------------------------------------------------------------

CONTENT=$(($(bytes_in w3) - CONTENT)) # what one version of this shape is on the wire: tensors and manifest

step "3  proof from outside"
for w in w1 w2; do
  check "cmp: what was published is what $w exported" cmp "$WORK/v3/adapter_model.safetensors" "$WORK/$w/policy/adapter_model.safetensors"
  check "cmp: the configuration too" cmp "$WORK/v3/adapter_config.json" "$WORK/$w/policy/adapter_config.json"
done
verify=$(ask verify policy@3 --dir "$WORK/v3")
check "heddle verify: every holder's bytes, hashed again, have the digest of the files" jq -e '.ok and (.workers | length) == 4 and all(.workers[]; .match)' <<<"$verify"
ask workers | jq -r '.workers[] | "   \(.name)  policy@\(.adapters[0].version)  \(.adapters[0].digest)"'
check "one version, one digest" jq -e '[.workers[].adapters[0] | {version, digest}] | unique | length == 1' <<<"$(ask workers)"
real=$WORK/real
cp -r tests/fixtures/plain "$real"
out=$(ask publish "$real" --adapter real --wait none --deadline 1s --if-unchanged skip)
check "a version of an adapter without subscribers is not called published" jq -e '(.ok | not) and .error.code == "no_workers"' <<<"$out"
start wr heddle worker --broker "$BROKER" --adapter real --name wr --export "$WORK/wr"
out=$(ask publish "$real" --adapter real)
check "an adapter saved by the real PEFT: published, exported, identical" cmp "$real/adapter_model.safetensors" "$WORK/wr/real/adapter_model.safetensors"
end

# ---- 4 ----------------------------------------------------------------------------------------------------------

step "4  a worker is killed in mid-transfer"
say "--max-rate 20M is what the publisher sends in all: 17.6 MB take 0.9 s, and it sends to four workers at once, $(awk 'BEGIN { printf "%.1f", 4 * 17.6 / 20 }') s"
heddle publish "$WORK/v4" --adapter policy --step 400 --max-rate 20M --broker "$BROKER" -o json >"$WORK/v4.json" &
PID[publish]=$!
until ask workers w3 | jq -e '.workers[0].adapters[0].fetching | . != null and .bytes_done >= 0.4 * .data_bytes' >/dev/null; do
  kill -0 "${PID[publish]}" 2>/dev/null || break
done
progress=$(ask workers w3 | jq -r '.workers[0].adapters[0].fetching | if . == null then "?" else "\(100 * .bytes_done / .data_bytes | floor) %" end')
kill -KILL "${PID[w3]}"
killed_at=$(date +%s%3N)
say "kill -9 of w3 (pid ${PID[w3]}) at $progress"
wait "${PID[w3]}" 2>/dev/null
unset 'PID[w3]'
wait "${PID[publish]}"
code=$?
unset 'PID[publish]'
check "publish ended with 0" test "$code" = 0
check "version 4 is active on the other three" jq -e '.ok and .rollout.active_count == 3 and .rollout.eligible_count == 3' "$WORK/v4.json"
lost=$(ask events | jq -rs 'map(select(.type == "worker.lost" and .worker == "w3")) | last | .at // empty')
[ -n "$lost" ] && say "dropped: w3, phase fetch, $(($(date -d "$lost" +%s%3N) - killed_at)) ms after the kill (its lease is $LEASE)"
check "the broker said who was dropped" test -n "$lost"
end

# ---- 5 ----------------------------------------------------------------------------------------------------------

step "5  a late worker, after the trainer has gone"
start_worker w5
ask wait policy@4 --worker w5 --deadline 20s >"$WORK/wait5.json"
check "w5 is current" jq -e .ok "$WORK/wait5.json"
sources=$(ask versions policy@4 | jq -c '[.versions[0].workers[] | select(.worker == "w5") | .sources[]]')
from_workers=$(jq '[.[] | select(.kind == "worker") | .bytes] | add // 0' <<<"$sources")
from_trainer=$(jq '[.[] | select(.kind == "publisher") | .bytes] | add // 0' <<<"$sources")
say "w5: $(jq -r '[.[] | select(.kind == "worker") | "\(.bytes / 1e5 | round / 10) MB from \(.name)"] | join(", ")' <<<"$sources"), $from_trainer from the trainer"
check "all of it came from workers" test "$from_workers" -ge 17596416 -a "$from_trainer" = 0
end

# ---- 6 ----------------------------------------------------------------------------------------------------------

step "6  the broker is killed during version 5"
declare -A BEFORE=()
for w in w1 w2 w4 w5; do BEFORE[$w]=$(bytes_in "$w"); done
heddle publish "$WORK/v5" --adapter policy --step 500 --max-rate 20M --broker "$BROKER" -o json >"$WORK/v5.json" 2>>"$LOGS/publish5.err" &
PID[publish]=$!
until ask workers w1 | jq -e '.workers[0].adapters[0].fetching | . != null and .bytes_done > 0' >/dev/null; do
  kill -0 "${PID[publish]}" 2>/dev/null || break
done
kill -KILL "${PID[broker]}"
say "kill -9 of the broker (pid ${PID[broker]}); workers serve and fetch on"
wait "${PID[broker]}" 2>/dev/null
start_broker "$BROKER"
wait "${PID[publish]}"
code=$?
unset 'PID[publish]'
check "version 5 completed: active on four" jq -e '.ok and .version == 5 and .rollout.active_count == 4' "$WORK/v5.json"
check "publish ended with 0" test "$code" = 0
again=0
declare -A GOT=()
for w in w1 w2 w4 w5; do
  GOT[$w]=$(($(bytes_in "$w") - BEFORE[$w]))
  again=$((again + GOT[$w] - CONTENT))
done
say "fetched: $(for w in w1 w2 w4 w5; do printf '%s %s  ' "$w" "${GOT[$w]}"; done) of $CONTENT each"
say "bytes fetched again: $again"
check "no byte was fetched twice" test "$again" = 0
check "the reader at w4 saw no error" test "$(jq -s 'map(select(.kind == "read" and .match == false)) | length' "$LOGS/w4.out")" = 0
end

# ---- 7 ----------------------------------------------------------------------------------------------------------

step "7  three refusals"
refuse() { # refuse TEXT CODE EXIT ARGUMENT...
  local text=$1 code=$2 want=$3 out got
  shift 3
  out=$(heddle publish "$@" --broker "$BROKER" -o json 2>>"$LOGS/refusals.err")
  got=$?
  say "$text: exit $got, $(jq -r '.error | "\(.code): \(.message); hint: \(.hint)"' <<<"$out")"
  check "refused as $code, exit $want" test "$got" = "$want" -a "$(jq -r .error.code <<<"$out")" = "$code"
  check "with a hint" jq -e '.error.hint | length > 0' <<<"$out"
}
cp -r "$WORK/v5" "$WORK/cut"
truncate -s 9000000 "$WORK/cut/adapter_model.safetensors"
refuse "a truncated file" bad_adapter 8 "$WORK/cut" --adapter policy
refuse "an unchanged adapter" unchanged 4 "$WORK/v5" --adapter policy
refuse "'..' as a name" bad_name 2 "$WORK/v5" --adapter ..
check "version 5 is still active" active_is 5
end

# ---- 8 ----------------------------------------------------------------------------------------------------------

step "8  roll back"
out=$(ask activate policy@4)
say "$(jq -r '"policy: \(.from) -> \(.to), \(.bytes_moved) bytes moved, \(.elapsed_ms) ms, held: \(.held)"' <<<"$out")"
check "0 bytes moved, version 4 active" jq -e '.ok and .changed and .held and .bytes_moved == 0' <<<"$out"
adapter 6
out=$(heddle publish "$WORK/v6" --adapter policy --step 600 --broker "$BROKER" -o json 2>>"$LOGS/refusals.err")
code=$?
say "the next publish: exit $code, $(jq -r '.error | "\(.code): \(.message)"' <<<"$out")"
check "it says that the adapter is held" test "$code" = 4 -a "$(jq -r .error.code <<<"$out")" = held
check "version 4 is still active" active_is 4
end

# ---- 9 ----------------------------------------------------------------------------------------------------------

kill -TERM "${PID[w4]}"
wait "${PID[w4]}"
code=$?
unset 'PID[w4]'
step "9  the reader's account"
say "$(tail -1 "$LOGS/w4.out")"
check "no read failed, none was torn, in all of this" test "$code" = 0
end

printf '\n'
printf '   %s\n' "${RESULTS[@]}"
printf '\n%s in %d s.  By hand, in four terminals, with build/bin in your PATH:\n' "$([ "$FAILED" = 0 ] && echo 'All passed' || echo 'FAILED')" "$(($(date +%s) - DEMO_START))"
printf '   heddle broker\n   heddle worker --adapter policy --export ./w1\n   mkadapter ./my-peft-dir && heddle publish ./my-peft-dir --adapter policy --step 100\n   heddle status\n'
exit "$FAILED"

# SPDX-License-Identifier: Apache-2.0
# Stages of a long run that remember what they skipped.  Before `stage`: start, the time in seconds.

skips=()

stage() { # stage NAME
  stage_name=$1
  printf '\n== %s (%d s)\n' "$1" "$(($(date +%s) - start))"
}

# run COMMAND...: as it is, but an end with 77 is a skip.  Told at the end: that, lines that begin with "skipped:", cases
# that say so, and what ctest did not run (but tests that are disabled).
run() {
  local log code=0 line before=${#skips[@]}
  log=$(mktemp)
  "$@" 2>&1 | tee "$log" || code=$?
  while IFS= read -r line; do
    skips+=("$stage_name: $line")
  done < <(sed -nE 's/^ *(skipped:.*)/\1/Ip; s/^[[:space:]]*[0-9]+ - (.*) \(Skipped\)$/skipped: \1/p' "$log")
  [ "$code" != 77 ] || [ "${#skips[@]}" -gt "$before" ] || skips+=("$stage_name: skipped: $1 ended with 77")
  rm -f "$log"
  [ "$code" = 77 ] || return "$code"
}

closing() {
  local line
  printf '\nall stages passed in %d s' "$(($(date +%s) - start))"
  [ "${#skips[@]}" = 0 ] || printf ', but:'
  printf '\n'
  for line in "${skips[@]}"; do printf '  %s\n' "$line"; done
}

# SPDX-License-Identifier: Apache-2.0
# What the evidence scripts share: release programs, a place to work, `check`.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH="${HEDDLE_BIN_DIR:-$ROOT/build/bin}:$PATH"
unset HEDDLE_BROKER
WORK=$(mktemp -d "${TMPDIR:-/tmp}/heddle-evidence.XXXXXX")
LOGS=$WORK/logs
mkdir "$LOGS"
FAILED=0
. "$ROOT/tests/lib/stage.sh"
check() {
  local text=$1
  shift
  if "$@"; then echo "ok   $text"; else echo "FAIL $text"; FAILED=1; fi
}

# SPDX-License-Identifier: Apache-2.0
# A copy of the tree for tests that patch it.

# sync_tree SRC: the files as they are here, under SRC; unchanged ones keep their times, so that builds stay small.
# SRC/build is left alone: as deep below the copy as build/ is below the tree, so that ccache knows the files again.
sync_tree() {
  local f
  declare -A wanted=()
  while IFS= read -r -d '' f; do
    [ -f "$f" ] || continue
    wanted[$f]=1
    cmp -s "$f" "$1/$f" || { mkdir -p "$1/$(dirname "$f")" && rm -f "$1/$f" && cp "$f" "$1/$f" && chmod --reference="$f" "$1/$f"; }
  done < <(git ls-files -z --cached --others --exclude-standard)
  while IFS= read -r -d '' f; do
    [ -n "${wanted[$f]:-}" ] || rm -f "$1/$f"
  done < <(cd "$1" && find . -path ./build -prune -o -type f -printf '%P\0')
}

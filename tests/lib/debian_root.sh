# SPDX-License-Identifier: Apache-2.0
# A minimal Debian, made once (debootstrap) and kept in ${XDG_CACHE_HOME:-~/.cache}/heddle, for tests that install the
# packages into a clean root or build an image on it.  CACHE/archives keeps what apt-get fetched there.
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/heddle

# debian_base LOG: BASE_TAR is the tar of its root; BASE_SAYS, how it was come by.  Fails when it cannot be made.
debian_base() {
  local suite mirror root
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  BASE_TAR=$CACHE/$suite-$(dpkg --print-architecture).tar
  mkdir -p "$CACHE/archives"
  if [ -e "$BASE_TAR" ]; then
    BASE_SAYS="clean root taken from $BASE_TAR"
    return
  fi
  mirror=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ')
  root=$(mktemp -d "$CACHE/root.XXXXXX") || return 1
  if ! debootstrap --variant=minbase "$suite" "$root" "${mirror:-http://deb.debian.org/debian}" >"$1" 2>&1; then
    rm -rf --one-file-system "$root"
    return 1
  fi
  rm -f "$root"/var/cache/apt/archives/*.deb
  chmod 0755 "$root"
  tar -C "$root" -cf "$BASE_TAR.new" . && mv "$BASE_TAR.new" "$BASE_TAR"
  rm -rf --one-file-system "$root"
  BASE_SAYS="clean root made, and kept in $BASE_TAR"
}

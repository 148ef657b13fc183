# SPDX-License-Identifier: Apache-2.0
# Copies of the tree are built with what this checkout has compiled already: a cache of its own, in build/, which is empty in
# a fresh checkout and goes with `make clean`.  Where there is no ccache all is compiled; one that is set up already is used as it is.
if [ -z "${CMAKE_C_COMPILER_LAUNCHER:-}" ] && command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_DIR=$PWD/build/ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=2G
fi

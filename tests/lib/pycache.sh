# SPDX-License-Identifier: Apache-2.0
# Python compiles a module once, into build/pycache. Packages are installed without bytecode (--no-compile), and where
# the environment forbids to write any (PYTHONDONTWRITEBYTECODE, as in many containers) every process of a test would
# compile torch and transformers anew: 6 s of CPU each time.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$PWD/build/pycache

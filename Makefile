# SPDX-License-Identifier: Apache-2.0
# Two commands for people: `make demo` and `make test`.  The build itself is CMake's (CMakePresets.json).

.PHONY: demo rl test test-python test-releases engines build quick package clean help
.NOTPARALLEL:

help:
	@echo "make demo    install what is missing, build, and watch the main job (under two minutes)"
	@echo "make rl      a real RL run on two cores: TRL, workers that join and die, a picture (installs 1.6 GB, says so first)"
	@echo "make test    install what is missing, build, and run all tests: about an hour on two cores, 9 GB of disk"
	@echo "             (HEDDLE_ENGINES=skip leaves the real engines out, which are 4.7 GB of it)"
	@echo "make test-python of these, the Python package alone (250 MB to download the first time, says so first)"
	@echo "make test-releases the plugin in vLLM 0.26 and 0.31; in 0.32, and in SGLang, what takes longer (6 GB more, says so first)"
	@echo "make engines real vLLM and SGLang for the CPU, to test with, in build/engines (says the size first)"
	@echo "make build   the programs, in build/bin"
	@echo "make package the Debian packages, in build/deb"
	@echo "make quick   for each commit: what has changed is built; unit, contract, scenario and style tests"
	@echo "make clean   remove build/"

build:
	@tools/setup build
	@tools/build release

package:
	@tools/setup package
	@tools/package

demo:
	@tools/setup demo
	@tools/build release
	@bash examples/demo/demo.sh

rl:
	@examples/rl_tiny/run

test:
	@tools/setup test
	@tests/run

test-python:
	@tools/setup test
	@tests/python/run --torch

test-releases:
	@tools/setup test
	@tests/engines/run --releases

engines:
	@tests/engines/setup

quick:
	@tools/setup test
	@tools/build dev
	@ctest --test-dir build/dev --output-on-failure --no-tests=error -j$$((3 * $$(nproc))) -L '^(unit|contract|scenario|style)$$' -E '^scenario_(fanout|relays)'

clean:
	rm -rf build

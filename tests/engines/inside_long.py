# SPDX-License-Identifier: Apache-2.0
"""inside_long.py [--kind vllm[@RELEASE]] [offline...]: heddle.vllm where it takes longer than in
inside.py.  Prints one line a check, and exits with 1 when one fails.

offline   an LLM and an AsyncLLM without a server (inside_offline.py)
"""
import argparse
import json
import os
import subprocess
import sys

import inside
from stream import PATIENCE, ROOT

OFFLINE = ROOT / "tests/engines/inside_offline.py"


class Offline(inside.Trial):
    def run(self):
        self.start_broker("tcp://127.0.0.1:*")
        python = ROOT / "build/engines" / self.kind / "bin/python"
        with (self.stage.folder / "offline.log").open("w") as log:
            done = subprocess.run([python, OFFLINE, self.models, self.broker], stdout=subprocess.PIPE,
                                  stderr=log, text=True, timeout=3 * PATIENCE, cwd=ROOT,
                                  env={**os.environ, "VLLM_PLUGINS": "heddle"})
        found = self.stage.tail("offline")
        if done.returncode == 0:
            found = json.loads(done.stdout.splitlines()[-1])
        self.check("without a server: versions come between calls, exact; full is a rejection", found, [])
        self.stage.end("broker")


PARTS = {"offline": (Offline,)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="vllm")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    asked = parser.parse_args()

    def trials(stage, models, expected):
        for make, *options in (PARTS[part] for part in asked.parts or PARTS):
            yield make(stage, models, expected, asked.kind, *options)
    return inside.run(trials, lambda *_: None)


if __name__ == "__main__":
    sys.exit(main())

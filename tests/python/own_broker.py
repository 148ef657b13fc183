# SPDX-License-Identifier: Apache-2.0
"""A broker for a measurement, with keys and data of its own below `work`."""
import contextlib
import json
import os
import subprocess


@contextlib.contextmanager
def broker_of_its_own(work):
    os.environ["HEDDLE_KEYS"] = f"{work}/keys"
    broker = subprocess.Popen([os.environ["HEDDLE_BIN_DIR"] + "/heddle-broker", "--listen",
                               "tcp://127.0.0.1:*", "--data", f"{work}/data"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        os.environ["HEDDLE_BROKER"] = json.loads(broker.stdout.readline())["endpoint"]
        yield
    finally:
        broker.terminate()
        broker.wait(20)

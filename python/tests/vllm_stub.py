# SPDX-License-Identifier: Apache-2.0
"""A package named vllm with the names that TRL imports; it must be there before TRL is."""
import pathlib
import sys

STUBS = {"vllm/__init__.py": "LLM = RequestOutput = SamplingParams = None\n__version__ = '0.31.0'\n",
         "vllm/sampling_params.py": "StructuredOutputsParams = None\n",
         "vllm/utils/__init__.py": "", "vllm/utils/network_utils.py": "get_ip = None\n",
         "vllm/distributed/__init__.py": "", "vllm/distributed/weight_transfer/__init__.py": "",
         "vllm/distributed/weight_transfer/nccl_common.py": "trainer_init = None\n",
         "vllm/distributed/weight_transfer/packed_tensor.py": "packed_nccl_broadcast_producer = None\n",
         "vllm-0.31.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n"}


def put(folder):
    """Made in `folder`, and found first."""
    for name, text in STUBS.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, str(folder))

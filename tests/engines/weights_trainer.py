# SPDX-License-Identifier: Apache-2.0
"""weights_trainer.py BROKER URL MODEL...: sends the weights of each MODEL to the server at URL through
vLLM's own trainer API, and prints the tag of each; then waits to be ended.  Runs in build/engines/vllm.

The second one and those after it come from a source of the form of vLLM 0.33."""
import os
import signal
import sys

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2", VLLM_PLUGINS="heddle")


class Later:
    """metadata is a property, and iter_full takes the place of iteration."""

    def __init__(self, source):
        self._source = source

    @property
    def metadata(self):
        return self._source.metadata()

    def iter_full(self):
        return iter(self._source)


def main() -> None:
    broker, url, *models = sys.argv[1:]
    import torch
    from transformers import LlamaForCausalLM
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from heddle.weight_transfer import HeddleTrainerInitInfo
    info = HeddleTrainerInitInfo(rank=0, broker=broker, adapter="weights")
    form = ModuleSource
    engine = None
    for model in models:
        source = form(LlamaForCausalLM.from_pretrained(model, dtype=torch.float32))
        if engine is None:
            engine = WeightTransferTrainerFactory.trainer_init(info, client=HTTPVLLMWeightSyncClient(url),
                                                               source=source)
        engine.source = source
        engine.send_weights()
        print(engine.version.tag, flush=True)
        form = lambda module: Later(ModuleSource(module))  # noqa: E731
    signal.pause()              # it serves the versions until then


if __name__ == "__main__":
    main()

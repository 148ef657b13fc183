# SPDX-License-Identifier: Apache-2.0
"""inside_offline.py MODELS BROKER: in vLLM's environment: versions for a vllm.LLM, and for an AsyncLLM, by
heddle.vllm.attach().  Prints, as JSON, what is wrong."""
import asyncio
import json
import os
import pathlib
import sys
import threading

import stream
import vllm

import heddle.vllm

MODELS, BROKER = pathlib.Path(sys.argv[1]), sys.argv[2]
EXPECTED = json.loads((MODELS / "expected.json").read_text())
OPTIONS = {"model": str(MODELS / "base"), "skip_tokenizer_init": True, "enable_lora": True, "max_loras": 2,
           "max_cpu_loras": 2, "max_lora_rank": 16, "enforce_eager": True, "dtype": "float32",
           "max_model_len": 256}
SAMPLING = vllm.SamplingParams(temperature=0, max_tokens=EXPECTED["length"], ignore_eos=True,
                               detokenize=False)
PROMPTS = [{"prompt_token_ids": prompt} for prompt in EXPECTED["prompts"]]
wrong = []


def check(what, found, expected):
    if found != expected:
        wrong.append(f"{what}: {found}, expected {expected}")


class Publication(threading.Thread):
    """`heddle publish`, which waits for the calls of poll()."""

    def __init__(self, adapter, wants=0):
        super().__init__(daemon=True)
        self._adapter, self._wants, self.told, self.error = adapter, wants, None, None
        self.start()

    def run(self):
        try:
            self.told = stream.publish(BROKER, MODELS / f"lora{self._adapter}", self._wants)
        except Exception as e:
            self.error = e

    def end(self, poll):
        while self.is_alive():
            poll(0.05)
        if self.error:
            raise self.error
        return self.told


def plain():
    llm = vllm.LLM(**OPTIONS)

    def tokens(request):
        return [list(out.outputs[0].token_ids) for out in llm.generate(PROMPTS, SAMPLING, use_tqdm=False,
                                                                       lora_request=request)]
    with heddle.vllm.attach(llm) as versions:
        check("nothing is active before a version came", versions.status()["ready"], False)
        for n in range(1, 7):
            adapter = (n - 1) % stream.PLAIN + 1
            before = versions.current("policy") if n > 1 else None
            told = Publication(adapter).end(versions.poll)
            request = versions.current("policy")
            check("the name", (request.lora_name, versions.tag("policy")), (f"policy@{n}", told["tag"]))
            check(f"policy@{n}", tokens(request), EXPECTED["answers"][f"lora{adapter}"])
            if before is not None:
                adapter = (n - 2) % stream.PLAIN + 1
                check("the one before", tokens(before), EXPECTED["answers"][f"lora{adapter}"])
        check("the base model", tokens(None), EXPECTED["answers"]["base"])
        full(llm, versions)
        check("after places were there again", tokens(versions.current("policy")),
              EXPECTED["answers"]["lora2"])


def full(llm, versions):
    """Both places are pinned by the program itself."""
    from vllm.lora.request import LoRARequest
    for n in (1, 2):
        llm.llm_engine.add_lora(LoRARequest(f"own{n}", n, str(MODELS / f"lora{n}")))
        llm.llm_engine.pin_lora(n)
    active = versions.tag("policy")
    told = Publication(1, 1).end(versions.poll)
    why = (told["rollout"]["missing"] or [{}])[0].get("message", "")
    check("full is a rejection, in words", "all 2 places of --max-loras are pinned" in why or why, True)
    check("and the active one stays", versions.tag("policy"), active)
    for n in (1, 2):
        llm.llm_engine.remove_lora(n)
    Publication(2).end(versions.poll)


async def asynchronous():
    from vllm.v1.engine.async_llm import AsyncLLM
    engine = AsyncLLM.from_engine_args(vllm.AsyncEngineArgs(**OPTIONS))

    async def tokens(request, number):
        async for out in engine.generate(PROMPTS[number], SAMPLING, f"{request.lora_name}/{number}",
                                         lora_request=request):
            found = list(out.outputs[0].token_ids)
        return found
    async with heddle.vllm.attach(engine) as versions:
        for adapter in (3, 4):
            publication = Publication(adapter)
            while publication.is_alive():
                await versions.poll(0.05)
            request = versions.current("policy")
            found = await asyncio.gather(*(tokens(request, n) for n in range(len(PROMPTS))))
            check(f"asynchronous, {request.lora_name}", found, EXPECTED["answers"][f"lora{adapter}"])
    engine.shutdown()


def main():
    plain()
    asyncio.run(asynchronous())
    print(json.dumps(wrong))


if __name__ == "__main__":
    os.environ.update(HEDDLE_BROKER=BROKER, HEDDLE_ADAPTERS="policy", VLLM_PLUGINS="heddle",
                      VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2")
    main()

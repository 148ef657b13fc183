# SPDX-License-Identifier: Apache-2.0
# GRPOTrainer(use_vllm=True, vllm_mode="server") of TRL on a CPU, run as a program by test_trl.py:
# trl_server_mode.py ADAPTER. # Real: the trainer, its VLLMGeneration, its VLLMClient, every HTTP request.
# Stands in: a package named vllm with the names that TRL imports # (it must be there before TRL is), the
# server, and nothing where TRL would open an NCCL group, for which it wants a GPU.
import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def main():
    adapter = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        sys.path[:0] = [TASK, TESTS]
        import vllm_stub
        vllm_stub.put(folder)
        run(adapter, folder)


def run(adapter, folder):
    import heddle
    import heddle.trl
    import task
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_client import VLLMClient
    asked, served, paths = [], [], set()
    with heddle.Worker(adapters=[adapter],
                       apply="auto") as worker, heddle.Publisher(adapter=adapter) as publisher:

        class Server(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer({"/v1/models": {"data": [{"id": "base"}]}, "/health": {}, "/server_info": {
                    "vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"},
                                    "weight_transfer_config": {}}}})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body["model"])
                current = worker.current(adapter)
                served.append(current and current.version)
                tokens = [task.VOCABULARY[word] for word in ("one", "two", task.EOS)]
                rows = {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": [-1.0] * 3,
                        "top_logprobs": [None] * 3}
                one = [{"prompt_token_ids": prompt, "token_ids": tokens[i % 3:],
                        "logprobs": {k: v[i % 3:] for k, v in rows.items()}}
                       for prompt in body["prompt"] for i in range(body["n"])]
                self.answer({"/v1/completions": {"choices": one}})

            def answer(self, known):
                path = self.path.partition("?")[0]
                paths.add(path)
                body = json.dumps(known.get(path, {})).encode()
                self.send_response(200 if path in known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        VLLMClient.init_communicator = lambda self, device: None
        trainer = GRPOTrainer(
            model=task.policy(), processing_class=task.tokenizer(),
            train_dataset=Dataset.from_dict({"prompt": task.prompts(12, 1)}),
            reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
            args=GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, max_steps=3, num_generations=4,
                            per_device_train_batch_size=8,
                            max_completion_length=task.LENGTH, learning_rate=1e-2, use_vllm=True,
                            vllm_mode="server",
                            vllm_server_base_url=f"http://127.0.0.1:{server.server_port}",
                            gradient_checkpointing=False,
                            logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True))
        own = trainer.vllm_generation.sync_weights
        sync = heddle.trl.attach(trainer, publisher)
        trainer.train()
        last = [sync.last.version.version, sync.last.step, worker.current(adapter).version]
        sync.detach()
        given_back = [trainer.vllm_generation.vllm_client.model, trainer.vllm_generation.sync_weights == own]
        server.shutdown()
    print(json.dumps({"asked": asked, "served": served, "paths": sorted(paths),
                      "steps": trainer.state.global_step, "given_back": given_back, "last": last}),
          file=RESULT, flush=True)


TASK, TESTS = os.environ["RL_TINY"], os.environ["HEDDLE_TESTS"]
RESULT, sys.stdout = sys.stdout, sys.stderr         # the trainer prints
main()

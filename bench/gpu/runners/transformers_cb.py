"""transformers' continuous batching: python -m bench.gpu.runners.transformers_cb LOAD.json. Also runs on the CPU."""

from __future__ import annotations

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from bench.gpu.runners.rounds import Answer, serve


def load(folder: str) -> Answer:
    gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if gpu else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cuda" if gpu else "cpu").eval()
    # No token ends a sequence.
    config = GenerationConfig(do_sample=True, temperature=0.6, eos_token_id=-1, pad_token_id=0, max_new_tokens=1024)

    def answer(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        manager = model.init_continuous_batching(generation_config=config)
        manager.start()
        try:
            for i, (prompt, count) in enumerate(zip(prompts, outputs, strict=True)):
                manager.add_request(prompt, request_id=str(i), max_new_tokens=count)
            given: dict[str, int] = {}
            while len(given) < len(prompts):
                found = manager.get_result(timeout=1)
                if found is None and not manager.is_running():
                    raise RuntimeError("the manager ended before its requests")
                if found is not None and found.is_finished():
                    given[found.request_id] = len(found.generated_tokens)
            return [given[str(i)] for i in range(len(prompts))]
        finally:
            manager.stop(block=True)

    return answer


if __name__ == "__main__":
    serve(f"transformers {transformers.__version__}", load)

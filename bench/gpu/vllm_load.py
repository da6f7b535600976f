"""vLLM's offline engine on the load of `peer`, in a process of its own: python -m bench.gpu.vllm_load LOAD.json.

vLLM generates its own weights (load_format dummy). Imports nothing of Octavo.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 2
Answer = Callable[[list[list[int]], list[int]], list[int]]
"""From prompts and their requested numbers of tokens to the generated numbers."""


def serve(version: str, load: Callable[[str], Answer]) -> None:
    """Run the load. `load` creates a folder's engine. The first round is a warm-up. SystemExit on a short answer."""
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    begin = time.perf_counter()
    answer = load(given["folder"])
    answer([[1, 2, 3]], [2])
    started = time.perf_counter() - begin
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        found = answer(given["prompts"], given["outputs"])
        rounds.append(time.perf_counter() - begin)
        if found != given["outputs"]:
            sys.exit(f"{sum(found)} tokens came out, {sum(given['outputs'])} were asked for")
    result = {"version": version, "start_s": started, "rounds_s": rounds, "tokens": sum(given["outputs"])}
    Path(given["result"]).write_text(json.dumps(result), encoding="utf-8")


def load(vllm: Any, folder: str) -> Answer:
    llm = vllm.LLM(
        folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=4096, max_num_seqs=256,
        enable_prefix_caching=False, disable_log_stats=True,
    )  # fmt: skip

    def answer(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [
            vllm.SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n, detokenize=False) for n in outputs
        ]
        found = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [len(one.outputs[0].token_ids) for one in found]

    return answer


if __name__ == "__main__":
    engine = importlib.import_module("vllm")
    serve(f"vllm {engine.__version__}", lambda folder: load(engine, folder))

"""Models that transformers computes, on a GPU: python -m tests.kernels.transformers_on_card [I N]

Tiny random models in bfloat16, with our attention and products: greedy answers in chunks, then again from the prefix
cache. The yardstick is transformers' own bfloat16: the error of our log-probabilities, beside its float32, may be
`MOST` times that. Prints a row for each of every Nth model from the Ith; exit status 1 if one is wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from octavo_inference import LLM, SamplingParams

from ..integration.engine.test_hf import ARCHITECTURES, prompts, write_model  # noqa: TID252 -- tests are no package
from .on_card import MOST

ANSWER = 12


def scores(model: Any, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Log-probabilities of the answer's tokens, and how far each is below the best."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    found = torch.log_softmax(logits, dim=-1)
    chosen = found[torch.arange(len(answer)), answer]
    return np.stack([chosen.numpy(), (found.max(dim=-1).values - chosen).numpy()])


def check(name: str) -> dict[str, Any]:
    """Errors of the answers, and of the same after a prefix hit."""
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder), name, **ARCHITECTURES[name]).bfloat16()
        model.save_pretrained(folder)
        given: dict[str, Any] = {"backend": "transformers", "block_size": 16, "max_model_len": 96, "kv_memory": "64Mi"}
        llm = LLM(folder, **given, max_running_requests=4, max_batched_tokens=16)
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True, logprobs=0)
    rounds = [
        [
            (r.outputs[0].token_ids, r.outputs[0].logprobs or [])
            for r in llm.generate(prompts(), sampling, use_tqdm=False)
        ]
        for _ in range(2)
    ]
    rows = [(prompt, *answer) for answers in rounds for prompt, answer in zip(prompts(), answers, strict=True)]
    rounded = np.concatenate([scores(model, prompt, tokens)[0] for prompt, tokens, _ in rows])
    wanted, gap = np.concatenate([scores(model.float(), prompt, tokens) for prompt, tokens, _ in rows], axis=1)
    found = np.array([entry.logprob for _, _, entries in rows for entry in entries])
    error, own = (float(np.sqrt(np.mean((each - wanted) ** 2))) for each in (found, rounded))
    good = error <= MOST * own + 2e-3 and gap.max() <= 10 * own + 2e-2 and llm.engine.scheduler.hit_tokens >= 32
    row = {"error": error, "bfloat16": own, "gap": float(gap.max()), "backend": llm.engine.backend.name}
    return row | {"verdict": "ok" if good else "wrong"}


def main() -> None:
    torch.set_num_threads(1)
    wrong, (first, step) = 0, [int(each) for each in sys.argv[1:]] or (0, 1)
    for name in list(ARCHITECTURES)[first::step]:
        began = time.monotonic()
        try:
            row = check(name)
        except Exception as error:  # noqa: BLE001  the others continue
            row = {"verdict": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
            traceback.print_exc()
        wrong += row["verdict"] != "ok"
        print(json.dumps({"model": name, **row, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

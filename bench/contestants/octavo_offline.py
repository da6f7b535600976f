"""Octavo's offline engine: python octavo_offline.py MODEL_FOLDER THREADS."""

from __future__ import annotations

import sys
import time

STARTED = time.time()

from importlib.metadata import version  # noqa: E402 (the clock starts before anything is imported)

from serve import Load, serve  # noqa: E402

from octavo_inference import LLM, SamplingParams  # noqa: E402


def main() -> None:
    llm = LLM(
        sys.argv[1],
        threads=int(sys.argv[2]),
        prefix_caching=False,
        max_model_len=1024,
        max_running_requests=64,
        kv_memory="1Gi",
    )

    def generate(work: Load) -> list[int]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in work.output_lengths]
        return [len(r.outputs[0].token_ids) for r in llm.generate(work.prompts, params, use_tqdm=False)]

    serve(STARTED, {"octavo": version("octavo"), "backend": llm.engine.backend.name}, generate)


if __name__ == "__main__":
    main()

"""vLLM's offline engine on CPU: python -m bench.cpu.runners.vllm_cpu MODEL_FOLDER THREADS DTYPE [eager]."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

STARTED = time.time()
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ["OMP_NUM_THREADS"] = sys.argv[2]
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, like Octavo's offline engine
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

import torch  # noqa: E402 (the environment is read on import)
import vllm  # noqa: E402

from bench.cpu.runners.serve import loads, serve  # noqa: E402
from bench.lib.loads import Load  # noqa: E402


def main() -> None:
    llm = vllm.LLM(
        sys.argv[1],
        dtype=sys.argv[3],
        max_model_len=2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
        enforce_eager="eager" in sys.argv[4:],
        disable_log_stats=True,
    )

    def generate(work: Load) -> list[int]:
        params = [vllm.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in work.output_lengths]
        prompts = [{"prompt_token_ids": ids} for ids in work.prompts]
        return [len(r.outputs[0].token_ids) for r in llm.generate(prompts, params, use_tqdm=False)]

    # All of them are bf16, the norms aside; a head that is tied to the embedding is there once, and read as the head.
    width = 2 if sys.argv[3] == "float32" else 1
    model = {"weight_bytes": width * sum(file.stat().st_size for file in Path(sys.argv[1]).glob("*.safetensors"))}
    versions = {"vllm": vllm.__version__, "torch": torch.__version__}
    serve(STARTED, versions, {"load": loads(generate)}, model=model)


if __name__ == "__main__":
    main()

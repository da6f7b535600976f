"""vLLM's offline engine: python -m bench.gpu.runners.vllm_gpu LOAD.json.

vLLM generates its own weights (load_format dummy).
"""

from __future__ import annotations

import vllm

from bench.gpu.runners.rounds import Answer, serve


def load(folder: str) -> Answer:
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
    serve(f"vllm {vllm.__version__}", load)

"""nano-vllm, as its own bench.py runs it: python -m bench.gpu.runners.nano_vllm LOAD.json."""

from __future__ import annotations

from importlib.metadata import version

from nanovllm import LLM, SamplingParams

from bench.gpu.runners.rounds import Answer, serve


def load(folder: str) -> Answer:
    llm = LLM(folder, enforce_eager=False, max_model_len=4096)

    def answer(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n) for n in outputs]
        return [len(one["token_ids"]) for one in llm.generate(prompts, params, use_tqdm=False)]

    return answer


if __name__ == "__main__":
    serve(f"nano-vllm {version('nano-vllm')}", load)

"""llama.cpp on CPU: python -m bench.cpu.runners.llama_cpp MODEL_GGUF THREADS. One request at a time.

It runs in its fastest configuration: the library's own functions without the Python sampling chain. Of the micro-batch
sizes and attention kernels, measurements at the start select the fastest pair for prefill and the fastest for decode.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time

STARTED = time.time()

import llama_cpp as lib  # noqa: E402 (the clock starts before anything is imported)

from bench.cpu.runners.serve import loads, serve  # noqa: E402
from bench.lib.loads import Load, load  # noqa: E402

CONTEXT = 2048


class Candidate:
    """One context of the model and a greedy sampler."""

    def __init__(self, model: object, threads: int, micro_batch: int, attention: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT
        params.n_ubatch = micro_batch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = attention
        self.name = f"micro-batch {micro_batch}, flash attention {'on' if attention else 'off'}"
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            sys.exit(f"llama.cpp made no context for {self.name}")
        self._greedy = lib.llama_sampler_init_greedy()

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Generate `count` greedy tokens after the prompt."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        tokens, answer = prompt, list[int]()
        while True:
            array = (lib.llama_token * len(tokens))(*tokens)
            if lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))):
                sys.exit("llama.cpp could not compute the batch")
            answer.append(lib.llama_sampler_sample(self._greedy, self._context, -1))
            if len(answer) == count:
                return answer
            tokens = answer[-1:]


def main() -> None:
    keep = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(keep, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(sys.argv[1].encode(), lib.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot read {sys.argv[1]}")
    threads, (first, *others) = int(sys.argv[2]), itertools.product((512, CONTEXT), (0, 1))
    candidates = [Candidate(model, threads, *first)]
    ready = time.time()  # the rest is tuning, not needed to answer
    candidates += [Candidate(model, threads, *pair) for pair in others]

    def fastest(work: Load) -> Candidate:
        def seconds(candidate: Candidate) -> float:
            begin = time.perf_counter()
            candidate.generate(work.prompts[0], work.output_lengths[0])
            return time.perf_counter() - begin

        candidates[0].generate(work.prompts[0], 1)  # loads the file's pages, not counted
        return min(candidates, key=seconds)

    best = {kind: fastest(load(f"{kind}-{size}")) for kind, size in (("prefill", 512), ("single", 16))}

    def generate(work: Load) -> list[int]:
        candidate = best[work.name.partition("-")[0]]
        return [len(candidate.generate(p, n)) for p, n in zip(work.prompts, work.output_lengths, strict=True)]

    versions = {"llama-cpp-python": lib.__version__, "system": lib.llama_print_system_info().decode().strip()}
    serve(STARTED, versions | {f"best for {k}": c.name for k, c in best.items()}, {"load": loads(generate)}, ready)


if __name__ == "__main__":
    main()

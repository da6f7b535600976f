"""llama.cpp on CPU: python -m bench.cpu.runners.llama_cpp MODEL_GGUF THREADS [TUNE_TOKENS [STREAMS]].

It runs in its fastest configuration: the library's own functions without the Python sampling chain. Measurements at the
start select micro-batch size and attention kernel, for prompts (of TUNE_TOKENS, 512 by default), for one stream, and
with STREAMS for as many at once, with their keys in one pool or apart. Without STREAMS requests run one at a time.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time
from dataclasses import dataclass

STARTED = time.time()

import llama_cpp as lib  # noqa: E402 (the clock starts before anything is imported)

from bench.cpu.runners.serve import loads, serve  # noqa: E402
from bench.lib.loads import Load, load, mix  # noqa: E402

CONTEXT = 2048
STREAM_CONTEXT = 512


@dataclass(frozen=True)
class Choice:
    """Parameters of a context; `streams` sequences at once, with their keys in one pool where `unified`."""

    micro_batch: int
    attention: int
    streams: int = 1
    unified: bool = False

    @property
    def name(self) -> str:
        """What differs between choices, in words."""
        apart = (", keys in one pool" if self.unified else ", keys apart") if self.streams > 1 else ""
        return f"micro-batch {self.micro_batch}, flash attention {'on' if self.attention else 'off'}{apart}"


class Context:
    """A context of the model and a greedy sampler."""

    def __init__(self, model: object, threads: int, choice: Choice) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = choice.streams * STREAM_CONTEXT if choice.streams > 1 else CONTEXT
        params.n_batch = CONTEXT
        params.n_ubatch = choice.micro_batch
        params.n_seq_max = choice.streams
        params.kv_unified = choice.unified
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = choice.attention
        self._streams = choice.streams
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            sys.exit(f"llama.cpp made no context for {choice.name}")
        self._batch = lib.llama_batch_init(CONTEXT, 0, 1)
        self._greedy = lib.llama_sampler_init_greedy()

    def close(self) -> None:
        """Free its memory."""
        lib.llama_batch_free(self._batch)
        lib.llama_sampler_free(self._greedy)
        lib.llama_free(self._context)

    def generate(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        """Generate greedy tokens after the prompts, `counts` of each: as many at once as there are streams."""
        answers: list[list[int]] = []
        for first in range(0, len(prompts), self._streams):
            part = slice(first, first + self._streams)
            answers += self._together(prompts[part], counts[part])
        return answers

    def _together(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        answers: list[list[int]] = [[] for _ in prompts]
        # A token to compute: its sequence, its position, and whether the next token is chosen from it.
        todo = [(s, i, t, i == len(p) - 1) for s, p in enumerate(prompts) for i, t in enumerate(p)]
        while todo:
            now, todo = todo[:CONTEXT], todo[CONTEXT:]
            for row, sequence in self._compute(now):
                answer = answers[sequence]
                answer.append(lib.llama_sampler_sample(self._greedy, self._context, row))
                if len(answer) < counts[sequence]:
                    todo.append((sequence, len(prompts[sequence]) + len(answer) - 1, answer[-1], True))
        return answers

    def _compute(self, rows: list[tuple[int, int, int, bool]]) -> list[tuple[int, int]]:
        """Compute tokens; the rows to sample from, each with its sequence."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (sequence, position, token, chosen) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, chosen
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        if lib.llama_decode(self._context, batch):
            sys.exit("llama.cpp could not compute the batch")
        return [(row, sequence) for row, (sequence, _, _, chosen) in enumerate(rows) if chosen]


def main() -> None:
    keep = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(keep, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(sys.argv[1].encode(), lib.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp cannot read {sys.argv[1]}")
    threads, *given = map(int, sys.argv[2:])
    tune, streams = [*given, *(512, 0)[len(given) :]]
    choices = [Choice(*pair) for pair in itertools.product((512, CONTEXT), (0, 1))]
    Context(model, threads, choices[0]).close()
    ready = time.time()  # the rest is tuning, not needed to answer

    def seconds(choice: Choice, work: Load) -> float:
        context = Context(model, threads, choice)
        context.generate([work.prompts[0][:4]], [1])  # loads the file's pages, not counted
        begin = time.perf_counter()
        context.generate(work.prompts, work.output_lengths)
        taken = time.perf_counter() - begin
        context.close()
        return taken

    def fastest(work: Load, among: list[Choice]) -> Choice:
        return min(among, key=lambda choice: seconds(choice, work))

    best = {
        "prefill": fastest(load(f"prefill-{tune}"), choices),
        "single": fastest(load("single-16"), choices[:2]),
    }
    best["stream"] = best["single"]
    if streams:
        many = [Choice(512, attention, streams, unified) for attention in (0, 1) for unified in (False, True)]
        full = mix(streams)
        short = Load("mix", [prompt[:16] for prompt in full.prompts], [6] * streams, 6 * streams)
        best["mix"] = fastest(short, many)
    contexts: dict[Choice, Context] = {}

    def generate(work: Load) -> list[int]:
        choice = best.get(work.name.partition("-")[0], best["single"])
        if choice not in contexts:
            contexts[choice] = Context(model, threads, choice)
        return [len(answer) for answer in contexts[choice].generate(work.prompts, work.output_lengths)]

    versions = {"llama-cpp-python": lib.__version__, "system": lib.llama_print_system_info().decode().strip()}
    versions |= {f"best for {kind}": choice.name for kind, choice in best.items()}
    serve(STARTED, versions, {"load": loads(generate)}, ready, {"weight_bytes": lib.llama_model_size(model)})


if __name__ == "__main__":
    main()

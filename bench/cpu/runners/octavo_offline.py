"""Octavo's offline engine: python -m bench.cpu.runners.octavo_offline MODEL [NAME=VALUE ...], names as of `LLM`."""

from __future__ import annotations

import sys
import time

STARTED = time.time()

from importlib.metadata import version  # noqa: E402 (the clock starts before anything is imported)
from typing import Any  # noqa: E402

from bench.cpu.runners import latency, memory, profile  # noqa: E402
from bench.cpu.runners.serve import loads, serve  # noqa: E402
from bench.lib.loads import Load  # noqa: E402
from octavo_inference import LLM, SamplingParams  # noqa: E402

DEFAULTS: dict[str, Any] = {"prefix_caching": False, "max_running_requests": 64}


def main() -> None:
    before = memory.resident()
    llm = LLM(sys.argv[1], **DEFAULTS | dict(map(setting, sys.argv[2:])))

    def generate(work: Load) -> list[int]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in work.output_lengths]
        return [len(r.outputs[0].token_ids) for r in llm.generate(work.prompts, params, use_tqdm=False)]

    serve(
        STARTED,
        {"octavo": version("octavo"), "backend": llm.engine.backend.name},
        {
            "load": loads(generate),
            "arrival": lambda *given: latency.arrival(llm.engine, *map(int, given)),
            "shared": lambda *given: latency.shared(llm.engine, *map(int, given)),
            "profile": lambda *given: profile.profile(llm.engine, *map(int, given)),
            "memory": lambda *given: memory.memory(llm.engine, before, *map(int, given)),
        },
        model=profile.model(llm.engine),
    )


def setting(argument: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, with the value in its own type."""
    name, _, text = argument.partition("=")
    if text in {"true", "false"}:
        return name, text == "true"
    return name, int(text) if text.isdigit() else text


if __name__ == "__main__":
    main()

"""Octavo's offline engine: python octavo_offline.py MODEL [NAME=VALUE ...], the names being those of `LLM`."""

from __future__ import annotations

import sys
import time

STARTED = time.time()

from importlib.metadata import version  # noqa: E402 (the clock starts before anything is imported)
from typing import Any  # noqa: E402

import octavo_latency  # noqa: E402
import octavo_memory  # noqa: E402
import octavo_profile  # noqa: E402
from loads import Load  # noqa: E402
from serve import loads, serve  # noqa: E402

from octavo_inference import LLM, SamplingParams  # noqa: E402

DEFAULTS: dict[str, Any] = {"prefix_caching": False, "max_running_requests": 64}


def main() -> None:
    before = octavo_memory.resident()
    llm = LLM(sys.argv[1], **DEFAULTS | dict(map(setting, sys.argv[2:])))

    def generate(work: Load) -> list[int]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in work.output_lengths]
        return [len(r.outputs[0].token_ids) for r in llm.generate(work.prompts, params, use_tqdm=False)]

    serve(
        STARTED,
        {"octavo": version("octavo"), "backend": llm.engine.backend.name},
        {
            "load": loads(generate),
            "arrival": lambda *given: octavo_latency.arrival(llm.engine, *map(int, given)),
            "shared": lambda *given: octavo_latency.shared(llm.engine, *map(int, given)),
            "profile": lambda *given: octavo_profile.profile(llm.engine, *map(int, given)),
            "memory": lambda *given: octavo_memory.memory(llm.engine, before, *map(int, given)),
        },
    )


def setting(argument: str) -> tuple[str, Any]:
    """NAME=VALUE as the value's own type."""
    name, _, text = argument.partition("=")
    if text in {"true", "false"}:
        return name, text == "true"
    return name, int(text) if text.isdigit() else text


if __name__ == "__main__":
    main()

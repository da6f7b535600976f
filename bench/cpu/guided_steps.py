"""The cost of a grammar per step, on the CPU backend with the built-in model: python -m bench.cpu.guided_steps.

All rows decode: without a grammar, and with a JSON schema whose answers do not end. Rounds of both alternate, and the
ratio is of the medians of their steps, so that a machine whose speed drifts changes both. In a third load forced
tokens are appended without a sample (jump ahead); its time per token is compared, because its steps are fewer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from bench.lib.host import new_report
from bench.lib.results import save
from octavo_inference import LLM, SamplingParams
from octavo_inference.core.jump_ahead import jumps
from octavo_inference.core.request import Guidance, Request

Load = Literal["free", "guided", "jump ahead"]
LOADS: tuple[Load, ...] = ("free", "guided", "jump ahead")
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "city", "age", "tags"],
    "additionalProperties": False,
}
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
GUIDANCE = Guidance(
    grammar="start: %json " + json.dumps({"type": "array", "items": _PERSON, "minItems": 100, "x-guidance": _STYLE})
)


def measure(llm: LLM, load: Load, rows: int, tokens: int, temperature: float) -> dict[str, float]:
    """Milliseconds of the steps in which all rows run, microseconds per mask and per token."""
    engine, counters = llm.engine, llm.engine.counters
    prompt = llm.tokenizer.encode("A list of people as JSON: ").ids
    sampled, filled, masks = counters.generation_tokens, counters.guidance.mask_seconds, counters.guidance.masks
    for row in range(rows):
        params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=row, ignore_eos=True)
        guidance = None if load == "free" else GUIDANCE
        engine.submit(Request(id=f"{load}-{row}", tokens=prompt, sampling=params, guidance=guidance))
    steps = []
    engine.wait()
    first = time.perf_counter()
    while engine.has_work:
        began, running = time.perf_counter(), engine.scheduler.running[:]
        engine.step()
        if len(running) == rows:
            steps.append(time.perf_counter() - began)
    seconds = time.perf_counter() - first
    made = max(1, counters.guidance.masks - masks)
    return {
        "step_ms": 1e3 * statistics.median(steps),
        "mask_us": 1e6 * (counters.guidance.mask_seconds - filled) / made,
        "token_us": 1e6 * seconds / (counters.generation_tokens - sampled),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=1.0, help="0: greedy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    llm = LLM("smollm2", max_model_len=512, max_running_requests=given.rows, kv_memory=1 << 30, prefix_caching=False)
    found: dict[Load, list[dict[str, float]]] = {load: [] for load in LOADS}
    measure(llm, "guided", given.rows, 8, given.temperature)  # compiles the grammar
    for _ in range(given.rounds):
        for load in LOADS:
            with patch("octavo_inference.core.guided_steps.jumps", jumps if load == "jump ahead" else lambda _: False):
                found[load].append(measure(llm, load, given.rows, given.tokens, given.temperature))
            print(load, {name: round(value, 1) for name, value in found[load][-1].items()}, flush=True)
    pairs = list(zip(*found.values(), strict=True))
    report: dict[str, Any] = {
        "rows": given.rows,
        "temperature": given.temperature,
        "step_ratio": statistics.median(guided["step_ms"] / free["step_ms"] for free, guided, _ in pairs),
        "token_ratio_with_jumps": statistics.median(jump["token_us"] / free["token_us"] for free, _, jump in pairs),
        "loads": found,
    }
    print({name: report[name] for name in ("step_ratio", "token_ratio_with_jumps")})
    if given.out:
        save(given.out, new_report(**report))


if __name__ == "__main__":
    main()

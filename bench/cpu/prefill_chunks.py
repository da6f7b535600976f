"""Prompts next to running answers on devices with a fixed cost: python -m bench.cpu.prefill_chunks.

The scheduler's rule in its simplest form, with the engine's `PrefillBudget`, on a device that only takes time: each
step decodes all running answers, then fills its budget with prompts in the order of their arrival. No clock: the table
takes seconds. Property tests run the same loop.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from bench.lib.results import save
from octavo_inference.core.prefill_budget import PrefillBudget, PromptRoom, pairs
from octavo_simulator.steptime import PodProfile

INTER_TOKEN = 2.0
"""Mean inter-token time divided by the one without a limit, at most. A chunk costs at least as much as the fixed cost,
so the prompt tokens' own cost, which every schedule has, is at least half of what a prompt adds."""

MARGIN = 1.1
"""Factor on both ratios for noise, queues and the first prompts. As prompts may take twice their time, the ratios hold
for loads of at most a third of the device's time without a limit."""


def first_token(slowdown: float) -> float:
    """Mean time to first token divided by the one without a limit, at most.

    Without a limit, a prompt takes at least its tokens' own cost c. With it, add fixed costs of at most c, and the
    decodes of each of its steps. A chunk costs half the wait W = (slowdown - 1) * quiet or more. So there are at most
    2c / W steps, whose decodes take 2c / (slowdown - 1).
    """
    return 2 + 2 / (slowdown - 1)


@dataclass(slots=True)
class Prompt:
    """A request with its arrival, prompt tokens and output tokens, and what became of it."""

    at: float
    tokens: int
    output: float = 1
    first: float = 0.0
    """Time of the first token."""
    steps: int = 0
    """Steps that computed a part of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step's seconds, decodes and prompt tokens."""

    seconds: float
    decodes: int
    chunk: int


@dataclass(slots=True)
class Played:
    """All steps, and all prompts in the order of their first tokens."""

    steps: list[Step] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """Mean seconds from arrival to first token."""
        return sum(prompt.first - prompt.at for prompt in self.prompts) / len(self.prompts)

    @property
    def inter_token(self) -> float:
        """Mean seconds between two tokens of an answer."""
        return sum(step.seconds * step.decodes for step in self.steps) / sum(step.decodes for step in self.steps)


def play(device: PodProfile, prompts: Sequence[Prompt], seed: int = 0) -> Played:
    """Run until all prompts have their first token. Each step has a noise of its own; rows and blocks are unlimited.

    The device's `budget` and `slowdown` are the engine's; without a slowdown, nothing but the budget limits a chunk.
    """
    pace = PrefillBudget(device.slowdown) if device.slowdown else None
    noise = random.Random(seed)
    played, now = Played(), 0.0
    coming = deque(sorted(prompts, key=lambda prompt: prompt.at))
    waiting: deque[Prompt] = deque()
    computed = 0  # tokens of the first waiting prompt
    ends: list[float] = []  # a heap: the numbers of the steps that end running answers
    while coming or waiting:
        if not ends and not waiting:
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            waiting.append(coming.popleft())
        decodes, chunk, earlier, done = len(ends), 0, 0, []
        room = PromptRoom(device.budget - decodes)
        if pace:
            room = pace.room(room.tokens, decodes, len(waiting))
        while waiting and (fitting := room.chunk(computed)):
            take = min(waiting[0].tokens - computed, fitting)
            waiting[0].steps += 1
            room.take(take, computed)
            chunk, earlier, computed = chunk + take, earlier + pairs(take, computed), computed + take
            if computed == waiting[0].tokens:
                done.append(waiting.popleft())
                computed = 0
        seconds = device.mixed(decodes, chunk, earlier) * max(0.5, noise.gauss(1.0, device.noise))
        now += seconds
        if pace:
            pace.observe(seconds, decodes, chunk, earlier)
        played.steps.append(Step(seconds, decodes, chunk))
        number = len(played.steps)
        while ends and ends[0] <= number:
            heappop(ends)
        for prompt in done:
            prompt.first = now
            if prompt.output > 1:
                heappush(ends, number + prompt.output - 1)
        played.prompts += done
    return played


def device(name: str, quiet: float, per_token: float, *, base: float = 0.0, floor: float = 0.0) -> PodProfile:
    """A device by the milliseconds of a step of decodes, of a prompt token, and of the least step with a prompt."""
    return PodProfile(
        name, base=quiet / 1e3, prefill=per_token / 1e3, row=0.0, context=0.0, pool_tokens=1 << 20,
        mixed_base=base / 1e3, mixed_floor=floor / 1e3, noise=0.0, budget=2048, slowdown=1.5,
    )  # fmt: skip


DEVICES = (
    replace(device("CPU, 40 ms", 40, 0.26), budget=512),
    device("0.6B, 1.2 ms, no fixed cost", 1.2, 0.0015),
    device("0.6B, 1.2 ms, mixed ≥ 2 ms", 1.2, 0.0015, floor=2),
    device("0.6B, 1.2 ms, mixed ≥ 4 ms", 1.2, 0.0015, floor=4),
    replace(device("0.6B, 1.2 ms, mixed ≥ 6 ms, slowdown 4", 1.2, 0.0015, floor=6), slowdown=4, budget=8192),
    device("0.6B, 1.2 ms, mixed 4 ms + tokens", 1.2, 0.0015, base=4),
    device("8B, 6.5 ms, mixed ≥ 9 ms", 6.5, 0.027, floor=9),
    device("8B, 6.5 ms, mixed ≥ 10 ms", 6.5, 0.027, floor=10),
    device("8B, 6.5 ms, mixed 10 ms + tokens", 6.5, 0.027, base=10),
)
"""Devices with an answer's time alone and the time of a step with a prompt. GPU times are estimates, not measured."""

_ANSWERS, _TOKENS = 64, 2000


def measure(device: PodProfile) -> dict[str, Any]:
    """64 answers run, and twenty prompts of 2,000 tokens come, one at a time."""
    # Even in chunks of 8 tokens, a prompt ends before the next one comes.
    apart = 1.2 * _TOKENS / 8 * device.linear(_ANSWERS, 8)
    found: dict[str, Any] = {"device": device.name}
    for name, slowdown in (("limited", device.slowdown), ("free", 0.0)):
        prompts = [Prompt(0.0, 100, math.inf) for _ in range(_ANSWERS)]
        prompts += [Prompt(apart * number, _TOKENS) for number in range(1, 21)]
        play(replace(device, slowdown=slowdown), prompts)
        for prompt, number in ((prompts[_ANSWERS], 1), (prompts[-1], 20)):
            found[f"{name}_{number}"] = [prompt.steps, round((prompt.first - prompt.at) * 1e3, 1)]
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Format all rows as Markdown."""
    columns = {"limited_1": "1st prompt", "limited_20": "20th prompt", "free_20": "20th, no limit"}
    lines = [f"| device | {' | '.join(columns.values())} |", "|---|" + "--:|" * len(columns)]
    for row in found:
        cells = [f"{row[name][0]} steps, {row[name][1]:,.0f} ms" for name in columns]
        lines.append(f"| {row['device']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = [measure(device) for device in DEVICES]
    print(table(found), end="")
    if given.out:
        save(given.out, {"rows": found})
        given.out.with_suffix(".md").write_text(table(found))


if __name__ == "__main__":
    main()

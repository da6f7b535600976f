"""What is measured: each experiment runs one command on some contestants in turn; its lines are read off the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: `value` of a sample of `of`, divided by the best of `to` in the same round where given.

    `value` is a field of the sample or "rate", tokens per second. `must` and `aim` are bounds from below, or from above
    with `at_most`; without them the line is for orientation.
    """

    title: str
    of: str
    to: tuple[str, ...] = ()
    value: str = "rate"
    unit: str = "×"
    must: float | None = None
    aim: float | None = None
    at_most: bool = False
    inverse: bool = False
    """Smaller values are better: the ratio is `to`'s to `of`'s."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One command for each of `ways`, in this order. `seconds` is about what a round takes on two AVX2 cores.

    `once`: one round is enough in a run of everything, because it compares nothing or takes very long.
    """

    name: str
    command: str
    ways: tuple[str, ...]
    lines: tuple[Line, ...]
    seconds: int
    once: bool = False


def experiments(isa: Sequence[str], scale: int = 1) -> list[Experiment]:
    """All of them, for a machine with these instruction sets. `scale` divides the sizes, for a quick look.

    Without AVX-512 vLLM's bfloat16 has no fast kernels and would take minutes for a load: it runs a small one of its
    own, and its float32 is the peer to look at.
    """
    fast = ("vllm-float32", "vllm-bfloat16") if "avx512f" in isa else ("vllm-float32",)
    slow = () if "avx512f" in isa else ("vllm-bfloat16",)

    def mix(count: int) -> str:
        return f"mix-{max(1, count // scale)}"

    found = [
        Experiment(
            "mix-64",
            f"load {mix(64)}",
            ("octavo-bf16", "octavo-4bit", "octavo-4bit-http", *fast),
            (
                Line("mix-64, bf16, to the best vLLM", "octavo-bf16", fast, must=1.8, aim=2.1),
                Line("mix-64, 4-bit weights, to the best vLLM", "octavo-4bit", fast, must=1.8, aim=2.2),
                Line("mix-64 over HTTP, to offline", "octavo-4bit-http", ("octavo-4bit",), unit="%", must=92, aim=97),
            ),
            130,
        ),
        Experiment(
            "single",
            f"load single-{max(4, 128 // scale)}",
            ("octavo-bf16", "octavo-4bit", "llama-4bit", *fast),
            (
                Line("single stream, 4-bit, to llama.cpp", "octavo-4bit", ("llama-4bit",), must=3, aim=3.8),
                Line("single stream, bf16, to the best vLLM", "octavo-bf16", fast, must=3),
            ),
            15,
        ),
        Experiment(
            "prefill",
            f"load prefill-{1024 // scale}",
            ("octavo-4bit", "octavo-bf16", "llama-4bit"),
            (Line("prefill 1,024 tokens, 4-bit, to llama.cpp", "octavo-4bit", ("llama-4bit",), must=8, aim=10),),
            8,
        ),
        Experiment(
            "start",
            "start",
            ("octavo-start",),
            (
                Line(
                    "process start to first token",
                    "octavo-start",
                    value="seconds",
                    unit="s",
                    must=3,
                    aim=1.5,
                    at_most=True,
                ),
            ),
            6,
        ),
        Experiment(
            "arrival",
            f"arrival 16 {6000 // scale} {200 // scale}",
            ("octavo-4bit", "octavo-4bit-http"),
            tuple(
                Line(
                    f"inter-token p99 of 16 streams while 6k tokens arrive, to quiet, {where}",
                    way,
                    value="times_quiet",
                    must=2,
                    aim=1.3,
                    at_most=True,
                )
                for way, where in (("octavo-4bit", "step loop"), ("octavo-4bit-http", "over HTTP"))
            ),
            60,
        ),
        Experiment(
            "shared",
            f"shared {max(2, 64 // scale)} {max(64, 1500 // scale)} {max(1, 8 // scale)}",
            ("octavo-4bit-cache", "octavo-4bit"),
            (
                Line(
                    "shared prefix of 1,500 tokens: prefill saved",
                    "octavo-4bit-cache",
                    value="saved",
                    unit="%",
                    must=90,
                ),
                Line(
                    "shared prefix: first token, to caching off",
                    "octavo-4bit-cache",
                    ("octavo-4bit",),
                    value="first_token_ms",
                    must=5,
                    inverse=True,
                ),
            ),
            35,
        ),
        Experiment(
            "idle",
            f"idle {max(2, 20 // scale)} {800 // scale}",
            ("octavo-4bit-http",),
            (
                Line("idle server: CPU", "octavo-4bit-http", value="cpu_percent", unit="%", must=0.5, at_most=True),
                Line(
                    "idle server: RSS growth over 800 requests",
                    "octavo-4bit-http",
                    value="growth_mb",
                    unit="MB",
                    must=5,
                    at_most=True,
                ),
            ),
            60,
            once=True,
        ),
        Experiment(
            "memory",
            f"memory {max(1, 64 // scale)} {150 // scale}",
            ("octavo-4bit",),
            (
                Line(
                    "memory found beside budgeted", "octavo-4bit", value="off_percent", unit="%", must=5, at_most=True
                ),
                Line("KV slots without a token", "octavo-4bit", value="waste_percent", unit="%", must=4, at_most=True),
            ),
            15,
            once=True,
        ),
        Experiment(
            "profile",
            f"profile {max(4, 24 // scale)} {210 // scale}",
            ("octavo-bf16", "octavo-4bit"),
            (),
            40,
            once=True,
        ),
        Experiment("roofline", "limits", ("roofline",), (), 5),
        Experiment(
            "mix-256",
            f"load {mix(256)}",
            ("octavo-bf16", *fast),
            (Line("mix-256, bf16, to the best vLLM", "octavo-bf16", fast, must=1.8, aim=2.1),),
            300,
            once=True,
        ),
    ]
    if slow:
        title = "mix-8, bf16, to vLLM bfloat16 (no fast kernels here)"
        line = Line(title, "octavo-bf16", slow)
        found.append(Experiment("mix-8", f"load {mix(8)}", ("octavo-bf16", *slow), (line,), 40, once=True))
    return found

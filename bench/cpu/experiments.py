"""The experiments: each runs one command on some systems in turn; lines of the table follow from the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.lib.models import NAMES


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: `value` of a sample of `of`, divided by the best of `to` in the same round where given.

    `value` is a field of the sample or "rate", tokens per second. `must` and `aim` are lower bounds, or upper bounds
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
    """One command for each of `systems`, in this order. `seconds` is about the time of a round on two AVX2 cores.

    `once`: one round is enough in a full run, because it compares nothing or takes very long. `model`: "" is the
    built-in one, others are of `bench.lib.models`; experiments of one model run together.
    """

    name: str
    command: str
    systems: tuple[str, ...]
    lines: tuple[Line, ...]
    seconds: int
    once: bool = False
    model: str = ""


def by_variant(experiment: Experiment, variants: Sequence[str]) -> Experiment:
    """The same with each of Octavo's offline systems once per variant of the kernels, beside the first variant.

    ValueError for an experiment without such a system.
    """
    own = [s for s in experiment.systems if s.startswith("octavo-") and not s.endswith(("-http", "-cache", "-start"))]
    if not own or not experiment.command.startswith("load "):
        raise ValueError(f"{experiment.name} is not about kernels: name loads, such as single")
    best = variants[0]
    lines = tuple(
        Line(f"{experiment.name}, {system}, {variant} to {best}", f"{system}@{variant}", (f"{system}@{best}",))
        for system in own
        for variant in variants[1:]
    )
    systems = tuple(f"{system}@{variant}" for system in own for variant in variants)
    return replace(experiment, systems=systems, lines=lines)


def _large(name: str, prompt: int, seconds: tuple[int, int, int], isa: Sequence[str], scale: int) -> list[Experiment]:
    """The experiments of a model of the size people run; `prompt` tokens of its prefill, seconds of each experiment."""
    int4, bf16, llama = (f"{system}-{name}" for system in ("octavo-4bit", "octavo-bf16", "llama-4bit"))
    vllm = f"vllm-{'bfloat16' if 'avx512f' in isa else 'float32'}-{name}"
    title = f"{NAMES[name]}-shape"
    # Octavo's bf16 beside vLLM's would be 18 GB of the largest model.
    wide = (bf16,) if name == "1b" else ()
    alone = (int4, llama, *wide, vllm) if wide else (int4, llama)
    return [
        Experiment(f"single-{name}", f"load stream-{max(4, 64 // scale)}", alone, (
            Line(f"{title}, single stream, 4-bit, to llama.cpp", int4, (llama,), must=1.3),
            *(Line(f"{title}, single stream, bf16, to vLLM", own, (vllm,)) for own in wide),
        ), seconds[0], model=name),
        Experiment(f"mix-16-{name}", f"load mix-{max(1, 16 // scale)}", (int4, llama, *wide, vllm), (
            Line(f"{title}, mix-16, 4-bit, to llama.cpp", int4, (llama,), must=2),
            Line(f"{title}, mix-16, 4-bit, to vLLM", int4, (vllm,), must=2),
            *(Line(f"{title}, mix-16, bf16, to vLLM", own, (vllm,)) for own in wide),
        ), seconds[1], model=name),
        Experiment(f"prefill-{name}", f"load prefill-{max(1, prompt // scale)}", (int4, llama), (
            Line(f"{title}, prefill {prompt} tokens, 4-bit, to llama.cpp", int4, (llama,), must=3),
        ), seconds[2], model=name),
        Experiment(f"limits-{name}", "limits", ("roofline",), (), 5, model=name),
    ]  # fmt: skip


def _at_most(title: str, of: str, value: str, unit: str, must: float, aim: float | None = None) -> Line:
    return Line(title, of, value=value, unit=unit, must=must, aim=aim, at_most=True)


def experiments(isa: Sequence[str], scale: int = 1) -> list[Experiment]:
    """All experiments, for a machine with these instruction sets. `scale` divides the sizes, for a quick run.

    Without AVX-512 vLLM's bfloat16 has no fast kernels and would take minutes for a load. It then runs a small load of
    its own, and its float32 is the peer to compare with.
    """
    fast = ("vllm-float32", "vllm-bfloat16") if "avx512f" in isa else ("vllm-float32",)
    bf16, int4, http, cached, llama = (
        "octavo-bf16",
        "octavo-4bit",
        "octavo-4bit-http",
        "octavo-4bit-cache",
        "llama-4bit",
    )
    streams = "inter-token p99 of 16 streams while 6k tokens arrive, to quiet, "

    def cut(size: int, least: int = 1) -> int:
        return max(least, size // scale)

    found = [
        Experiment("mix-64", f"load mix-{cut(64)}", (bf16, int4, http, *fast), (
            Line("mix-64, bf16, to the best vLLM", bf16, fast, must=1.8, aim=2.1),
            Line("mix-64, 4-bit weights, to the best vLLM", int4, fast, must=1.8, aim=2.2),
            Line("mix-64 over HTTP, to offline", http, (int4,), unit="%", must=92, aim=97),
        ), 130),
        Experiment("single", f"load single-{cut(128, 4)}", (bf16, int4, llama, *fast), (
            Line("single stream, 4-bit, to llama.cpp", int4, (llama,), must=3, aim=3.8),
            Line("single stream, bf16, to the best vLLM", bf16, fast, must=3),
        ), 15),
        Experiment("prefill", f"load prefill-{cut(1024)}", (int4, bf16, llama), (
            Line("prefill 1,024 tokens, 4-bit, to llama.cpp", int4, (llama,), must=8, aim=10),
        ), 8),
        Experiment("start", "start", ("octavo-start",), (
            _at_most("process start to first token", "octavo-start", "seconds", "s", 3, 1.5),
        ), 6),
        Experiment("arrival", f"arrival 16 {cut(6000)} {cut(200)}", (int4, http), (
            _at_most(f"{streams}step loop", int4, "times_quiet", "×", 2, 1.3),
            _at_most(f"{streams}with streams as long, step loop", int4, "times_quiet_at_length", "×", 1.5),
            _at_most("first token of the 6k prompt, to alone with its share of time", int4, "times_share", "×", 1.5),
            _at_most(f"{streams}over HTTP", http, "times_quiet", "×", 2, 1.3),
        ), 60),
        Experiment("shared", f"shared {cut(64, 2)} {cut(1500, 64)} {cut(8)}", (cached, int4), (
            Line("shared prefix of 1,500 tokens: prefill saved", cached, value="saved", unit="%", must=90),
            Line("shared prefix: first token, to caching off", cached, (int4,), "first_token_ms", must=5, inverse=True),
        ), 35),
        Experiment("idle", f"idle {cut(20, 2)} {cut(800)}", (http,), (
            _at_most("idle server: CPU", http, "cpu_percent", "%", 0.5),
            _at_most("idle server: RSS growth over 800 requests", http, "growth_mb", "MB", 5),
        ), 60, once=True),
        Experiment("memory", f"memory {cut(64)} {cut(150)}", (int4,), (
            _at_most("memory found beside budgeted", int4, "off_percent", "%", 5),
            _at_most("KV slots without a token", int4, "waste_percent", "%", 4),
        ), 15, once=True),
        Experiment("profile", f"profile {cut(24, 4)} {cut(210)}", (bf16, int4), (), 40, once=True),
        Experiment("roofline", "limits", ("roofline",), (), 5),
        Experiment("mix-256", f"load mix-{cut(256)}", (bf16, *fast), (
            Line("mix-256, bf16, to the best vLLM", bf16, fast, must=1.8, aim=2.1),
        ), 300, once=True),
    ]  # fmt: skip
    if "avx512f" not in isa:
        line = Line("mix-8, bf16, to vLLM bfloat16 (no fast kernels here)", bf16, ("vllm-bfloat16",))
        found.append(Experiment("mix-8", f"load mix-{cut(8)}", (bf16, "vllm-bfloat16"), (line,), 40, once=True))
    return [*found, *_large("1b", 1024, (40, 180, 60), isa, scale), *_large("4b", 512, (60, 700, 100), isa, scale)]

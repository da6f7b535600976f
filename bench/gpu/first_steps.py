"""The steps of the first half hour on a card: three calls of under ten minutes each. Standard library only.

Correctness comes before speed: a rate of wrong tokens is worth nothing. Call 2 needs nothing that call 1 finds, so that
no time passes between them. Call 3 is for the mended tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Step:
    """One process: arguments of `python -m bench.gpu`, and seconds that it may take.

    `under`: a tool that runs the process, with its arguments; the step is skipped where the tool is not installed.
    `after`: a step of this call with rows for kernels; this step runs on the first kernel that failed there, and is
    skipped where none did.
    """

    name: str
    arguments: tuple[str, ...]
    limit: float
    under: tuple[str, ...] = ()
    after: str = ""


_NCU = (
    *("ncu", "--clock-control", "none", "--set", "basic", "--target-processes", "all"),
    *("-k", "regex:_attend", "-c", "2"),
)
_SHAPES = {"decode": "attention decode 32x8192", "prefill": "attention prefill 8192"}

CALLS: dict[int, tuple[Step, ...]] = {
    1: (
        Step("facts", ("facts",), 40),
        Step("check-kernels", ("check", "--quick", "--part", "kernels"), 100),
        Step("memcheck", ("check", "--quick", "--part", "kernels"), 90, ("compute-sanitizer", "--tool", "memcheck"),
             after="check-kernels"),
        Step("check-engine", ("check", "--part", "engine"), 200),
        Step("load-0.6b", ("load", "--model", "qwen3-0.6b"), 120),
        Step("timeline-0.6b", ("timeline", "--model", "qwen3-0.6b"), 60),
        Step("soak", ("check", "--part", "soak"), 90),
    ),
    2: (
        Step("decode-8b", ("decode", "--model", "llama-8b", "--only", "bf16 KV auto"), 150),
        Step("tiles", ("tiles", "--only", "attention"), 120),
        Step("anchors", ("anchors", "--model", "llama-8b"), 60),
        *(Step(f"ncu-{way}", ("anchors", "--model", "llama-8b", "--only", shape), 40, _NCU)
          for way, shape in _SHAPES.items()),
        Step("launches", ("launches", "--model", "qwen3-0.6b", "llama-8b"), 90),
        Step("load-8b", ("load", "--model", "llama-8b"), 100),
    ),
    3: (
        Step("recheck", ("check", "--quick"), 200),
        Step("reload-0.6b", ("load", "--model", "qwen3-0.6b"), 90),
        Step("reload-14b", ("load", "--model", "qwen3-14b"), 120),
        Step("start-8b", ("start", "--model", "llama-8b"), 120),
        Step("formats", ("formats", "--model", "llama-8b"), 60),
    ),
}  # fmt: skip


def tiny(steps: Sequence[Step]) -> list[Step]:
    """The same steps for the interpreter: one kernel instead of all, any shape of decodes, no tools."""
    return [replace(step, arguments=_tiny(step.arguments)) for step in steps if not step.under]


def _tiny(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if arguments[0] == "decode":
        return arguments[: arguments.index("--only")]
    kernels = arguments[0] == "check" and not {"engine", "soak"} & set(arguments)
    return (*arguments, "--only", "rms_norm") if kernels else arguments

"""Records a few decode steps: the host's work, its waits, and the device's kernels over time.

torch.profiler records both on one clock. Without kernel records (no GPU, or no permission), the device's line comes
from the events around each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import config_of
from bench.gpu.profiler import Span, device_spans, idle_share, summary, watched
from bench.gpu.serving import loaded
from bench.lib.results import Item, Row
from octavo_inference.core.engine import Engine
from octavo_inference.core.request import Request, SamplingParams

BATCHES, PROMPT, OUT = (1, 32, 256), 512, 2048
STEPS, SETTLED = 8, 24
HOST = ("turn", "launch", "wait")


def items(setting: Setting) -> Iterator[Item]:
    """Each batch of each model."""
    for model in setting.models:
        for batch in setting.pick(BATCHES, (2,)):
            yield Item(f"{model} batch {batch}", partial(run, setting, model, batch))


def run(setting: Setting, model: str, batch: int) -> Row:
    """Record steps in the middle of decoding."""
    engine = setting.keep.get(model, lambda: loaded(setting, model)).engine
    vocab, prompt = config_of(model, interpret=setting.interpret).vocab, setting.pick(PROMPT, 3)
    steps, settled = setting.pick((STEPS, SETTLED), (2, 1))
    engine.reset_cache()
    for i in range(batch):
        tokens = [(7 * i + 13 * j) % vocab for j in range(prompt)]
        sampling = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=setting.pick(OUT, 40), seed=i)
        engine.submit(Request(id=str(i), tokens=tokens, sampling=sampling))
    try:
        while len(engine.scheduler.running) < batch or any(s.computed < prompt for s in engine.scheduler.running):
            engine.step()
        for _ in range(settled):
            engine.step()
        return traced(setting, engine, steps) | {"model": model, "batch": batch}
    finally:
        for i in range(batch):
            engine.abort(str(i))
        while engine.has_work:
            engine.step()


def traced(setting: Setting, engine: Engine, steps: int) -> Row:
    """Spans in milliseconds from the first one on, and shares."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.device.type == "cuda" else [])]
    # The profiler's first run has a start-up cost of seconds, which must not count as a step.
    with profile(activities=activities), watched(engine, setting.timer, record_function):
        engine.step()
    with profile(activities=activities) as seen, watched(engine, setting.timer, record_function) as times:
        for _ in range(steps):
            engine.step()
        setting.timer.wait()
    row = lanes(seen.events() or [], steps)
    spans, least = device_spans(setting.timer, times)
    row["device"] = [[1e3 * (a - spans[0][0]), 1e3 * (b - spans[0][0])] for a, b in spans]
    return row | {name: value for name, value in summary(times, spans, least, 1).items() if name in SHOWN}


def lanes(events: Iterable[Any], steps: int) -> Row:
    """The profiler's events (microseconds) as spans in milliseconds from the host's first one on."""
    host: dict[str, list[Span]] = {name: [] for name in HOST}
    kernels: list[tuple[float, float, str]] = []
    for event in events:
        span = (event.time_range.start / 1e3, event.time_range.end / 1e3)
        on_device = event.device_type == torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined] # not in its __all__
        if event.name in host and not on_device:
            host[event.name].append(span)
        elif on_device and event.name not in host:  # where the host's ranges appear again
            kernels.append((*span, event.name))
    kernels.sort()
    zero = min((span[0] for spans in host.values() for span in spans), default=0.0)
    row: Row = {name: [_from(zero, span) for span in sorted(spans)] for name, spans in host.items()}
    row["kernels"] = [[*_from(zero, (begin, end)), name] for begin, end, name in kernels]
    row["kernel_idle"] = idle_share([(begin, end) for begin, end, _ in kernels]) if kernels else None
    row["kernels_a_step"] = len(kernels) / steps
    row["longest"] = longest(kernels, steps)
    return row


def longest(kernels: Iterable[tuple[float, float, str]], steps: int, count: int = 6) -> str:
    """Names of the kernels that take most time, with their launches and microseconds per step."""
    found: dict[str, list[float]] = {}
    for begin, end, name in kernels:
        found.setdefault(name[:28], []).append(1e3 * (end - begin))
    most = sorted(found.items(), key=lambda item: -sum(item[1]))[:count]
    return ", ".join(f"{name} {len(us) / steps:.0f} × {sum(us) / len(us):.1f} µs" for name, us in most)


SHOWN = ("idle", "idle_most", "step_ms_p50", "host_ms_p50", "launch_ms_p50")


def _from(zero: float, span: Span) -> list[float]:
    return [round(span[0] - zero, 4), round(span[1] - zero, 4)]

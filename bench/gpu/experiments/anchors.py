"""What torch's libraries reach at the shapes of our kernels: without it a bad tile looks like the kernel's own limit.

Attention against `scaled_dot_product_attention` over keys without pages, by each of its kernels; products against
cuBLAS; logits against `torch.mm(out_dtype=float32)`; products in float8 against `torch._scaled_mm`, scaled by row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.experiments import kernels
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row

REPEATS = 20
DECODES = ((32, 8192), (1, 8192), (32, 1024), (256, 1024))
PREFILLS = (8192, 2048)
PRODUCTS = (("dense", (1, 32, 256, 2048)), ("fp8", (32, 256, 2048, 8192)))
LOGITS = (1, 32, 256)
SDPA = {"flash_us": SDPBackend.FLASH_ATTENTION, "cudnn_us": SDPBackend.CUDNN_ATTENTION}
Launch = Callable[[], object]


def items(setting: Setting) -> Iterator[Item]:
    """Attention first, then products and logits."""
    flush = Flush(setting.device)
    for model in setting.models:
        for batch, context in setting.pick(DECODES, ((2, 9),)):
            key = f"attention decode {batch}x{context}"
            yield Item(f"{model} {key}", partial(attention, setting, flush, model, batch, 1, context - 1))
        for tokens in setting.pick(PREFILLS, (5,)):
            yield Item(f"{model} attention prefill {tokens}", partial(attention, setting, flush, model, 1, tokens, 0))
        for stored, rows in setting.pick(PRODUCTS, (("dense", (17,)),)):
            for name in setting.pick(("gate_up", "down", "qkv"), ("o",)):
                for m in rows:
                    run = partial(product, setting, flush, model, name, stored, m)
                    yield Item(f"{model} {name} {stored} {m} rows", run)
        for m in setting.pick(LOGITS, (17,)):
            yield Item(f"{model} head {m} rows", partial(product, setting, flush, model, "head", "dense", m))


def attention(setting: Setting, flush: Launch, model: str, batch: int, queries: int, before: int) -> Row:
    """Microseconds of our kernel, and of each of the library's."""
    config, place = MODELS[model], setting.place
    work = kernels.attention(place, config, batch, queries, before, "dense")
    row = timed(setting, flush, {"us": work.trial.launch})
    if place.device.type != "meta":
        heads, kv_heads = (place.pick(n, small) for n, small in ((config.heads, 4), (config.kv_heads, 2)))
        dim, keys = place.pick(config.head_dim, 32), before + queries
        q = place.randn(batch, heads, queries, dim)
        k, v = (place.randn(batch, kv_heads, keys, dim) for _ in range(2))
        causal = queries > 1
        for name, backend in SDPA.items():

            def launch(backend: SDPBackend = backend) -> object:
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

            row |= timed(setting, flush, {name: launch})
    return row | setting.shares(work.trial.moved, work.operations, row["us"] / 1e6) | {"model": model}


def product(setting: Setting, flush: Launch, model: str, name: str, stored: str, m: int) -> Row:
    """Microseconds of a product as the engine runs it, and of the library's."""
    place = setting.place
    work = kernels.product(setting, place, model, name, stored, m)
    row = timed(setting, flush, {"us": work.trial.launch})
    if place.device.type != "meta":
        n, k = (place.pick(size, small) for size, small in zip(kernels.products(MODELS[model])[name], (77, 64),
                                                               strict=True))  # fmt: skip
        x, weights = place.randn(m, k), place.randn(n, k)
        if stored == "fp8":
            a, b = x.to(torch.float8_e4m3fn), weights.to(torch.float8_e4m3fn)
            by_row, by_column = torch.ones(m, 1, device=place.device), torch.ones(1, n, device=place.device)

            def library() -> object:
                return torch._scaled_mm(a, b.t(), by_row, by_column, out_dtype=place.dtype)  # noqa: SLF001

        elif name == "head" and place.device.type == "cuda":

            def library() -> object:
                return torch.mm(x, weights.t(), out_dtype=torch.float32)

        else:

            def library() -> object:
                return torch.mm(x, weights.t())

        row |= timed(setting, flush, {"library_us": library})
    return row | setting.shares(work.trial.moved, work.operations, row["us"] / 1e6) | {"model": model}


def timed(setting: Setting, flush: Launch, launches: dict[str, Launch]) -> Row:
    """Median microseconds of each; a library that refuses a shape has its message instead."""
    row: Row = {}
    for name, launch in launches.items():
        try:
            seconds = measured(setting.timer, launch, setting.pick(REPEATS, 1), flush)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if name == "us":
                raise
            row[name.replace("_us", "_refused")] = str(error).splitlines()[0]
        else:
            row[name] = statistics.median(seconds) * 1e6
    return row

"""What torch's libraries reach at the shapes of our kernels: without it a bad tile looks like the kernel's own limit.

Attention against `scaled_dot_product_attention` over keys without pages, by each of its kernels; products against
cuBLAS; logits against `torch.mm(out_dtype=float32)`; products in float8 against `torch._scaled_mm`, scaled by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.cases.attention import Attention
from bench.gpu.cases.case import Place, size_of
from bench.gpu.cases.weights import KNOWN, weights
from bench.gpu.experiments.setting import Setting
from bench.gpu.measured_models import MODELS, products
from bench.gpu.timing import Flush, measured
from bench.lib.results import Item, Row
from octavo_inference.backends.cuda.device import FP8_CAPABILITY
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import find_tiles
from octavo_inference.backends.cuda.library_products import supports_groups
from octavo_inference.backends.cuda.linear import Linear

REPEATS = 20
DECODES = ((32, 8192), (1, 8192), (32, 1024), (256, 1024))
PREFILLS = (8192, 2048)
PRODUCTS = (("dense", (1, 32, 256, 2048)), ("fp8", (32, 256, 2048, 8192)))
LOGITS = (1, 32, 256)
MOST_ROWS = 8192
"""Rows of x at most."""
SDPA = {"flash_us": SDPBackend.FLASH_ATTENTION, "cudnn_us": SDPBackend.CUDNN_ATTENTION}
Launch = Callable[[], object]
IN_FP8: dict[str, Callable[[tuple[int, int]], bool]] = {
    "fp8": lambda capability: capability >= FP8_CAPABILITY,
    "fp8 blocks": lambda capability: supports_groups(capability, torch.version.cuda),
}
"""The weights that are multiplied by float8 activations, by the compute capability of the GPU."""


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
    """Microseconds of our kernel, which splits decodes as the engine does, and of each of the library's."""
    config, place = MODELS[model], setting.place
    shape = Attention(
        config.heads, config.kv_heads, config.head_dim, ((queries, before),) * batch, split=queries == 1
    )  # fmt: skip
    trial = shape.prepare(place)
    row = timed(setting, flush, {"us": trial.launch})
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
    pairs = batch * (queries * before + queries * (queries + 1) // 2)
    operations = 4 * config.heads * config.head_dim * pairs
    return row | setting.shares(trial.moved, operations, row["us"] / 1e6) | {"model": model}


def product(setting: Setting, flush: Launch, model: str, name: str, stored: str, m: int) -> Row:
    """Microseconds of a product as the engine runs it, and of the library's; the matrix is kept for the next rows."""
    place = setting.place
    n, k = (place.pick(size, small) for size, small in zip(products(MODELS[model])[name], (77, 256), strict=True))
    linear = setting.keep.get((model, name, stored), lambda: linear_of(place, stored, n, k))
    # Logits are float32, other outputs have the activations' type.
    x, out = place.randn(m, k), place.empty(m, n, dtype=torch.float32 if name == "head" else None)
    row = timed(setting, flush, {"us": lambda: linear(x, out)})
    if place.device.type != "meta":
        weights = place.randn(n, k)
        if stored in IN_FP8:
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
    [matrix] = linear.parts
    moved = size_of(x, out, *matrix.planes)
    return row | setting.shares(moved, 2 * m * n * k, row["us"] / 1e6) | {"model": model}


def linear_of(place: Place, stored: str, n: int, k: int) -> Linear:
    """A random matrix on the device."""
    matrix, gpu = weights(place, KNOWN[stored], n, k).matrix, place.device.type == "cuda"
    # As in the server: with float8 weights the activations are float8 where the GPU multiplies it, and tiles are the
    # GPU's own.
    eight = gpu and stored in IN_FP8 and IN_FP8[stored](torch.cuda.get_device_capability(place.device))
    return Linear(
        (matrix,),
        (None,),
        place.empty(WORKSPACE, dtype=torch.float32),
        fp8_activations=place.empty(MOST_ROWS * k, dtype=torch.uint8) if eight else None,
        tiles=find_tiles(torch.cuda.get_device_name(place.device) if gpu else "interpreter"),
    )


def timed(setting: Setting, flush: Launch, launches: dict[str, Launch]) -> Row:
    """Median microseconds of each; a library that refuses a shape has its message instead."""
    row: Row = {}
    for name, launch in launches.items():
        try:
            row[name] = 1e6 * measured(setting.timer, launch, setting.pick(REPEATS, 1), flush)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if name == "us":
                raise
            row[name.replace("_us", "_refused")] = str(error).splitlines()[0]
    return row

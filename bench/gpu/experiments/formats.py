"""The speed of each format of weights that a GPU keeps: products of 1 to 2,048 rows as the engine runs them.

Beside each stands the time of the library's product of dense weights, or of float8 by float8 (`anchors.product`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.gpu.cases.weights import KNOWN
from bench.gpu.experiments.anchors import product
from bench.gpu.experiments.setting import Setting
from bench.gpu.timing import Flush
from bench.lib.results import Item

ROWS = (1, 8, 64, 512, 2048)
PRODUCTS = ("gate_up", "down", "qkv")


def items(setting: Setting) -> Iterator[Item]:
    """All formats of a product one after the other, each by its numbers of rows."""
    flush = Flush(setting.device)
    for model in setting.models:
        for name in setting.pick(PRODUCTS, ("qkv",)):
            for stored in setting.pick(tuple(KNOWN), ("int4 awq", "code4 nf4")):
                for m in setting.pick(ROWS, (2,)):
                    run = partial(product, setting, flush, model, name, stored, m)
                    yield Item(f"{model} {name} {stored} {m} rows", run)

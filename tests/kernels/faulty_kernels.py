"""Kernels with a fault each, for `test_compiles.py`: python -m tests.kernels.faulty_kernels CACHE"""

import os
import sys

import torch
import triton
import triton.language as tl

from bench.gpu.cases.case import Case, Trial
from bench.gpu.compiling import compile_cases


@triton.jit
def deep(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(out + at, tl.exp(values) / tl.sum(tl.exp(values), 0) + values)


@triton.jit
def copy(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(tl.float32))


@triton.jit
def product(x, out, N: tl.constexpr):
    rows = tl.arange(0, N)
    at = rows[:, None] * N + rows[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(x + at + N * N)))


def case(kernel, size, elements, dtype, float8=False, **options):
    def prepare(place):
        x, out = place.empty(elements, dtype=dtype), place.empty(elements, dtype=torch.float32)
        return Trial(lambda: kernel[(1,)](x, out, N=size, **options), list, 0.0, 0)

    return Case(kernel.__name__, str(size), prepare, float8=float8)


os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
cases = [
    case(product, 128, 2 * 128 * 128, torch.float32),
    case(deep, 4096, 4096, torch.float32, num_warps=1, maxnreg=32),
    case(copy, 64, 64, torch.float8_e4m3fn, float8=True),
    case(copy, 64, 64, torch.bfloat16, float8=True),
    case(copy, 128, 128, torch.bfloat16),
]
for row in compile_cases(cases, [80, 89], lambda line: None):
    print(row["capability"], row["case"], row["verdict"], row.get("why", ""))

"""Norm, rotation and store against torch, and codes of 8 bits against torch's own, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.gpu.cases.attention import clipped, heated, turned
from bench.gpu.cases.paged import LARGEST
from octavo_inference.backends.cuda.kernels.encode import encode_e4m3, round_even
from octavo_inference.backends.cuda.kernels.head_norm import normalize_whole
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm
from octavo_inference.backends.cuda.kernels.rope_and_cache import PLAIN, HeadRules, rope_store
from octavo_inference.backends.cuda.pool import KvPool, allocate_pool

from .conftest import Record

EPS = 1e-5
EXACT = 1e-5  # float32 sums in another order, for values of size five
BLOCK = 16


class Step:
    """Tokens on their way into a pool: the kernel's results, and what they should be."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, *, dtype=torch.float32, kv_dtype=None, rotary=0, norms=False,
        rules=PLAIN,
    ):  # fmt: skip
        random = torch.Generator().manual_seed(heads + dim)
        self.slots = torch.tensor([37, 0, -1, 15, 16, 63], dtype=torch.int64)
        positions = torch.tensor([5, 0, 0, 2, 9, 1], dtype=torch.int32)
        wide = torch.randn(6, (heads + 2 * kv_heads) * dim + 8, generator=random).to(dtype)
        self.qkv = wide[:, :-8]
        table = torch.randn(10, rotary, generator=random) if rotary else None
        q_norm, k_norm = (self.norm(norms, count, dim, random) for count in (heads, kv_heads))
        self.q_out = torch.full((6, heads, dim), 77.0, dtype=dtype)
        self.pool: KvPool = allocate_pool(
            layers=1,
            num_blocks=4,
            kv_heads=kv_heads,
            block_size=BLOCK,
            head_dim=dim,
            dtype=kv_dtype or dtype,
            device=torch.device("cpu"),
        )
        x = self.qkv.float().reshape(6, -1, dim)
        q, k, self.v = x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]
        self.q, self.k = (turned(each, norm, table, positions, EPS, rules) for each, norm in ((q, q_norm), (k, k_norm)))
        self.q, self.v = heated(self.q, positions, rules), clipped(self.v, rules)
        self.real = self.slots >= 0
        rope_store(self.qkv, positions, self.slots, table, q_norm, k_norm, EPS, self.q_out, *self.pool.layer(0), rules)

    @staticmethod
    def norm(norms: object, heads: int, dim: int, random: torch.Generator) -> DeviceNorm | None:
        """A norm of the head's elements; "by head": LayerNorm, each head with its own weights; "bare": without any."""
        if not norms or norms == "bare":
            return DeviceNorm(None) if norms else None
        count = heads * dim if norms == "by head" else dim
        weight, bias = 1 + 0.1 * torch.randn(count, generator=random), torch.randn(count, generator=random)
        return DeviceNorm(weight, bias, centred=True) if norms == "by head" else DeviceNorm(weight)

    def stored(self, tensor: Tensor, which: int) -> Tensor:
        slots = self.slots[self.real]
        return (
            tensor[0]
            .view(torch.uint8 if tensor.itemsize == 1 else tensor.dtype)[slots // BLOCK, which, :, slots % BLOCK]
            .view(tensor.dtype)
        )

    def error(self) -> float:
        pairs = [
            (self.q_out, self.q),
            (self.stored(self.pool.data, 0), self.k),
            (self.stored(self.pool.data, 1), self.v),
        ]
        wanted = [x[self.real] for _, x in pairs]
        got = [pairs[0][0][self.real], pairs[1][0], pairs[2][0]]
        return max(float((g.float() - w).abs().max()) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary", "norms"),
    [
        (9, 3, 64, 64, False),
        (14, 2, 80, 32, True),
        (8, 1, 96, 96, True),
        (4, 4, 128, 0, False),
        (4, 4, 256, 64, False),
        (3, 1, 80, 0, True),
    ],
)
def test_norm_rotation_and_store(record: Record, heads: int, kv_heads: int, dim: int, rotary: int, norms: bool) -> None:
    step = Step(heads, kv_heads, dim, rotary=rotary, norms=norms)
    assert step.error() < EXACT
    record("rope_store", f"{heads}/{kv_heads}x{dim}, rotary {rotary}{', norms' * norms}", torch.float32, step.error())


@pytest.mark.parametrize(
    ("dim", "rotary", "norms", "rules"),
    [
        (80, 32, "by head", PLAIN),
        (64, 64, True, HeadRules(normed_last=True)),
        (48, 48, "bare", HeadRules(normed_last=True)),
        (80, 16, "by head", HeadRules(normed_last=True)),
        (64, 64, False, HeadRules(clip=0.5)),
        (64, 32, True, HeadRules(clip=0.5)),
        (80, 0, False, HeadRules(temperature=(3.0, 0.7))),
    ],
)
def test_what_few_models_do_to_heads(record: Record, dim: int, rotary: int, norms: object, rules: HeadRules) -> None:
    step = Step(6, 2, dim, rotary=rotary, norms=norms, rules=rules)
    assert step.error() < EXACT
    flags = f"{norms} norms, " * bool(norms) + str(rules._asdict())
    record("rope_store", f"6/2x{dim}, rotary {rotary}, {flags}", torch.float32, step.error())


@pytest.mark.parametrize("centred", [False, True])
def test_norms_over_all_heads(record: Record, centred: bool) -> None:
    random = torch.Generator().manual_seed(5)
    rows = 2 + torch.randn(5, 7 * 48 + 8, generator=random)
    qkv, before, widths = rows[:, :-8], rows.clone(), (4 * 48, 2 * 48)
    norms = [
        DeviceNorm(torch.randn(n, generator=random), torch.randn(n, generator=random) if centred else None, centred)
        for n in widths
    ]
    normalize_whole(qkv, *norms, EPS, q_width=widths[0], k_width=widths[1])
    worst = 0.0
    for found, given, norm in zip(qkv.split([*widths, 48], 1), before.split([*widths, 56], 1), norms, strict=False):
        x = given.double()
        x = x - x.mean(-1, keepdim=True) if centred else x
        wanted = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * norm.weight
        worst = max(worst, float((found - (wanted if norm.bias is None else wanted + norm.bias)).abs().max()))
    assert worst < EXACT
    assert torch.equal(rows[:, sum(widths) :], before[:, sum(widths) :])
    record("normalize_whole", f"192 and 96{', centred' * centred}", torch.float32, worst)


def test_clipped_values_that_are_no_numbers_stay_so() -> None:
    bad = torch.zeros(1, 3 * 64)
    bad[0, 70], bad[0, 130], bad[0, 131] = float("nan"), float("nan"), 9.0
    pool = allocate_pool(
        layers=1, num_blocks=1, kv_heads=1, block_size=16, head_dim=64, dtype=torch.float32, device=torch.device("cpu")
    )
    zero = torch.zeros(1, dtype=torch.int64)
    kv, scales = pool.layer(0)
    rope_store(bad, zero, zero, None, None, None, EPS, torch.empty(1, 1, 64), kv, scales, HeadRules(clip=2.0))
    assert kv[0, :, 0, 0].isnan().sum(-1).tolist() == [1, 1]
    assert kv[0, 1, 0, 0, 3] == 2.0


def test_padding_rows_and_other_slots_stay_as_they_were() -> None:
    step = Step(4, 2, 64, rotary=64)
    assert (step.q_out[~step.real] == 77).all()
    untouched = torch.ones(4, BLOCK, dtype=torch.bool)
    untouched.view(-1)[step.slots[step.real]] = False
    assert (step.pool.data[0].transpose(1, 3)[untouched.nonzero(as_tuple=True)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_two_bytes(record: Record, dtype: torch.dtype) -> None:
    """Rounded once, on the way out: values below 8 (the interpreter truncates bfloat16)."""
    step = Step(4, 2, 64, rotary=64, norms=True, dtype=dtype)
    assert step.error() < {torch.bfloat16: 2.0**-5, torch.float16: 2.0**-9}[dtype]
    record("rope_store", "4/2x64", dtype, step.error())


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.int8])
def test_scaled_store(record: Record, kv_dtype: torch.dtype) -> None:
    """Scales to the last place; codes as torch rounds them, but where a division's last place decides."""
    step = Step(6, 2, 80, rotary=80, kv_dtype=kv_dtype)
    worst = 0.0
    for which, x in enumerate((step.k, step.v)):
        scale = x[step.real].abs().amax(-1) / LARGEST[kv_dtype]
        np.testing.assert_allclose(step.stored(step.pool.scales, which), scale, rtol=1e-6, atol=0)
        stored = step.stored(step.pool.data, which).float()
        exact = x[step.real] / scale[..., None]
        rounded = exact.round() if kv_dtype == torch.int8 else exact.to(kv_dtype).float()
        assert ((stored != rounded).float().mean()) < 0.01
        # Half a step: of one for integers; for floats of three binary places, 2**-4 of the value or of the least step.
        step_size = torch.full_like(exact, 0.5) if kv_dtype == torch.int8 else (exact.abs() / 16).clamp(min=2.0**-10)
        assert ((stored - exact).abs() <= step_size * 1.001).all()
        worst = max(worst, float((stored * scale[..., None] - x[step.real]).abs().max()))
    record("rope_store", "6/2x80", kv_dtype, worst)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # meant: infinity times zero
def test_no_number_stays_none_in_a_pool_of_integers() -> None:
    bad = torch.zeros(1, 3 * 64)
    bad[0, 70], bad[0, 130] = float("nan"), float("inf")
    pool = allocate_pool(
        layers=1, num_blocks=1, kv_heads=1, block_size=16, head_dim=64, dtype=torch.int8, device=torch.device("cpu")
    )
    zero = torch.zeros(1, dtype=torch.int64)
    rope_store(bad, zero, zero, None, None, None, EPS, torch.empty(1, 1, 64), *pool.layer(0))
    assert pool.scales is not None
    assert pool.scales[0, 0, :, 0, 0].isnan().all()


@triton.jit
def _encode(x, fp8, int8, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.store(fp8 + at, encode_e4m3(value))
    tl.store(int8 + at, round_even(value * (127 / 448)).to(tl.int8))


def test_codes_are_those_of_torch(record: Record) -> None:
    """All codes, the ties between neighbours, a little beside them, and random values down to nothing."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    beside = torch.cat([torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1)])
    spread = torch.randn(2048, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 2, 2048)
    values = torch.cat([codes, ties, beside, spread.clamp(-448, 448)])
    values = torch.cat([values, -values])
    values = torch.cat([values, torch.zeros(8192 - len(values))])
    fp8, int8 = torch.empty(8192, dtype=torch.uint8), torch.empty(8192, dtype=torch.int8)
    _encode[1,](values, fp8, int8, N=8192)
    assert torch.equal(fp8, values.to(torch.float8_e4m3fn).view(torch.uint8))
    assert torch.equal(int8, (values * (127 / 448)).round().to(torch.int8))
    record("encode_e4m3, round_even", "8192", torch.float32, 0.0)

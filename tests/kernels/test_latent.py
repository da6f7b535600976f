"""Latent attention: its kernels against sums written out, and the whole engine against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.latent import LATENT, latent_config, latent_weights

from octavo_inference.backends.cuda.backend import CudaBackend, check
from octavo_inference.backends.cuda.collectives import ALONE
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.factory import memory_needs
from octavo_inference.backends.cuda.footprint import gpu_report
from octavo_inference.backends.cuda.kernels.decode_parts import decode_parts
from octavo_inference.backends.cuda.kernels.latent_attention import attend_latents, expand_heads
from octavo_inference.backends.cuda.kernels.latent_store import latent_store
from octavo_inference.backends.cuda.kernels.launch_configs import AttentionTile
from octavo_inference.backends.cuda.kernels.split_kv_reduce import partial_size, partial_views
from octavo_inference.backends.cuda.weight_loading import device_bytes
from octavo_inference.common.errors import ModelError, SettingsError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layers import LayerParts
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Weights

from .conftest import Record
from .mixtures import EXPERTS, HIDDEN, floats, with_experts
from .test_engine import BLOCK, LONGEST, cuda, reference, run

EXACT = 2e-5
SMALL = AttentionTile(rows=16, keys=16, warps=4, stages=2)
WIDE = AttentionTile(rows=64, keys=32, warps=4, stages=2)
SEQUENCES = [(1, 1), (15, 15), (40, 0), (16, 1), (17, 7), (0, 0), (49, 1)]
"""(tokens, query tokens): a prompt, a chunk, decodes, and rows without work, at the edges of blocks."""


class Batch:
    """Sequences in blocks of 16 at random places; slots that hold no token are NaN."""

    def __init__(self, sequences: list[tuple[int, int]], heads: int, rank: int, rope: int) -> None:
        make = torch.Generator().manual_seed(0)
        self.scale, self.rank = 0.3, rank
        counts = [count for _, count in sequences]
        self.query_start = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32)
        self.seq_len = torch.tensor([length for length, _ in sequences], dtype=torch.int32)
        columns, rows = 4, len(sequences)
        blocks = torch.randperm(rows * columns, generator=make)
        self.table = torch.full((rows + 2, columns), 2**31 - 1, dtype=torch.int32)
        self.row = torch.randperm(rows + 2, generator=make)[:rows].to(torch.int32)
        self.table[self.row.long()] = blocks.view(rows, columns).to(torch.int32)
        self.pool = torch.full((rows * columns, 16, rank + rope), float("nan"))
        for row, length in zip(self.row.tolist(), self.seq_len.tolist(), strict=True):
            for token in range(length):
                block = int(self.table[row, token // 16])
                self.pool[block, token % 16] = torch.randn(rank + rope, generator=make)
        tokens = int(self.query_start[-1]) + 3  # padding at the end stays as it is
        self.q = torch.randn(tokens, heads, rank, generator=make)
        self.q_rope = torch.randn(tokens, heads, rope, generator=make)

    def expected(self) -> torch.Tensor:
        out = torch.full(self.q.shape, 7.0, dtype=torch.float64)
        for i, (row, length) in enumerate(zip(self.row.tolist(), self.seq_len.tolist(), strict=True)):
            first, end = int(self.query_start[i]), int(self.query_start[i + 1])
            keys = [self.pool[int(self.table[row, t // 16]), t % 16].double() for t in range(length)]
            for token in range(first, end):
                seen = torch.stack(keys[: length - (end - token) + 1])
                query = torch.cat([self.q[token], self.q_rope[token]], dim=-1).double()
                out[token] = torch.softmax(query @ seen.T * self.scale, dim=-1) @ seen[:, : self.rank]
        return out

    def attend(self, out: torch.Tensor, **how: object) -> None:
        given = (self.pool, self.table, self.row, self.query_start, self.seq_len, out)
        attend_latents(self.q, self.q_rope, *given, scale=self.scale, **how)


SIZES = [(4, 32, 16, SMALL), (20, 96, 32, WIDE), (128, 32, 16, WIDE), (40, 64, 16, SMALL), (16, 512, 64, None)]


@pytest.mark.parametrize(("heads", "rank", "rope", "tile"), SIZES, ids=str)
def test_a_ragged_batch(record: Record, heads: int, rank: int, rope: int, tile: AttentionTile | None) -> None:
    batch = Batch(SEQUENCES, heads, rank, rope)
    out = torch.full(batch.q.shape, 7.0)
    batch.attend(out, tile=tile)
    error = float((out.double() - batch.expected()).abs().max())
    assert error < EXACT
    record("attend_latents", f"{heads}x({rank}+{rope})", torch.float32, error)


@pytest.mark.parametrize(("heads", "rank", "rope", "tile"), SIZES[:4], ids=str)
def test_split_keys(record: Record, heads: int, rank: int, rope: int, tile: AttentionTile) -> None:
    batch = Batch([(49, 1), (1, 1), (33, 1), (64, 1)], heads, rank, rope)
    parts = torch.from_numpy(decode_parts(batch.seq_len.numpy(), shares=6, least_keys=16))
    assert len(parts) > 4
    parts = torch.nn.functional.pad(parts, (0, 0, 0, 2))  # some that the launch has no use for
    size = {"parts": len(parts), "heads": heads, "head_dim": rank}
    out = torch.full(batch.q.shape, 7.0)
    batch.attend(out, tile=tile, parts=parts, partial=partial_views(torch.zeros(partial_size(**size)), **size))
    error = float((out.double() - batch.expected()).abs().max())
    assert error < EXACT
    record("attend_latents", f"{heads}x({rank}+{rope}), parts", torch.float32, error)


def test_only_sequences_within_the_bounds() -> None:
    batch = Batch(SEQUENCES, 4, 32, 16)
    out, expected = torch.full(batch.q.shape, 7.0), batch.expected()
    batch.attend(out, bounds=torch.tensor([1, 4], dtype=torch.int32), tile=SMALL)
    inside = slice(int(batch.query_start[1]), int(batch.query_start[4]))
    torch.testing.assert_close(out[inside].double(), expected[inside], atol=EXACT, rtol=0)
    assert (out[: inside.start] == 7).all()
    assert (out[inside.stop :] == 7).all()


@pytest.mark.parametrize(("heads", "nope", "rope", "rank"), [(4, 16, 16, 32), (11, 40, 24, 80)])
@pytest.mark.parametrize("rotates", [True, False])
def test_what_is_stored(record: Record, heads: int, nope: int, rope: int, rank: int, rotates: bool) -> None:
    make = torch.Generator().manual_seed(0)
    both = torch.randn(5, heads * (nope + rope) + rank + rope, generator=make)
    q, down = both[:, : -(rank + rope)], both[:, -(rank + rope) :]
    table, norm = torch.randn(40, rope, generator=make), torch.rand(rank, generator=make)
    positions, slots = torch.tensor([3, 0, 39, 7, 1], dtype=torch.int32), torch.tensor([17, 30, 2, -1, 9])
    pool, q_out = torch.zeros(2, 16, rank + rope), torch.full((5, heads, rope), 7.0)
    latent_store(q, down, positions, slots, table if rotates else None, norm, 1e-6, q_out, pool)

    def turn(x: torch.Tensor) -> torch.Tensor:
        if not rotates:
            return x.double()
        (a, b), (cos, sin) = x.double().chunk(2, -1), table[positions.long()].double()[:, None].chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    latents = down[:, :rank].double()
    latents = latents * torch.rsqrt(latents.square().mean(-1, keepdim=True) + 1e-6) * norm
    expected = torch.zeros(32, rank + rope, dtype=torch.float64)
    real = slots >= 0
    expected[slots[real]] = torch.cat([latents, turn(down[:, None, rank:])[:, 0]], -1)[real]
    queries = torch.where(real[:, None, None], turn(q.unflatten(1, (heads, -1))[..., nope:]), 7.0)
    error = max(float((pool.view(32, -1) - expected).abs().max()), float((q_out - queries).abs().max()))
    assert error < EXACT
    record("latent_store", f"{heads}x({nope}+{rope}), {rank}", torch.float32, error)


def test_heads_have_matrices_of_their_own() -> None:
    x, weights = torch.randn(5, 3, 8), torch.randn(3, 6, 8)
    out = torch.zeros(7, 3, 6)
    expand_heads(x, weights.transpose(1, 2), out[:5])
    torch.testing.assert_close(out[:5], torch.einsum("thk,hnk->thn", x, weights))
    assert not out[5:].any()


CONFIGS = {
    "direct queries": latent_config(vocab=64),
    "a latent of queries": latent_config(replace(LATENT, query_rank=32), vocab=64, heads=6),
}


def with_mixture() -> tuple[ModelConfig, Weights]:
    """A dense layer, then one with experts as DeepSeek V3 has them."""
    experts = EXPERTS["groups and correction, a shared MLP"]
    parts = (LayerParts(), LayerParts(feed_forward="experts"))
    config = latent_config(vocab=64, hidden=HIDDEN, experts=experts, parts=parts)
    weights = latent_weights(config, np.random.default_rng(0))
    first, second = weights.layers
    return config, replace(weights, layers=(first, with_experts(config, second, 1, floats(1))))


def test_with_a_mixture_of_experts() -> None:
    model = with_mixture()
    assert run(cuda(model)).tokens == run(reference(model), caching=False).tokens


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def model(request: pytest.FixtureRequest) -> tuple[ModelConfig, Weights]:
    return request.param, latent_weights(request.param, np.random.default_rng(0))


@pytest.mark.parametrize(("blocks", "limits"), [(32, {"caching": False, "budget": 7, "max_running": 3}), (6, {})])
def test_the_engine_answers_as_on_the_reference(
    model: tuple[ModelConfig, Weights], blocks: int, limits: dict[str, object]
) -> None:
    """In chunks and side by side; then with prefix hits, and preemptions where blocks are few."""
    expected = run(reference(model), caching=False).tokens
    assert run(cuda(model, blocks), **limits).tokens == expected


def test_blocks_move_to_the_host_and_back(model: tuple[ModelConfig, Weights]) -> None:
    expected = run(reference(model), caching=False).tokens
    assert run(cuda(model, 6), host_blocks=20).tokens == expected


def test_memory_is_what_was_promised(model: tuple[ModelConfig, Weights]) -> None:
    config, weights = model
    backend = cuda(model, 5)
    assert backend._decoder.weights.nbytes == device_bytes(config, weights, dtype=torch.float32)
    settings = EngineSettings(backend="cuda", dtype="float32", max_model_len=LONGEST, block_size=BLOCK)
    need = memory_needs(settings, config, weights, find_device(), ALONE)
    assert backend._decoder.context.pool.data.nbytes == 5 * need.block
    assert need.block == 4 * BLOCK * gpu_report(weights, config).shares[0].kv_elements_per_token


def test_ranks_have_heads_of_their_own_and_all_latents(model: tuple[ModelConfig, Weights]) -> None:
    """The sum of the ranks' outputs of attention is that of the whole model."""
    config, weights = model
    parts = [shard(config, weights, rank=rank, size=2) for rank in range(2)]
    assert all(part.kv_bytes_per_token(1) == config.kv_bytes_per_token(1) for part, _ in parts)
    assert all(part.heads == config.heads // 2 for part, _ in parts)
    latents = [own.layers[0].latent for _, own in parts]
    whole = weights.layers[0].latent
    assert whole is not None
    for name in ("k_up", "v_up"):
        stacked = np.concatenate([getattr(latent, name).data for latent in latents])
        np.testing.assert_array_equal(stacked, getattr(whole, name).data)
    assert all(latent is not None and latent.kv_down is whole.kv_down for latent in latents)


def test_what_the_kernels_cannot_store_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="kv_dtype int8 with latent attention"):
        check(latent_config(), find_device(), "int8")
    with pytest.raises(ModelError, match="latents have 544 elements"):
        check(latent_config(replace(LATENT, kv_rank=544)), find_device(), "auto")


def test_a_backend_of_bfloat16_has_latents_of_half_the_size() -> None:
    config = CONFIGS["direct queries"]
    weights = latent_weights(config, np.random.default_rng(0))
    sizes = {"num_blocks": 4, "block_size": BLOCK, "max_batched_tokens": 16, "max_running": 2, "max_model_len": LONGEST}
    backend = CudaBackend.create(config, weights, device=find_device(), dtype=torch.bfloat16, **sizes)
    assert backend._decoder.context.pool.data.nbytes == 4 * BLOCK * config.kv_bytes_per_token(2)

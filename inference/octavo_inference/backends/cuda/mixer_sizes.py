"""Elements of attention's buffers, for grouped queries and for latents. Needs no GPU library."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_inference.backends.cuda.kernels.decode_parts import PROGRAMS
from octavo_inference.backends.cuda.kernels.latent_heads import LATENT_HEADS, LATENT_PROGRAMS
from octavo_inference.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class MixerSizes:
    """For each query token: elements of its projections (`qkv`), its queries as attention reads them, its output.

    `summed`: elements of a head's sum over keys. `readers`: programs that read each key. `programs`: those that a
    multiprocessor runs at a time. With latent attention `q` are
    the rotated parts of queries, `latents` both the absorbed queries and the sums of latents; `query_latent` and
    `queries` are those of a latent of queries.
    """

    qkv: int
    q: int
    attended: int
    summed: int
    readers: int
    programs: int = PROGRAMS
    query_latent: int = 0
    queries: int = 0
    latents: int = 0

    @property
    def elements(self) -> int:
        """Elements of all buffers."""
        return self.qkv + self.q + self.attended + self.query_latent + self.queries + 2 * self.latents


def mixer_sizes(config: ModelConfig) -> MixerSizes:
    """The sizes of a model's attention."""
    latent, heads, queries = config.latent, config.heads, config.heads * config.head_dim
    if latent is None:
        keys = config.kv_heads * config.head_dim
        projected = queries * (1 + config.attention_gate) + 2 * keys
        return MixerSizes(projected, queries, queries, config.head_dim, config.kv_heads)
    rank = latent.query_rank
    return MixerSizes(
        qkv=(queries if rank is None else rank) + latent.cached_dim,
        q=heads * latent.rope_dim,
        attended=heads * latent.value_dim,
        summed=latent.kv_rank,
        readers=-(-heads // LATENT_HEADS),
        programs=LATENT_PROGRAMS,
        query_latent=rank or 0,
        queries=0 if rank is None else queries,
        latents=heads * latent.kv_rank,
    )

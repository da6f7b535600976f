"""Computes a model's memory on GPUs from the headers of its files: no weight is read, no GPU library is needed.

Weights are planned by the code that loads them. The buffers of a step are upper bounds of `buffers.buffer_shapes`, of
`Sampler`, `PromptScorer` and the tables, taken apart into terms that can be multiplied without knowledge of decoders;
tests/contract compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo_inference.backends.cuda.adapter_layout import (
    adapted_matrices,
    choice_elements,
    choice_width,
    products_width,
    row_width,
    token_rows_bytes,
)
from octavo_inference.backends.cuda.kernels.adapter_entries import ENTRY, UNIT
from octavo_inference.backends.cuda.kernels.decode_parts import shares_for
from octavo_inference.backends.cuda.kernels.workspace import CHUNK, WORKSPACE
from octavo_inference.backends.cuda.mixer_sizes import mixer_sizes
from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.weight_plan import plan_weights
from octavo_inference.backends.cuda.widths import adds_outputs, widest_mlp
from octavo_inference.common.errors import SettingsError
from octavo_inference.core.model_input import RULES_WIDTH, SAMPLING, mask_width
from octavo_inference.core.request import MAX_LOGPROB_TOKEN_IDS, MAX_LOGPROBS
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.layers import GatedDelta
from octavo_inference.models.shard import shard, vocab_share
from octavo_inference.models.weights import Weights
from octavo_protocol.model import AdapterExperts, GpuReport, GpuShare

_MOST_RANKS = 16
# Keys of the report: dense type and quantization of the weights.
_KINDS: dict[str, tuple[Dense, Quantization]] = {
    "auto": ("bf16", "auto"),
    "bfloat16": ("bf16", "dense"),
    "float32": ("f32", "dense"),
    "fp8": ("bf16", "fp8"),
}
_TILE, _BINS, _CANDIDATES, _PENALISED = 2048, 128, 8192, 32  # of the sampler
_CHANGES = 1 << 18  # bytes of the smallest copy of changed rows
_PROCESSORS = 160  # more than any GPU of today has
_INPUTS = 12  # integers of a sequence, its parts included
_ALTERNATIVES = 8 * (1 + MAX_LOGPROBS)


def gpu_report(weights: Weights, config: ModelConfig) -> GpuReport:
    """Sizes for each number of GPUs that can share the model. `weights` may be an outline's."""
    ropes = {rope for rope in map(config.rope, range(config.layers)) if rope is not None}
    return GpuReport(
        head_dim=config.head_dim,
        row_elements=config.hidden,
        position=sum(4 * rope.dim for rope in ropes),
        shares=tuple(_shares(weights, config)),
        adapter_experts=_adapter_experts(config),
    )


def _adapter_experts(config: ModelConfig) -> AdapterExperts | None:
    experts = config.experts
    if experts is None:
        return None
    return AdapterExperts(
        count=experts.count,
        chosen=experts.chosen,
        products=choice_width(config, UNIT) // UNIT,
    )


def foreign_gpu_report(weights: dict[str, int], vocab: int, kv_elements: int) -> GpuReport:
    """Lower bounds for a model that transformers computes: weights, KV and logits. A server measures activations."""
    share = GpuShare(
        ranks=1,
        weights=weights,
        kv_elements_per_token=kv_elements,
        token=0,
        token_elements=0,
        widest=0,
        row=8 * vocab,
        fixed=4 * WORKSPACE,
    )
    return GpuReport(head_dim=1, row_elements=0, position=0, shares=(share,), graphs=False)


def _shares(weights: Weights, config: ModelConfig) -> Iterator[GpuShare]:
    for ranks in range(1, _MOST_RANKS + 1):
        try:
            # The first rank also has the biases that are added once.
            part, own = shard(config, weights, rank=0, size=ranks)
        except SettingsError:
            continue
        yield _share(part, own, ranks)


def _share(config: ModelConfig, weights: Weights, ranks: int) -> GpuShare:
    mixer = mixer_sizes(config)
    shares = shares_for(kv_heads=mixer.readers, processors=_PROCESSORS, programs=mixer.programs)
    parts = 2 * shares * config.heads * (mixer.summed + 2) + 9 * _PROCESSORS
    inner, mixed = widest_mlp(config), _experts(config)
    plans = {name: plan_weights(config, weights, *kind) for name, kind in _KINDS.items()}
    matrices = adapted_matrices(config, weights)
    return GpuShare(
        ranks=ranks,
        weights={name: plan.nbytes + 4 * WORKSPACE for name, plan in plans.items()},
        kv_elements_per_token=_pool_elements(config),
        # Ids, positions and slots, the residual stream, and the scores of prompts.
        token=8 + 8 * len(pool_layout(config).groups) + 4 * config.hidden + _ALTERNATIVES + 32 + mixed.token,
        token_elements=(
            (2 + adds_outputs(config)) * config.hidden
            + mixer.elements
            + 3 * inner
            + mixed.token_elements
            + _state_elements(config)
        ),
        widest=max(
            config.hidden,
            mixer.attended,
            mixer.query_latent,
            inner,
            0 if config.state is None else config.state.inner,
        ),
        row=_row(config, ranks),
        fixed=4 * ((_PENALISED + 1) * config.vocab + parts) + _CHANGES + mixed.fixed,
        # Where the GPU's tensor cores multiply fp8.
        fp8=tuple(name for name, plan in plans.items() if any(part.layout.form == "fp8" for part in plan.parts)),
        ordered=tuple(name for name, plan in plans.items() if plan.ordered),
        adapter_elements=sum(matrix.rank_elements for matrix in matrices),
        # Biases, and the entries of matrices.
        adapter_fixed=sum(matrix.bias_elements + 2 * ENTRY * matrix.entries for matrix in matrices)
        + token_rows_bytes(row_width(matrices), 2) // 2,
        adapter_products=products_width(config, UNIT) // UNIT,
        adapter_choice_elements=choice_elements(config) - config.hidden if config.experts else 0,
    )


def _pool_elements(config: ModelConfig) -> int:
    """Elements of a token in the pool, where each layer has room for as many heads as the layer with the most."""
    layout = pool_layout(config)
    if config.latent is not None:
        return layout.token_bytes(config, 1)
    return 2 * config.kv_heads * config.head_dim * layout.depth * len(layout.groups)


def _state_elements(config: ModelConfig) -> int:
    """Elements of a token in the buffers of state layers."""
    layer = config.state
    if layer is None:
        return 0
    solved = CHUNK * layer.value_heads if isinstance(layer, GatedDelta) else 0
    return sum(layer.input_rows) + layer.shape.channels + layer.inner + solved


@dataclass(frozen=True, slots=True)
class _ExpertTerms:
    """Buffers of mixtures of experts: bytes and activations of a token, and bytes for all."""

    token: int
    token_elements: int
    fixed: int


def _experts(config: ModelConfig) -> _ExpertTerms:
    experts = config.experts
    if experts is None:
        return _ExpertTerms(0, 0, 0)
    count, chosen = experts.count, experts.chosen
    # Logits; ids, weights and at most three places of a choice, and a block of 16.
    token = 4 * (count + 1) + (4 * (2 + 3) + 1) * chosen + 4
    # Parts of the logits of 16 tokens; less than 18 places, a block and a sum of an expert; its tokens in all layers.
    fixed = 4 * 128 * (count + 1) + 4 * 20 * count + 8 * config.layers * count
    return _ExpertTerms(token, chosen * (experts.intermediate + config.hidden), fixed)


def _row(config: ModelConfig, ranks: int) -> int:
    """Logits, sampler, scorer, inputs and table of a running request, without its tokens and blocks."""
    vocab = config.vocab
    tiles = -(-vocab // min(_TILE, 1 << (vocab - 1).bit_length()))
    mask = mask_width(vocab)
    table = len(SAMPLING) + RULES_WIDTH + mask + 8
    changes = mask + 4 * (1 + mask // 1024)
    gathered = ranks * vocab_share(vocab, ranks) if ranks > 1 else 0
    integers = vocab + gathered + config.hidden + table + changes + _INPUTS + 4 + 2
    samples = 4 * (vocab + 2 * _CANDIDATES + (5 + _BINS) * tiles + 2)
    # The sampler reports on tokens, and the scorer on prompts.
    reports = 2 * (16 + 8 * MAX_LOGPROBS) * tiles + 8 * (4 + max(MAX_LOGPROBS, MAX_LOGPROB_TOKEN_IDS)) + 16
    return 4 * integers + samples + reports

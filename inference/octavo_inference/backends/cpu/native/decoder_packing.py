"""Packs a decoder: the parts of its layers, its embeddings and its head."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass

import numpy as np

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.expert_packing import pack_experts
from octavo_inference.backends.cpu.native.latent_packing import pack_latent
from octavo_inference.backends.cpu.native.library import Kernels
from octavo_inference.backends.cpu.native.packed_formats import WeightFormat
from octavo_inference.backends.cpu.native.packing import Packed, Packer
from octavo_inference.backends.cpu.native.state_packing import pack_state
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.positions import alibi_slopes
from octavo_inference.models.weights import LayerWeights, Weights, dequantize

_LOG = logging.getLogger(__name__)


def pack(kernels: Kernels, team: int, config: ModelConfig, weights: Weights, wanted: WeightFormat) -> Packed:
    """Pack all weights of a decoder. The embedding is read in place (usually a mapped file), unless it is f16."""
    packed = Packed()
    if config.experts is not None:
        packed.expert_tokens = np.zeros((config.layers, config.experts.count), np.int64)
    packer = Packer(kernels, team, wanted, packed)
    for number in range(config.layers):
        packed.layers.append(_LayerPacker(packer, config, number, weights.layers[number]).pack())
    if not config.post_residual_norms:
        packed.final_norm = packer.norm(weights.final_norm, weights.final_norm_bias, config.hidden)
    if config.task == "generate":
        packed.lm_head = packer.matrix((weights.lm_head,), biases=(weights.head_bias,), names=("lm_head",))
    packed.embedding = packer.stored(weights.embedding)
    if weights.positions is not None:
        packed.positions = packer.stored(weights.positions)
    packed.token_type = packer.vector(weights.token_type)
    packed.second_token_type = packer.vector(weights.second_token_type)
    if config.embedding_norm:
        packed.embedding_norm = packer.norm(weights.embedding_norm, weights.embedding_norm_bias, config.hidden)
    if packed.unkept:
        _LOG.warning(
            "weights become bfloat16, because the CPU kernels have no packed format for them: %s",
            "; ".join(f"{why} ({len(at)} linears, first {at[0]})" for why, at in packed.unkept.items()),
        )
    return packed


@dataclass(frozen=True, slots=True)
class _LayerPacker:
    """Packs one layer. A part that it does not have stays empty."""

    packer: Packer
    config: ModelConfig
    number: int
    weights: LayerWeights

    def pack(self) -> abi.LayerArgs:
        layer, part = abi.LayerArgs(), self.config.part(self.number)
        if part.attention:
            layer.heads, layer.kv_heads = part.heads, part.kv_heads
            self._attention(layer)
        if self.config.state is not None and self.weights.state is not None:
            layer.state = pack_state(self.packer, self.config.state, self.weights.state, self.number)
        if part.attention or part.state:
            self._mixer_norms(layer)
        if part.feed_forward == "dense":
            self._mlp(layer)
        elif self.weights.experts is not None:
            experts = pack_experts(self.packer, self.weights.experts, self.number)
            self.packer.into.keep.append(experts)
            layer.experts = ctypes.addressof(experts)
        if part.feed_forward != "none":
            self._feed_forward_norms(layer)
        return layer

    def _attention(self, layer: abi.LayerArgs) -> None:
        config, weights = self.config, self.weights
        if config.latent is not None and weights.latent is not None:
            pack_latent(self.packer, config, config.latent, weights.latent, self.number, layer)
        else:
            gate = ("attention_gate",) if config.attention_gate else ()
            layer.qkv = self._linear("q", "k", "v", *gate)
        layer.output = self._linear("o")
        if config.qk_norm is not None:
            width = layer.heads * config.head_dim
            layer.q_norm, layer.k_norm = self._norm("q_norm", width), self._norm("k_norm", width)
            norms = (weights.q_norm, weights.k_norm, weights.q_norm_bias, weights.k_norm_bias)
            widest = max((norm.shape[0] for norm in norms if norm is not None), default=0)
            if config.qk_norm == "head" and widest > config.head_dim:
                layer.head_norm_stride = config.head_dim
        layer.sinks = self.packer.vector(weights.sinks)
        if config.alibi:
            layer.slopes = self.packer.own(alibi_slopes(layer.heads) * np.float32(config.alibi))

    def _mixer_norms(self, layer: abi.LayerArgs) -> None:
        config = self.config
        if config.input_norms and config.part(self.number).input_norm:
            layer.input_norm = self._norm("input_norm")
        if config.output_norms or config.post_residual_norms:
            layer.attention_output_norm = self._norm("attention_output_norm")

    def _mlp(self, layer: abi.LayerArgs) -> None:
        gated, weights = self.config.gated, self.weights
        layer.gate_up = self._linear("gate", "up", arrangement=abi.INTERLEAVED) if gated else self._linear("up")
        layer.down = self._linear("down")
        if weights.xielu is not None:
            layer.xielu_positive, layer.xielu_negative = dequantize(weights.xielu).tolist()

    def _feed_forward_norms(self, layer: abi.LayerArgs) -> None:
        config = self.config
        if config.input_norms:
            layer.post_norm = self._norm("input_norm" if config.shared_norm else "post_norm")
        if config.output_norms or config.post_residual_norms:
            layer.mlp_output_norm = self._norm("mlp_output_norm")

    def _linear(self, *roles: str, arrangement: int = abi.CONCATENATED) -> abi.PackedMatrix:
        matrices = [getattr(self.weights, role) for role in roles]
        biases = [getattr(self.weights, f"{role}_bias", None) for role in roles]
        return self.packer.matrix(matrices, arrangement, biases, [f"{role} of layer {self.number}" for role in roles])

    def _norm(self, role: str, width: int | None = None) -> abi.NormArgs:
        weight, bias = getattr(self.weights, role), getattr(self.weights, f"{role}_bias")
        return self.packer.norm(weight, bias, width or self.config.hidden)

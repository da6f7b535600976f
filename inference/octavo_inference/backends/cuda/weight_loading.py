"""Uploads weights from mapped files to the device, some rows at a time: the host never holds a full copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import ActivationCopies
from octavo_inference.backends.cuda.device import Fp8Products
from octavo_inference.backends.cuda.device_weights import (
    DeviceAttention,
    DeviceExperts,
    DeviceLatent,
    DeviceLayer,
    DeviceMlp,
    DeviceState,
    DeviceWeights,
)
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.library_products import GROUP, scales_groups, scales_rows
from octavo_inference.backends.cuda.linear import RULES, Embedding, Linear
from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.plan_parts import Part
from octavo_inference.backends.cuda.weight_plan import plan_weights
from octavo_inference.backends.cuda.weight_sender import Progress, Sender
from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import (
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    StateWeights,
    Tensor,
    Weights,
    dequantize,
)

NO_FP8 = Fp8Products()

_DENSE: dict[torch.dtype, Dense] = {torch.float32: "f32", torch.bfloat16: "bf16"}


def device_bytes(
    config: ModelConfig, weights: Weights, *, dtype: torch.dtype, quantization: Quantization = "auto"
) -> int:
    """Bytes that `upload` allocates on the device and keeps. Reads no weights. Raises SettingsError like `upload`."""
    return plan_weights(config, weights, _dense(dtype), quantization).nbytes + 4 * WORKSPACE


def activation_copies(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    quantization: Quantization = "auto",
    fp8: Fp8Products = NO_FP8,
) -> ActivationCopies:
    """The copies of activations that products with these weights read. Raises SettingsError like `upload`."""
    plan = plan_weights(config, weights, _dense(dtype), quantization)
    return ActivationCopies(
        fp8=any(
            _multiplies_in_fp8(parts, fp8)
            for layer in plan.layers
            for name, parts in layer.items()
            if not name.startswith("experts.")
        ),
        ordered=plan.ordered,
    )


def upload(
    config: ModelConfig,
    weights: Weights,
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantization: Quantization = "auto",
    progress: Progress | None = None,
    fp8: Fp8Products = NO_FP8,
    fp8_activations: Torch | None = None,
    ordered_activations: Torch | None = None,
    tiles: Tiles = RULES,
) -> DeviceWeights:
    """Upload all weights of a decoder, `device_bytes` in all; needs some tens of MB on the host meanwhile.

    Floats become `dtype` (float32 or bfloat16), or fp8 with `quantization` "fp8", except embedding and lm_head: the
    first is read by row, the second determines the tokens. Quantized tensors keep their layout, but become `dtype` with
    "dense". All `Linear`s share the buffers of `activation_copies`; `fp8` names the products that read the first one.
    `tiles` are those of the GPU. `progress` receives the bytes done and the total after each piece. Pages of mapped
    files are released after they are read. Raises SettingsError for another dtype.
    """
    plan = plan_weights(config, weights, _dense(dtype), quantization)
    workspace = torch.empty(WORKSPACE, dtype=torch.float32, device=device)
    sender = Sender(plan.parts, plan.nbytes, device, progress)
    table = sender.matrix(plan.embedding)
    positions = None if plan.positions is None else sender.matrix(plan.positions).values

    def linear(parts: Sequence[Part]) -> Linear:
        return Linear(
            tuple(map(sender.matrix, parts)),
            tuple(map(sender.bias, parts)),
            workspace,
            fp8_activations if _multiplies_in_fp8(parts, fp8) else None,
            ordered_activations,
            tiles,
        )

    layers = [
        _layer(config, layer, parts, sender, linear) for layer, parts in zip(weights.layers, plan.layers, strict=False)
    ]
    final_norm = _norm(
        config, sender, weights.final_norm, weights.final_norm_bias, exists=not config.post_residual_norms
    )
    embedding_norm = _norm(
        config, sender, weights.embedding_norm, weights.embedding_norm_bias, exists=config.embedding_norm
    )
    head = table.within(plan.head) if isinstance(plan.head, slice) else sender.matrix(plan.head)
    head_bias = sender.given_norm(weights.head_bias)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return DeviceWeights(
        Embedding(table, positions),
        tuple(layers),
        final_norm,
        Linear((head,), (head_bias,), workspace, ordered_activations=ordered_activations, tiles=tiles),
        sender.done + workspace.nbytes,
        tiles,
        embedding_norm,
    )


def _norm(
    config: ModelConfig, sender: Sender, weight: Tensor | None, bias: Tensor | None, *, exists: bool
) -> DeviceNorm | None:
    """Send a norm of the model's kind, which may have neither weight nor bias."""
    return DeviceNorm(sender.given_norm(weight), sender.given_norm(bias), config.layer_norm) if exists else None


def _layer(
    config: ModelConfig,
    weights: LayerWeights,
    parts: dict[str, tuple[Part, ...]],
    sender: Sender,
    linear: Callable[[Sequence[Part]], Linear],
) -> DeviceLayer:
    """Send a layer; `linear` sends the matrices of a product."""
    w, norm, by_head = weights, partial(_norm, config, sender), config.qk_norm is not None
    mixer: DeviceAttention | DeviceLatent | None = None
    if weights.latent is not None:
        mixer = _latent(weights.latent, parts, sender, linear)
    elif "qkv" in parts:
        mixer = DeviceAttention(
            linear(parts["qkv"]),
            linear(parts["o"]),
            norm(w.q_norm, w.q_norm_bias, exists=by_head),
            norm(w.k_norm, w.k_norm_bias, exists=by_head),
            sender.given_norm(weights.sinks),
        )
    state = None if weights.state is None else _state(weights.state, parts, sender, linear)
    fed: DeviceMlp | DeviceExperts | None = None
    if weights.experts is not None:
        fed = _experts(weights.experts, parts, sender, linear)
    elif "down" in parts:
        fed = DeviceMlp(linear(parts["gate_up"]), linear(parts["down"]), sender.given_norm(w.xielu))
    before, after = config.input_norms and not config.shared_norm, config.output_norms or config.post_residual_norms
    return DeviceLayer(
        mixer,
        state,
        fed,
        norm(w.input_norm, w.input_norm_bias, exists=config.input_norms),
        norm(w.post_norm, w.post_norm_bias, exists=before),
        norm(w.attention_output_norm, w.attention_output_norm_bias, exists=after),
        norm(w.mlp_output_norm, w.mlp_output_norm_bias, exists=after),
    )


def _latent(
    weights: LatentWeights,
    parts: dict[str, tuple[Part, ...]],
    sender: Sender,
    linear: Callable[[Sequence[Part]], Linear],
) -> DeviceLatent:
    [k_up], [v_up] = parts["k_up"], parts["v_up"]
    return DeviceLatent(
        linear(parts["qkv"]),
        linear(parts["o"]),
        sender.matrix(k_up).values,
        sender.matrix(v_up).values,
        sender.norm(weights.kv_norm),
        sender.given_norm(weights.q_norm),
        linear(parts["q_up"]) if "q_up" in parts else None,
    )


def _experts(
    weights: ExpertWeights,
    parts: dict[str, tuple[Part, ...]],
    sender: Sender,
    linear: Callable[[Sequence[Part]], Linear],
) -> DeviceExperts:
    [router], [gate_up], [down] = (parts[f"experts.{name}"] for name in ("router", "gate_up", "down"))
    shared = None
    if "shared.down" in parts:
        shared = DeviceMlp(linear(parts["shared.gate_up"]), linear(parts["shared.down"]))
    return DeviceExperts(
        sender.matrix(router).values,
        sender.given_norm(weights.router_bias),
        sender.given_norm(weights.correction),
        sender.matrix(gate_up),
        sender.bias(gate_up),
        sender.matrix(down),
        sender.bias(down),
        shared,
    )


def _state(
    weights: StateWeights,
    parts: dict[str, tuple[Part, ...]],
    sender: Sender,
    linear: Callable[[Sequence[Part]], Linear],
) -> DeviceState:
    return DeviceState(
        linear(parts["state.inputs"]),
        linear(parts["state.output"]),
        sender.vector(dequantize(weights.conv).T),
        sender.given_norm(weights.conv_bias),
        None if weights.decay is None else sender.vector(-np.exp(dequantize(weights.decay))),
        sender.given_norm(weights.step_bias),
        sender.given_norm(weights.skip),
        sender.given_norm(weights.norm),
    )


def _dense(dtype: torch.dtype) -> Dense:
    if dtype not in _DENSE:
        raise SettingsError(f"dtype is {dtype}; the CUDA backend supports auto, bfloat16 and float32", "dtype")
    return _DENSE[dtype]


def _multiplies_in_fp8(parts: Sequence[Part], fp8: Fp8Products) -> bool:
    """Return True for a single matrix of fp8 that the library multiplies by fp8."""
    part, *others = parts
    if others or part.layout.form != "fp8" or part.layout.minimum or part.order is not None:
        return False
    if part.layout.group == 0:
        return fp8.rows and scales_rows(part.rows, part.cols)
    return fp8.groups and part.layout.group == GROUP and scales_groups(part.rows, part.cols)

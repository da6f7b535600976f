"""Uploads weights from mapped files to the device, some rows at a time: the host never holds a full copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import ActivationCopies
from octavo_inference.backends.cuda.device import Fp8Products
from octavo_inference.backends.cuda.device_weights import (
    DeviceAttention,
    DeviceLatent,
    DeviceLayer,
    DeviceMlp,
    DeviceWeights,
)
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.library_products import GROUP, scales_groups, scales_rows
from octavo_inference.backends.cuda.linear import RULES, Embedding, Linear
from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.weight_plan import Part, plan_weights
from octavo_inference.backends.cuda.weight_sender import Progress, Sender
from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import LatentWeights, Weights, required

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
        fp8=any(_multiplies_in_fp8(parts, fp8) for layer in plan.layers for parts in layer.values()),
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
    sender = Sender(plan, device, progress)
    table = sender.matrix(plan.embedding)
    layers = []
    for layer, matrices in zip(weights.layers, plan.layers, strict=False):
        linears = {
            name: Linear(
                tuple(map(sender.matrix, parts)),
                tuple(map(sender.bias, parts)),
                workspace,
                fp8_activations if _multiplies_in_fp8(parts, fp8) else None,
                ordered_activations,
                tiles,
            )
            for name, parts in matrices.items()
        }
        layers.append(
            DeviceLayer(
                _latent(config, layer.latent, linears, sender)
                if layer.latent is not None
                else DeviceAttention(
                    linears["qkv"], linears["o"], sender.given_norm(layer.q_norm), sender.given_norm(layer.k_norm)
                ),
                DeviceMlp(linears["gate_up"], linears["down"]),
                sender.norm(required(layer.input_norm)),
                sender.norm(required(layer.post_norm)),
                sender.given_norm(layer.attention_output_norm),
                sender.given_norm(layer.mlp_output_norm),
            )
        )
    final_norm = sender.norm(required(weights.final_norm))
    head = table.within(plan.head) if isinstance(plan.head, slice) else sender.matrix(plan.head)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return DeviceWeights(
        Embedding(table),
        tuple(layers),
        final_norm,
        Linear((head,), (None,), workspace, ordered_activations=ordered_activations, tiles=tiles),
        sender.done + workspace.nbytes,
        tiles,
    )


def _latent(config: ModelConfig, weights: LatentWeights, linears: dict[str, Linear], sender: Sender) -> DeviceLatent:
    def expansion(name: str) -> Torch:
        values = linears[name].parts[0].values
        return values.view(config.heads, -1, values.shape[1])

    return DeviceLatent(
        linears["qkv"],
        linears["o"],
        expansion("k_up"),
        expansion("v_up"),
        sender.norm(weights.kv_norm),
        sender.given_norm(weights.q_norm),
        linears.get("q_up"),
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

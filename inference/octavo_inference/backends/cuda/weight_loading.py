"""Uploads weights from mapped files to the device, some rows at a time: the host never holds a full copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.backends.cuda.buffers import ActivationCopies
from octavo_inference.backends.cuda.device import Fp8Products
from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.library_products import GROUP, scales_groups, scales_rows
from octavo_inference.backends.cuda.linear import RULES, Embedding, Linear, quantize_rows
from octavo_inference.backends.cuda.packing import (
    Dense,
    PlaneType,
    Quantization,
    pack,
    plane_shapes,
)
from octavo_inference.backends.cuda.staging import Staging
from octavo_inference.backends.cuda.weight_plan import Part, WeightPlan, plan_weights
from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Format, Tensor, Weights, dequantize, required

NO_FP8 = Fp8Products()
Progress = Callable[[int, int], None]

_TYPES: dict[PlaneType, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
}
_FLOATS: dict[Format, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_DENSE: dict[torch.dtype, Dense] = {torch.float32: "f32", torch.bfloat16: "bf16"}
_OPTIONAL_NORMS = ("q_norm", "k_norm", "attention_output_norm", "mlp_output_norm")
# Weights packed at a time: unpacking needs some bytes of working memory for each.
_PIECE = 2 << 20


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """A layer: `qkv` stacks the rows of q, k and v, `gate_up` those of gate and up. Norms are float32."""

    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    input_norm: Torch
    post_norm: Torch
    q_norm: Torch | None
    k_norm: Torch | None
    attention_output_norm: Torch | None
    mlp_output_norm: Torch | None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A decoder's weights on the device, `nbytes` in all. A tied `lm_head` reads the embedding's memory."""

    embedding: Embedding
    layers: tuple[DeviceLayer, ...]
    final_norm: Torch
    lm_head: Linear
    nbytes: int
    tiles: Tiles


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
    sender = _Sender(plan, device, progress)
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
                qkv=linears["qkv"],
                o=linears["o"],
                gate_up=linears["gate_up"],
                down=linears["down"],
                input_norm=sender.norm(required(layer.input_norm)),
                post_norm=sender.norm(required(layer.post_norm)),
                **{name: sender.given_norm(getattr(layer, name)) for name in _OPTIONAL_NORMS},
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


class _Sender:
    """Allocates the planned memory and fills it piece by piece. `done` counts the bytes on the device."""

    def __init__(self, plan: WeightPlan, device: torch.device, progress: Progress | None) -> None:
        # Before the device quantizes them to fp8, weights are at most float32.
        widest = max(max(_PIECE, part.cols) for part in plan.parts) * 4
        self._staging = Staging(widest, device)
        self._device = device
        self._total, self._progress = plan.nbytes, progress
        self.done = 0

    def matrix(self, part: Part) -> DeviceMatrix:
        planes = {
            name: torch.empty(shape, dtype=_TYPES[kind], device=self._device)
            for name, (kind, shape) in plane_shapes(part.layout, part.rows, part.cols).items()
        }
        start, step = 0, max(1, _PIECE // part.cols)
        for source in part.sources:
            for first in range(0, source.shape[0], step):
                piece = source.rows(first, min(first + step, source.shape[0]))
                rows = {name: plane[start : start + piece.shape[0]] for name, plane in planes.items()}
                if part.layout.form == "fp8" and isinstance(piece, Tensor):
                    self._quantize(piece, rows)
                else:
                    for name, array in pack(piece, part.layout).items():
                        self._staging.send(array, rows[name])
                piece.release()
                start += piece.shape[0]
                self._count(*rows.values())
            # Release the whole again: pages that two pieces share are in none of them.
            source.release()
        if part.layout.levels:
            planes["levels"] = self._vector(np.array(part.layout.levels, np.float32), torch.float16)
        if part.order is not None:
            planes["order"] = torch.from_numpy(part.order.astype(np.int32)).to(self._device)
            self._count(planes["order"])
        return DeviceMatrix(part.layout, part.cols, **planes)

    def bias(self, part: Part) -> Torch | None:
        if part.bias_type is None:
            return None
        values = [
            np.zeros(source.shape[0], np.float32) if bias is None else dequantize(bias).reshape(-1)
            for source, bias in zip(part.sources, part.biases, strict=True)
        ]
        return self._vector(np.concatenate(values), _TYPES[part.bias_type])

    def norm(self, tensor: Tensor) -> Torch:
        return self._vector(dequantize(tensor).reshape(-1).copy(), torch.float32)

    def given_norm(self, tensor: Tensor | None) -> Torch | None:
        return None if tensor is None else self.norm(tensor)

    def _vector(self, values: NDArray[np.float32], dtype: torch.dtype) -> Torch:
        result = torch.from_numpy(values).to(self._device, dtype)
        self._count(result)
        return result

    def _quantize(self, piece: Tensor, rows: dict[str, Torch]) -> None:
        dense = torch.empty(piece.shape, dtype=_FLOATS[piece.format], device=self._device)
        self._staging.send(piece.data, dense)
        for name, result in zip(("values", "factors"), quantize_rows(dense), strict=True):
            rows[name].copy_(result)

    def _count(self, *finished: Torch) -> None:
        self.done += sum(tensor.nbytes for tensor in finished)
        if self._progress is not None:
            self._progress(self.done, self._total)

"""Octavo's products in place of a module's linear layers, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from octavo_inference.backends.cuda.kernels.launch_configs import WORKSPACE
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix, Form, Layout
from octavo_inference.backends.cuda.linear import Linear, quantize_rows
from octavo_inference.backends.cuda.packing import FP8_BY_ROW


class Product(nn.Module):
    """A linear layer, x [..., inputs] to [..., outputs] in the type of x. Only one of floats has a `weight`."""

    def __init__(self, product: Linear, floats: nn.Linear | None = None) -> None:
        super().__init__()
        self.in_features = product.columns
        self.out_features = product.rows
        self._product = product
        if floats is not None:
            self.weight = floats.weight
            self.bias = floats.bias

    def forward(self, x: Tensor) -> Tensor:
        """The product of each row."""
        rows = self._product(x.reshape(-1, self.in_features).contiguous())
        return rows.view(*x.shape[:-1], self.out_features)


def workspace(device: torch.device) -> Tensor:
    """The memory that all products of a module share."""
    return torch.empty(WORKSPACE, dtype=torch.float32, device=device)


def quantize_linears(module: Any, shared: Tensor, tiles: Tiles) -> None:
    """Put fp8 products on the device of the `shared` workspace in place of linear layers, one by one.

    The module's output layer stays, because it determines the tokens.
    """
    for parent, name, linear in list(linears(module)):
        if linear is module.get_output_embeddings():
            continue
        values, factors = quantize_rows(linear.weight.detach().to(shared.device))
        bias = None if linear.bias is None else linear.bias.detach().to(shared.device, torch.float32)
        matrix = DeviceMatrix(FP8_BY_ROW, linear.in_features, values, factors=factors)
        setattr(parent, name, Product(Linear((matrix,), (bias,), shared, tiles=tiles)))


def multiply_linears(module: nn.Module, shared: Tensor, tiles: Tiles) -> None:
    """Put products in place of the linear layers of a module on the device, which read the same weights."""
    form: Form = "f32" if module.dtype == torch.float32 else "bf16"
    for parent, name, linear in list(linears(module)):
        if linear.weight.dtype != module.dtype:
            continue  # kept in float32 on purpose
        bias = None if linear.bias is None else linear.bias.detach()
        matrix = DeviceMatrix(Layout(form), linear.in_features, linear.weight.detach())
        product = Linear((matrix,), (bias,), shared, tiles=tiles)
        setattr(parent, name, Product(product, linear))


def linears(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Linear layers with the modules and names that hold them; none of a class of its own."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                yield parent, name, child

"""Loads a decoder of transformers with the quantized linear layers of a checkpoint, in the layouts of the CUDA backend.

Transformers builds the module and knows its linear layers by name. Octavo's readers know how each is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor as Torch
from torch import nn
from transformers import AutoModelForCausalLM

from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.linear import Linear
from octavo_inference.backends.cuda.packing import Dense, Quantization
from octavo_inference.backends.cuda.plan_parts import parts_of
from octavo_inference.backends.cuda.weight_sender import Sender
from octavo_inference.backends.transformers.load import module_config
from octavo_inference.backends.transformers.products import Product, linears
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.checkpoints.quantized import QuantizedReader, quantized_reader
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.checkpoints.transformers_config import ForeignConfig

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DENSE: dict[torch.dtype, Dense] = {torch.float32: "f32", torch.bfloat16: "bf16"}


def load_quantized(
    folder: Path, described: ForeignConfig, dtype: torch.dtype, quantization: Quantization, shared: Torch, tiles: Tiles
) -> Any:
    """The module, for inference, on the device of the `shared` workspace.

    Linear layers that the checkpoint quantizes are products; with `quantization` "dense" of floats. So are those whose
    columns have an order of their own. Raises `ModelError` for a tensor that is missing or has another shape.
    """
    config = module_config(folder, described)
    del config.quantization_config  # transformers would ask for the packages of the method
    checkpoint = read_checkpoint(folder)
    reader = quantized_reader(folder, checkpoint, contents=True)
    tensors = HfTensors(folder, checkpoint, reader)
    with _linears_without_memory():
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    if reader is not None:
        _replace(module, tensors, reader, _DENSE[dtype], quantization, shared, tiles)
    for name, wanted in module.state_dict(keep_vars=True).items():
        holder, _, last = name.rpartition(".")
        if not _is_tied(module, name):
            setattr(module.get_submodule(holder), last, _read(tensors, name, wanted, shared.device))
    module.tie_weights()
    return module.to(shared.device)


def _replace(
    module: nn.Module,
    tensors: HfTensors,
    reader: QuantizedReader,
    dense: Dense,
    quantization: Quantization,
    shared: Torch,
    tiles: Tiles,
) -> None:
    """Put products in place of the linear layers that the checkpoint quantizes."""
    names = {id(linear): name for name, linear in module.named_modules()}
    for parent, attribute, linear in list(linears(module)):
        name = names[id(linear)]
        matrix = reader(name, linear.out_features, linear.in_features)
        if matrix is None:
            continue
        bias = None if linear.bias is None else tensors.vector(f"{name}.bias", linear.out_features)
        ordered = getattr(matrix, "order", None) is not None
        [part] = parts_of([matrix], [bias], dense, "dense" if ordered else quantization)
        sender = Sender([part], part.nbytes, shared.device, None)
        setattr(parent, attribute, Product(Linear((sender.matrix(part),), (sender.bias(part),), shared, tiles=tiles)))


def _is_tied(module: Any, name: str) -> bool:
    """Return True for the output layer's weight if it is the embedding's."""
    output = module.get_output_embeddings()
    return (
        bool(module.config.get_text_config().tie_word_embeddings)
        and output is not None
        and any(owner is output for path, owner in module.named_modules() if f"{path}.weight" == name)
    )


def _read(tensors: HfTensors, name: str, wanted: Torch, device: torch.device) -> Torch:
    """A tensor of floats in the type of the module's own, as a parameter where that is one."""
    raw = tensors.take(name, tuple(wanted.shape))
    stored = torch.from_numpy(raw.data.copy()).view(_FLOATS[raw.dtype]).view(raw.shape)
    value = stored.to(device, wanted.dtype)
    return nn.Parameter(value, requires_grad=False) if isinstance(wanted, nn.Parameter) else value


@contextmanager
def _linears_without_memory() -> Iterator[None]:
    """Linear layers that are made inside have shapes and no memory; buffers and embeddings are computed as usual."""
    original = nn.Linear.__init__

    def without_memory(self: nn.Linear, inputs: int, outputs: int, bias: bool = True, *_: Any, **given: Any) -> None:
        original(self, inputs, outputs, bias, device="meta", dtype=given.get("dtype"))

    nn.Linear.__init__ = without_memory  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Linear.__init__ = original  # type: ignore[method-assign]

"""LoRA of tensors that have the matrices of all experts (PEFT's `target_parameters`), as low-rank pairs of each expert.

PEFT keeps one pair for such a tensor, with the pairs of all experts in it:

    lora_A [experts * rank, a]   the rows of one expert after those of another
    lora_B [b, rank * experts]   the experts of the first rank, then those of the second

The change of an expert is the product over the rank. Of a tensor [experts, x, y], PEFT before 0.19 has a = x and b = y,
later versions have a = the inputs of the matrices and b = their outputs. Sizes say which it is.

The pairs of two tensors of one module have the names of the module and of its `base_layer`: which pair is of which
tensor follows from sizes, too.
Source: https://huggingface.co/docs/peft/package_reference/lora (target_parameters).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.hf_experts import ExpertNames
from octavo_inference.checkpoints.peft_config import AdapterConfig
from octavo_inference.checkpoints.peft_tensors import AdapterTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.models.layers import Experts

Float32 = NDArray[np.float32]
Layout = Literal["straight", "turned"]
_END = re.compile(r"(?P<module>.*?)(?P<inner>(?:\.base_layer)*)\.lora_(?P<half>[AB])(?:\.default)?\.weight\Z")


@dataclass(frozen=True, slots=True)
class ExpertPairs:
    """The pairs of all experts: `down` [experts, rank, inputs], `up` [experts, outputs, rank] with the scale in it."""

    down: Float32
    up: Float32


@dataclass(frozen=True, slots=True)
class _Stored:
    """Both halves as the file has them. `parameter`: the name of the tensor that they change; `size`: its matrices'."""

    parameter: str
    down: AdapterTensor
    up: AdapterTensor
    size: tuple[int, int]
    rank: int
    scale: float

    @property
    def layout(self) -> Layout | None:
        """Whether lora_A has the inputs. None if the matrices are square."""
        if self.size[0] == self.size[1]:
            return None
        return "straight" if self.down.shape[1] == self.size[1] else "turned"


def fused_modules(names: ExpertNames) -> frozenset[str]:
    """The ends of modules that have the tensors of all experts, as they are today and in files of earlier versions."""
    tensors = (names.gate_up, names.stacked_down)
    ends = {tensor.removesuffix(".weight") if tensor.endswith(".weight") else _parent(tensor) for tensor in tensors}
    # Newer versions of transformers have the experts of all models in modules of this name.
    return frozenset(ends | {names.router.partition(".")[0] + ".experts"})


def split_fused(
    tensors: Mapping[str, AdapterTensor], names: ExpertNames | None, prefix: str
) -> tuple[dict[str, AdapterTensor], dict[str, AdapterTensor]]:
    """The tensors of an adapter without, and with only, those of all experts. `prefix` is that of PEFT."""
    ends = () if names is None else tuple("." + end for end in fused_modules(names))
    fused: dict[str, AdapterTensor] = {}
    for name, raw in tensors.items():
        found = _END.match(name)
        if found is not None and name.startswith(prefix) and found["module"].endswith(ends):
            fused[name.removeprefix(prefix)] = raw
    return {name: raw for name, raw in tensors.items() if name.removeprefix(prefix) not in fused}, fused


def expert_pairs(
    folder: Path,
    fused: Mapping[str, AdapterTensor],
    settings: AdapterConfig,
    names: ExpertNames,
    experts: Experts,
    hidden: int,
) -> dict[str, ExpertPairs]:
    """The pairs of each tensor, by the name that a checkpoint of the family gives it.

    Raises `ModelError` for those that do not fit the model, or can be understood in two ways.
    """
    stored = list(_stored(folder, fused, settings, names, experts, hidden))
    layouts = {each.layout for each in stored} - {None}
    if len(layouts) > 1:
        raise ModelError(f"{folder}: lora_A of some experts has inputs of matrices, that of others outputs")
    layout: Layout | None = next(iter(layouts), "straight" if names.transposed else None)
    if stored and layout is None:
        raise ModelError(
            f"{folder}: it changes {stored[0].parameter}, whose matrices are square: which of both halves has the "
            "inputs depends on the version of PEFT; change the experts' other tensor, too"
        )
    return {each.parameter: _pairs(each, layout, experts.count) for each in stored}


def _stored(
    folder: Path,
    fused: Mapping[str, AdapterTensor],
    settings: AdapterConfig,
    names: ExpertNames,
    experts: Experts,
    hidden: int,
) -> Iterable[_Stored]:
    halves: dict[str, dict[str, AdapterTensor]] = {}
    for name, raw in fused.items():
        found = _END.match(name)
        assert found is not None  # noqa: S101 -- split_fused matched it
        halves.setdefault(found["module"] + found["inner"], {})[found["half"]] = raw
    inner, seen = experts.intermediate, set[str]()
    sizes = {names.gate_up: (2 * inner, hidden), names.stacked_down: (hidden, inner)}
    for full, pair in halves.items():
        module = full.replace(".base_layer", "")
        if len(pair) < 2:
            raise ModelError(f"{folder}: {full} has one of the two matrices lora_A and lora_B")
        down, up = pair["A"], pair["B"]
        tensor = next((t for t, size in sizes.items() if _fits(down, up, size)), None)
        if tensor is None:
            raise ModelError(
                f"{folder}: {full} has matrices of {down.shape} and {up.shape}, which fit no tensor of the model's "
                f"{experts.count} experts; it was trained on another base model"
            )
        layer = module.removesuffix(next(end for end in fused_modules(names) if module.endswith("." + end)))
        if layer + tensor in seen:
            raise ModelError(f"{folder}: it changes {layer}{tensor} twice")
        seen.add(layer + tensor)
        # Patterns name the parameter, as the module has it.
        own = module if tensor.endswith(".weight") else f"{module}.{tensor.rpartition('.')[2]}"
        rank = settings.rank_of(own)
        if down.shape[0] != experts.count * rank or up.shape[1] != experts.count * rank:
            raise ModelError(
                f"{folder}: {full} has matrices of {down.shape} and {up.shape}, adapter_config.json says a rank of "
                f"{rank} for each of {experts.count} experts"
            )
        yield _Stored(layer + tensor, down, up, sizes[tensor], rank, settings.scale_of(own))


def _fits(down: AdapterTensor, up: AdapterTensor, size: tuple[int, int]) -> bool:
    if len(down.shape) != 2 or len(up.shape) != 2:
        return False
    return (up.shape[0], down.shape[1]) in (size, size[::-1])


def _pairs(stored: _Stored, layout: Layout | None, count: int) -> ExpertPairs:
    first = stored.down.values().reshape(count, stored.rank, -1)
    second = stored.up.values().reshape(-1, stored.rank, count).transpose(2, 0, 1)
    if layout == "turned":
        first, second = second.transpose(0, 2, 1), first.transpose(0, 2, 1)
    return ExpertPairs(np.ascontiguousarray(first), np.ascontiguousarray(second) * np.float32(stored.scale))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]

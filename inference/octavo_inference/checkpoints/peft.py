"""Reads LoRA adapters that PEFT saved, for a model that is loaded.

A change up @ down of a stored matrix is one of the canonical matrices too: what the family does to rows of weights
(stacked projections, rotary pairs) is done to rows of `up`, by the same code that reads the weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.from_hf import FAMILIES, LayerReader, family_of
from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.hf_families import Factors, HfFamily
from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_tensors import HfTensors, Triple
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.peft_config import WEIGHTS_FILE, AdapterConfig, read_adapter_config
from octavo_inference.checkpoints.peft_experts import ExpertPairs, expert_pairs, split_fused
from octavo_inference.checkpoints.peft_rows import OuterMatrices, WholeTensors, token_rows
from octavo_inference.checkpoints.peft_tensors import AdapterTensor, adapter_digest, adapter_tensors
from octavo_inference.checkpoints.safetensors import Checkpoint, RawTensor
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import MOST_TOKEN_ROWS, Adapter, LowRank
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.rows import reordered
from octavo_inference.models.weights import LayerWeights, Matrix, Tensor, Weights, dequantize, part_tensors

log = logging.getLogger(__name__)

_PREFIX = "base_model.model."
# Stacked projections are a few times as wide as the hidden state: larger files are not read.
_STACKED = 16
_DOWN, _UP = ("lora_A.weight", "lora_embedding_A"), ("lora_B.weight", "lora_embedding_B")
_UP_BIAS, _BIAS = "lora_B.bias", "bias"


@dataclass(slots=True)
class _Change:
    """The tensors of one module. `bias`: what replaces the module's bias; `up_bias` is added to it."""

    down: NDArray[np.float32] | None = None
    up: NDArray[np.float32] | None = None
    up_bias: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    used: bool = False


class _Rows(NDArray[np.float32]):
    """Rows of a module's `up`. Those that are taken, split or put in another order still know the module's `down`."""

    down: NDArray[np.float32] | None

    def __array_finalize__(self, obj: Any) -> None:
        self.down = getattr(obj, "down", None)


@dataclass(frozen=True, slots=True)
class _ChangeTensors(HfTensors):
    """Gives a reader of weights the `up` of each matrix in its place; of other tensors, zeros."""

    changes: dict[str, _Change] = field(default_factory=dict)
    fused: dict[str, ExpertPairs] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def has(self, module: str) -> bool:
        """Whether the adapter changes a module."""
        return module in self.changes

    def take(self, name: str, *shapes: tuple[int, ...]) -> RawTensor:
        """Zeros."""
        return RawTensor(name, "F32", shapes[0], np.zeros(4 * math.prod(shapes[0]), np.uint8))

    def matrix(self, name: str, rows: int, columns: int, order: NDArray[np.int64] | None = None) -> Matrix:
        """`up` of a module, without columns for modules that are not changed."""
        change = self.changes.get(name.removesuffix(".weight"))
        if change is None or change.up is None or change.down is None:
            return Tensor("f32", (rows, 0), np.empty((rows, 0), np.float32))
        change.used = True
        _check_shape(self.folder, name, change.down, (len(change.down), columns))
        _check_shape(self.folder, name, change.up, (rows, len(change.down)))
        up = change.up.view(_Rows)
        up.down = change.down
        found = Tensor("f32", (rows, len(change.down)), up)
        return found if order is None else reordered(found, order)

    def optional(self, name: str, size: int, order: NDArray[np.int64] | None = None) -> Tensor | None:
        """What replaces a bias; None where it stays."""
        change = self.changes.get(name.removesuffix(".bias"))
        if change is None or (change.bias is None and change.up_bias is None):
            return None
        change.used = True
        values = change.bias if change.bias is not None else change.up_bias
        assert values is not None  # noqa: S101 -- for the type checker: one of both is there
        _check_shape(self.folder, name, values, (size,))
        return Tensor("f32", (size,), values if order is None else values[order])

    def stacked_experts(
        self, gate_up: str, down: str, sizes: tuple[int, int, int], *, transposed: bool, interleaved: bool
    ) -> Triple:
        """`up` of each expert's matrices, as their weights have them."""
        del transposed  # pairs have inputs and outputs, however the weights are stored
        _, inner, hidden = sizes
        first = slice(0, None, 2) if interleaved else slice(inner)
        second = slice(1, None, 2) if interleaved else slice(inner, None)
        return (
            self._each_expert(gate_up, sizes[0], inner, first),
            self._each_expert(gate_up, sizes[0], inner, second),
            self._each_expert(down, sizes[0], hidden, slice(None)),
        )

    def _each_expert(self, name: str, count: int, rows: int, part: slice) -> tuple[Matrix, ...]:
        pairs = self.fused.get(name)
        if pairs is None:
            return (Tensor("f32", (rows, 0), np.empty((rows, 0), np.float32)),) * count
        self.used.add(name)
        found = []
        for down, up in zip(pairs.down, pairs.up, strict=True):
            taken = up[part].view(_Rows)
            taken.down = down
            found.append(Tensor("f32", (rows, len(down)), taken))
        return tuple(found)

    def stacked_biases(self, *_: Any, **__: Any) -> dict[str, Any]:
        """None."""
        return {}


Biases = tuple[dict[str, Matrix], ...]
"""The biases of a model's layers, by field."""


def stored_biases(weights: Weights) -> Biases:
    """The biases of a model, of which an adapter may have others in their place."""
    return tuple({n: t for n, t in part_tensors(layer) if n.endswith("_bias")} for layer in weights.layers)


def read_adapter(
    folder: Path, config: ModelConfig, biases: Biases, outer: OuterMatrices, model: Path, max_rank: int
) -> Adapter:
    """The adapter in `folder` for the model at `model`, a file or folder. Raises `ModelError` if it does not fit.

    `biases` and `outer` are the model's.
    """
    settings = read_adapter_config(folder)
    if settings.base:
        log.info("%s: an adapter that was trained on %s", folder, settings.base)
    if settings.highest_rank > max_rank:
        raise ModelError(
            f"{folder}: a rank of {settings.highest_rank}; the server takes up to {max_rank} (max_adapter_rank)"
        )
    if not (folder / WEIGHTS_FILE).is_file():
        raise ModelError(f"{folder}: {WEIGHTS_FILE} is missing; adapters are read from safetensors files only")
    with refusing(folder), (folder / WEIGHTS_FILE).open("rb") as file:
        tensors = adapter_tensors(folder, file)
        widest = max(config.vocab + MOST_TOKEN_ROWS, _STACKED * config.hidden, _STACKED * config.intermediate)
        family, factors = _family(config, model)
        whole, others = _whole_rows(tensors, family)
        remaining, fused = _without_fused(folder, others, settings, config, family)
        changes = _changes(folder, remaining, settings, widest)
        if not changes and not fused and not any(each.found for each in whole):
            raise ModelError(f"{folder}: {WEIGHTS_FILE} has no tensors")
        layers, prefix = _layers(folder, config, family, factors, changes, fused)
        heads = _take(changes, family.model.head) or _take(changes, "lm_head")
        embedding = _outer(
            folder,
            _with_tokens(_take(changes, f"{prefix}{family.model.embedding}"), whole[0], config, "down"),
            "embedding",
            config.hidden,
            config.vocab,
        )
        head = _outer(folder, _with_tokens(heads, whole[1], config, "up"), "lm_head", config.vocab, config.hidden)
        _refuse_unused(folder, changes)
        rows = token_rows(folder, config, settings, outer, whole, (embedding, head))
        replaces = any(change.bias is not None for change in changes.values())
        adapter = Adapter(
            digest=adapter_digest(folder, file),
            layers=tuple(
                _parts(folder, layer, base, replaces=replaces) for layer, base in zip(layers, biases, strict=True)
            ),
            embedding=embedding,
            lm_head=head,
            embedding_rows=rows[0],
            lm_head_rows=rows[1],
        )
    for name, part in adapter.parts():
        _require_finite(folder, f"the change of {name}", part.down, part.up, part.bias)
    for name, own in zip(("embedding", "lm_head"), rows, strict=True):
        _require_finite(folder, f"a row of {name}", None if own is None else own.rows)
    return adapter


def _require_finite(folder: Path, name: str, *parts: NDArray[np.float32] | None) -> None:
    if not all(np.isfinite(values).all() for values in parts if values is not None):
        raise ModelError(f"{folder}: {name} has numbers that are not finite")


def _whole_rows(
    tensors: Mapping[str, AdapterTensor], family: HfFamily
) -> tuple[tuple[WholeTensors, WholeTensors], dict[str, AdapterTensor]]:
    """The tensors of whole rows, of embedding and head, and all others."""
    names = family.model
    embedding, head = WholeTensors(names.embedding), WholeTensors(names.head)
    others: dict[str, AdapterTensor] = {}
    modules = {f"{prefix}{names.embedding}": embedding for prefix in names.prefixes} | {
        names.head: head,
        "lm_head": head,
    }
    for name, raw in tensors.items():
        known = _known(name)
        at = next((m for m in modules if name.startswith(_PREFIX) and known.startswith(m + ".")), "")
        if not at or not modules[at].take(at, known.removeprefix(at + "."), raw):
            others[name] = raw
    return (embedding, head), others


def _known(name: str) -> str:
    """A tensor's name without those of wrappers."""
    return name.removeprefix(_PREFIX).replace(".default.", ".").replace(".base_layer.", ".")


def _changes(
    folder: Path, tensors: Mapping[str, AdapterTensor], settings: AdapterConfig, widest: int
) -> dict[str, _Change]:
    """Tensors by module, scaled. `widest`: rows or columns of any of the model's matrices."""
    changes: dict[str, _Change] = {}
    for name, raw in tensors.items():
        if max(raw.shape, default=0) > widest or math.prod(raw.shape) > settings.highest_rank * widest:
            raise ModelError(
                f"{folder}: tensor {name} has shape {raw.shape}, more than any matrix of the model needs at a rank of "
                f"{settings.highest_rank}; it was trained on another base model"
            )
        known = _known(name)
        for kinds, at in ((_DOWN, "down"), (_UP, "up"), ((_UP_BIAS,), "up_bias"), ((_BIAS,), "bias")):
            ending = next((kind for kind in kinds if known.endswith("." + kind)), None)
            if ending is not None and name.startswith(_PREFIX):
                module = known.removesuffix("." + ending)
                setattr(changes.setdefault(module, _Change()), at, raw.values())
                break
        else:
            _refuse_tensor(folder, name)
    for module, change in changes.items():
        if (change.down is None) != (change.up is None):
            raise ModelError(f"{folder}: {module} has one of the two matrices lora_A and lora_B")
        if change.down is None or change.up is None:
            continue
        rank = settings.rank_of(module)
        if change.down.ndim != 2 or change.up.ndim != 2 or not len(change.down) == change.up.shape[1] == rank:
            raise ModelError(
                f"{folder}: {module} has matrices of {change.down.shape} and {change.up.shape}, adapter_config.json "
                f"says a rank of {rank}"
            )
        change.up = change.up * np.float32(settings.scale_of(module))
        if change.up_bias is not None:
            change.up_bias = change.up_bias * np.float32(settings.scale_of(module))
    if all(any(getattr(change, at) is not None for change in changes.values()) for at in ("bias", "up_bias")):
        raise ModelError(f"{folder}: it has both biases of modules and biases of lora_B; one kind is supported")
    return changes


def _refuse_tensor(folder: Path, name: str) -> NoReturn:
    if "lora_magnitude_vector" in name:
        raise ModelError(f"{folder}: tensor {name} is of DoRA, which is not supported")
    raise ModelError(f"{folder}: tensor {name} is no part of a LoRA adapter that is supported")


def _family(config: ModelConfig, model: Path) -> tuple[HfFamily, Factors]:
    """The family of a model, whose modules an adapter names. GGUF files have the same modules by other names."""
    if model.is_dir():
        path = model / "config.json"
        data = optional_json(path)
        family = family_of(path, data)
        return family, {} if family.factors is None else family.factors(HfSettings(path, data))
    family_or_none = next((each for each in FAMILIES.values() if each.name == config.architecture), None)
    if family_or_none is None or family_or_none.factors is not None:
        raise ModelError(f"{model}: adapters of GGUF files of {config.architecture} are not supported; use safetensors")
    return family_or_none, {}


def _without_fused(
    folder: Path, tensors: dict[str, AdapterTensor], settings: AdapterConfig, config: ModelConfig, family: HfFamily
) -> tuple[dict[str, AdapterTensor], dict[str, ExpertPairs]]:
    """The other tensors of an adapter, and the changes of tensors that have the matrices of all experts."""
    others, fused = split_fused(tensors, family.experts, _PREFIX)
    if not fused or family.experts is None or config.experts is None:
        return tensors, {}
    return others, expert_pairs(folder, fused, settings, family.experts, config.experts, config.hidden)


def _layers(
    folder: Path,
    config: ModelConfig,
    family: HfFamily,
    factors: Factors,
    changes: dict[str, _Change],
    fused: dict[str, ExpertPairs],
) -> tuple[list[LayerWeights], str]:
    """Layers with `up` in the place of each matrix, and the prefix of the adapter's modules."""
    names = family.model
    inside = [module for module in (*changes, *fused) if names.layers in module]
    prefix = next((p for p in names.prefixes if any(m.startswith(p + names.layers) for m in inside)), names.prefixes[0])
    tensors = _ChangeTensors(folder, Checkpoint(_stand_ins(family, fused), [], []), None, changes=changes, fused=fused)
    layers = [
        LayerReader(tensors, config, family, number, f"{prefix}{names.layers}{number}.", factors).read()
        for number in range(config.layers)
    ]
    unused = sorted(fused.keys() - tensors.used)
    if unused:
        raise ModelError(f"{folder}: it changes {unused[0]}, which the served model does not have")
    return layers, prefix


def _stand_ins(family: HfFamily, fused: dict[str, ExpertPairs]) -> dict[str, RawTensor]:
    """By the presence of this name, the reader of weights knows that a layer has the matrices of experts in one."""
    if family.experts is None:
        return {}
    down, gate_up = family.experts.stacked_down, family.experts.gate_up
    names = {name.removesuffix(down) + gate_up if name.endswith(down) else name for name in fused}
    return {name: RawTensor(name, "F32", (0,), np.empty(0, np.uint8)) for name in names}


def _parts(folder: Path, changed: LayerWeights, base: dict[str, Matrix], *, replaces: bool) -> dict[str, LowRank]:
    """The changes of one layer, by field. `replaces`: biases take the place of those in `base`."""
    fields = dict(part_tensors(changed))
    parts: dict[str, LowRank] = {}
    for name, tensor in fields.items():
        if isinstance(tensor, Tensor) and isinstance(tensor.data, _Rows) and tensor.data.down is not None:
            parts[name] = LowRank(np.ascontiguousarray(tensor.data.down), np.array(tensor.data, np.float32))
    for name, tensor in fields.items():
        if not name.endswith("_bias") or name == "state.step_bias":  # a vector of its own, which no adapter changes
            continue
        field_name = name.removesuffix("_bias")
        matrix = fields.get(field_name)
        if matrix is None or len(matrix.shape) != 2:
            raise ModelError(f"{folder}: it changes the bias of {field_name}, which is supported of linear layers only")
        bias = dequantize(tensor)
        if replaces and name in base:
            bias = bias - dequantize(base[name])
        none = LowRank(np.empty((0, 0), np.float32), np.empty((len(bias), 0), np.float32))
        parts[field_name] = replace(parts.get(field_name, none), bias=bias)
    return parts


def _take(changes: dict[str, _Change], module: str) -> _Change | None:
    change = changes.get(module)
    if change is not None and change.bias is None and change.up_bias is None:
        change.used = True
    return change


def _outer(folder: Path, change: _Change | None, name: str, rows: int, columns: int) -> LowRank | None:
    if change is None or change.down is None or change.up is None:
        return None
    _check_shape(folder, name, change.down, (len(change.down), columns))
    _check_shape(folder, name, change.up, (rows, len(change.down)))
    return LowRank(np.ascontiguousarray(change.down), np.ascontiguousarray(change.up))


def _with_tokens(
    change: _Change | None, whole: WholeTensors, config: ModelConfig, at: Literal["down", "up"]
) -> _Change | None:
    """A change of a vocabulary of another size, as its whole matrix shows: with zeros for tokens that it has not."""
    if change is None or change.down is None or change.up is None:
        return change
    axis, values = (1, change.down) if at == "down" else (0, change.up)
    tokens = config.own_vocab if whole.matrix is None else whole.matrix.shape[0]
    if values.shape[axis] != tokens or tokens == config.vocab:
        return change
    room = [(0, 0), (0, 0)]
    room[axis] = (0, max(0, config.vocab - tokens))
    fitting = np.pad(values, room).take(range(config.vocab), axis)
    return replace(change, down=fitting) if at == "down" else replace(change, up=fitting)


def _check_shape(folder: Path, name: str, values: NDArray[np.float32], wanted: tuple[int, ...]) -> None:
    if values.shape != wanted:
        raise ModelError(
            f"{folder}: the change of {name} has a matrix of {values.shape}, the model needs {wanted}; it was trained "
            "on another base model"
        )


def _refuse_unused(folder: Path, changes: dict[str, _Change]) -> None:
    unused = sorted(module for module, change in changes.items() if not change.used)
    if unused:
        more = f" and {len(unused) - 1} others" if len(unused) > 1 else ""
        raise ModelError(
            f"{folder}: it changes {unused[0]}{more}, which the served model does not have, or not in a form that can "
            "be changed; it may be of another base model"
        )

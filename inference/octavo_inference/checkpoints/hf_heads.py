"""The part of a checkpoint that works on pooled hidden states: a classifier, or modules of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_inference.checkpoints.hf_settings import HfSettings
from octavo_inference.checkpoints.hf_tensors import HfTensors
from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.safetensors import Checkpoint, read_checkpoint
from octavo_inference.checkpoints.sentence_transformers import TextModule, modules
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.pooled_head import HeadActivation, HeadStage, PooledHead

# The classes that sentence-transformers names as activations.
_CLASSES: dict[str, HeadActivation] = {
    "Identity": "none",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


@dataclass(frozen=True, slots=True)
class _Stage:
    module: str
    activation: HeadActivation = "none"
    norm: str | None = None


# By the family's name in `ModelConfig`; others have one linear called score.
_CLASSIFIERS = {
    "bert": (_Stage("bert.pooler.dense", "tanh"), _Stage("classifier")),
    "roberta": (_Stage("classifier.dense", "tanh"), _Stage("classifier.out_proj")),
    "modernbert": (_Stage("head.dense", "gelu", norm="head.norm"), _Stage("classifier")),
}


def pooled_head(folder: Path, checkpoint: Checkpoint, config: ModelConfig) -> PooledHead | None:
    """What follows the pooling of a model; None if nothing does. Raises `ModelError`."""
    if config.task == "score":
        return _classifier(folder, checkpoint, config)
    stages = [_dense(folder, module) for module in modules(folder) if module.kind == "Dense"]
    _check_sizes(folder, stages, config.hidden)
    return PooledHead(tuple(stages)) if stages else None


def _classifier(folder: Path, checkpoint: Checkpoint, config: ModelConfig) -> PooledHead:
    path = folder / "config.json"
    settings, tensors = HfSettings(path, optional_json(path)), HfTensors(folder, checkpoint, None)
    named = _CLASSIFIERS.get(config.architecture, (_Stage("score"),))
    stages = []
    for stage in named:
        rows = config.hidden
        if stage is named[-1]:
            rows = _labels(path, checkpoint, f"{stage.module}.weight")
        weight = tensors.numbers(tensors.table(f"{stage.module}.weight", rows, config.hidden))
        activation = stage.activation
        if stage.module == "head.dense":
            activation = _activation_of_classifier(settings)
        elif stage is named[-1]:
            activation = _declared_activation(settings)
        stages.append(
            HeadStage(
                weight.reshape(rows, config.hidden),
                _vector(tensors, f"{stage.module}.bias", rows),
                activation,
                None if stage.norm is None else tensors.values(f"{stage.norm}.weight", rows),
                None if stage.norm is None else _vector(tensors, f"{stage.norm}.bias", rows),
                config.norm_eps,
            )
        )
    return PooledHead(tuple(stages))


def _labels(path: Path, checkpoint: Checkpoint, name: str) -> int:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{path.parent}: tensor {name} is missing: a model of this class scores with it")
    if tensor.shape[0] != 1:
        raise UnsupportedModelError(
            f"{path}: a classifier of {tensor.shape[0]} labels is not supported; models with one label score pairs"
        )
    return 1


def _activation_of_classifier(settings: HfSettings) -> HeadActivation:
    found = HfSettings(settings.path, {"hidden_act": settings.get("classifier_activation", "gelu")}).activation()
    known: dict[str, HeadActivation] = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}
    if found not in known:
        raise UnsupportedModelError(f"{settings.path}: classifier_activation {found} is not supported")
    return known[found]


def _declared_activation(settings: HfSettings) -> HeadActivation:
    """Of a score: a sigmoid, unless config.json has another for sentence-transformers."""
    inner = settings.get("sentence_transformers")
    name = inner.get("activation_fn") if isinstance(inner, dict) else None
    name = name or settings.get("sbert_ce_default_activation_function")
    return "sigmoid" if name is None else _class_of(settings.path, name)


def _class_of(path: Path, name: Any) -> HeadActivation:
    found = _CLASSES.get(str(name).rpartition(".")[2])
    if found is None:
        raise UnsupportedModelError(f"{path}: the activation {name!r} is not supported ({', '.join(_CLASSES)} are)")
    return found


def _dense(folder: Path, module: TextModule) -> HeadStage:
    """A Dense module, in a folder of its own."""
    path = folder / module.path / "config.json"
    settings = HfSettings(path, optional_json(path))
    rows, columns = settings.count("out_features"), settings.count("in_features")
    if not any((folder / module.path).glob("*.safetensors")):
        raise UnsupportedModelError(f"{folder / module.path}: has no model.safetensors, and other formats are not read")
    tensors = HfTensors(folder / module.path, read_checkpoint(folder / module.path), None)
    weight = tensors.numbers(tensors.table("linear.weight", rows, columns)).reshape(rows, columns)
    activation = _class_of(path, settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    return HeadStage(weight, _vector(tensors, "linear.bias", rows), activation)


def _check_sizes(folder: Path, stages: list[HeadStage], hidden: int) -> None:
    size = hidden
    for stage in stages:
        if stage.weight.shape[1] != size:
            raise ModelError(
                f"{folder}: a Dense module takes {stage.weight.shape[1]} elements, what precedes it gives {size}"
            )
        size = stage.weight.shape[0]


def _vector(tensors: HfTensors, name: str, size: int) -> NDArray[np.float32] | None:
    return tensors.values(name, size) if name in tensors.checkpoint.tensors else None

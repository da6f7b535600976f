"""Loads a model from a path: configuration, canonical weights, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo_inference.checkpoints.from_gguf import config_from_gguf, weights_from_gguf
from octavo_inference.checkpoints.from_hf import config_from_hf, weights_from_hf
from octavo_inference.checkpoints.gguf import GgufFile, read_gguf
from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.hf_heads import pooled_head
from octavo_inference.checkpoints.quantized import quantized_reader
from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.checkpoints.safetensors import Checkpoint, read_checkpoint
from octavo_inference.checkpoints.transformers_config import ForeignConfig, describe
from octavo_inference.common.errors import ModelError, SettingsError, UnsupportedModelError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.models.added_ids import with_added_ids
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.info import ModelInfo
from octavo_inference.models.pooled_head import PooledHead
from octavo_inference.models.weights import Weights
from octavo_inference.tokenizer.assets import TokenizerAssets, check_vocabulary, gguf_assets, hf_assets
from octavo_protocol.engine_settings import added_tokens

_SAMPLES, _SAMPLE_BYTES = 256, 4096


@dataclass(frozen=True)
class TextModel:
    """A model without its weights. `name`: that of the file or folder, for messages.

    Tokenizer and chat template are read on first access: the engine does not use them, and they are the slowest part.
    """

    name: str
    path: Path
    config: ModelInfo
    read_assets: Callable[[], TokenizerAssets]

    @cached_property
    def assets(self) -> TokenizerAssets:
        """Read tokenizer and chat template. Raises `ModelError`, also for a tokenizer larger than the vocabulary."""
        with refusing(self.path):
            assets = self.read_assets()
        check_vocabulary(assets.tokenizer, self.config.vocab, self.path)
        return assets

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.assets.tokenizer

    @property
    def chat_template(self) -> str | None:
        """The chat template as Jinja source."""
        return self.assets.chat_template


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A complete model for the native decoder. `head`: what follows the pooling of its hidden states."""

    text: TextModel
    config: ModelConfig
    weights: Weights
    head: PooledHead | None = None

    def for_adapters(self, settings: EngineSettings) -> LoadedModel:
        """The model with room for tokens that adapters add. Raises `SettingsError` if it can have none."""
        config, weights = with_added_ids(self.config, self.weights, added_tokens(settings))
        return replace(self, config=config, weights=weights)


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model for the transformers backend. Its weights are still in `folder`: `elements` numbers, in `nbytes` bytes.

    Of quantized weights `elements` counts those of packed tensors.
    """

    text: TextModel
    config: ForeignConfig
    folder: Path
    elements: int
    nbytes: int


def load_model(path: str, *, native: bool = True) -> LoadedModel | ForeignModel:
    """Load a folder (GGUF, or safetensors with config.json and tokenizer.json), a .gguf file, or `smollm2`.

    Weights stay in the mapped files if their format allows. A folder that the native decoder does not support, or any
    folder without `native`, becomes a `ForeignModel` for transformers. Raises `ModelError` with the missing or wrong
    part.
    """
    source = find_model(path)
    if source.is_file():
        if not native:
            raise SettingsError(f"{source}: the transformers backend reads safetensors folders, not GGUF", "backend")
        file = read_gguf(source)
        with refusing(source):
            text, described = _gguf_text(file)
            return LoadedModel(text, described, weights_from_gguf(file, described))
    checkpoint = read_checkpoint(source)
    with refusing(source):
        text, config = _hf_text(source, checkpoint, native=native)
        if isinstance(config, ModelConfig):
            head = pooled_head(source, checkpoint, config)
            return LoadedModel(text, config, weights_from_hf(source, checkpoint, config), head)
    return _foreign(text, config, checkpoint)


def as_foreign(model: LoadedModel, missing: str) -> ForeignModel:
    """The same model for transformers, because of what a native backend lacks.

    Raises `UnsupportedModelError` with both reasons when transformers cannot compute it.
    """
    folder = model.text.path
    if model.config.task != "generate":
        raise UnsupportedModelError(f"{missing}; transformers, which could take its place, only generates text")
    if folder.is_file():
        raise UnsupportedModelError(f"{missing}; transformers, which could take its place, reads no GGUF files")
    try:
        config = describe(folder, model.config.digest, missing)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{missing}; transformers cannot take its place: {error}") from error
    return _foreign(model.text, config, read_checkpoint(folder))


def _foreign(text: TextModel, config: ForeignConfig, checkpoint: Checkpoint) -> ForeignModel:
    tensors = checkpoint.tensors.values()
    elements, nbytes = sum(math.prod(tensor.shape) for tensor in tensors), sum(tensor.data.nbytes for tensor in tensors)
    return ForeignModel(text, config, text.path, elements, nbytes)


def require_transformers(model: ForeignModel) -> None:
    """Raises `ModelError` with the package to install if transformers or torch is missing."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError(
            f"{model.config.missing}; transformers could compute it, but {' and '.join(absent)} is not installed: "
            "use the image octavo-server instead of octavo-server-cpu, or pip install 'octavo[inference]'"
        )


def load_text(path: str) -> TextModel:
    """Like `load_model`, without reading the weights."""
    source = find_model(path)
    with refusing(source):
        return _gguf_text(read_gguf(source))[0] if source.is_file() else _hf_text(source, read_checkpoint(source))[0]


def _gguf_text(file: GgufFile) -> tuple[TextModel, ModelConfig]:
    config = config_from_gguf(file, _digest(file.headers, file.buffers))
    model = TextModel(_gguf_name(file), file.path, config, lambda: gguf_assets(file))
    _check(model)
    return model, config


def _gguf_name(file: GgufFile) -> str:
    # In an image volume the file is always named model.gguf; the metadata has the model's name.
    name = file.metadata.get("general.name")
    return name if file.path.stem == "model" and isinstance(name, str) else file.path.stem


def _hf_text(
    folder: Path, checkpoint: Checkpoint, *, native: bool = True
) -> tuple[TextModel, ModelConfig | ForeignConfig]:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise ModelError(f"{folder}: {name} is missing beside the safetensors files")
    identity = np.frombuffer((folder / "config.json").read_bytes(), np.uint8)
    digest = _digest([identity, *checkpoint.headers], checkpoint.buffers)
    config: ModelConfig | ForeignConfig
    try:
        config = config_from_hf(folder, checkpoint, digest) if native else describe(folder, digest, "by request")
    except UnsupportedModelError as error:
        config = describe(folder, digest, str(error))
        quantized_reader(folder, checkpoint, contents=False)  # also reads what transformers computes
    model = TextModel(folder.resolve().name, folder, config, lambda: hf_assets(folder))
    _check(model)
    return model, config


def _digest(headers: Iterable[NDArray[np.uint8]], buffers: Iterable[NDArray[np.uint8]]) -> str:
    """Identity of the weights: hash of headers, sizes and evenly spread samples of the data.

    It separates the prefix caches of different models, which would otherwise share block hashes. It is not an integrity
    check. Sampling takes milliseconds; hashing whole files would read every byte before the first request.
    """
    h = hashlib.blake2b(digest_size=16)
    for header in headers:
        h.update(len(header).to_bytes(8, "little"))
        h.update(header.tobytes())
    for buffer in buffers:
        h.update(len(buffer).to_bytes(8, "little"))
        last = max(0, len(buffer) - _SAMPLE_BYTES)
        for start in np.linspace(0, last, _SAMPLES, dtype=np.int64):
            h.update(buffer[start : start + _SAMPLE_BYTES].tobytes())
    return h.hexdigest()


def _check(model: TextModel) -> None:
    config = model.config
    if isinstance(config, ModelConfig) and not _fits(config):
        raise ModelError(
            f"{model.path}: {config.heads} heads over {config.kv_heads} key/value heads of {config.head_dim} do not fit"
        )
    if isinstance(config, ModelConfig) and not (0 <= config.norm_eps < 1 < config.rope_theta < math.inf):
        raise ModelError(
            f"{model.path}: a norm's epsilon of {config.norm_eps} and a rotary base of {config.rope_theta}: expected "
            "one from 0 to 1 and one above 1"
        )
    if config.max_positions < 1 or config.vocab < 1:
        raise ModelError(f"{model.path}: a context of {config.max_positions} tokens, a vocabulary of {config.vocab}")
    for token in config.eos_token_ids:
        if not 0 <= token < config.vocab:
            raise ModelError(f"{model.path}: end-of-sequence token {token} is outside the vocabulary of {config.vocab}")


def _fits(config: ModelConfig) -> bool:
    return config.kv_heads > 0 and config.heads % config.kv_heads == 0 and config.head_dim > 0 == config.head_dim % 2

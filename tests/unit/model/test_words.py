"""What the API process reads of a model: its words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import load_model, load_text
from octavo_inference.tokenizer.assets import check_vocabulary, load_assets

from .conftest import write_gguf, write_hf

Tensors = dict[str, np.ndarray]


def test_words_are_those_of_the_loaded_model(tmp_path: Path, tensors: Tensors) -> None:
    for path in (write_gguf(tmp_path / "m.gguf", tensors), write_hf(tmp_path / "m", tensors)):
        words, text = load_assets(str(path)), load_model(str(path)).text
        assert words.tokenizer.to_str() == text.tokenizer.to_str()
        assert words.chat_template == text.chat_template


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    folder = str(write_hf(tmp_path / "m", tensors, vocab_size=39))
    message = "the tokenizer has 40 tokens, more than the model's 39"
    with pytest.raises(ModelError, match=message):
        _ = load_text(folder).tokenizer
    with pytest.raises(ModelError, match=f"^m: {message}"):
        check_vocabulary(load_assets(folder).tokenizer, 39, "m")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_assets(str(folder))


def test_reading_words_imports_no_numpy() -> None:
    program = (
        "import sys; from octavo_inference import server; from octavo_inference.tokenizer.assets import load_assets; "
        "assert load_assets('smollm2').chat_template; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_special_tokens_of_a_gguf_file_have_roles(tmp_path: Path, tensors: Tensors) -> None:
    def named(writer: gguf.GGUFWriter) -> None:
        writer.add_bos_token_id(1)
        writer.add_pad_token_id(2)
        writer.add_unk_token_id(4_000_000_000)

    words = load_assets(str(write_gguf(tmp_path / "m.gguf", tensors, extra=named)))
    assert words.special_tokens == {"bos_token": "a", "eos_token": "<|end|>", "pad_token": "b"}, (
        "an id outside the vocabulary names no token"
    )
    assert words.tokenizer_class == "PreTrainedTokenizerFast"


def test_special_tokens_of_a_folder_are_those_of_its_configuration(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    config = {"tokenizer_class": "LlamaTokenizer", "pad_token": {"content": "a"}, "unk_token": "b", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    words = load_assets(str(folder))
    assert words.special_tokens == {"pad_token": "a", "unk_token": "b"}
    assert words.tokenizer_class == "LlamaTokenizer"

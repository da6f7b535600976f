"""What the API process reads of a model: its words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

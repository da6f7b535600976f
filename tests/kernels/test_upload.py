"""Weights on the device: what they are, how much they take there, and how little on the host."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor as Torch

from octavo_inference.backends.cuda import weight_sender as module
from octavo_inference.backends.cuda.device_weights import DeviceWeights
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm
from octavo_inference.backends.cuda.packing import Quantization
from octavo_inference.backends.cuda.weight_loading import device_bytes, upload
from octavo_inference.common.errors import SettingsError
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import Format, LayerWeights, Tensor, Weights, dequantize

from .stored import stored, vector

CPU = torch.device("cpu")
HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB = 256, 4, 2, 64, 512, 77


def model(
    kind: Format, *, v: Format | None = None, tied: bool = True, biases: bool = False
) -> tuple[ModelConfig, Weights]:
    """Two layers with matrices of a kind, v of another."""
    rng = np.random.default_rng(3)

    def layer() -> LayerWeights:
        given = {
            "q_bias": vector(rng, HEADS * DIM),
            "k_bias": vector(rng, KV_HEADS * DIM),
            "v_bias": vector(rng, KV_HEADS * DIM),
            "q_norm": vector(rng, DIM),
            "mlp_output_norm": vector(rng, HIDDEN),
        }
        return LayerWeights(
            input_norm=vector(rng, HIDDEN),
            q=stored(rng, kind, HEADS * DIM, HIDDEN),
            k=stored(rng, kind, KV_HEADS * DIM, HIDDEN),
            v=stored(rng, v or kind, KV_HEADS * DIM, HIDDEN),
            o=stored(rng, kind, HIDDEN, HEADS * DIM),
            post_norm=vector(rng, HIDDEN),
            gate=stored(rng, kind, FFN, HIDDEN),
            up=stored(rng, kind, FFN, HIDDEN),
            down=stored(rng, v or kind, HIDDEN, FFN),
            **(given if biases else {}),
        )

    embedding = stored(rng, v or kind, VOCAB, HIDDEN)
    head = embedding if tied else stored(rng, kind, VOCAB, HIDDEN)
    config = ModelConfig(
        "llama", 2, HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, 128, 10000.0, 1e-5, tied, (2,), qkv_bias=biases,
        qk_norm="head" if biases else None, output_norms=biases,
    )  # fmt: skip
    return config, Weights(embedding, (layer(), layer()), vector(rng, HIDDEN), head)


def memory(weights: DeviceWeights) -> int:
    """Bytes of all tensors that can be reached, each once."""
    found: dict[int, int] = {}

    def visit(value: object) -> None:
        if isinstance(value, Torch):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, tuple):
            for item in value:
                visit(item)
        elif hasattr(value, "__slots__"):
            for name in value.__slots__:
                visit(getattr(value, name))

    visit(weights)
    return sum(found.values())


CASES: list[tuple[Format, Format | None, bool, bool, torch.dtype, Quantization]] = [
    ("bf16", None, True, True, torch.bfloat16, "auto"),
    ("bf16", "f32", False, False, torch.float32, "auto"),
    ("f32", None, False, True, torch.bfloat16, "auto"),
    ("q4_k", "q6_k", True, True, torch.float32, "auto"),
    ("q4_0", "q4_1", False, False, torch.bfloat16, "auto"),
    ("q8_0", None, True, False, torch.float32, "fp8"),
    ("q4_k", "q6_k", False, True, torch.bfloat16, "dense"),
    ("bf16", None, False, True, torch.bfloat16, "fp8"),
    ("f32", "q5_k", True, False, torch.float32, "fp8"),
    ("f16", None, False, False, torch.bfloat16, "fp8"),
]


@pytest.mark.parametrize(("kind", "v", "tied", "biases", "dtype", "quantization"), CASES)
def test_as_many_bytes_as_said(
    monkeypatch: pytest.MonkeyPatch,
    kind: Format,
    v: Format | None,
    tied: bool,
    biases: bool,
    dtype: torch.dtype,
    quantization: Quantization,
) -> None:
    monkeypatch.setattr(module, "_PIECE", 40 * HIDDEN)
    config, weights = model(kind, v=v, tied=tied, biases=biases)
    told: list[tuple[int, int]] = []
    loaded = upload(
        config,
        weights,
        device=CPU,
        dtype=dtype,
        quantization=quantization,
        progress=lambda done, total: told.append((done, total)),
    )
    said = device_bytes(config, weights, dtype=dtype, quantization=quantization)
    assert said == loaded.nbytes == memory(loaded)
    done = [done for done, _ in told]
    assert done == sorted(set(done))
    assert {total for _, total in told} == {done[-1]}
    assert len(done) > 40
    head, table = loaded.lm_head.parts[0], loaded.embedding.table
    assert (head.values.data_ptr() == table.values.data_ptr()) == tied


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "v"), [("bf16", None), ("q4_0", "q8_0")])
def test_a_rank_takes_the_bytes_of_its_part(kind: Format, v: Format | None, tied: bool) -> None:
    whole = model(kind, v=v, tied=tied, biases=True)
    config, weights = shard(*whole, rank=1, size=2)
    loaded = upload(config, weights, device=CPU, dtype=torch.float32)
    assert device_bytes(config, weights, dtype=torch.float32) == loaded.nbytes == memory(loaded)
    assert loaded.nbytes < device_bytes(*whole, dtype=torch.float32)
    words = loaded.embedding(torch.arange(48, VOCAB, dtype=torch.int32))
    head, table = loaded.lm_head.parts[0].values, loaded.embedding.table.values
    if tied:
        # Rows of the embedding, in its memory.
        assert head.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
        x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(loaded.lm_head(x), x @ words.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "piece"), [("f32", 1), ("bf16", 100 * HIDDEN), ("q5_k", 1 << 20), ("f16", 1 << 20)])
def test_dense_weights_arrive_whole(
    monkeypatch: pytest.MonkeyPatch, kind: Format, dtype: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    config, weights = model(kind, tied=False, biases=True)
    loaded = upload(config, weights, device=CPU, dtype=dtype, quantization="dense")

    def same(stored: list[Tensor], found: Torch) -> None:
        expected = torch.from_numpy(np.concatenate([dequantize(tensor) for tensor in stored]))
        assert torch.equal(found, expected.to(found.dtype))

    for layer, device in zip(weights.layers, loaded.layers, strict=True):
        same([layer.q, layer.k, layer.v], device.mixer.qkv.parts[0].values)
        same([layer.o], device.mixer.o.parts[0].values)
        same([layer.gate, layer.up], device.feed_forward.gate_up.parts[0].values)
        same([layer.down], device.feed_forward.down.parts[0].values)
        assert device.mixer.qkv.parts[0].values.dtype is dtype
        assert device.mixer.qkv.biases[0] is not None
        assert device.mixer.qkv.biases[0].dtype is dtype
        same([layer.q_bias, layer.k_bias, layer.v_bias], device.mixer.qkv.biases[0])
        assert device.mixer.o.biases == (None,)
        same([layer.input_norm], device.input_norm.weight)
        same([layer.post_norm], device.post_norm.weight)
        same([layer.q_norm], device.mixer.q_norm.weight)
        same([layer.mlp_output_norm], device.mlp_output_norm.weight)
        assert device.mixer.k_norm == device.attention_output_norm == DeviceNorm(None)
        assert device.input_norm.weight.dtype is torch.float32
    same([weights.embedding], loaded.embedding.table.values)
    same([weights.lm_head], loaded.lm_head.parts[0].values)
    same([weights.final_norm], loaded.final_norm.weight)


@pytest.mark.parametrize(("kind", "v"), [("q4_k", "q6_k"), ("q4_0", "q8_0"), ("bf16", "f32")])
def test_layers_multiply_by_the_stored_weights(kind: Format, v: Format) -> None:
    config, weights = model(kind, v=v, biases=True)
    weights = replace(weights, layers=weights.layers[:1])
    loaded = upload(replace(config, layers=1), weights, device=CPU, dtype=torch.float32)
    layer, device = weights.layers[0], loaded.layers[0]
    x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    rows = np.concatenate([dequantize(t) for t in (layer.q, layer.k, layer.v)])
    bias = np.concatenate([dequantize(b) for b in (layer.q_bias, layer.k_bias, layer.v_bias) if b is not None])
    expected = x.double().numpy() @ rows.T.astype(np.float64) + bias
    # Scales of k formats are rounded to fp16: 2**-11 of each term.
    np.testing.assert_allclose(device.mixer.qkv(x).numpy(), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    assert len(device.mixer.qkv.parts) == (1 if kind == "bf16" else 2)
    tokens = torch.tensor([76, 0, 5], dtype=torch.int32)
    np.testing.assert_allclose(
        loaded.embedding(tokens).numpy(), dequantize(weights.embedding)[[76, 0, 5]], rtol=2e-3, atol=1e-4
    )


def test_fp8_is_for_matrices_of_layers_that_are_floats() -> None:
    config, weights = model("bf16", v="q8_0", tied=False)
    loaded = upload(config, weights, device=CPU, dtype=torch.bfloat16, quantization="fp8")
    qkv = loaded.layers[0].mixer.qkv
    assert [part.layout.form for part in qkv.parts] == ["fp8", "int8"]
    assert loaded.layers[0].feed_forward.gate_up.parts[0].layout.form == "fp8"
    assert loaded.lm_head.parts[0].layout.form == "bf16"
    assert loaded.embedding.table.layout.form == "int8"
    exact = np.concatenate([dequantize(weights.layers[0].q), dequantize(weights.layers[0].k)])
    scales = qkv.parts[0].factors
    assert scales is not None
    found = qkv.parts[0].values.view(torch.float8_e4m3fn).float() * scales[:, None]
    np.testing.assert_allclose(found.numpy(), exact, rtol=1 / 16, atol=np.abs(exact).max() / 448 / 1024)


def test_other_types_are_refused() -> None:
    config, weights = model("f32")
    with pytest.raises(SettingsError, match="float16"):
        upload(config, weights, device=CPU, dtype=torch.float16)
    with pytest.raises(SettingsError, match="float16"):
        device_bytes(config, weights, dtype=torch.float16)


LOAD = """
import sys
from pathlib import Path
import torch
from octavo_inference.models.config import ModelConfig
from octavo_inference.checkpoints.from_gguf import weights_from_gguf
from octavo_inference.checkpoints.from_hf import weights_from_hf
from octavo_inference.checkpoints.gguf import read_gguf
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.models.weights import dequantize
from octavo_inference.backends.cuda.weight_loading import upload

def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024

config = ModelConfig("qwen2", 2, 1024, 16, 4, 64, 4096, 24000, 128, 1e4, 1e-5, True, (2,))
folder = Path(sys.argv[1])
for weights in (
    weights_from_hf(folder, read_checkpoint(folder), config),
    weights_from_gguf(read_gguf(folder / "model.gguf"), config),
):
    before, seen = resident(), []
    loaded = upload(config, weights, device=torch.device("cpu"), dtype=torch.bfloat16,
                    progress=lambda done, total: seen.append(resident() - done))
    # What a device would hold is in this process too, and not counted.
    print(loaded.nbytes, max(seen) - before)
    for layer, device in zip(weights.layers, loaded.layers):
        part = device.feed_forward.down.parts[0]
        found = part.values.float()
        if part.scales is not None:
            found = (found - 128) * part.scales.float().repeat_interleave(32, dim=1)
        assert torch.equal(found, torch.from_numpy(dequantize(layer.down)))
"""


def tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model of `LOAD`."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (24000, 1024), "model.norm.weight": (1024,)}
    for number in range(2):
        p = f"model.layers.{number}."
        shapes |= {p + "input_layernorm.weight": (1024,), p + "post_attention_layernorm.weight": (1024,)}
        shapes |= {p + f"self_attn.{n}_proj.weight": (r, 1024) for n, r in (("q", 1024), ("k", 256), ("v", 256))}
        shapes |= {p + "self_attn.o_proj.weight": (1024, 1024), p + "mlp.down_proj.weight": (1024, 4096)}
        shapes |= {p + f"mlp.{name}_proj.weight": (4096, 1024) for name in ("gate", "up")}
    return shapes


def write_gguf(path: Path) -> None:
    rng = np.random.default_rng(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    writer = gguf.GGUFWriter(path, "qwen2")
    for name, shape in tensors().items():
        target = names.get_name(name, try_suffixes=(".weight",))
        if len(shape) == 1:
            writer.add_tensor(target, rng.standard_normal(shape, np.float32))
        else:
            writer.add_tensor(target, stored(rng, "q8_0", *shape).data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_host_never_holds_the_whole(tmp_path: Path) -> None:
    values = {
        name: torch.arange(math.prod(shape)).remainder(251).to(torch.bfloat16).view(shape)
        for name, shape in tensors().items()
    }
    save_file(values, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    write_gguf(tmp_path / "model.gguf")
    ran = subprocess.run([sys.executable, "-c", LOAD, tmp_path], check=True, capture_output=True, text=True)
    for line, whole in zip(ran.stdout.splitlines(), (100e6, 55e6), strict=True):
        on_device, host = map(int, line.split())
        assert on_device > whole
        # 16 MiB of staging, the packing of one piece, and what libraries take when they are first used.
        assert host < 40e6, f"{host / 1e6:.0f} MB more than before"

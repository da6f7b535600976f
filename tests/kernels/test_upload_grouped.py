"""Weights of published formats on the device: planes, bytes, orders of columns, and an engine's tokens with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda import weight_sender as module
from octavo_inference.backends.cuda.buffers import ActivationCopies
from octavo_inference.backends.cuda.device import Device, Fp8Products, fp8_products
from octavo_inference.backends.cuda.linear import FP8_ROWS, LIBRARY_ROWS, Linear
from octavo_inference.backends.cuda.weight_loading import activation_copies, device_bytes, upload
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.groups import GroupedMatrix, Grouping
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import LayerWeights, Matrix, Weights, dequantize

from ..unit.engine.echo import make_runner  # noqa: TID252 -- tests are no package
from .grouped import GROUPINGS, grouped
from .stored import stored, vector
from .test_engine import PROMPTS, cuda, reference
from .test_upload import memory

CPU = torch.device("cpu")
HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB = 128, 4, 2, 32, 256, 61
Model = tuple[ModelConfig, Weights]


def model(
    grouping: Grouping, *, ordered: bool = False, v: Grouping | None = None, head: Grouping | None = None
) -> Model:
    """Two layers with matrices of a format. With `ordered`, q, k and v have one order, gate and up two."""
    rng = np.random.default_rng(4)
    size = {"int4": 0.02, "int8": 0.002, "code4": 0.1, "fp8": 0.002}

    def matrix(rows: int, cols: int, kind: Grouping = grouping) -> GroupedMatrix:
        return grouped(rng, kind, rows, cols, size=size[kind.kind], ordered=ordered)

    def layer() -> LayerWeights:
        q = matrix(HEADS * DIM, HIDDEN)
        k, w = (matrix(KV_HEADS * DIM, HIDDEN, kind) for kind in (grouping, v or grouping))
        return LayerWeights(
            input_norm=vector(rng, HIDDEN),
            q=q,
            k=replace(k, order=None if q.order is None else q.order.copy()),
            v=replace(w, order=None if q.order is None else q.order.copy()),
            o=matrix(HIDDEN, HEADS * DIM),
            post_norm=vector(rng, HIDDEN),
            gate=matrix(FFN, HIDDEN),
            up=matrix(FFN, HIDDEN),
            down=matrix(HIDDEN, FFN),
            q_bias=vector(rng, HEADS * DIM),
            k_bias=vector(rng, KV_HEADS * DIM),
            v_bias=vector(rng, KV_HEADS * DIM),
        )

    embedding = stored(rng, "bf16", VOCAB, HIDDEN)
    lm_head: Matrix = embedding if head is None else matrix(VOCAB, HIDDEN, head)
    config = ModelConfig(
        "llama", 2, HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, 128, 10000.0, 1e-5, head is None, (VOCAB - 1,),
        qkv_bias=True,
    )  # fmt: skip
    return config, Weights(embedding, (layer(), layer()), vector(rng, HIDDEN), lm_head)


CASES: dict[str, Model] = {
    "awq": model(GROUPINGS["awq"]),
    "gptq with act-order": model(GROUPINGS["gptq"], ordered=True),
    "a head in 8 bits": model(GROUPINGS["hqq"], head=GROUPINGS["int8 of 128"]),
    "a head with an order": model(GROUPINGS["nf4"], head=GROUPINGS["gptq"], ordered=True),
    "nvfp4, v in fp8": model(GROUPINGS["nvfp4"], v=GROUPINGS["fp8 blocks"]),
    "fp8 by row": model(Grouping("fp8", HIDDEN)),
    "groups of 8": model(Grouping("int4", 8), ordered=True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("quantization", ["auto", "dense"])
def test_as_many_bytes_as_said(monkeypatch: pytest.MonkeyPatch, name: str, quantization: module.Quantization) -> None:
    monkeypatch.setattr(module, "_PIECE", 40 * HIDDEN)
    config, weights = CASES[name]
    done: list[int] = []
    loaded = upload(
        config,
        weights,
        device=CPU,
        dtype=torch.bfloat16,
        quantization=quantization,
        progress=lambda now, total: done.append(now),
    )
    said = device_bytes(config, weights, dtype=torch.bfloat16, quantization=quantization)
    assert said == loaded.nbytes == memory(loaded)
    assert done == sorted(set(done))


@pytest.mark.parametrize(
    ("name", "rows"),
    [(name, rows) for name in CASES for rows in (1, 5)] + [("gptq with act-order", LIBRARY_ROWS + 3)],
)
def test_layers_multiply_by_the_stored_weights(name: str, rows: int) -> None:
    config, weights = CASES[name]
    copy = torch.full((rows * FFN,), float("nan"))
    loaded = upload(config, weights, device=CPU, dtype=torch.float32, ordered_activations=copy)
    layer, device = weights.layers[0], loaded.layers[0]
    pairs: list[tuple[list[Matrix], Linear]] = [
        ([layer.q, layer.k, layer.v], device.mixer.qkv),
        ([layer.o], device.mixer.o),
        ([layer.gate, layer.up], device.feed_forward.gate_up),
        ([layer.down], device.feed_forward.down),
        ([weights.lm_head], loaded.lm_head),
    ]
    for matrices, linear in pairs:
        x = torch.randn(rows, matrices[0].shape[1], generator=torch.Generator().manual_seed(rows))
        expected = x.double().numpy() @ np.concatenate([dequantize(m) for m in matrices]).T.astype(np.float64)
        if linear is device.mixer.qkv:
            expected += np.concatenate([dequantize(b) for b in (layer.q_bias, layer.k_bias, layer.v_bias) if b])
        # Scales and minimums of these are exact in fp16.
        np.testing.assert_allclose(linear(x), expected, rtol=0, atol=4e-5 * np.abs(expected).max())


def test_neighbours_of_one_order_are_one_matrix() -> None:
    config, weights = CASES["gptq with act-order"]
    layer = upload(config, weights, device=CPU, dtype=torch.float32).layers[0]
    [qkv], [gate, up] = layer.mixer.qkv.parts, layer.feed_forward.gate_up.parts
    assert isinstance(weights.layers[0].q, GroupedMatrix)
    assert qkv.order is not None
    assert torch.equal(qkv.order, torch.from_numpy(weights.layers[0].q.order))
    assert gate.order is not None
    assert up.order is not None
    assert not torch.equal(gate.order, up.order)


@pytest.mark.parametrize("name", ["a head in 8 bits", "nvfp4, v in fp8"])
def test_a_rank_takes_whole_groups(name: str) -> None:
    whole = CASES[name]
    config, weights = shard(*whole, rank=1, size=2)
    loaded = upload(config, weights, device=CPU, dtype=torch.float32)
    assert device_bytes(config, weights, dtype=torch.float32) == loaded.nbytes == memory(loaded)
    x = torch.randn(3, FFN // 2, generator=torch.Generator().manual_seed(0))
    expected = x.double().numpy() @ dequantize(whole[1].layers[1].down)[:, FFN // 2 :].T.astype(np.float64)
    np.testing.assert_allclose(
        loaded.layers[1].feed_forward.down(x), expected, rtol=0, atol=4e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize(
    ("name", "quantization", "expected"),
    [
        ("awq", "auto", ActivationCopies()),
        ("gptq with act-order", "auto", ActivationCopies(ordered=True)),
        ("gptq with act-order", "dense", ActivationCopies()),
        ("a head with an order", "auto", ActivationCopies(ordered=True)),
        ("groups of 8", "auto", ActivationCopies()),
        ("fp8 by row", "auto", ActivationCopies(fp8=True)),
        ("fp8 by row", "dense", ActivationCopies()),
    ],
)
def test_which_copies_of_activations_are_read(
    name: str, quantization: module.Quantization, expected: ActivationCopies
) -> None:
    config, weights = CASES[name]
    fp8 = Fp8Products(rows=True)
    found = activation_copies(config, weights, dtype=torch.bfloat16, quantization=quantization, fp8=fp8)
    assert found == expected
    assert not activation_copies(config, weights, dtype=torch.bfloat16, quantization=quantization).fp8


@pytest.mark.parametrize(
    "name", ["awq", "gptq with act-order", "a head with an order", "nvfp4, v in fp8", "fp8 by row"]
)
def test_an_engine_gives_the_tokens_of_the_reference(name: str) -> None:
    given = CASES[name]
    tokens = []
    for backend in (cuda(given), reference(given)):
        runner = make_runner(backend, max_model_len=32, budget=40, max_running=8, caching=False)
        for i, prompt in enumerate(PROMPTS):
            runner.submit(str(i), prompt, temperature=i % 2, seed=i, max_tokens=5, ignore_eos=True)
        runner.finish()
        tokens.append(runner.tokens)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(("capability", "copies"), [((9, 0), True), ((8, 0), False)])
def test_buffers_for_fp8_are_there_where_a_gpu_multiplies_it(capability: tuple[int, int], copies: bool) -> None:
    config, weights = CASES["fp8 by row"]
    fp8 = fp8_products(Device(CPU, "a card", capability, 1, 0, 0), torch.bfloat16)
    assert activation_copies(config, weights, dtype=torch.bfloat16, fp8=fp8).fp8 is copies
    eight = torch.zeros(FP8_ROWS * FFN, dtype=torch.uint8)
    loaded = upload(config, weights, device=CPU, dtype=torch.float32, fp8=fp8, fp8_activations=eight)
    loaded.layers[0].mixer.qkv(torch.randn(FP8_ROWS, HIDDEN))
    assert bool(eight.any()) is copies

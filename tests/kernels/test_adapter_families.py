"""Adapters in PEFT's format on the CUDA backend: logits against transformers with the same changes in its weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.checkpoints.peft import read_adapter, stored_biases
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.model_loader import LoadedModel, load_model

from ..integration.engine.families import (  # noqa: TID252 -- tests are no package
    DENSE,
    EXPERTS,
    FAMILIES,
    HYBRIDS,
    LATENT,
    LATENT_EXPERTS,
    build,
    save,
)
from ..integration.engine.test_adapter_families import change  # noqa: TID252 -- as above
from .family_logits import BLOCK, BLOCKS, LONGEST, SPANS, expected, prompts, rows_until, step

# Separate and stacked projections, rotary pairs in another order, matrices that are stored transposed, parallel layers,
# latents of queries, inputs of a gated delta net.
_FEW = ("llama", "phi3", "gpt2", "falcon-new", "deepseek_v3", "qwen3_next")

_CHOOSE = re.compile(r"router|\.gate$|shared_expert_gate")
# Its changed weights enlarge errors of rounding a hundredfold in one step, also when they are merged.
_ILL_CONDITIONED = {"granitemoe-shared": 1e-3}
_ALL = FAMILIES | DENSE | EXPERTS | LATENT | LATENT_EXPERTS | HYBRIDS
# Transformers takes other divisors for prompts as short as these.
_NAMES = [name for name in _ALL if name != "phi3-long"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _FEW else [pytest.mark.full]) for name in _NAMES]
)
def test_logits_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    """In steps that some sequences share with the model itself."""
    model = build(_ALL[name])
    save(model, tmp_path / "model")
    changed = change(model, tmp_path / "adapter", _CHOOSE)
    loaded = load_model(str(tmp_path / "model"))
    assert isinstance(loaded, LoadedModel)
    backend = CudaBackend.create(
        loaded.config, loaded.weights, device=find_device(), num_blocks=BLOCKS, block_size=BLOCK, max_batched_tokens=48,
        max_running=4, max_model_len=LONGEST, dtype=torch.float32, adapter_slots=2, max_adapter_rank=16,
    )  # fmt: skip
    folder, biases = tmp_path / "adapter", stored_biases(loaded.weights)
    outer = OuterMatrices.of(loaded.weights)
    adapter = read_adapter(folder, loaded.config, biases, outer, loaded.text.path, 16)
    backend.load_adapter(1, backend.prepare_adapter(adapter))
    tokens = prompts()
    with_adapter, without = expected(changed), expected(model)
    for first, end in SPANS:
        rows = rows_until(end)
        slots = np.array([1 if row % 2 == 0 else -1 for row in rows], np.int32)
        given = replace(step(tokens, rows, first, end, len(backend.layout.groups)), adapter=slots)
        for found, slot, one, other in zip(backend.logits(given), slots, with_adapter, without, strict=False):
            wanted = one if slot >= 0 else other
            bound = _ILL_CONDITIONED.get(name, 2e-4)
            np.testing.assert_allclose(found, wanted, atol=bound * np.abs(wanted).max() + 2e-5)

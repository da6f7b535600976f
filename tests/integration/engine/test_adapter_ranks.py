"""Adapters in PEFT's format, of every family that several GPUs can share: their parts change the parts of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.adapters import merged

from octavo_inference.checkpoints.peft import read_adapter, stored_biases
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.common.errors import SettingsError
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.adapter_shard import shard_adapter
from octavo_inference.models.shard import require_shards, shard
from octavo_inference.models.weights import dequantize

from .families import DENSE, EXPERTS, FAMILIES, LATENT, build, params, save
from .test_adapter_families import RANK, change

ALL = FAMILIES | DENSE | EXPERTS | LATENT
# Families with norms over all heads, which no number of GPUs can share.
WHOLE = {"olmo2", "olmo3", "olmo3-yarn", "olmoe", "minimax_m2"}


@pytest.mark.parametrize("name", params(ALL))
def test_parts_change_parts(name: str, tmp_path: Path) -> None:
    model = build(ALL[name])
    save(model, tmp_path / "model")
    change(model, tmp_path / "adapter")
    loaded = load_model(str(tmp_path / "model"))
    assert isinstance(loaded, LoadedModel)
    config, weights = loaded.config, loaded.weights
    if name in WHOLE:
        with pytest.raises(SettingsError, match="normalizes queries over all heads together"):
            require_shards(config, weights, 2)
        return
    outer = OuterMatrices.of(weights)
    adapter = read_adapter(tmp_path / "adapter", config, stored_biases(weights), outer, loaded.text.path, RANK)
    whole = merged(weights, adapter)
    for rank in range(2):
        part = shard_adapter(adapter, config, rank=rank, size=2)
        found = merged(shard(config, weights, rank=rank, size=2)[1], part)
        wanted = shard(config, whole, rank=rank, size=2)[1]
        for ours, theirs in zip(found.tensors(), wanted.tensors(), strict=True):
            np.testing.assert_allclose(dequantize(ours), dequantize(theirs), atol=1e-5)

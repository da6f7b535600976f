"""Embedding models of one direction on the CUDA backend: the hidden states of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.model_loader import LoadedModel, load_model

from ..integration.engine.encoders import CROSS, ENCODERS, prompts, states_of, written  # noqa: TID252 -- tests are no package
from ..unit.engine.echo import Runner, Ticks  # noqa: TID252 -- as above

MODELS = {name: ENCODERS[name] for name in ("e5-mistral", "qwen3-embedding")} | {"reranker": CROSS["qwen3"]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["qwen3-embedding", pytest.param("e5-mistral", marks=pytest.mark.full), "reranker"])
def test_states_of_the_last_tokens(name: str, tmp_path: Path) -> None:
    model = written(MODELS[name], tmp_path)
    loaded = load_model(str(tmp_path))
    assert isinstance(loaded, LoadedModel)
    backend = CudaBackend.create(
        loaded.config, loaded.weights, device=find_device(), num_blocks=64, block_size=16, max_batched_tokens=64,
        max_running=4, max_model_len=95, dtype=torch.float32,
    )  # fmt: skip
    clock = Ticks(1.0)
    limits = EngineLimits(max_model_len=95, max_running=4, max_batched_tokens=40, max_queued=9)
    runner = Runner(Engine(backend, loaded.config, limits, clock=clock), clock)
    for number, tokens in enumerate(prompts()):
        runner.submit(str(number), tokens, pooling="last")
    runner.finish()
    for number, tokens in enumerate(prompts()):
        np.testing.assert_allclose(runner.embedding(str(number)), states_of(model, tokens)[-1], atol=2e-4)

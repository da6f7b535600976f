"""What few dense families have, in the whole engine, its kernels interpreted, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo_inference.backends.cuda.backend import CudaBackend, check
from octavo_inference.backends.cuda.buffers import StepLimits, buffer_shapes
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.backends.cuda.weight_loading import device_bytes, upload
from octavo_inference.common.errors import SettingsError, UnsupportedModelError

from .dense_models import DENSE_MODELS, dense_model
from .test_engine import BLOCK, LONGEST, NO_CACHE, cuda, reference, run
from .test_expert_layers import logits, step
from .test_upload import CPU, memory


@pytest.mark.parametrize("name", DENSE_MODELS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    """Prompts in tiles, then one token of each; then a single one."""
    steps = [step([9, 3, 21]), step([9, 3, 21], computed=1), step([22], computed=1)]
    found, expected, _ = logits(dense_model(**DENSE_MODELS[name]), steps)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 2e-5 * np.abs(other).max()


@pytest.mark.parametrize("name", DENSE_MODELS)
def test_what_is_uploaded_is_counted(name: str) -> None:
    config, weights = dense_model(**DENSE_MODELS[name])
    loaded = upload(config, weights, device=CPU, dtype=torch.bfloat16)
    assert device_bytes(config, weights, dtype=torch.bfloat16) == loaded.nbytes == memory(loaded)


def everything() -> dict[str, Any]:
    return DENSE_MODELS["parallel, two norms"] | DENSE_MODELS["ALiBi"] | DENSE_MODELS["learned positions"]


@pytest.mark.parametrize(("blocks", "limits"), [(32, {"budget": 7}), (4, {})], ids=["chunks", "preemption"])
def test_the_engine_gives_the_tokens_of_the_reference(blocks: int, limits: dict[str, Any]) -> None:
    model = dense_model(**everything())
    runner = run(cuda(model, blocks), **limits)
    assert runner.tokens == run(reference(model), **NO_CACHE).tokens
    assert (runner.engine.scheduler.preemptions > 0) == (blocks < 32)


@pytest.mark.parametrize("name", ["output norms alone", "parallel, two norms"])
def test_recorded_steps_are_those_that_run_directly(name: str) -> None:
    """All that these models launch is in the list of a step, also what torch launches."""
    model = dense_model(**DENSE_MODELS[name])

    def small(**given: Any) -> CudaBackend:
        return CudaBackend.create(
            *model, device=find_device(), num_blocks=16, block_size=BLOCK, max_batched_tokens=16, max_running=2,
            max_model_len=LONGEST, dtype=torch.float32, **given,
        )  # fmt: skip

    backend, other = small(capture=record), reference(model)
    assert backend.graphs is not None
    backend.graphs.start()
    for one in (step([9, 3]), step([9, 3], computed=1), step([10, 4], computed=1)):
        found = backend.launch(one).collect()
        assert found.tokens.tolist() == other.launch(one).collect().tokens.tolist()


def test_plain_models_have_no_buffer_for_second_outputs() -> None:
    limits = StepLimits(tokens=8, rows=2, positions=32, block_size=8, processors=1, vocab=61)
    sizes = [
        buffer_shapes(dense_model(parallel=parallel)[0], limits, torch.bfloat16).added.bytes
        for parallel in (False, True)
    ]
    assert sizes == [0, 8 * 32 * 2]


def test_positions_without_an_embedding_are_refused() -> None:
    model = dense_model(learned_positions=LONGEST - 1)
    with pytest.raises(SettingsError, match=f"max_model_len is {LONGEST}; the model has embeddings of {LONGEST - 1}"):
        cuda(model)


def test_norms_over_all_heads_after_the_rotation_are_refused() -> None:
    config, _ = dense_model(qk_norm="whole", qk_norm_rotated=True)
    with pytest.raises(UnsupportedModelError, match="norms over all heads after the rotation"):
        check(config, find_device(), "auto")

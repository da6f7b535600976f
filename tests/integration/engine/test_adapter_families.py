"""Adapters in PEFT's format, of every family: logits against transformers with the same changes in its weights."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.adapters import save_adapter
from transformers.pytorch_utils import Conv1D

from octavo_inference.backends.cpu.backend import CpuBackend
from octavo_inference.backends.cpu.native import library
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.checkpoints.peft import read_adapter, stored_biases
from octavo_inference.checkpoints.peft_rows import OuterMatrices
from octavo_inference.core.gather import Batch
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.layer_groups import pool_layout

from .families import BLOCK, DENSE, EXPERTS, FAMILIES, LATENT, Family, build, compare, params, save
from .gguf_files import GGUF, write_gguf

pytestmark = pytest.mark.timeout(600)
RANK, ALPHA = 8, 12.0
# Large changes of random weights enlarge what float32 rounds, by processor up to 3e-4. One that is left out is 1e-1.
TOLERANCE = 1e-3
# Families whose embeddings or heads have other names, scales, caps or biases, or are the same matrix.
ROWS = (
    *("llama", "gemma2", "gemma3", "granite", "mixtral", "minicpm3"),
    *("gpt2", "opt", "gptneox", "gptj", "bloom", "falcon", "mpt", "phi2", "cohere"),
)
# Parts that change tensors of three dimensions, or choose experts.
_NO_TARGETS = re.compile(r"experts|shared_expert|router|\.gate$|kv_b_proj")


class Mixed:
    """Models whose answers to prompts alternate: the changed one, then the other."""

    def __init__(self, changed: Any, plain: Any) -> None:
        self._models, self._calls = (changed, plain), 0

    def __call__(self, tokens: Any, **options: Any) -> Any:
        self._calls += 1
        return self._models[(self._calls - 1) % 2](tokens, **options)


class Alternating:
    """A backend whose even sequences have the adapter in slot 1."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def logits(self, batch: Batch) -> Any:
        counts = batch.query_start[1:] - batch.query_start[:-1]
        slots = np.where(batch.states % 2 == 0, 1, -1).astype(np.int32)
        return self._backend.logits(replace(batch, adapter=np.repeat(slots, counts)))


def targets(model: Any, but: re.Pattern[str]) -> dict[str, Any]:
    """The linear layers inside of the decoder's layers, without some."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and re.search(r"\.\d+\.", name) and not but.search(name)
    }


def change(model: Any, folder: Path, but: re.Pattern[str] = _NO_TARGETS) -> Any:
    """A copy of a model with an adapter's changes, which are saved in `folder`. `but`: modules that it leaves."""
    changed = copy.deepcopy(model)
    torch.manual_seed(1)
    tensors = {}
    with torch.no_grad():
        for name, module in targets(changed, but).items():
            transposed = isinstance(module, Conv1D)
            rows, columns = module.weight.shape[::-1] if transposed else module.weight.shape
            down, up = torch.randn(RANK, columns) * columns**-0.5, torch.randn(rows, RANK) * 0.3
            delta = up @ down * (ALPHA / RANK**0.5)
            module.weight += delta.T if transposed else delta
            tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = down.numpy(), up.numpy()
    save_adapter(folder, tensors, r=RANK, lora_alpha=ALPHA, use_rslora=True, target_modules=["all-linear"])
    return changed


def replace_rows(model: Any, folder: Path) -> Any:
    """A copy with other rows of the embedding, which is saved whole, and of a head of its own, whose rows are named."""
    changed = copy.deepcopy(model)
    names = {module: name for name, module in changed.named_modules()}
    embedding, head = changed.get_input_embeddings(), changed.get_output_embeddings()
    ids = list(range(0, len(embedding.weight) - 1, 5))
    torch.manual_seed(1)
    named = {}
    with torch.no_grad():
        embedding.weight[ids] = torch.randn(len(ids), embedding.weight.shape[1]) * embedding.weight.std()
        tensors = {f"{names[embedding]}.weight": embedding.weight.numpy().copy()}
        if head.weight is not embedding.weight:
            named[names[head]] = [token + 1 for token in ids]
            rows = torch.randn(len(ids), head.weight.shape[1]) * head.weight.std()
            head.weight[named[names[head]]] = rows
            tensors[f"{names[head]}.token_adapter.trainable_tokens_delta"] = rows.numpy()
    save_adapter(folder, tensors, trainable_token_indices=named)
    return changed


def adapted(path: Path, folder: Path, max_model_len: int) -> list[Any]:
    """The reference and the best kernels, with the adapter loaded."""
    model = load_model(str(path))
    assert isinstance(model, LoadedModel)
    outer = OuterMatrices.of(model.weights)
    adapter = read_adapter(folder, model.config, stored_biases(model.weights), outer, model.text.path, 64)
    blocks = 24 * len(pool_layout(model.config).groups) + 1
    sizes: dict[str, Any] = {"num_blocks": blocks, "block_size": BLOCK, "max_model_len": max_model_len}
    found: list[Any] = []
    if model.config.latent is None:
        found.append(ReferenceBackend(model.config, model.weights, **sizes, adapter_slots=2))
    for variant in library.available()[:1]:
        cpu: dict[str, Any] = {"max_batched_tokens": 256, "max_running": 8, "dtype": "float32", "threads": 2}
        kernels = library.load(variant)
        found.append(
            CpuBackend.create(
                model.config, model.weights, kernels=kernels, adapter_slots=2, max_adapter_rank=64, **cpu, **sizes
            )
        )
    for backend in found:
        backend.load_adapter(1, backend.prepare_adapter(adapter))
    return [Alternating(backend) for backend in found]


def agree(family: Family, model: Any, changed: Any, path: Path) -> None:
    """All backends of the model at `path`, with the adapter beside it, give the logits of transformers' `changed`."""
    for backend in adapted(path, path.parent / "adapter", family.max_model_len):
        compare(family, Mixed(changed, model), backend, TOLERANCE)


@pytest.mark.parametrize("name", params([*FAMILIES, *DENSE, *EXPERTS, *LATENT]))
def test_from_safetensors(name: str, tmp_path: Path) -> None:
    family = (FAMILIES | DENSE | EXPERTS | LATENT)[name]
    model = build(family)
    save(model, tmp_path / "model")
    changed = change(model, tmp_path / "adapter")
    agree(family, model, changed, tmp_path / "model")


def change_fused(model: Any, folder: Path, *, older: bool) -> Any:
    """As `change`, of tensors that have the matrices of all experts, as PEFT's `target_parameters`.

    `older`: as PEFT before 0.19, with lora_A for the first axis of a matrix as it is stored, whatever that is.
    """
    changed = copy.deepcopy(model)
    torch.manual_seed(2)
    tensors = {}
    fused = {name: value for name, value in changed.named_parameters() if value.ndim == 3 and "experts" in name}
    assert fused
    with torch.no_grad():
        for name, value in fused.items():
            module, _, parameter = name.rpartition(".")
            experts, first, second = value.shape
            transposed = getattr(changed.get_submodule(module), "is_transposed", False) or "gpt_oss" in str(type(model))
            inputs_first = older or transposed or "llama4" in str(type(model))
            size_a, size_b = (first, second) if inputs_first else (second, first)
            a, b = torch.randn(experts * RANK, size_a) * size_a**-0.5, torch.randn(size_b, RANK * experts) * 0.2
            for expert in range(experts):
                of_expert = b[:, expert::experts] @ a[expert * RANK : (expert + 1) * RANK] * (ALPHA / RANK)
                value[expert] += of_expert.T if inputs_first else of_expert
            if parameter == "gate_up_proj":
                module += ".base_layer"
            tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = a.numpy(), b.numpy()
    names = sorted({name.split(".", 3)[3] for name in fused})
    save_adapter(folder, tensors, r=RANK, lora_alpha=ALPHA, target_modules=[], target_parameters=names)
    return changed


@pytest.mark.parametrize("name", params(EXPERTS))
@pytest.mark.parametrize("older", [True, False])
def test_of_all_experts_in_one_tensor(name: str, older: bool, tmp_path: Path) -> None:
    family = EXPERTS[name]
    model = build(family)
    save(model, tmp_path / "model")
    changed = change_fused(model, tmp_path / "adapter", older=older)
    agree(family, model, changed, tmp_path / "model")


@pytest.mark.parametrize("name", GGUF)
def test_from_gguf(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = build(family)
    path = write_gguf(tmp_path / "model.gguf", model, GGUF[name])
    changed = change(model, tmp_path / "adapter")
    agree(family, model, changed, path)


@pytest.mark.parametrize("name", params(ROWS))
def test_rows_of_tokens(name: str, tmp_path: Path) -> None:
    family = (FAMILIES | DENSE | EXPERTS | LATENT)[name]
    model = build(family)
    save(model, tmp_path / "model")
    changed = replace_rows(model, tmp_path / "adapter")
    agree(family, model, changed, tmp_path / "model")


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_rows_of_tokens_from_gguf(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = build(family)
    path = write_gguf(tmp_path / "model.gguf", model, GGUF[name])
    changed = replace_rows(model, tmp_path / "adapter")
    agree(family, model, changed, path)

"""The look at an adapter of a hub, and its download."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.prefetch.fake_hub import COMMIT, FakeHub
from tests.unit.prefetch.test_inspect import safetensors

from octavo_inference.download.adapter import fetch_adapter, look_at_adapter
from octavo_inference.download.transfer import PrefetchError
from octavo_inference.inspect_model import main
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.model import ModelFailure, decode_adapter_inspection

CONFIG = {"peft_type": "LORA", "r": 8, "rank_pattern": {"q_proj": 16}, "base_model_name_or_path": "org/base"}


def adapter_files(**changes: Any) -> dict[str, bytes]:
    shapes: dict[str, tuple[int, ...]] = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (16, 64),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (64, 16),
    }
    return {
        "adapter_config.json": json.dumps(CONFIG | changes).encode(),
        "adapter_model.safetensors": safetensors(shapes, "F32"),
        "README.md": b"# an adapter",
    }


@pytest.fixture
def adapters(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.files = adapter_files()
    return hub


def test_rank_and_size_come_from_the_headers(adapters: FakeHub, tmp_path: Path) -> None:
    report = tmp_path / "report"
    assert main(["hf://org/tiny", "--adapter", "--report", str(report)]) == 0
    size = len(adapters.files["adapter_model.safetensors"])
    assert decode_adapter_inspection(report.read_bytes()) == AdapterInspection(
        revision=COMMIT, rank=16, file_bytes=size, base="org/base"
    )


def test_whole_matrices_are_known_by_their_headers(adapters: FakeHub) -> None:
    """Whether they differ from the model's in more rows than are supported is known when a server loads them."""
    adapters.files = adapter_files(modules_to_save=["lm_head"])
    shapes = {"base_model.model.lm_head.weight": (1000, 64)}
    adapters.files["adapter_model.safetensors"] = safetensors(shapes, "F32")
    found = look_at_adapter("hf://org/tiny")
    assert isinstance(found, AdapterInspection)
    assert found.file_bytes > 4 * 1000 * 64


@pytest.mark.parametrize(
    ("files", "reason", "message"),
    [
        (adapter_files(use_dora=True), "InvalidModel", "DoRA"),
        (adapter_files(modules_to_save=["score"]), "InvalidModel", "modules_to_save has 'score'"),
        (adapter_files(trainable_token_indices=list(range(513))), "InvalidModel", "has 513 ids; up to 512"),
        (adapter_files(peft_type="IA3"), "InvalidModel", "only LORA is supported"),
        ({"adapter_config.json": b"{}"}, "InvalidModel", "has no adapter_model.safetensors"),
        (
            {"config.json": b"{}", "model.safetensors": b""},
            "InvalidModel",
            "no adapter_config.json and no adapter_model",
        ),
        (adapter_files() | {"adapter_model.safetensors": b"x" * 100}, "InvalidModel", "adapter_model.safetensors"),
    ],
)
def test_what_is_no_adapter_says_why(files: dict[str, bytes], reason: str, message: str, adapters: FakeHub) -> None:
    adapters.files = files
    found = look_at_adapter("hf://org/tiny")
    assert isinstance(found, ModelFailure)
    assert found.reason == reason
    assert message in found.message


def test_a_folder_of_a_volume_is_inspected_in_place(tmp_path: Path) -> None:
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert look_at_adapter(str(tmp_path)) == AdapterInspection(rank=16, file_bytes=size, base="org/base")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x" * 100)
    found = look_at_adapter(str(tmp_path))
    assert isinstance(found, ModelFailure)
    assert found.reason == "InvalidModel"
    (tmp_path / "adapter_model.safetensors").unlink()
    for folder in (tmp_path, tmp_path / "none"):
        found = look_at_adapter(str(folder))
        assert isinstance(found, ModelFailure)
        assert f"{folder.name} has no " in found.message
        assert "adapter_model.safetensors: an adapter is a folder that PEFT saved" in found.message


def test_a_missing_adapter_is_the_hubs_answer(adapters: FakeHub) -> None:
    found = look_at_adapter("hf://org/none")
    assert isinstance(found, ModelFailure)
    assert found.reason == "ModelNotFound"


def test_only_the_files_of_the_adapter_are_downloaded(adapters: FakeHub, tmp_path: Path) -> None:
    text = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "chat_template.jinja": b"{{ 1 }}"}
    adapters.files |= text | {"optimizer.pt": b"large", "special_tokens_map.json": b"{}"}
    fetch_adapter(f"hf://org/tiny@{COMMIT}", tmp_path / "to", lambda _: None, time.monotonic)
    there = {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()}
    assert there == text | {name: data for name, data in adapters.files.items() if name.startswith("adapter_")}


def test_the_size_is_that_of_all_that_is_downloaded(adapters: FakeHub, tmp_path: Path) -> None:
    """A pod decides by it whether there is room. The configuration, of 1 MiB at most, counts as overhead."""
    adapters.files |= {"tokenizer.json": b"x" * 3_000_000, "tokenizer_config.json": b"{}", "chat_template.jinja": b"{}"}
    found = look_at_adapter("hf://org/tiny")
    assert isinstance(found, AdapterInspection)
    fetch_adapter(f"hf://org/tiny@{COMMIT}", tmp_path, lambda _: None, time.monotonic)
    there = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert found.file_bytes == there - len(adapters.files["adapter_config.json"])
    in_place = look_at_adapter(str(tmp_path))
    assert isinstance(in_place, AdapterInspection)
    assert in_place.file_bytes == found.file_bytes


def test_a_template_that_is_too_large_is_not_downloaded(adapters: FakeHub, tmp_path: Path) -> None:
    adapters.files |= {"chat_template.jinja": b"x" * 300_000}
    found = look_at_adapter("hf://org/tiny")
    assert isinstance(found, ModelFailure)
    assert found.message == "org/tiny: chat_template.jinja has 300000 bytes; up to 262144 are possible for an adapter"
    with pytest.raises(PrefetchError, match=r"chat_template\.jinja has 300000 bytes"):
        fetch_adapter("hf://org/tiny", tmp_path / "to", lambda _: None, time.monotonic)

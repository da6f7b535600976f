"""What the operator writes for a server is what the server reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.operator.test_api import schema
from tests.unit.operator.test_builders import SPECS

from octavo_inference.config.server import build_parser
from octavo_inference.config.server import parse as parse_arguments
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import config
from octavo_protocol.engine_settings import GPU_PROFILES, PROFILES, EngineSettings
from octavo_protocol.knobs import BYTES, Setting, settings_of
from octavo_protocol.server_settings import ServerSettings

Json = dict[str, Any]


def test_sizes_named_in_the_api_are_those_of_the_engines_profiles() -> None:
    spec = schema()["spec"]
    stated = spec["properties"]["engine"]["properties"]["profile"]["description"]
    (rule,) = (r["rule"] for r in spec["x-kubernetes-validations"] if "profile == 'latency'" in r["rule"])
    for name, profile in (*PROFILES.items(), *GPU_PROFILES.items()):
        rows, tokens, percent = profile.max_running_requests, profile.max_batched_tokens, profile.prefill_slowdown * 100
        assert f"{name} is {rows}, {tokens}, {percent:g}" in stated
        assert f" {rows}" in rule


@pytest.mark.parametrize("name", SPECS)
def test_every_setting_is_one_the_server_knows(name: str, make_owner: Callable[..., LLMDeployment]) -> None:
    settings = config.server_settings(make_owner(SPECS[name]))
    flags = {option for action in build_parser()._actions for option in action.option_strings}
    assert {f"--{name}" for name in settings} <= flags


def test_every_field_of_the_settings_is_in_the_table() -> None:
    assert [field.name for field in dataclasses.fields(EngineSettings)] == [s.name for s in settings_of(EngineSettings)]
    others = [field.name for field in dataclasses.fields(ServerSettings) if field.name != "engine"]
    assert others == [setting.name for setting in settings_of(ServerSettings)]


def sample(setting: Setting) -> tuple[Any, Any]:
    """A value other than the default, as the engine takes it and as the API has it."""
    if setting.knob.unit == BYTES:
        return 3 << 20, "3Mi"
    if setting.offered:
        value = next(choice for choice in setting.offered if choice != setting.default)
        return value, value
    if setting.is_switch:
        return not setting.default, not setting.default
    assert setting.knob.api is not None
    assert setting.knob.low is not None
    number = round((setting.knob.low + 1) * setting.knob.api.scale)
    return number / setting.knob.api.scale, number


@pytest.mark.parametrize(
    "setting",
    [setting for setting in settings_of(EngineSettings) if setting.knob.api],
    ids=lambda setting: setting.name,
)
def test_a_field_of_the_api_is_the_setting_of_the_engine(
    setting: Setting, make_owner: Callable[..., LLMDeployment], tmp_path: Path
) -> None:
    wanted, value = sample(setting)
    assert setting.knob.api is not None
    spec: Json = value
    for name in reversed(setting.knob.api.path.split(".")):
        spec = {name: spec}
    owner = make_owner({"engine": spec})
    assert getattr(owner.spec.engine.settings, setting.name) == wanted
    (tmp_path / "server.toml").write_text(config.config_map(owner)["data"]["server.toml"])
    read = parse_arguments(["--config", str(tmp_path / "server.toml")]).engine
    assert getattr(read, setting.name) == wanted


def test_settings_are_read_as_they_were_meant(make_owner: Callable[..., LLMDeployment], tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text(
        config.config_map(make_owner(SPECS["every-pod-field"]))["data"]["server.toml"]
    )
    read = parse_arguments(["--config", str(tmp_path / "server.toml")]).engine
    assert (read.profile, read.cache_policy, read.batching, read.static_wait_ms) == (
        "throughput",
        "batch",
        "static",
        20,
    )
    assert (read.preemption, read.swap_memory, read.prefill_slowdown) == ("swap", 256 << 20, 2.5)
    (tmp_path / "server.toml").write_text(config.config_map(make_owner(SPECS["gpu-hub"]))["data"]["server.toml"])
    read = parse_arguments(["--config", str(tmp_path / "server.toml")]).engine
    assert (read.backend, read.kv_dtype, read.quantization, read.block_size) == ("cuda", "fp8", "fp8", 16)
    shared = config.config_map(make_owner(SPECS["gpus-that-share"]))["data"]["server.toml"]
    (tmp_path / "server.toml").write_text(shared)
    read = parse_arguments(["--config", str(tmp_path / "server.toml")]).engine
    assert (read.backend, read.tensor_parallel_size) == ("cuda", 4)

"""Flags and the TOML file: same names, same checks, the command line wins, errors say what to do."""

from __future__ import annotations

import pytest

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.server import build_parser, parse
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.knobs import settings_of
from octavo_protocol.server_settings import ServerSettings


def test_defaults():
    settings = parse([])
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.admin_host, settings.admin_port) == (
        "127.0.0.1",
        8000,
        "127.0.0.1",
        9000,
    )


def test_every_flag_in_a_file_or_on_the_command_line(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text(
        """
        model = "/model"
        served-model-name = ["big", "alias"]
        max-model-len = 4096
        kv-memory = "512Mi"
        prefix-caching = false
        threads = 2
        drain-timeout = 12.5
        """
    )
    from_file = parse(["--config", str(file)])
    flags = (
        "--model /model --served-model-name big --served-model-name alias --max-model-len 4096 --kv-memory 512Mi "
        "--no-prefix-caching --threads 2 --drain-timeout 12.5"
    )
    assert from_file == parse(flags.split())
    assert from_file.served_model_names == ("big", "alias")
    mixed = parse(["--config", str(file), "--served-model-name", "other", "--prefix-caching", "--threads=4"])
    assert (mixed.served_model_names, mixed.engine.prefix_caching, mixed.engine.threads) == (("other",), True, 4)
    assert mixed.engine.max_model_len == 4096


def test_the_model_may_be_named_without_its_flag(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('model = "/model"')
    for argv in (["org/tiny"], ["--port", "8001", "org/tiny"], ["org/tiny", "--config", str(file)]):
        assert parse(argv).engine.model == "org/tiny"
    with pytest.raises(SettingsError, match=r"MODEL: 'org/tiny' and --model '/model': name the model once"):
        parse(["org/tiny", "--model", "/model"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "1"], ["--prot", "did you mean --port"]),
        (["--port", "99999"], ["--port", "99999", "65535"]),
        (["--port", "http"], ["--port", "http"]),
        (["--kv-memory", "12Q"], ["--kv-memory", "12Q", "512Mi"]),
        (["--kv-memory", "10k"], ["--kv-memory", "1Mi"]),
        (["--dtype", "fp8"], ["--dtype", "fp8", "bfloat16"]),
        (["--device", "reference"], ["--device", "reference", "auto, cpu or cuda"]),
        (["--block-size", "17"], ["--block-size", "17", "32"]),
        (["--max-model-len", "-5"], ["--max-model-len"]),
        (["--served-model-name", "a b"], ["--served-model-name", "a b"]),
        (["--stall-seconds", "inf"], ["--stall-seconds"]),
        (["--batching", "static", "--static-wait-ms", "30000"], ["--static-wait-ms", "30000", "--stall-seconds 30"]),
        (["--config", "/does/not/exist"], ["--config", "/does/not/exist"]),
        (["org/tiny", "surprise"], ["surprise"]),
    ],
)
def test_errors_name_field_value_and_fix(argv, words):
    with pytest.raises(SettingsError) as caught:
        parse(argv)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-model-length = 5", ["max-model-length", "did you mean max-model-len"]),
        ("max-model-len = true", ["max-model-len", "True"]),
        ("prefix-caching = 1", ["prefix-caching", "true or false"]),
        ('port = "x"', ["port", "x"]),
        ("port = [1, 2]", ["port"]),
        ('config = "other.toml"', ["config"]),
        ("port = ", ["not TOML"]),
    ],
)
def test_errors_of_a_file_name_the_file(tmp_path, text, words):
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        parse(["--config", str(file)])
    assert all(word in str(caught.value) for word in [*words, "server.toml"])


def test_help_tells_every_flag():
    text = build_parser().format_help()
    assert all(f"--{setting.key}" in text for setting in (*settings_of(EngineSettings), *settings_of(ServerSettings)))

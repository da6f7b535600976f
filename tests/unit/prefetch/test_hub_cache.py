"""Models by name, in the cache folder that other tools of the hub share."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.unit.prefetch.fake_bucket import FakeBucket
from tests.unit.prefetch.fake_hub import COMMIT, WEIGHTS, FakeHub

from octavo_inference.common.errors import ModelError
from octavo_inference.download import hub_cache
from octavo_inference.download.hub_cache import LocalModel, RemoteModel, cache_folder, local_model, named
from octavo_inference.download.transfer import PrefetchError


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def environ(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/tiny", RemoteModel("org/tiny", "", "main")),
        ("hf://org/tiny", RemoteModel("org/tiny", "", "main")),
        ("org/tiny@v1.0", RemoteModel("org/tiny", "", "v1.0")),
        ("org/Tiny-GGUF:Q4_K_M", RemoteModel("org/Tiny-GGUF", "Q4_K_M", "main")),
        ("org/Tiny-GGUF:Q8_0@abc/1", RemoteModel("org/Tiny-GGUF", "Q8_0", "abc/1")),
        ("/models/tiny", None),
        ("./org/tiny", None),
        ("tiny", None),
        ("org/tiny/deeper", None),
        ("org/tiny.gguf", None),
    ],
)
def test_names_and_paths_are_told_apart(model: str, expected: RemoteModel | None) -> None:
    assert named(model) == expected


def test_a_folder_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_model("org/tiny", {}) == LocalModel("org/tiny")
    assert local_model("smollm2", {}) == LocalModel("smollm2")


def test_an_address_of_another_form_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model: 'hf://tiny' must be hf://ORGANISATION/NAME"):
        named("hf://tiny")


def test_a_model_is_downloaded_once_into_the_shared_folder(
    environ: dict[str, str], hub: FakeHub, tmp_path: Path
) -> None:
    out = io.StringIO()
    found = local_model("org/tiny", environ, out)
    folder = tmp_path / "hub/models--org--tiny"
    assert found == LocalModel(str(folder / "snapshots" / COMMIT), ("org/tiny",))
    assert (Path(found.path) / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "refs/main").read_text() == COMMIT
    assert "org/tiny: model.safetensors: 1.0 MB" in out.getvalue()
    hub.requests.clear()
    assert local_model("org/tiny", environ, out) == found
    assert not [path for role, path, _ in hub.requests if role == "storage"]


def test_what_another_tool_has_linked_there_is_taken(environ: dict[str, str], hub: FakeHub, tmp_path: Path) -> None:
    blob = tmp_path / "hub/models--org--tiny/blobs/x"
    link = tmp_path / "hub/models--org--tiny/snapshots" / COMMIT / "model.safetensors"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(WEIGHTS)
    link.symlink_to(blob)
    local_model("org/tiny", environ, io.StringIO())
    assert "/model.safetensors" not in [path for role, path, _ in hub.requests if role == "storage"]


def test_a_terminal_shows_a_bar(environ: dict[str, str]) -> None:
    out = Terminal()
    local_model("org/tiny", environ, out)
    assert "org/tiny: 100%|" in out.getvalue()
    assert "MB\n" not in out.getvalue()


def test_a_quantization_selects_one_of_several_files(environ: dict[str, str], hub: FakeHub) -> None:
    hub.files = {"tiny-Q4_K_M.gguf": b"4" * 2000, "tiny-Q8_0.gguf": b"8" * 2000, "config.json": b"{}"}
    found = local_model("org/tiny:q8_0", environ, io.StringIO())
    assert found.path.endswith(f"{COMMIT}/tiny-Q8_0.gguf")
    assert "/tiny-Q4_K_M.gguf" not in [path for _, path, _ in hub.requests]
    with pytest.raises(PrefetchError, match=r"0 GGUF files have 'Q2'.*there are: tiny-Q4_K_M.gguf, tiny-Q8_0.gguf"):
        local_model("org/tiny:Q2", environ, io.StringIO())


def test_a_quantization_in_several_files_is_found_again(environ: dict[str, str], hub: FakeHub) -> None:
    parts = ("tiny-Q8_0-00001-of-00002.gguf", "tiny-Q8_0-00002-of-00002.gguf")
    hub.files = {"tiny-Q4_K_M.gguf": b"4" * 2000, **dict.fromkeys(parts, b"8" * 2000)}
    found = local_model("org/tiny:Q8_0", environ, io.StringIO())
    assert found.path.endswith(parts[0])
    assert Path(found.path).with_name(parts[1]).exists()
    assert local_model("org/tiny:Q8_0", environ | {"HF_HUB_OFFLINE": "1"}, io.StringIO()) == found


@pytest.mark.parametrize("variable", ["HF_TOKEN", "a file"])
def test_a_gated_model_takes_the_usual_token(
    variable: str, environ: dict[str, str], hub: FakeHub, tmp_path: Path
) -> None:
    hub.token = "secret"
    with pytest.raises(PrefetchError, match=r"private or gated: set HF_TOKEN"):
        local_model("org/tiny", environ, io.StringIO())
    if variable == "HF_TOKEN":
        environ["HF_TOKEN"] = "secret"
    else:
        (tmp_path / "token").write_text("secret\n")
    assert local_model("org/tiny", environ, io.StringIO()).names == ("org/tiny",)


def test_offline_the_earlier_download_is_used(environ: dict[str, str], hub: FakeHub, tmp_path: Path) -> None:
    offline = environ | {"HF_HUB_OFFLINE": "1"}
    with pytest.raises(PrefetchError, match=r"org/tiny@main is not in .*hub \(HF_HUB_OFFLINE is set\)"):
        local_model("org/tiny", offline, io.StringIO())
    found = local_model("org/tiny", environ, io.StringIO())
    hub.requests.clear()
    assert local_model("org/tiny", offline, io.StringIO()) == found
    assert not hub.requests
    (Path(found.path) / "model.safetensors").unlink()
    with pytest.raises(PrefetchError, match=r"holds neither \*.safetensors nor \*.gguf .*HF_HUB_OFFLINE is set"):
        local_model("org/tiny", offline, io.StringIO())


def test_an_unreachable_hub_is_no_obstacle_to_what_is_there(
    environ: dict[str, str], hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "_briefly", lambda _: None)
    found = local_model("org/tiny", environ, io.StringIO())
    unreachable = environ | {"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    assert local_model("org/tiny", unreachable, io.StringIO()) == found
    with pytest.raises(PrefetchError, match=r"org/other@main is not in .* \(.*cannot be reached"):
        local_model("org/other", unreachable, io.StringIO())


def test_two_processes_do_not_write_the_same_file(environ: dict[str, str], hub: FakeHub) -> None:
    first, second = io.StringIO(), io.StringIO()
    hub.cut = [300_000]
    threads = [threading.Thread(target=local_model, args=("org/tiny", environ, out)) for out in (first, second)]
    for thread in threads:
        thread.start()
    eventually(lambda: not any(thread.is_alive() for thread in threads))
    assert "another process downloads this model" in first.getvalue() + second.getvalue()
    assert [path for role, path, _ in hub.requests if role == "storage"].count("/tokenizer.json") == 1


def test_a_bucket_is_kept_by_its_revision(bucket: FakeBucket, tmp_path: Path) -> None:
    found = local_model("s3://models/team/tiny", {"HF_HUB_CACHE": str(tmp_path)}, io.StringIO())
    assert Path(found.path).parent == tmp_path / "s3--models--team--tiny/snapshots"
    assert (Path(found.path) / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_folder_follows_the_variables_of_the_hub(variables: dict[str, str], folder: str) -> None:
    assert cache_folder(variables) == Path(folder)

"""Models in buckets, through the real library against a local server that answers as buckets do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.prefetch.fake_bucket import WEIGHTS, FakeBucket
from tests.unit.prefetch.test_inspect import LLAMA, llama_files

from octavo_inference.checkpoints.resolve import find_model
from octavo_inference.download import transfer
from octavo_inference.download.hub import prefetch
from octavo_inference.download.inspect import fill, inspect, inspect_remote, look
from octavo_inference.download.object_store import open_bucket
from octavo_inference.download.transfer import PrefetchError
from octavo_inference.prefetch import main
from octavo_protocol.model import ModelFailure

SCHEMES = ["s3", "gs"]
TINY = "models/team/tiny"
MODEL = {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.fixture
def fetch(bucket: FakeBucket, tmp_path: Path) -> Callable[..., list[str]]:
    def run(target: str = f"s3://{TINY}") -> list[str]:
        said: list[str] = []
        prefetch(*open_bucket(target, lambda _: None), tmp_path, said.append, lambda: 0.0)
        return said

    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def revision(target: str = f"s3://{TINY}") -> str:
    where, repo, wanted = open_bucket(target, lambda _: None)
    return where.commit(repo, wanted)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_comes_complete(scheme: str, fetch: Callable[..., list[str]], tmp_path: Path) -> None:
    said = fetch(f"{scheme}://{TINY}")
    assert names(tmp_path) == MODEL
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert re.fullmatch(r"models/team/tiny is revision [0-9a-f]{40}", said[0])
    assert said[-1] == "complete"


def test_what_is_there_is_not_fetched_again(fetch: Callable[..., list[str]], bucket: FakeBucket) -> None:
    fetch()
    sent = bucket.sent
    fetch()
    assert bucket.sent == sent


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_broken_connection_goes_on_where_it_stopped(
    scheme: str, fetch: Callable[..., list[str]], bucket: FakeBucket, tmp_path: Path
) -> None:
    bucket.cut = [300_000, 400_000]
    fetch(f"{scheme}://{TINY}")
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    asked = [headers for path, headers in bucket.requests if path.endswith("safetensors")]
    starts = [int(re.findall(r"\d+", {k.lower(): v for k, v in one.items()}["range"])[0]) for one in asked]
    # What broke off within the library's last piece comes again.
    assert starts[0] == 0
    assert 100_000 < starts[1] <= 300_000
    assert starts[1] + 200_000 < starts[2] <= starts[1] + 400_000


def test_a_revision_changes_with_the_model_and_with_nothing_else(bucket: FakeBucket) -> None:
    first = revision()
    bucket.files["team/tiny/README.md"] = b"# new"
    bucket.files["team/tiny/onnx/model.json"] = b"{ }"
    assert revision() == revision(f"gs://{TINY}/") == first
    bucket.files["team/tiny/config.json"] = b"[]"
    assert revision() != first


def test_a_changed_model_is_refused_and_both_revisions_named(
    bucket: FakeBucket, fetch: Callable[..., list[str]], tmp_path: Path
) -> None:
    pinned = revision()
    bucket.files["team/tiny/model.safetensors"] = b"?" + WEIGHTS[1:]
    with pytest.raises(PrefetchError, match=r"one was changed, added or removed; set spec.model.revision to") as error:
        fetch(f"s3://{TINY}@{pinned}")
    assert pinned in str(error.value)
    assert revision() in str(error.value)
    assert error.value.reason == "ModelNotFound"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_during_the_download_is_noticed(bucket: FakeBucket, tmp_path: Path) -> None:
    where, repo, _ = open_bucket(f"s3://{TINY}", lambda _: None)
    commit = where.commit(repo, "")
    weights = next(file for file in where.files(repo, commit) if file.name == "model.safetensors")
    bucket.files["team/tiny/model.safetensors"] = b"?" + WEIGHTS[1:]
    with pytest.raises(PrefetchError, match="changed, added or removed during the download"):
        where.download(repo, commit, weights, tmp_path, lambda _: None)
    del bucket.files["team/tiny/model.safetensors"]
    with pytest.raises(PrefetchError, match="changed, added or removed during the download"):
        where.head(repo, commit, weights, 10)
    with pytest.raises(PrefetchError, match="during the download"):
        where.files(repo, commit)
    assert "model.safetensors" not in names(tmp_path)


def test_one_of_several_ggufs_is_named(bucket: FakeBucket, fetch: Callable[..., list[str]], tmp_path: Path) -> None:
    bucket.files = {"a/Q4.gguf": b"4" * 100, "a/Q8.gguf": b"8" * 100, "top.gguf": b"t"}
    fetch("s3://models/a/Q4.gguf")
    assert names(tmp_path) == {"Q4.gguf"}
    with pytest.raises(PrefetchError, match="2 GGUF files"):
        fetch("s3://models/a")
    fetch("s3://models")
    assert names(tmp_path) == {"Q4.gguf", "top.gguf"}


def test_any_part_names_its_set(bucket: FakeBucket, fetch: Callable[..., list[str]], tmp_path: Path) -> None:
    parts = ("Q4-00001-of-00002.gguf", "Q4-00002-of-00002.gguf")
    bucket.files = {"a/Q8.gguf": b"8" * 100} | {f"a/{part}": b"4" * 100 for part in parts}
    fetch(f"s3://models/a/{parts[1]}")
    assert names(tmp_path) == set(parts)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_is_described_from_the_heads_of_its_files(scheme: str, bucket: FakeBucket, tmp_path: Path) -> None:
    weights = find_model("smollm2").read_bytes()
    bucket.files = {"a/model.gguf": weights}
    report = inspect_remote(*open_bucket(f"{scheme}://models/a", lambda _: None), tmp_path)
    assert report.weights == inspect("smollm2").weights
    assert bucket.sent < len(weights) / 5


def test_a_cache_is_filled_once_and_by_revision(bucket: FakeBucket, tmp_path: Path) -> None:
    bucket.files = {f"team/tiny/{name}": data for name, data in llama_files(LLAMA).items()}
    report = fill(*open_bucket(f"s3://{TINY}", lambda _: None), tmp_path)
    assert report.path == f"models--team--tiny/{revision()}"
    assert names(tmp_path / report.path) == MODEL
    sent = bucket.sent
    assert fill(*open_bucket(f"s3://{TINY}", lambda _: None), tmp_path) == report
    assert bucket.sent - sent < sent, "heads alone"


def test_the_key_is_used_and_none_is_none(
    bucket: FakeBucket, fetch: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.key = "AKIA"
    with pytest.raises(PrefetchError, match=r"403 AccessDenied.*credentialsSecretRef") as error:
        fetch()
    assert error.value.reason == "Unauthorized"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert fetch()[-1] == "complete"
    told = {name.lower(): value for name, value in bucket.requests[-1][1].items()}
    assert "/eu-north-1/s3/" in told["authorization"]
    assert told["x-amz-security-token"] == "session"
    assert "secret" not in json.dumps(bucket.requests)


def test_a_key_that_is_none_is_refused_and_not_told(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "not-json-and-very-secret")
    with pytest.raises(PrefetchError, match="GOOGLE_SERVICE_ACCOUNT_KEY") as error:
        open_bucket(f"gs://{TINY}")
    assert "very-secret" not in str(error.value)
    assert error.value.reason == "Unauthorized"


def test_a_service_account_key_is_read(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    assert revision(f"gs://{TINY}") == revision()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("answers", "reason", "message"),
    [
        ([(403, "SignatureDoesNotMatch")], "Unauthorized", "403 SignatureDoesNotMatch"),
        ([(400, "ExpiredToken")], "Unauthorized", "400 ExpiredToken"),
        ([(404, "NoSuchBucket")], "ModelNotFound", "there is no bucket 'models'"),
        ([(400, "AuthorizationHeaderMalformed")], "ModelNotFound", "AWS_REGION"),
        ([(301, "PermanentRedirect")], "ModelNotFound", "another region"),
        ([(429, "TooMany")] * 6, "RateLimited", "answered 429"),
        ([(503, "SlowDown")] * 6, "RateLimited", "answered 503 (SlowDown)"),
        ([(500, "InternalError")] * 6, "DownloadFailed", "answered 500 (InternalError)"),
    ],
)
def test_refusals_say_what_they_mean(
    scheme: str, answers: list[tuple[int, str]], reason: str, message: str, bucket: FakeBucket
) -> None:
    bucket.codes = list(answers)
    with pytest.raises(PrefetchError, match=re.escape(message)) as error:
        revision(f"{scheme}://{TINY}")
    assert error.value.reason == reason
    assert TINY in str(error.value)
    assert bucket.codes == []


def test_a_busy_bucket_is_asked_again(fetch: Callable[..., list[str]], bucket: FakeBucket) -> None:
    bucket.codes = [(503, "SlowDown"), (500, "InternalError")]
    assert fetch()[-1] == "complete"


def test_what_is_not_there_is_named(bucket: FakeBucket) -> None:
    with pytest.raises(PrefetchError, match="has no model files at models/team/none/") as error:
        revision("s3://models/team/none")
    assert error.value.reason == "ModelNotFound"
    with pytest.raises(PrefetchError, match=r"has no model files at models/team/tiny/Q4\.gguf"):
        revision("s3://models/team/tiny/Q4.gguf")


def test_nobody_there(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(PrefetchError, match="cannot be reached") as error:
        revision()
    assert error.value.reason == "SourceUnreachable"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(PrefetchError, match="AWS_ENDPOINT_URL: 'minio:9000' must be"):
        revision()


@pytest.mark.parametrize("target", ["s3://", "s3://models/../x", "s3://models//x", "s3://models/a@short", "s3://UP/x"])
def test_targets_that_are_none(target: str) -> None:
    with pytest.raises(PrefetchError, match="must be s3://BUCKET/PREFIX"):
        open_bucket(target)


def test_a_disk_that_fills_up_is_full(
    fetch: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = transfer.shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(transfer.shutil, "disk_usage", lambda _: usage._replace(free=10))
        with pytest.raises(PrefetchError, match="GB free and the model needs") as error:
            fetch()
    assert error.value.reason == "DiskFull"

    (tmp_path / "config.json.part").symlink_to("/dev/full")
    with pytest.raises(PrefetchError, match="GB free and the model needs") as error:
        fetch()
    assert error.value.reason == "DiskFull"


def test_the_programs_take_buckets(bucket: FakeBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"s3://{TINY}", "--to", str(tmp_path / "model")]) == 0
    assert main(["gs://none/x", "--to", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.strip() == "none/x: there is no bucket 'none' (404)"
    found = look("s3://none/x", None, any_architecture=False)
    assert isinstance(found, ModelFailure)
    assert found.reason == "ModelNotFound"


def test_the_server_does_not_pay_for_the_library() -> None:
    code = "import sys, octavo_inference.__main__, octavo_inference.prefetch; sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

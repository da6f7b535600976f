"""An image tag is resolved to its digest in the registry; otherwise the registry's answer is reported."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.request import Request

import pytest
from tests.unit.prefetch.fake_registry import DIGEST, FakeRegistry
from tests.unit.prefetch.test_inspect import llama_files

from octavo_inference.download.registry import (
    Credentials,
    Image,
    KeepTls,
    UnresolvedError,
    parse_image,
    read_pull_secrets,
    resolve_digest,
)
from octavo_inference.inspect_model import main
from octavo_protocol.model import ModelReport, decode_inspection, encode_inspection


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def resolve(registry: FakeRegistry, *known: Credentials, image: str = "") -> str:
    return resolve_digest(image or registry.image, known, sleep=lambda _: None)


def me(registry: FakeRegistry, path: str = "", word: str = "secret") -> Credentials:
    return Credentials(registry.host, path, "me", word)


@pytest.mark.parametrize(
    ("reference", "image"),
    [
        ("ghcr.io/org/model:1.2", Image("ghcr.io", "org/model", "1.2", "")),
        ("localhost:5000/a/b/c", Image("localhost:5000", "a/b/c", "latest", "")),
        ("localhost/m:1", Image("localhost", "m", "1", "")),
        ("org/model:1", Image("docker.io", "org/model", "1", "")),
        ("model", Image("docker.io", "library/model", "latest", "")),
        ("docker.io/model:2", Image("docker.io", "library/model", "2", "")),
        ("r.io/m:1@sha256:" + "a" * 64, Image("r.io", "m", "1", "sha256:" + "a" * 64)),
    ],
)
def test_references_are_read_as_runtimes_read_them(reference: str, image: Image) -> None:
    assert parse_image(reference) == image


@pytest.mark.parametrize("challenge", ["", "bearer"])
def test_an_open_registry_is_asked_without_credentials(challenge: str, registry: FakeRegistry) -> None:
    registry.challenge = challenge
    assert resolve(registry, Credentials("elsewhere.example", "", "me", "secret")) == DIGEST
    # A GET of a manifest counts as a pull.
    assert all(method == "HEAD" or path.startswith("/token") for method, path, _ in registry.requests)
    assert not any(given.startswith("Basic") for *_, given in registry.requests)


@pytest.mark.parametrize("challenge", ["basic", "bearer"])
def test_a_closed_registry_gets_the_pull_secret(challenge: str, registry: FakeRegistry) -> None:
    registry.challenge, registry.user = challenge, "me:secret"
    assert resolve(registry, me(registry)) == DIGEST
    # Not before it asks.
    assert registry.requests[0][2] == ""


def test_the_secret_of_the_longest_path_is_used(registry: FakeRegistry) -> None:
    registry.challenge, registry.user = "basic", "me:right"
    wrong, other = me(registry, word="wrong"), me(registry, "models/other", "wrong")
    assert resolve(registry, wrong, me(registry, "models", "right"), other) == DIGEST


def test_a_registry_that_names_no_digest_is_asked_for_the_manifest(registry: FakeRegistry) -> None:
    registry.names_digest = False
    assert resolve(registry) == DIGEST


def test_a_digest_of_sha512_can_be_reported(registry: FakeRegistry) -> None:
    registry.digest = f"sha512:{'a' * 128}"
    found = ModelReport(revision=resolve(registry))
    assert decode_inspection(encode_inspection(found)) == found


@pytest.mark.parametrize("digest", ["md5:" + "a" * 32, "sha256:" + "a" * 128, "sha256:" + "A" * 64])
def test_a_digest_of_another_kind_is_not_used(digest: str, registry: FakeRegistry) -> None:
    registry.digest = digest
    assert resolve(registry) == DIGEST


def test_part_of_a_manifest_has_no_digest(registry: FakeRegistry) -> None:
    registry.names_digest, registry.cut = False, 7
    with pytest.raises(UnresolvedError, match="the connection ended within its answer"):
        resolve(registry)
    registry.cut, registry.manifest = 0, b" " * ((4 << 20) + 1)
    with pytest.raises(UnresolvedError, match="its answer is longer than 4 MiB"):
        resolve(registry)


def test_a_realm_may_have_a_query(registry: FakeRegistry) -> None:
    registry.challenge, registry.realm = "bearer", "http://{host}/token?account=a"
    assert resolve(registry) == DIGEST
    assert any(path.startswith("/token?account=a&service=here&scope=") for _, path, _ in registry.requests)


@pytest.mark.parametrize("realm", ["https://[bad", "http://registry.example/token", "file:///token", "", "https://"])
def test_credentials_go_to_no_other_realm(realm: str, registry: FakeRegistry) -> None:
    registry.challenge, registry.realm = "bearer", realm
    with pytest.raises(UnresolvedError, match=r"asks for 'Bearer realm=.* which is not supported"):
        resolve(registry, me(registry))


@pytest.mark.parametrize("token", ["two\nlines", "", "ä", "a b"])
def test_a_token_that_no_header_can_have_is_none(token: str, registry: FakeRegistry) -> None:
    registry.challenge, registry.token_text = "bearer", token
    with pytest.raises(UnresolvedError, match="has no token") as refused:
        resolve(registry)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("image", [f"{'a' * 70}.example/m:1", "a..example/m:1", "[bad.example/m:1", "r.example:x/m:1"])
def test_a_name_that_no_host_can_have_is_told(image: str) -> None:
    with pytest.raises(UnresolvedError, match=r"cannot be (asked|reached): "):
        resolve_digest(image, sleep=lambda _: None)


def test_no_redirect_leaves_tls() -> None:
    request = Request("https://r.example/v2/m/manifests/1", headers={"Authorization": "Basic secret"})
    with pytest.raises(UnresolvedError, match=r"r\.example redirects from https to 'http://r\.example/m'"):
        KeepTls().redirect_request(request, None, 302, "Found", Message(), "http://r.example/m")
    followed = KeepTls().redirect_request(request, None, 302, "Found", Message(), "https://other.example/m")
    assert followed is not None
    assert not followed.has_header("Authorization")


def test_a_digest_needs_no_registry(registry: FakeRegistry) -> None:
    assert resolve(registry, image=f"{registry.image}@{DIGEST}") == DIGEST
    assert registry.requests == []


@pytest.mark.parametrize("codes", [[503], [429]])
def test_a_registry_that_fails_once_is_asked_again(codes: list[int], registry: FakeRegistry) -> None:
    registry.codes = codes * 2  # HEAD, and GET for its message
    assert resolve(registry) == DIGEST


def test_what_the_registry_answers_is_told(registry: FakeRegistry) -> None:
    host = registry.host
    with pytest.raises(UnresolvedError) as missing:
        resolve(registry, image=f"{host}/models/tiny:2")
    assert str(missing.value) == f"{host} answered 404 (MANIFEST_UNKNOWN: manifest unknown)"
    registry.challenge, registry.user = "bearer", "me:secret"
    for known, suffix in (((), "without credentials"), ((me(registry, word="no"),), "to the pull secret")):
        with pytest.raises(UnresolvedError) as refused:
            resolve(registry, *known)
        assert str(refused.value) == f"{host} answered 401 (UNAUTHORIZED: bad credentials) {suffix}"
    registry.challenge = "basic"
    with pytest.raises(UnresolvedError, match="wants a password, and no pull secret has one for it"):
        resolve(registry)
    registry.challenge = "Negotiate"
    with pytest.raises(UnresolvedError, match="asks for 'Negotiate', which is not supported"):
        resolve(registry)
    registry.codes = [500] * 4
    with pytest.raises(UnresolvedError, match="answered 500"):
        resolve(registry)


def test_a_registry_that_is_not_there_is_told() -> None:
    with pytest.raises(UnresolvedError, match=r"127\.0\.0\.1:1 cannot be reached: .*refused"):
        resolve_digest("127.0.0.1:1/m:1", sleep=lambda _: None)


def secret(**auths: dict[str, str]) -> str:
    return json.dumps({"auths": auths})


def test_pull_secrets_are_read_as_the_kubelet_reads_them(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:se:cret").decode()
    (tmp_path / "a.json").write_text(
        secret(
            **{
                "https://index.docker.io/v1/": {"auth": auth},
                "ghcr.io/org/": {"username": "u", "password": "p"},
                "bad.example": {"auth": "%%%"},
                "empty.example": {},
            }
        )
    )
    (tmp_path / "b.json").write_text("no JSON")
    (tmp_path / "c.json").write_text("[]")
    assert read_pull_secrets(tmp_path) == [
        Credentials("index.docker.io", "", "me", "se:cret"),
        Credentials("ghcr.io", "org", "u", "p"),
    ]
    assert read_pull_secrets(tmp_path / "none") == read_pull_secrets(None) == []


@pytest.mark.parametrize("known", [True, False])
def test_an_inspection_of_an_image_has_its_digest(
    known: bool, registry: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, secrets = tmp_path / "model", tmp_path / "secrets"
    model.mkdir()
    secrets.mkdir()
    for name, data in llama_files().items():
        (model / name).write_bytes(data)
    registry.challenge, registry.user = "bearer", "me:secret"
    if known:
        entry = {"username": "me", "password": "secret"}
        (secrets / "s.json").write_text(secret(**{f"http://{registry.host}": entry}))
    assert main([str(model), "--image", registry.image, "--pull-secrets", str(secrets)]) == 0
    found = decode_inspection(capsys.readouterr().out)
    assert isinstance(found, ModelReport)
    assert found.revision == (DIGEST if known else "")
    assert ("answered 401" in found.unresolved) == (not known)
    assert (found.format, found.quantized) == ("bf16", False)
    assert found.gpu is not None

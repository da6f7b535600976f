"""What decides about images: tags by content, the base, and how a build reaches packages."""

import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images import base, catalog, pipsettings, registry
from images.base import apt_sources, choose
from images.builders import Builder
from images.errors import ImageError
from images.produce import Workshop, unbuilt
from toolbox.progress import Progress

NOTHING = Builder("none", ("false",), mounts=True)
ANYTHING = Builder("all", ("true",), mounts=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("Dockerfile", ".dockerignore", "LICENSE", "pyproject.toml"):
        (tmp_path / name).write_text(name)
    for folder in ("requirements", "protocol/p", "common/c", "operator/o", "gateway/g", "inference/i"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("build", "cpu", "server", "server-cuda12", "operator", "gateway"):
        (tmp_path / "requirements" / f"{name}.txt").write_text(name)
    for folder in ("protocol/p", "common/c", "operator/o", "gateway/g", "inference/i"):
        (tmp_path / folder / "code.py").write_text("x = 1")
    return tmp_path


def tags(tree: Path, base_image: str = "b", builder_image: str = "c") -> dict[str, str]:
    return {name: catalog.tag(target, base_image, builder_image, tree) for name, target in catalog.TARGETS.items()}


@pytest.mark.parametrize(
    ("path", "affected"),
    [
        ("operator/o/code.py", {"operator"}),
        ("gateway/g/code.py", {"gateway"}),
        ("inference/i/code.py", {"server", "server-cuda12", "server-cpu"}),
        ("requirements/cpu.txt", {"server-cpu"}),
        ("requirements/server.txt", {"server"}),
        ("requirements/server-cuda12.txt", {"server-cuda12"}),
        ("protocol/p/code.py", set(catalog.TARGETS)),
        ("common/c/code.py", set(catalog.TARGETS)),
        ("Dockerfile", set(catalog.TARGETS)),
        ("requirements/dev.txt", set()),
        ("inference/i/kernels.so", set()),
        ("operator/o/__pycache__/code.pyc", set()),
    ],
)
def test_a_file_changes_the_tags_of_the_images_it_is_in(tree: Path, path: str, affected: set[str]) -> None:
    before = tags(tree)
    (tree / path).parent.mkdir(exist_ok=True)
    (tree / path).write_text("changed")
    after = tags(tree)
    assert {name for name in after if after[name] != before[name]} == affected


def test_another_compiler_image_concerns_only_images_with_kernels(tree: Path) -> None:
    before, after = tags(tree), tags(tree, builder_image="other")
    assert {name for name in after if after[name] != before[name]} == {"server", "server-cuda12", "server-cpu"}


def test_the_repository_has_all_that_the_catalog_names() -> None:
    for target in catalog.TARGETS.values():
        assert all(path.is_file() for path in catalog.sources(target))


@given(st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=4), st.integers(0, 4))
def test_the_digest_depends_on_contents_and_order_alone(parts: list[tuple[str, bytes]], cut: int) -> None:
    assert catalog.digest(parts[:cut], parts[cut:]) == catalog.digest(parts)
    assert parts == parts[::-1] or catalog.digest(parts) != catalog.digest(parts[::-1])


def test_a_base_image_that_is_asked_for_wins() -> None:
    chosen = choose(ANYTHING, {"BASE_IMAGE": "own:1"}, reachable=lambda: True)
    assert (chosen.runtime, chosen.builder) == ("own:1", "own:1")
    assert choose(ANYTHING, {"BASE_IMAGE": "a", "BUILDER_IMAGE": "b"}).builder == "b"


def test_the_public_base_is_used_when_it_is_at_hand_or_reachable() -> None:
    assert choose(ANYTHING, {}, reachable=lambda: False).runtime == base.PUBLIC
    assert choose(NOTHING, {}, reachable=lambda: True).runtime == base.PUBLIC


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A workshop whose builder writes its calls to `log` and has the images whose files are in `has`."""
    program = tmp_path / "builder"
    program.write_text(
        f"""#!/bin/sh
case $1 in
inspect) test -e {tmp_path}/has/$(basename $4) ;;
build) echo "$@" >> {tmp_path}/log; while test $1 != --tag; do shift; done; touch {tmp_path}/has/$(basename $2) ;;
esac
"""
    )
    program.chmod(0o755)
    (tmp_path / "has").mkdir()
    (tmp_path / "store").mkdir()
    builder = Builder("buildah", (str(program),), mounts=True)
    environment = {"OCTAVO_CACHE": str(tmp_path / "cache")}
    return Workshop(
        builder, base.Base("base", "compiler", {}), tmp_path / "store", Progress(io.StringIO()), environment
    )


def test_images_that_are_there_are_not_built_again(shop: Workshop, tmp_path: Path) -> None:
    assert shop.missing(["operator", "gateway"]) == ["operator", "gateway"]
    shop.build(["operator"])
    assert shop.missing(["operator", "gateway"]) == ["gateway"]
    images = shop.produce(["operator", "gateway"], None, "localhost", plain=False)
    assert images["gateway"].repository == "localhost/octavo-gateway"
    calls = (tmp_path / "log").read_text().splitlines()
    assert [call.split("--target ")[1].split()[0] for call in calls] == ["operator", "gateway"]


def test_a_build_with_kernels_finds_those_that_this_machine_has_compiled(shop: Workshop, tmp_path: Path) -> None:
    shop.build(["gateway", "server-cpu"])
    gateway, server = (tmp_path / "log").read_text().splitlines()
    mount = f"--volume {tmp_path}/cache/native:/cache/native "
    assert mount in server
    assert "/cache/native" not in gateway
    dockerfile = (catalog.REPOSITORY_ROOT / "Dockerfile").read_text()
    assert "OCTAVO_CACHE=/cache python3 build.py" in dockerfile


def test_one_stage_makes_an_image_for_each_cuda(shop: Workshop, tmp_path: Path) -> None:
    shop.build(["server", "server-cuda12"])
    newest, older = (tmp_path / "log").read_text().splitlines()
    assert "--target server " in newest
    assert "--build-arg CUDA" not in newest
    assert "--build-arg CUDA=12 --target server " in older
    assert "localhost/octavo-server-cuda12:" in older


def test_an_image_counts_as_built_for_whichever_base_may_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("images.builders.find", lambda *_, **__: NOTHING)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert unbuilt(["operator"], plain_http_push=True, env={"OCTAVO_CACHE": str(tmp_path)}) == ["operator"]
    monkeypatch.undo()
    monkeypatch.setattr("images.builders.find", lambda *_, **__: ANYTHING)
    assert unbuilt(["operator"], plain_http_push=True, env={"OCTAVO_CACHE": str(tmp_path)}) == []


def test_an_unknown_image_is_refused_with_the_known_ones(shop: Workshop) -> None:
    with pytest.raises(ImageError, match=r"no image named \['torch'\]; there are"):
        shop.produce(["torch"], None, "localhost", plain=False)


def test_without_a_registry_and_mmdebstrap_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ImageError, match="apt-get install mmdebstrap, or set BASE_IMAGE"):
        choose(NOTHING, {}, reachable=lambda: False)


def test_only_sources_of_the_distribution_itself_are_used(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text("URIs: http://x\nSuites: bookworm bookworm-updates\nComponents: main\n")
    (folder / "other.sources").write_text("URIs: http://x\nSuites: nodistro\nComponents: main\n")
    (folder / "docker.list").write_text("deb http://x bookworm stable\n")
    (folder / "off.list").write_text("# deb http://x bookworm main\n")
    (folder / "debian.list.bak").write_text("deb http://x bookworm main\n")
    (tmp_path / "sources.list").write_text("deb [signed-by=/k] http://x bookworm main contrib\n")
    assert apt_sources("bookworm", tmp_path) == [tmp_path / "sources.list", folder / "debian.sources"]
    with pytest.raises(ImageError, match="offers trixie main"):
        apt_sources("trixie", tmp_path)


def test_pip_settings_of_the_machine_reach_the_build(tmp_path: Path) -> None:
    site, user = tmp_path / "site.conf", tmp_path / "user.conf"
    site.write_text(
        "[global]\nindex-url = http://a\ncert = /host/only.pem\nfind-links = /host\n[install]\ntimeout = 5\n"
    )
    user.write_text("[global]\nextra-index-url =\n  http://b\n  http://c\nindex-url = http://d\n")
    found = pipsettings.options({"PIP_DEFAULT_TIMEOUT": "7"}, (site, user, tmp_path / "missing.conf"))
    assert found == {"index-url": "http://d", "extra-index-url": "\nhttp://b\nhttp://c", "timeout": "7"}
    text = pipsettings.config_text(found, bundle=True)
    assert "extra-index-url = http://b http://c\n" in text
    assert f"cert = {pipsettings.BUNDLE_IN_IMAGE}\n" in text
    assert pipsettings.build_arguments(found)["PIP_DEFAULT_TIMEOUT"] == "7"


def test_the_hosts_certificates_are_the_ones_programs_are_told_of(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    assert pipsettings.host_bundle({"SSL_CERT_FILE": str(bundle), "PIP_CERT": "/missing"}) == bundle


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("localhost:5000", True), ("127.0.0.1:5000/a", True), ("10.1.2.3:5000", False), ("ghcr.io/octavo", False)],
)
def test_loopback_registries_are_known(address: str, loopback: bool) -> None:
    assert registry.is_loopback(address) is loopback


class _Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/" else 404)
        self.end_headers()

    def do_HEAD(self) -> None:
        found = self.path == "/v2/team/octavo-gateway/manifests/t1"
        self.send_response(200 if found else 404)
        if found:
            self.send_header("Docker-Content-Digest", "sha256:d")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain_registry() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_plain_registry_is_recognised_and_asked_for_tags(plain_registry: str) -> None:
    assert registry.speaks_plain_http(plain_registry)
    assert registry.digest_of(f"{plain_registry}/team", "octavo-gateway", "t1") == "sha256:d"
    assert registry.digest_of(plain_registry, "octavo-gateway", "t1") is None


def test_public_registries_are_never_asked_without_tls() -> None:
    assert not registry.speaks_plain_http("registry.example.com:5000")

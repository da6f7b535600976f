"""Builds and pushes images, except those whose content tag already exists."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from images import base as bases
from images import builders, catalog, model, pipsettings, registry
from images.builders import Builder
from images.errors import ImageError
from toolbox.paths import cache_root
from toolbox.progress import Progress, Step

# The cache folder of the Dockerfile's compiler stage.
KERNELS_IN_BUILD = "/cache/native"


@dataclass(frozen=True, slots=True)
class Image:
    """The reference of an image for manifests; `digest` is empty before the push."""

    repository: str
    tag: str
    digest: str = ""

    @property
    def reference(self) -> str:
        """REPOSITORY:TAG, for manifests."""
        return f"{self.repository}:{self.tag}"


def produce(
    names: Sequence[str],
    progress: Progress,
    *,
    push: str | None = None,
    known_as: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, Image]:
    """Images by the names of `catalog.NAMES`; builds missing ones.

    `push`: HOST[:PORT][/PREFIX] of the registry to push to. `known_as`: the name of that registry on the cluster's
    nodes, if different. Raises ImageError.
    """
    plain = push is not None and registry.speaks_plain_http(push)
    shop = workshop(progress, plain_http_push=plain and not registry.is_loopback(push or ""), env=env)
    return shop.produce(names, push, known_as or push or "localhost", plain=plain)


def workshop(progress: Progress, *, plain_http_push: bool, env: Mapping[str, str] = os.environ) -> Workshop:
    """The workshop with this machine's builder; takes seconds. Raises ImageError if there is none.

    `plain_http_push`: images are pushed over plain HTTP to an address other than loopback, which not every builder can.
    """
    store = cache_root(env) / "images"
    store.mkdir(parents=True, exist_ok=True)
    builder = builders.find(store, plain_http_push=plain_http_push)
    return Workshop(builder, bases.choose(builder, env), store, progress, env)


def unbuilt(names: Sequence[str], *, plain_http_push: bool, env: Mapping[str, str] = os.environ) -> list[str]:
    """The images that are missing in the builder's store for any possible base; needs no registry, never fails."""
    shops = []
    for answer in (True, False):
        with suppress(ImageError):
            builder = builders.find(cache_root(env) / "images", plain_http_push=plain_http_push)
            base = bases.choose(builder, env, reachable=lambda answer=answer: answer)  # type: ignore[misc]
            shops.append(Workshop(builder, base, cache_root(env) / "images", Progress(), env))
    return [name for name in names if all(shop.missing([name]) for shop in shops)]


@dataclass(frozen=True, slots=True)
class Workshop:
    """A builder, the base images, and the folder `store` for layers."""

    builder: Builder
    base: bases.Base
    store: Path
    progress: Progress
    env: Mapping[str, str]

    def missing(self, names: Sequence[str]) -> list[str]:
        """The images that are missing in the builder's store."""
        return [name for name in names if not self.builder.has(self._local(name))]

    def build(self, names: Sequence[str]) -> None:
        """Builds the images that are missing in the builder's store. Raises ImageError."""
        with _alone(self.store, self.progress):
            for name in self.missing(names):
                self._build(name)

    def produce(self, names: Sequence[str], push: str | None, known_as: str, *, plain: bool) -> dict[str, Image]:
        """See the function `produce`; `plain`: the registry `push` uses plain HTTP."""
        if unknown := set(names) - set(catalog.NAMES):
            raise ImageError(f"no image named {sorted(unknown)}; there are {list(catalog.NAMES)}")
        with _alone(self.store, self.progress):
            return {name: self._image(name, push, known_as, plain=plain) for name in names}

    def _image(self, name: str, push: str | None, known_as: str, *, plain: bool) -> Image:
        local = self._local(name)
        image, _, tag = local.removeprefix("localhost/").rpartition(":")
        digest = registry.digest_of(push, image, tag) if push and plain else None
        if digest is None and not self.builder.has(local):
            self._build(name)
        if push and digest is None:
            with self.progress.step(f"push {image}") as step:
                digest = self.builder.push(local, f"{push}/{image}:{tag}", step, plain_http=plain)
        return Image(f"{known_as}/{image}", tag, digest or "")

    def _local(self, name: str) -> str:
        """The image's reference in the builder's store."""
        if target := catalog.TARGETS.get(name):
            return f"localhost/{target.image}:{catalog.tag(target, self.base.runtime, self.base.builder)}"
        return f"localhost/{name}:{model.tag()}"

    def _build(self, name: str) -> None:
        if target := catalog.TARGETS.get(name):
            self._build_target(target, self._local(name))
        else:
            with self.progress.step(f"build {name}") as step:
                model.build(self.builder, self._local(name), step, self.store)

    def _build_target(self, target: catalog.Target, reference: str) -> None:
        for needed in (self.base.runtime, self.base.builder) if target.native else (self.base.runtime,):
            bases.ensure(self.base, needed, self.builder, self.progress)
        with self.progress.step(f"build {target.image}") as step:
            self._build_dockerfile(target, reference, step)

    def _build_dockerfile(self, target: catalog.Target, reference: str, step: Step) -> None:
        arguments = {"BASE_IMAGE": self.base.runtime, "BUILDER_IMAGE": self.base.builder, "VERSION": catalog.version()}
        arguments |= dict(target.arguments)
        options = pipsettings.options(self.env)
        if not self.builder.mounts:
            arguments |= pipsettings.build_arguments(options)
            self.builder.build(catalog.REPOSITORY_ROOT, reference, step, target=target.stage, arguments=arguments)
            return
        bundle = pipsettings.host_bundle(self.env)
        # Cache of kernels that this machine or another build compiled from the same sources with the same compiler.
        kernels = cache_root(self.env) / "native"
        kernels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            # Mounted only for the build: neither the index's address nor the certificates remain in the image.
            config = Path(folder) / "pip.conf"
            config.write_text(pipsettings.config_text(options, bundle=bundle is not None), encoding="utf-8")
            volumes = [f"{config}:/etc/pip.conf:ro"]
            volumes += [f"{bundle}:{pipsettings.BUNDLE_IN_IMAGE}:ro"] if bundle else []
            volumes += [f"{kernels}:{KERNELS_IN_BUILD}"] if target.native else []
            self.builder.build(
                catalog.REPOSITORY_ROOT, reference, step, target=target.stage, arguments=arguments, volumes=volumes
            )


@contextmanager
def _alone(store: Path, progress: Progress) -> Iterator[None]:
    """Lock for one build at a time per cache: two would build the same layers twice."""
    with (store / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("waiting for another build of images"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield

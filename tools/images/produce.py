"""Builds and pushes images; what is already there by its content's tag is left alone."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import base as bases
from images import builders, catalog, model, pipsettings, registry
from images.builders import Builder
from images.errors import ImageError
from toolbox.paths import cache_root
from toolbox.progress import Progress, Step


@dataclass(frozen=True, slots=True)
class Image:
    """An image as manifests name it; `digest` is empty until it was pushed."""

    repository: str
    tag: str
    digest: str = ""

    @property
    def reference(self) -> str:
        """REPOSITORY:TAG, what a manifest writes."""
        return f"{self.repository}:{self.tag}"


def produce(
    names: Sequence[str],
    progress: Progress,
    *,
    push: str | None = None,
    known_as: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> dict[str, Image]:
    """Images by the names of `catalog.ALL`, built where missing.

    `push`: HOST[:PORT][/PREFIX] of the registry they go to. `known_as`: that registry as the cluster's nodes name it,
    where this differs. Raises ImageError.
    """
    if unknown := set(names) - set(catalog.ALL):
        raise ImageError(f"no image named {sorted(unknown)}; there are {list(catalog.ALL)}")
    plain = push is not None and registry.speaks_plain_http(push)
    store = cache_root(env) / "images"
    store.mkdir(parents=True, exist_ok=True)
    builder = builders.find(store, plain_http_push=plain and not registry.is_loopback(push or ""))
    with _alone(store, progress):
        base = bases.choose(builder, env)
        work = _Work(builder, base, store, progress, env)
        return {name: work.image(name, push, known_as or push or "localhost", plain=plain) for name in names}


@dataclass(frozen=True, slots=True)
class _Work:
    builder: Builder
    base: bases.Base
    store: Path
    progress: Progress
    env: Mapping[str, str]

    def image(self, name: str, push: str | None, known_as: str, *, plain: bool) -> Image:
        target = catalog.TARGETS.get(name)
        image = target.image if target else name
        tag = catalog.tag(target, self.base.runtime, self.base.builder) if target else model.tag()
        local = f"localhost/{image}:{tag}"
        digest = registry.digest_of(push, image, tag) if push and plain else None
        if digest is None and not self.builder.has(local):
            if target:
                self._build_target(target, local)
            else:
                with self.progress.step(f"build {image}") as step:
                    model.build(self.builder, local, step, self.store)
        if push and digest is None:
            with self.progress.step(f"push {image}") as step:
                digest = self.builder.push(local, f"{push}/{image}:{tag}", step, plain_http=plain)
        return Image(f"{known_as}/{image}", tag, digest or "")

    def _build_target(self, target: catalog.Target, reference: str) -> None:
        for needed in (self.base.runtime, self.base.builder) if target.native else (self.base.runtime,):
            bases.ensure(self.base, needed, self.builder, self.progress)
        with self.progress.step(f"build {target.image}") as step:
            self._build_dockerfile(target, reference, step)

    def _build_dockerfile(self, target: catalog.Target, reference: str, step: Step) -> None:
        arguments = {"BASE_IMAGE": self.base.runtime, "BUILDER_IMAGE": self.base.builder, "VERSION": catalog.version()}
        options = pipsettings.options(self.env)
        if not self.builder.mounts:
            arguments |= pipsettings.build_arguments(options)
            self.builder.build(catalog.REPOSITORY_ROOT, reference, step, target=target.name, arguments=arguments)
            return
        bundle = pipsettings.host_bundle(self.env)
        with tempfile.TemporaryDirectory() as folder:
            # Mounted for the build only: neither the index's address nor the certificates stay in the image.
            config = Path(folder) / "pip.conf"
            config.write_text(pipsettings.config_text(options, bundle=bundle is not None), encoding="utf-8")
            volumes = [f"{config}:/etc/pip.conf:ro"]
            volumes += [f"{bundle}:{pipsettings.BUNDLE_IN_IMAGE}:ro"] if bundle else []
            self.builder.build(
                catalog.REPOSITORY_ROOT, reference, step, target=target.name, arguments=arguments, volumes=volumes
            )


@contextmanager
def _alone(store: Path, progress: Progress) -> Iterator[None]:
    """One build at a time per cache: two would build the same layers twice."""
    with (store / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step("waiting for another build of images"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield

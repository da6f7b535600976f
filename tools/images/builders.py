"""The image builders: docker or podman if one works, otherwise buildah with its own store."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.errors import ImageError
from images.process import run, succeeds
from toolbox.progress import Step

_DOCKER_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Builder:
    """A working image builder. `command` precedes the verb; `mounts`: builds can mount host files."""

    name: str
    command: tuple[str, ...]
    mounts: bool

    def has(self, reference: str) -> bool:
        """True if the image is in the builder's store."""
        inspect = ("inspect", "--type", "image") if self.name == "buildah" else ("image", "inspect")
        return succeeds([*self.command, *inspect, reference])

    def build(
        self,
        context: Path,
        reference: str,
        step: Step,
        *,
        target: str | None = None,
        arguments: Mapping[str, str] | None = None,
        volumes: Sequence[str] = (),
        extra: Sequence[str] = (),
    ) -> None:
        """Builds the Dockerfile in `context` up to `target`. Raises ImageError with the builder's last output."""
        command = [*self.command, "build"]
        if self.mounts:
            # chroot isolation also works where the kernel or a surrounding container forbids nested containers.
            command += ["--isolation", "chroot", "--layers"]
            command += [part for volume in volumes for part in ("--volume", volume)]
        command += [part for name, value in (arguments or {}).items() for part in ("--build-arg", f"{name}={value}")]
        command += ["--target", target] if target else []
        run([*command, *extra, "--tag", reference, "."], step, cwd=context)

    def push(self, reference: str, remote: str, step: Step, *, plain_http: bool) -> str:
        """Pushes an image as `remote` (HOST[:PORT]/NAME:TAG) and returns its digest, `sha256:...`."""
        if self.name == "docker":
            run([*self.command, "tag", reference, remote], step)
            found = _DOCKER_DIGEST.search(run([*self.command, "push", remote], step))
            if found is None:
                raise ImageError(f"docker push {remote} printed no digest")
            return found[1]
        with tempfile.TemporaryDirectory() as folder:
            digest = Path(folder) / "digest"
            tls = ["--tls-verify=false"] if plain_http else []
            run([*self.command, "push", *tls, "--digestfile", digest, reference, f"docker://{remote}"], step)
            return digest.read_text(encoding="utf-8").strip()


def find(store: Path, *, plain_http_push: bool) -> Builder:
    """The first builder that works on this machine.

    `store`: folder for buildah's layers. `plain_http_push`: images are pushed over plain HTTP to an address other than
    loopback, which docker's daemon refuses unless configured for that registry.
    Raises ImageError with the package to install.
    """
    if not plain_http_push and shutil.which("docker") and succeeds(["docker", "info"]):
        return Builder("docker", ("docker",), mounts=False)
    if shutil.which("podman") and succeeds(["podman", "info"]):
        return Builder("podman", ("podman",), mounts=True)
    if shutil.which("buildah"):
        layers = ("--root", str(store / "layers"), "--runroot", str(store / "run"), "--storage-driver", "overlay")
        return Builder("buildah", ("buildah", *layers), mounts=True)
    reason = "docker cannot push to the local cluster's registry, and " if shutil.which("docker") else ""
    raise ImageError(f"no image builder: {reason}neither podman nor buildah was found; apt-get install buildah")

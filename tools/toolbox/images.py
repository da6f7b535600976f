"""Single-program images (pause, CoreDNS) as docker archives: a layer and two JSON files, without an image builder."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolbox.build import go_arch, locked, program
from toolbox.catalog import PROGRAMS
from toolbox.errors import ToolError
from toolbox.paths import cache_root
from toolbox.progress import Progress

PAUSE = "localhost/pause:1"
_PAUSE_SOURCE = Path(__file__).with_name("pause.c")


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """An image of a few files: `files` maps the path in the image to (content, mode)."""

    name: str
    files: Mapping[str, tuple[bytes, int]]
    entrypoint: Sequence[str]
    arch: str
    user: str = "65532:65532"

    def write(self, path: Path) -> None:
        """Writes the docker archive (the format of `docker save`), reproducibly: same content, same bytes."""
        layer = _tar(self.files)
        config = json.dumps(
            {
                "architecture": self.arch,
                "os": "linux",
                "config": {"Entrypoint": list(self.entrypoint), "User": self.user, "Env": ["PATH=/bin"]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
                "history": [{"created": "1970-01-01T00:00:00Z", "comment": "octavo tools"}],
            },
            sort_keys=True,
        ).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = json.dumps([{"Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"]}]).encode()
        files = {"manifest.json": (manifest, 0o644), config_name: (config, 0o644), "layer.tar": (layer, 0o644)}
        path.write_bytes(_tar(files))


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def coredns_image() -> str:
    """The name of the CoreDNS image, with CoreDNS's version as its tag."""
    return f"localhost/coredns:{PROGRAMS['coredns'].version().removeprefix('v')}"


def node_images(progress: Progress) -> list[Path]:
    """Archives of the images that a node needs before it can pull any: pause and CoreDNS. Raises ToolError."""
    arch = go_arch()
    source = _PAUSE_SOURCE.read_bytes()
    folder = cache_root() / "images"
    pause = folder / f"pause-{hashlib.sha256(source + arch.encode()).hexdigest()[:16]}.tar"
    dns = folder / f"{program('coredns', progress).parent.name}.tar"
    for path, build in ((pause, _write_pause), (dns, _write_coredns)):
        if not path.is_file():
            with progress.step(f"image {path.stem}") as step, locked(path.with_suffix(".lock"), step):
                if not path.is_file():
                    scratch = path.with_suffix(f".{os.getpid()}")
                    build(scratch, arch)
                    scratch.rename(path)
    return [pause, dns]


def _write_pause(path: Path, arch: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "pause"
        run = subprocess.run(
            ["gcc", "-Os", "-static", "-s", "-o", str(built), str(_PAUSE_SOURCE)],
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise ToolError(
                f"compiling the pause program failed (it needs the Debian packages gcc and libc6-dev):\n{run.stderr}"
            )
        ImageSpec(PAUSE, {"pause": (built.read_bytes(), 0o755)}, ["/pause"], arch).write(path)


def _write_coredns(path: Path, arch: str) -> None:
    content = program("coredns").read_bytes()
    ImageSpec(coredns_image(), {"coredns": (content, 0o755)}, ["/coredns"], arch).write(path)

"""llama.cpp's vocabularies, and the tokens that their texts have, from the source distribution of llama-cpp-python."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from toolbox.errors import ToolError
from toolbox.paths import cache_root

_LOCK = Path(__file__).parents[2] / "requirements" / "dev.txt"
_PINNED = re.compile(r"^(llama-cpp-python==\S+) .*?--hash=sha256:([0-9a-f]{64})", re.MULTILINE | re.DOTALL)
_WANTED = re.compile(r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[\w.-]+)")
_BETWEEN = "\n__ggml_vocab_test__\n"


def vocabularies() -> Path:
    """A folder of `ggml-vocab-NAME.gguf`, `.gguf.inp` and `.gguf.out`, downloaded once. Raises `ToolError`.

    The lock pins the distribution and its hash, which names the folder.
    """
    found = _PINNED.search(_LOCK.read_text(encoding="utf-8"))
    if found is None:
        raise ToolError(f"{_LOCK} has no llama-cpp-python with a hash")
    requirement, digest = found.groups()
    root = cache_root() / "vocabularies"
    root.mkdir(parents=True, exist_ok=True)
    target = root / digest[:16]
    with (root / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                _unpack(_download(requirement, digest, Path(scratch)), Path(scratch) / "vocabularies")
                (Path(scratch) / "vocabularies").rename(target)
    return target


def vectors(vocabulary: Path) -> list[tuple[str, list[int]]]:
    """Texts and their tokens without special ones, as the files beside a vocabulary have them."""
    # Read as bytes, because the texts have ends of lines of all kinds.
    texts = vocabulary.with_name(f"{vocabulary.name}.inp").read_bytes().decode().split(_BETWEEN)
    lines = vocabulary.with_name(f"{vocabulary.name}.out").read_text(encoding="ascii").splitlines()
    return list(zip(texts[: len(lines)], (list(map(int, line.split())) for line in lines), strict=True))


def _download(requirement: str, digest: str, scratch: Path) -> Path:
    # A hash on the command line is unknown to pip, and one in a file is checked before anything runs.
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{digest}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-binary=:all:", "--require-hashes", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    archive = next(scratch.glob("*.tar.gz"), None)
    if run.returncode or archive is None:
        reason = (run.stderr.strip().splitlines() or ["no archive"])[-1]
        raise ToolError(f"pip cannot download {requirement}: {reason}")
    return archive


def _unpack(archive: Path, target: Path) -> None:
    target.mkdir()
    with tarfile.open(archive) as members:
        for member in members:
            named = _WANTED.fullmatch(member.name)
            content = members.extractfile(member) if named else None
            if named and content:
                (target / named[1]).write_bytes(content.read())

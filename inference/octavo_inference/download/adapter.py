"""LoRA adapters of a hub, bucket or folder: inspected from their headers, and downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.peft_config import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.download.hub import connect, fetch_files
from octavo_inference.download.inspect import is_remote, or_failure, take_header
from octavo_inference.download.transfer import PrefetchError, Remote, RemoteFile
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.model import ModelFailure


def look_at_adapter(target: str) -> AdapterInspection | ModelFailure:
    """The inspection of an adapter, without the numbers of its matrices."""

    def found() -> AdapterInspection:
        if not is_remote(target):
            return _of_folder(Path(target))
        remote, repo, revision = connect(target)
        commit = remote.commit(repo, revision)
        config, weights = _files(remote, repo, commit)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fetch_files(remote, repo, commit, [config], folder, lambda _: None, lambda: 0.0)
            rank = read_adapter_config(folder).highest_rank
            take_header(remote, repo, commit, weights, folder)
            with refusing(folder):
                read_checkpoint(folder)
        return AdapterInspection(revision=commit, rank=rank, file_bytes=weights.size)

    return or_failure(found)


def _of_folder(folder: Path) -> AdapterInspection:
    """The inspection of an adapter that is there already: on a volume, which has no revisions."""
    try:
        _require(folder.name, {path.name for path in folder.iterdir()} if folder.is_dir() else set())
    except OSError as error:
        raise PrefetchError(f"{folder.name} cannot be read: {error.strerror}", "InvalidModel") from error
    rank = read_adapter_config(folder).highest_rank
    with refusing(folder):
        read_checkpoint(folder)
    return AdapterInspection(rank=rank, file_bytes=(folder / WEIGHTS_FILE).stat().st_size)


def fetch_adapter(target: str, folder: Path, say: Callable[[str], None], clock: Callable[[], float]) -> None:
    """Have the files of an adapter complete in `folder`. Raises `PrefetchError`."""
    remote, repo, revision = connect(target)
    commit = remote.commit(repo, revision)
    folder.mkdir(parents=True, exist_ok=True)
    fetch_files(remote, repo, commit, _files(remote, repo, commit), folder, say, clock)


def _files(remote: Remote, repo: str, commit: str) -> Sequence[RemoteFile]:
    """Configuration and weights."""
    files = {file.name: file for file in remote.files(repo, commit)}
    _require(repo, files)
    return files[CONFIG_FILE], files[WEIGHTS_FILE]


def _require(where: str, there: Container[str]) -> None:
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in there]
    if missing:
        raise PrefetchError(
            f"{where} has no {' and no '.join(missing)}: an adapter is a folder that PEFT saved as safetensors",
            "InvalidModel",
        )

"""LoRA adapters of a hub, bucket or folder: inspected from their headers, and downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.peft_config import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig, read_adapter_config
from octavo_inference.checkpoints.peft_tokens import TEXT_FILES
from octavo_inference.checkpoints.safetensors import read_placed
from octavo_inference.download.hub import connect, fetch_files
from octavo_inference.download.inspect import is_remote, or_failure, take_header
from octavo_inference.download.transfer import PrefetchError, RemoteFile
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.base_models import is_hub_name
from octavo_protocol.model import ModelFailure


def look_at_adapter(target: str) -> AdapterInspection | ModelFailure:
    """The inspection of an adapter, without the numbers of its matrices."""

    def found() -> AdapterInspection:
        if not is_remote(target):
            return _of_folder(Path(target))
        remote, repo, revision = connect(target)
        commit = remote.commit(repo, revision)
        files = {file.name: file for file in remote.files(repo, commit)}
        described, weights = _required(files, repo)
        texts = _text_files(files, repo)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fetch_files(remote, repo, commit, [described], folder, lambda _: None, lambda: 0.0)
            config = read_adapter_config(folder)
            take_header(remote, repo, commit, weights, folder)
            _check_header(folder)
        return _inspection(config, sum(file.size for file in (weights, *texts)), commit)

    return or_failure(found)


def _of_folder(folder: Path) -> AdapterInspection:
    """The inspection of an adapter that is there already: on a volume, which has no revisions."""
    try:
        _require(folder.name, {path.name for path in folder.iterdir()} if folder.is_dir() else set())
    except OSError as error:
        raise PrefetchError(f"{folder.name} cannot be read: {error.strerror}", "InvalidModel") from error
    config = read_adapter_config(folder)
    _check_header(folder)
    there = [path for name in (WEIGHTS_FILE, *TEXT_FILES) if (path := folder / name).is_file()]
    return _inspection(config, sum(path.stat().st_size for path in there))


def _check_header(folder: Path) -> None:
    """Raise `ModelError` for weights whose header is damaged."""
    path = folder / WEIGHTS_FILE
    with refusing(folder), path.open("rb") as file:
        read_placed(path, file)


def _inspection(config: AdapterConfig, size: int, commit: str = "") -> AdapterInspection:
    base = config.base if is_hub_name(config.base) else ""
    return AdapterInspection(revision=commit, rank=config.highest_rank, file_bytes=size, base=base)


def fetch_adapter(target: str, folder: Path, say: Callable[[str], None], clock: Callable[[], float]) -> None:
    """Have the files of an adapter complete in `folder`. Raises `PrefetchError`."""
    remote, repo, revision = connect(target)
    commit = remote.commit(repo, revision)
    folder.mkdir(parents=True, exist_ok=True)
    files = {file.name: file for file in remote.files(repo, commit)}
    wanted = (*_required(files, repo), *_text_files(files, repo))
    fetch_files(remote, repo, commit, wanted, folder, say, clock)


def _required(files: Mapping[str, RemoteFile], repo: str) -> tuple[RemoteFile, RemoteFile]:
    """Configuration and weights. Raises `PrefetchError` if one is missing."""
    _require(repo, files)
    return files[CONFIG_FILE], files[WEIGHTS_FILE]


def _require(where: str, there: Container[str]) -> None:
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in there]
    if missing:
        raise PrefetchError(
            f"{where} has no {' and no '.join(missing)}: an adapter is a folder that PEFT saved as safetensors",
            "InvalidModel",
        )


def _text_files(files: Mapping[str, RemoteFile], repo: str) -> Sequence[RemoteFile]:
    """Those of a tokenizer and chat template, if it has them. Raises `PrefetchError` for one that is too large."""
    found = [files[name] for name in TEXT_FILES if name in files]
    for file in found:
        if file.size > TEXT_FILES[file.name]:
            raise PrefetchError(
                f"{repo}: {file.name} has {file.size} bytes; up to {TEXT_FILES[file.name]} are possible for an adapter",
                "InvalidModel",
            )
    return found

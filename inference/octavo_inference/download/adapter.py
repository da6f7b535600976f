"""LoRA adapters of a hub or bucket: inspected from their headers, and downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.peft_config import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.download.hub import connect, fetch_files
from octavo_inference.download.inspect import or_failure, take_header
from octavo_inference.download.transfer import PrefetchError, RemoteFile
from octavo_inference.tokenizer.adapter_assets import TEXT_FILES
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.base_models import is_hub_name
from octavo_protocol.model import ModelFailure


def look_at_adapter(target: str) -> AdapterInspection | ModelFailure:
    """The inspection of an adapter, without the numbers of its matrices."""

    def found() -> AdapterInspection:
        remote, repo, revision = connect(target)
        commit = remote.commit(repo, revision)
        files = {file.name: file for file in remote.files(repo, commit)}
        described, weights = _required(files, repo)
        _text_files(files, repo)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fetch_files(remote, repo, commit, [described], folder, lambda _: None, lambda: 0.0)
            config = read_adapter_config(folder)
            take_header(remote, repo, commit, weights, folder)
            with refusing(folder):
                read_checkpoint(folder)
        base = config.base if is_hub_name(config.base) else ""
        return AdapterInspection(revision=commit, rank=config.highest_rank, file_bytes=weights.size, base=base)

    return or_failure(found)


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
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]
    if missing:
        raise PrefetchError(
            f"{repo} has no {' and no '.join(missing)}: an adapter is a folder that PEFT saved as safetensors",
            "InvalidModel",
        )
    return files[CONFIG_FILE], files[WEIGHTS_FILE]


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

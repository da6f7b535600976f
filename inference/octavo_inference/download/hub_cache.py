"""Models by name: `octavo-server ORG/NAME` downloads into the hub's cache folder, which other tools share.

The layout is that of `huggingface_hub`: `models--ORG--NAME/snapshots/COMMIT/` has the files, `refs/REVISION` the commit
of a branch or tag. A model of a bucket is kept in the same folder, as `s3--BUCKET--PREFIX/snapshots/REVISION/`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from octavo_inference.checkpoints.gguf_names import gguf_models
from octavo_inference.checkpoints.resolve import EMBEDDED, find_model
from octavo_inference.common.errors import ModelError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.config.speculation import require_consistent
from octavo_inference.download.hub import HUB, Hub, Meter, fetch
from octavo_inference.download.transfer import PrefetchError, Remote, RemoteFile

BUCKETS = ("s3://", "gs://")
_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+)(:(?P<tag>[A-Za-z0-9._-]+))?(@(?P<revision>[A-Za-z0-9._/-]+))?"
)
_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of the hub. `tag` selects a GGUF model by its quantization; `revision` is a branch, tag or commit."""

    repo: str
    tag: str
    revision: str


def named(model: str) -> RemoteModel | None:
    """The hub's model that `ORG/NAME[:TAG][@REVISION]` means, with or without `hf://`; None for a local path.

    Raises `ModelError` for an `hf://` address of another form.
    """
    if not model.startswith("hf://") and (Path(model).exists() or model.endswith(".gguf")):
        return None
    match = _NAME.fullmatch(model.removeprefix("hf://"))
    if match is None:
        if model.startswith("hf://"):
            raise ModelError(f"model: {model!r} must be hf://ORGANISATION/NAME[:QUANTIZATION][@REVISION]")
        return None
    return RemoteModel(match["repo"], match["tag"] or "", match["revision"] or "main")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`path` of the files. `names`: what the model is called if it was given by name."""

    path: str
    names: tuple[str, ...] = ()


def local_model(model: str, environ: Mapping[str, str] = os.environ, out: TextIO = sys.stderr) -> LocalModel:
    """The files of a model, downloaded first if `model` is the name of one of the hub or the address of a bucket.

    Raises `PrefetchError` if it cannot be downloaded and `ModelError` for a malformed address.
    """
    if model.startswith(BUCKETS):
        return LocalModel(_of_bucket(model, environ, out))
    found = None if model == EMBEDDED else named(model)
    if found is None:
        return LocalModel(model)
    return LocalModel(str(_of_hub(found, environ, out)), (found.repo,))


def local_settings(settings: EngineSettings) -> tuple[EngineSettings, tuple[str, ...]]:
    """The settings with the paths of both models' files, downloaded first if need be, and the names of the model.

    Raises as `local_model`, and `SettingsError` for settings that contradict each other.
    """
    require_consistent(settings)
    model = local_model(settings.model)
    draft = None if settings.speculation_model is None else local_model(settings.speculation_model).path
    return dataclasses.replace(settings, model=model.path, speculation_model=draft), model.names


def _of_bucket(address: str, environ: Mapping[str, str], out: TextIO) -> str:
    from octavo_inference.download.object_store import open_bucket  # noqa: PLC0415 -- slow to import

    bucket, name, wanted = open_bucket(address)
    base = cache_folder(environ) / re.sub(r"[:/]+", "--", address.partition("@")[0])
    return str(_snapshot(bucket, name, bucket.commit(name, wanted), base, "", out))


def _of_hub(found: RemoteModel, environ: Mapping[str, str], out: TextIO) -> Path:
    base = cache_folder(environ) / f"models--{found.repo.replace('/', '--')}"
    if environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return _cached(found, base, "HF_HUB_OFFLINE is set")
    hub = Hub(environ.get("HF_ENDPOINT") or HUB, _token(environ))
    asking = Hub(environ.get("HF_ENDPOINT") or HUB, _token(environ), sleep=_briefly)
    try:
        commit = asking.commit(found.repo, found.revision)
    except PrefetchError as error:
        if error.reason != "SourceUnreachable":
            raise _for_people(error) from error
        return _cached(found, base, str(error))
    try:
        path = _snapshot(hub, found.repo, commit, base, found.tag, out)
    except PrefetchError as error:
        raise _for_people(error) from error
    reference = base / "refs" / found.revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit)
    return path


def _briefly(seconds: float) -> None:
    """Sleep with a capped back-off: an earlier download may serve, so an unreachable hub is given up in 10 s."""
    time.sleep(min(seconds, 2.0))


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The hub's cache folder, by the same variables as `huggingface_hub`."""
    if folder := environ.get("HF_HUB_CACHE"):
        return Path(folder)
    return _home(environ) / "hub"


def _home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("HF_HOME"):
        return Path(home)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"


def _token(environ: Mapping[str, str]) -> str | None:
    """HF_TOKEN, or the token that `hf auth login` has stored."""
    if token := environ.get("HF_TOKEN"):
        return token
    path = Path(environ.get("HF_TOKEN_PATH") or _home(environ) / "token")
    return path.read_text().strip() or None if path.is_file() else None


def _snapshot(remote: Remote, repo: str, commit: str, base: Path, tag: str, out: TextIO) -> Path:
    """Download what is missing of a commit; the folder, or the first GGUF file in it."""
    folder = base / "snapshots" / commit
    folder.mkdir(parents=True, exist_ok=True)

    def say(line: str) -> None:
        if not out.isatty():
            out.write(f"{repo}: {line}\n")

    with _locked(base / ".octavo.lock", out):
        files = fetch(remote, repo, commit, folder, say, time.monotonic, tag, _meter(repo, out))
    return _weights(folder, files)


def _weights(folder: Path, files: list[RemoteFile]) -> Path:
    ggufs = [file.name for file in files if file.name.endswith(".gguf")]
    return folder / ggufs[0] if ggufs else folder


def _cached(model: RemoteModel, base: Path, why: str) -> Path:
    """The files of an earlier download. Raises `PrefetchError` naming what is missing."""
    reference = base / "refs" / model.revision
    commit = reference.read_text().strip() if reference.is_file() else model.revision
    folder = base / "snapshots" / commit
    if not folder.is_dir():
        raise PrefetchError(f"{model.repo}@{model.revision} is not in {base.parent} ({why})", "SourceUnreachable")
    models = gguf_models(path.name for path in folder.iterdir())
    found = [names[0] for names in models if model.tag.lower() in names[0].lower()]
    try:
        return find_model(str(folder / found[0] if model.tag and len(found) == 1 else folder))
    except ModelError as error:
        raise PrefetchError(f"{error} ({why})", "SourceUnreachable") from error


def _for_people(error: PrefetchError) -> PrefetchError:
    """The fix on a command line, where there is no resource to edit."""
    if error.reason != "Unauthorized":
        return error
    cause = str(error).partition(";")[0]
    return PrefetchError(
        f"{cause}; the model is private or gated: set HF_TOKEN to a token that may read it", error.reason
    )


@contextmanager
def _locked(path: Path, out: TextIO) -> Iterator[None]:
    """One download of a model at a time; the others wait, and then find it complete."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.write("another process downloads this model; waiting for it\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _meter(name: str, out: TextIO) -> Meter | None:
    """A progress bar on a terminal; elsewhere None, for lines."""
    if not out.isatty():
        return None
    bar = tqdm(desc=name, unit="B", unit_scale=True, file=out)

    def meter(done: int, total: int, _: float) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return meter

"""Inspects a model, without loading it: architecture, sizes, memory.

A target is a file or folder, or hf://ORG/REPO[@REVISION], s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Of a remote one
only the configuration and the headers of the weights are fetched, into sparse files of the full size.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo_inference.backends.cpu.footprint import count_elements, measure
from octavo_inference.backends.cuda.footprint import foreign_gpu_report, gpu_report
from octavo_inference.checkpoints.gguf_header import read_header
from octavo_inference.checkpoints.guard import refusing
from octavo_inference.checkpoints.hf_heads import pooled_head
from octavo_inference.checkpoints.outline import Outline, format_name, read_outline
from octavo_inference.checkpoints.quantized.quantization_config import MODELOPT_FILE, OLD_FILES
from octavo_inference.checkpoints.safetensors import read_checkpoint
from octavo_inference.checkpoints.transformers_config import ForeignConfig, require_unquantized
from octavo_inference.common.errors import ModelError, UnsupportedModelError
from octavo_inference.download.hub import choose, connect, fetch
from octavo_inference.download.registry import UnresolvedError, read_pull_secrets, resolve_digest
from octavo_inference.download.transfer import PrefetchError, Remote, RemoteFile
from octavo_inference.engine.quantization import has_floats
from octavo_inference.model_loader import ForeignModel, load_text, require_transformers
from octavo_inference.models.adapter import MOST_TOKEN_ROWS
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import pool_layout
from octavo_inference.models.weights import layer_matrices
from octavo_protocol.model import NOTICE_LIMIT, WORD_LIMIT, GpuReport, ModelFailure, ModelReport

Found = TypeVar("Found")

_INDEX = "model.safetensors.index.json"
DESCRIPTIONS = frozenset({"config.json", "generation_config.json", MODELOPT_FILE, *OLD_FILES, _INDEX})
_FIRST_BYTES = 1 << 20
_LAST_BYTES = 1 << 27


def inspect(path: str, *, any_architecture: bool = False, transformers: bool = False) -> ModelReport:
    """Inspect a file or folder. Raises `ModelError` for a model that cannot be served.

    With `any_architecture`, an unknown architecture is accepted: another image will serve it. With `transformers`, the
    image that will serve the model has this library, which may be absent here.
    """
    try:
        text = load_text(path)
    except UnsupportedModelError:
        if any_architecture:
            return ModelReport()
        raise
    config = text.config
    if isinstance(config, ModelConfig):
        with refusing(path):
            if text.path.is_dir():
                pooled_head(text.path, read_checkpoint(text.path), config)  # refuses heads that the engine would
            return _report(read_outline(text.path, config), config)
    elements = count_elements(text.path)
    if isinstance(config, ForeignConfig) and not (any_architecture or transformers):
        try:
            require_unquantized(text.path, config)
            require_transformers(ForeignModel(text, config, text.path, elements, 0))
        except ModelError as error:
            raise UnsupportedModelError(str(error)) from error
    floats = {"bfloat16": 2 * elements, "float32": 4 * elements}
    on_gpu = {"auto": 2 * elements, **floats, "fp8": elements}
    quantization = config.quantization if isinstance(config, ForeignConfig) else ""
    if quantization:
        floats, on_gpu = {}, {"auto": sum(tensor.data.nbytes for tensor in read_checkpoint(text.path).tensors.values())}
    return ModelReport(
        architecture=config.architecture,
        parameters=0 if quantization else elements,
        format=quantization[:WORD_LIMIT],
        quantized=bool(quantization),
        weights=floats,
        max_length=config.max_positions,
        gpu=foreign_gpu_report(on_gpu, config.vocab, config.kv_bytes_per_token(1)),
    )


def _report(outline: Outline, config: ModelConfig) -> ModelReport:
    size, kinds = measure(outline.weights, config), pool_layout(config).kinds
    return ModelReport(
        architecture=config.architecture,
        parameters=outline.parameters,
        format=format_name(outline.weights)[:WORD_LIMIT],
        quantized=not has_floats(outline.weights),
        file_bytes=outline.nbytes,
        weights=size.weights,
        kv_elements_per_token=size.kv_elements,
        kv_tables=kinds if any(kind.reach is not None for kind in kinds) else (),
        max_length=config.max_positions,
        token_bytes=size.token,
        row_bytes=size.row,
        thread_bytes=size.thread,
        state_bytes=config.state_bytes,
        whole_prompts=config.bidirectional,
        adapter_elements=sum(sum(m.shape) for layer in outline.weights.layers for m in layer_matrices(layer)),
        adapter_fixed=2 * MOST_TOKEN_ROWS * config.hidden,
        vocab=config.vocab,
        hidden=config.hidden,
        gpu=_no_gpus(config) if config.bidirectional else gpu_report(outline.weights, config),
    )


def _no_gpus(config: ModelConfig) -> GpuReport:
    """The report on a model that no number of GPUs can share."""
    return GpuReport(head_dim=config.head_dim, row_elements=config.hidden, position=0, shares=())


def inspect_remote(
    remote: Remote,
    repo: str,
    revision: str,
    folder: Path,
    *,
    any_architecture: bool = False,
    transformers: bool = False,
) -> ModelReport:
    """Inspect a model of a hub or bucket. `folder` receives sparse files of a few megabytes."""
    commit = fetch_heads(remote, repo, revision, folder)
    found = inspect(str(folder), any_architecture=any_architecture, transformers=transformers)
    return msgspec.structs.replace(found, revision=commit)


def fetch_heads(
    remote: Remote, repo: str, revision: str, folder: Path, descriptions: frozenset[str] = DESCRIPTIONS
) -> str:
    """Make sparse files of a model: only `descriptions` and the headers of the weights have their content.

    Returns the commit.
    """
    commit = remote.commit(repo, revision)
    files = {file.name: file for file in remote.files(repo, commit)}
    shards = None
    if _INDEX in files:
        _take(remote, repo, commit, files[_INDEX], folder, files[_INDEX].size)
        shards = frozenset(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    for file in choose(list(files.values()), shards):
        if file.name in descriptions or "/" in file.name:  # modules of sentence-transformers are small
            _take(remote, repo, commit, file, folder, file.size)
        elif file.name.endswith(".safetensors"):
            take_header(remote, repo, commit, file, folder)
        elif file.name.endswith(".gguf"):
            _take_gguf_head(remote, repo, commit, file, folder)
        else:
            _take(remote, repo, commit, file, folder, 0)
    return commit


def _take(remote: Remote, repo: str, commit: str, file: RemoteFile, folder: Path, count: int) -> bytes:
    """Make a sparse file of the full size with the first `count` bytes of the real one."""
    head = remote.head(repo, commit, file, min(count, file.size, _LAST_BYTES)) if count else b""
    path = folder / file.name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as out:
        out.write(head)
        out.truncate(file.size)
    return head


def take_header(remote: Remote, repo: str, commit: str, file: RemoteFile, folder: Path) -> None:
    """Make a sparse file with the header of a safetensors file."""
    head = _take(remote, repo, commit, file, folder, _FIRST_BYTES)
    length = 8 + int.from_bytes(head[:8], "little")
    if len(head) < min(length, file.size, _LAST_BYTES):
        _take(remote, repo, commit, file, folder, length)


def _take_gguf_head(remote: Remote, repo: str, commit: str, file: RemoteFile, folder: Path) -> None:
    """Fetch a growing prefix until the header can be parsed: the format does not state the header's length."""
    count = _FIRST_BYTES
    while True:
        have = len(_take(remote, repo, commit, file, folder, count))
        with contextlib.suppress(ModelError):
            if read_header(folder / file.name).size <= have:
                return
        if have >= min(file.size, _LAST_BYTES):
            return
        count *= 4


def fill(
    remote: Remote, repo: str, revision: str, cache: Path, *, any_architecture: bool = False, transformers: bool = False
) -> ModelReport:
    """Download a model into a folder of `cache` named by its revision, and return its inspection.

    It is inspected first, so that a model that cannot be served is not downloaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = inspect_remote(
            remote, repo, revision, Path(folder), any_architecture=any_architecture, transformers=transformers
        )
    # A file name has at most 255 bytes; long prefixes that are cut to the same name still differ in their revisions.
    path = f"{repo.replace('/', '--')[:200]}/{found.revision}"
    fetch(remote, repo, found.revision, cache / path, _say, time.monotonic)
    inspect(str(cache / path), any_architecture=any_architecture, transformers=transformers)
    return msgspec.structs.replace(found, path=path)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def pinned(found: ModelReport, image: str, pull_secrets: Path | None) -> ModelReport:
    """The report on the model of an image, with the image's digest as its revision, or why there is none."""
    try:
        return msgspec.structs.replace(found, revision=resolve_digest(image, read_pull_secrets(pull_secrets)))
    except UnresolvedError as error:
        return msgspec.structs.replace(found, unresolved=str(error)[:NOTICE_LIMIT])


def look(
    target: str, cache: Path | None, *, any_architecture: bool, transformers: bool = False
) -> ModelReport | ModelFailure:
    """The report on a target, which is downloaded if there is a `cache`."""

    def found() -> ModelReport:
        if not is_remote(target):
            return inspect(target, any_architecture=any_architecture, transformers=transformers)
        remote, repo, revision = connect(target)
        if cache is not None:
            return fill(remote, repo, revision, cache, any_architecture=any_architecture, transformers=transformers)
        with tempfile.TemporaryDirectory() as folder:
            return inspect_remote(
                remote, repo, revision, Path(folder), any_architecture=any_architecture, transformers=transformers
            )

    return or_failure(found)


def is_remote(target: str) -> bool:
    """True for a target of a hub or bucket."""
    return target.startswith(("hf://", "s3://", "gs://"))


def or_failure(inspection: Callable[[], Found]) -> Found | ModelFailure:
    """The result of an inspection, or why there is none."""
    try:
        return inspection()
    except PrefetchError as error:
        return ModelFailure(reason=error.reason, message=str(error))
    except UnsupportedModelError as error:
        return ModelFailure(reason="UnknownArchitecture", message=str(error))
    except ModelError as error:
        return ModelFailure(reason="InvalidModel", message=str(error))

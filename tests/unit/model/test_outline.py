"""What headers alone say of a model: its formats by name, and the memory that a GPU's loader would take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo_inference.backends.cuda.footprint import gpu_report
from octavo_inference.download.inspect import inspect
from octavo_inference.engine.quantization import has_floats
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_protocol.model import ModelReport

from .conftest import Typed, linear_modules, write_gguf, write_hf, write_quantized
from .packed_layers import awq, gptq
from .quantized_modules import named

Tensors = dict[str, np.ndarray]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def quantized(
    folder: Path, tensors: Tensors, settings: dict[str, Any], make: Callable[..., Any], *, left: int = 0, **more: Any
) -> Path:
    """A checkpoint whose layers are quantized, except the last few."""
    typed: dict[str, Typed] = {name: ("F32", values) for name, values in tensors.items()}
    modules = linear_modules(tensors)
    for module in modules[: len(modules) - left]:
        rows, columns = typed.pop(module + ".weight")[1].shape
        typed |= named(make(rows, columns, **more)[0], module)
    return write_quantized(folder, settings, typed)


def without_contents(folder: Path) -> ModelReport:
    """Inspect as the Job does: of the weights only the headers are there."""
    for path in folder.iterdir():
        if path.suffix in {".safetensors", ".gguf"}:
            data = path.read_bytes()
            head = 8 + int.from_bytes(data[:8], "little") if path.suffix == ".safetensors" else len(data) // 3
            with path.open("r+b") as out:
                out.truncate(head)
                out.truncate(len(data))
    return inspect(str(folder))


@pytest.mark.parametrize(
    ("name", "all_quantized", "write"),
    [
        ("f32", False, write_hf),
        ("bf16", False, lambda folder, tensors: write_hf(folder, tensors, "BF16")),
        ("gptq int4 g32", True, lambda folder, tensors: quantized(folder, tensors, GPTQ, gptq)),
        (
            "gptq int4 g32",
            True,
            lambda folder, tensors: quantized(folder, tensors, GPTQ | {"desc_act": True}, gptq, act_order=True),
        ),
        ("gptq int8 g32", True, lambda folder, tensors: quantized(folder, tensors, GPTQ | {"bits": 8}, gptq, bits=8)),
        (
            "gptq int4",
            True,
            lambda folder, tensors: quantized(folder, tensors, GPTQ | {"group_size": -1}, gptq, group=-1),
        ),
        ("awq int4 g32", True, lambda folder, tensors: quantized(folder, tensors, AWQ, awq)),
        ("awq int4 g32, f32", False, lambda folder, tensors: quantized(folder, tensors, AWQ, awq, left=1)),
    ],
)
def test_headers_name_the_format_and_give_the_bytes_of_a_load(
    name: str, all_quantized: bool, write: Callable[..., Path], tmp_path: Path, tensors: Tensors
) -> None:
    folder = write(tmp_path / "m", tensors)
    loaded = load_model(str(folder))
    assert isinstance(loaded, LoadedModel)
    expected = gpu_report(loaded.weights, loaded.config)
    size = (folder / "model.safetensors").stat().st_size
    found = without_contents(folder)
    assert (found.format, found.file_bytes) == (name, size)
    assert found.quantized == all_quantized == (not has_floats(loaded.weights))
    assert found.gpu is not None
    assert [share.ranks for share in found.gpu.shares] == [share.ranks for share in expected.shares]
    for one, other in zip(found.gpu.shares, expected.shares, strict=True):
        # The orders of sorted columns are in the files: q, k and v may have the same, and then share one matrix.
        assert one.weights.keys() == other.weights.keys()
        assert all(one.weights[kind] == pytest.approx(other.weights[kind], rel=1e-3) for kind in one.weights)
        assert (one.fp8, one.ordered) == (other.fp8, other.ordered)


def test_formats_of_gguf_files_have_the_names_of_the_file(tmp_path: Path, tensors: Tensors) -> None:
    (tmp_path / "m").mkdir()
    path = write_gguf(tmp_path / "m" / "m.gguf", tensors)
    found = inspect(str(path))
    assert (found.format, found.quantized) == ("f32", False)


def test_an_inspection_needs_no_gpu_library() -> None:
    """The image for CPUs, which inspects models for GPUs, has none."""
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from octavo_inference.download.inspect import inspect\n"
        "found = inspect('smollm2')\n"
        "print(found.format, len(found.gpu.shares))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["Q4_1", "2"], "")

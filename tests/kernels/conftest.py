"""Triton's interpreter for all kernels, and the table of what was compared with what error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Read when triton is first imported, and by every `@triton.jit`: kernels run in numpy on tensors of the CPU.
os.environ["TRITON_INTERPRET"] = "1"

_HEAD = (
    "# GPU kernels against their references",
    "",
    "The largest error of an element, as `make kernels TIER=full TABLE=docs/evidence/kernels.md` found it in Triton's",
    "interpreter. These are all cases of `make test-all`; `make test` runs a part of them.",
    "A shape of attention is heads / key-value heads x head dimension. The type is that of activations or KV pool.",
    "The interpreter truncates bfloat16 and a GPU rounds it, so errors of bfloat16 are about twice those of a GPU.",
    'Rows "rounded as on a card" are the cases of `bench.gpu check`, with products and results rounded as there.',
    "",
)

Record = Callable[[str, object, object, float], None]
_rows: dict[tuple[str, str, str], float] = {}


@pytest.fixture(scope="session", autouse=True)
def quick() -> None:
    import torch

    from .interpreter import hasten

    torch.set_num_threads(1)
    hasten()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """`record(kernel, shape, dtype, max_error)`: one comparison with a reference, for the table."""

    def add(kernel: str, shape: object, dtype: object, max_error: float) -> None:
        # Kept with the test's report, which workers of pytest-xdist hand to the process that writes the table.
        row = (kernel, str(shape), str(dtype).removeprefix("torch."), float(max_error))
        request.node.user_properties.append(("kernel", row))

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        for name, value in report.user_properties:
            if name == "kernel":
                kernel, shape, dtype, error = value
                _rows[kernel, shape, dtype] = max(error, _rows.get((kernel, shape, dtype), 0.0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    table = os.environ.get("OCTAVO_KERNEL_TABLE")
    if table and not hasattr(session.config, "workerinput"):
        rows = [f"| {k} | {shape} | {dtype} | {error:.1e} |" for (k, shape, dtype), error in sorted(_rows.items())]
        head = [*_HEAD, "| kernel | shape | type | max error |", "|---|---|---|---|"]
        Path(table).write_text("\n".join(head + rows) + "\n")

"""Tensor parallelism in Triton's interpreter: processes that share a decoder give what one process gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ranks.py")


def ranks(*arguments: str) -> list[list[str]]:
    """Lines of ranks.py, in words."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("size", "names"), [(2, ("plain", "everything")), (4, ("everything", "untied", "quantised"))], ids=["2", "4"]
)
def test_logits_are_those_of_one_process(size: int, names: tuple[str, ...], record: Callable[..., None]) -> None:
    """Tied and untied, normed and biased, quantised; 61 words; 2 key-value heads, which 4 ranks have twice."""
    found = ranks(str(size), *names)
    assert [name for name, _, _ in found] == list(names)
    for name, error, different in found:
        record(f"{size} ranks: logits, {name}", "4/2 heads", "float32", float(error))
        assert float(error) < 1e-5
        assert different == "0"

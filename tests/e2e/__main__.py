"""`python -m tests.e2e`: all end-to-end tests on one cluster, side by side; those that need it alone come last."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e import shared

HERE = Path(__file__).parent
WORKERS = "4"


def pytest(selection: str, report: str, *options: str, **environment: str) -> bool:
    """Runs the tests of a marker expression in a process of its own; whether all passed."""
    command = [sys.executable, "-m", "pytest", str(HERE), "-v", "--no-header", "-m", selection, *options]
    if folder := os.environ.get("OCTAVO_TEST_REPORTS"):
        command.append(f"--junitxml={folder}/{report}.xml")
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode == 0


def main() -> int:
    """0 when all tests of the tier passed ($OCTAVO_TEST_TIER: `test` without those marked `full`, or `full`)."""
    tier = "" if os.environ.get("OCTAVO_TEST_TIER") == "full" else " and not full"
    if os.geteuid() != 0:
        print("WITHOUT A CLUSTER: a Kubernetes node needs root; all end-to-end tests are skipped", flush=True)
        return 0 if pytest(f"(exclusive or not exclusive){tier}", "skipped") else 1
    with tempfile.TemporaryDirectory() as folder, shared.running() as cluster:
        file = Path(folder) / "cluster.json"
        cluster.save(file)
        known = {shared.FILE: str(file)}
        beside = pytest(
            f"not exclusive{tier}", "together", "-n", WORKERS, "--dist=loadfile", "--no-loadscope-reorder", **known
        )
        alone = pytest(f"exclusive{tier}", "alone", OCTAVO_E2E_COMPLETE="1" if beside else "", **known)
    return 0 if beside and alone else 1


if __name__ == "__main__":
    sys.exit(main())

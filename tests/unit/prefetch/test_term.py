"""The download as the first process of a container: such a process ignores every signal that it does not handle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.prefetch.fake_bucket import FakeBucket
from tests.unit.prefetch.fake_hub import FakeHub

# A process namespace of its own, as containers have: the program is its process 1.
_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def container() -> list[str]:
    if shutil.which("unshare") is None or subprocess.run([*_CONTAINER, "true"], check=False).returncode:
        pytest.skip("process namespaces cannot be made here: SIGTERM to process 1 is not tested")
    return _CONTAINER


@pytest.mark.parametrize("target", ["hf://org/tiny", "s3://models/team/tiny"])
@pytest.mark.parametrize("module", ["prefetch", "inspect_model"])
def test_a_deleted_pod_ends_at_once(
    module: str, target: str, container: list[str], hub: FakeHub, bucket: FakeBucket, tmp_path: Path
) -> None:
    hub.silent = bucket.silent = True
    arguments = [target] + (["--to", str(tmp_path)] if module == "prefetch" else [])
    command = [*container, sys.executable, "-m", f"octavo_inference.{module}", *arguments]
    with subprocess.Popen(command, env={**os.environ, "HF_ENDPOINT": hub.url}) as outer:
        try:
            deadline = time.monotonic() + 60
            while not (hub.requests or bucket.requests):
                assert outer.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            (first,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            assert Path(f"/proc/{first}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1] == "1"
            os.kill(int(first), signal.SIGTERM)
            assert outer.wait(30) == 128 + signal.SIGTERM
        finally:
            outer.kill()

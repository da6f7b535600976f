"""Triton's driver stub is compiled ahead, without a GPU, and used where there is no compiler."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_inference.backends.cuda.aot import driver_stub

TRITON = importlib.util.find_spec("triton")
pytestmark = [
    pytest.mark.slow,  # compiles C, and starts Triton
    pytest.mark.skipif(TRITON is None, reason="NO TRITON HERE: nothing shows that its driver stub is found"),
]

# What `triton.backends.nvidia.driver.CudaUtils` does when the first kernel is launched; no device is asked for.
USE = """
import sys
from pathlib import Path
from octavo_inference.backends.cuda.aot import driver_stub
driver_stub.prepare(Path(sys.argv[1]))
from triton.backends.nvidia.driver import CudaUtils
print(CudaUtils().launch)
"""


def backend() -> Path:
    assert TRITON is not None
    assert TRITON.origin is not None
    return Path(TRITON.origin).parent / "backends" / "nvidia"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return driver_stub.build(backend(), tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def driver(stub: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver that has the names that the stub needs, and nothing behind them."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(stub)], check=True, capture_output=True, text=True)
    names = re.findall(r"\bU (cu[A-Z]\w+)", listed.stdout)
    assert names
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "driver.c")]
    subprocess.run(command, check=True)
    return folder


def start(folder: Path, driver: Path, cache: Path, *, path: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    """A Python that uses the stub; `path` is where it finds programs."""
    env = {
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": str(cache),
        # Where Triton looks for the driver, and where the loader does: on a node both are one place.
        "TRITON_LIBCUDA_PATH": str(driver),
        "LD_LIBRARY_PATH": str(driver),
    }
    command = [sys.executable, "-c", USE, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env)


def test_the_stub_names_the_driver_and_knows_no_path(stub: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", str(stub)], check=True, capture_output=True, text=True).stdout
    assert re.search(r"NEEDED.*\[libcuda\.so\.1\]", dynamic)
    assert "RUNPATH" not in dynamic
    assert "RPATH" not in dynamic


def test_without_a_compiler_triton_takes_the_stub(stub: Path, driver: Path, tmp_path: Path) -> None:
    used = start(stub.parent, driver, tmp_path)
    assert used.returncode == 0, used.stderr
    assert "launch" in used.stdout
    # Twice: the second time it is in Triton's own cache.
    assert start(stub.parent, driver, tmp_path).returncode == 0


def test_without_stub_and_compiler_the_error_says_what_to_do(driver: Path, tmp_path: Path) -> None:
    refused = start(tmp_path, driver, tmp_path / "cache")
    assert refused.returncode == 1
    assert "use the image octavo-server" in refused.stderr
    assert "apt-get install gcc python3-dev" in refused.stderr


def test_a_server_on_a_gpu_looks_for_the_stub_before_it_touches_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pytest.importorskip("octavo_inference.backends.cuda.device")
    monkeypatch.setattr(device, "_ask_driver", lambda: device.Driver(status=0, version=13020, devices=1))
    monkeypatch.setattr(device.torch.version, "cuda", "13.2")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(device.DeviceError, match="there is no C compiler: use the image octavo-server"):
        device.find_device()


def test_a_triton_that_compiles_for_each_kernel_has_no_stub(tmp_path: Path) -> None:
    """Triton 3.6 and older: an image without a compiler would fail at its first kernel."""
    (tmp_path / "driver.c").write_bytes(b'{"loadBinary", loadBinary}')
    with pytest.raises(driver_stub.CompilerMissingError, match=r"Triton 3\.7 is needed"):
        driver_stub.build(tmp_path, tmp_path / "stub")


def test_a_stub_of_another_triton_is_not_taken(stub: Path, driver: Path, tmp_path: Path) -> None:
    source = (backend() / "driver.c").read_bytes()
    (tmp_path / driver_stub.file_name(source + b"\n")).write_bytes(stub.read_bytes())
    assert start(tmp_path, driver, tmp_path / "cache").returncode == 1


def test_where_there_is_a_compiler_triton_uses_it(driver: Path, tmp_path: Path) -> None:
    used = start(tmp_path, driver, tmp_path / "cache", path=os.environ["PATH"])
    assert used.returncode == 0, used.stderr

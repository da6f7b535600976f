"""The GPU of this process: found and checked before the model loads, and checked again after errors.

`check_driver` decides from plain values whether a GPU is usable, so tests cover each of its messages without a GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from octavo_inference.backends.cuda.aot import driver_stub, kernel_cache
from octavo_inference.backends.cuda.library_products import supports_groups
from octavo_inference.common.errors import DeviceError, DeviceLostError

MIN_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
INTERPRETER = "interpreter"

# Values of CUresult (cuda.h).
_SUCCESS, _NO_DEVICE, _MISMATCH, _COMPAT = 0, 100, 803, 804
# The oldest driver for a torch built for this CUDA (CUDA release notes, minor version compatibility).
_LEAST_DRIVER = {12: "R525", 13: "R580"}
# Device memory outside our tensors: growth of the CUDA context, cuBLAS's workspace, loaded kernels.
_RESERVE, _RESERVE_SHARE = 512 * 2**20, 0.02
# Upper bound of our own context's share of the memory in use.
_CONTEXT = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """A device to compute on. Memory is in bytes; `free` is as of when the process held only its CUDA context."""

    torch: torch.device
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    total: int
    free: int

    @property
    def reserve(self) -> int:
        """Bytes of device memory that Octavo leaves unused."""
        return 0 if self.name == INTERPRETER else max(_RESERVE, int(self.total * _RESERVE_SHARE))


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's state: None without its library; CUresult of cuInit; 13020 is CUDA 13.2."""

    status: int
    version: int
    devices: int


@dataclass(frozen=True, slots=True)
class Fp8Products:
    """The fp8 weights that are multiplied by fp8 activations: with a factor per row, and in groups of 128 columns."""

    rows: bool = False
    groups: bool = False


def fp8_products(device: Device, dtype: torch.dtype) -> Fp8Products:
    """The fp8 products that the GPU's tensor cores and torch's libraries support, for activations in `dtype`."""
    if dtype != torch.bfloat16 or device.capability < FP8_CAPABILITY:
        return Fp8Products()
    return Fp8Products(rows=True, groups=supports_groups(device.capability, torch.version.cuda))


def find_device(index: int = 0, *, count: int = 1) -> Device:
    """Select one of `count` visible GPUs, or the CPU with TRITON_INTERPRET=1, which interprets kernels (for tests).

    The GPU becomes torch's current device. Raises `DeviceError` with one sentence for each problem.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Device(torch.device("cpu"), INTERPRETER, MIN_CAPABILITY, 1, 0, 0)
    driver = _ask_driver()
    refusal = check_driver(driver, torch.version.cuda) or check_count(0 if driver is None else driver.devices, count)
    if refusal:
        raise DeviceError(refusal)
    try:
        driver_stub.prepare()
        kernel_cache.prepare()
    except driver_stub.CompilerMissingError as error:
        raise DeviceError(str(error)) from error
    try:
        torch.cuda.set_device(index)
        free, total = torch.cuda.mem_get_info(index)  # creates the CUDA context
        properties = torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(explain(str(error))) from error
    capability = (properties.major, properties.minor)
    refusal = check_capability(properties.name, capability)
    if refusal:
        raise DeviceError(refusal)
    where = torch.device("cuda", index)
    return Device(where, properties.name, capability, properties.multi_processor_count, total, free)


def check_driver(driver: Driver | None, wheel: str | None) -> str | None:
    """The reason why this driver cannot run a torch built for CUDA `wheel` ("13.2"), None when it can."""
    if wheel is None:
        return (
            "torch was built without CUDA, so it cannot use a GPU: use the image octavo-server, or install torch's "
            "CUDA build"
        )
    if driver is None:
        return (
            "no NVIDIA driver: libcuda.so.1 is not there; on Kubernetes ask for a GPU (resources.gpu.count: 1) on a "
            "node with the NVIDIA container toolkit, elsewhere install the driver, or compute on CPUs (--device cpu)"
        )
    # Newer minor versions run on any driver of the same major version (CUDA's minor version compatibility).
    if driver.status in {_MISMATCH, _COMPAT} or (driver.version and driver.version // 1000 < int(wheel.split(".")[0])):
        return (
            f"the NVIDIA driver is too old: it knows CUDA {_version(driver.version)}, and torch was built for CUDA "
            f"{wheel}; {_remedy(driver, int(wheel.split('.')[0]))}"
        )
    if driver.status == _NO_DEVICE or (driver.status == _SUCCESS and driver.devices == 0):
        visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
        told = "" if visible is None else f" (visible devices are set to {visible!r})"
        return (
            f"the NVIDIA driver sees no GPU{told}: on Kubernetes set resources.gpu.count to 1, elsewhere check "
            "nvidia-smi, or compute with --device cpu"
        )
    if driver.status != _SUCCESS:
        return f"the NVIDIA driver does not start (cuInit gives {driver.status}): check nvidia-smi on the node"
    return None


def check_count(found: int, count: int) -> str | None:
    """The reason why a model cannot be sharded over `count` GPUs, None when it can."""
    if found >= count:
        return None
    return (
        f"tensor_parallel_size {count} needs as many GPUs, and {found} {'is' if found == 1 else 'are'} visible: set "
        f"resources.gpu.count to {count}, elsewhere check nvidia-smi and CUDA_VISIBLE_DEVICES, or set "
        f"tensor_parallel_size to {found}"
    )


def check_capability(name: str, capability: tuple[int, int]) -> str | None:
    """The reason why the kernels cannot run on this GPU, None when they can."""
    if capability >= MIN_CAPABILITY:
        return None
    return (
        f"{name} has compute capability {dotted(capability)}, and the kernels need {dotted(MIN_CAPABILITY)} (A100, "
        "L4, H100 and newer): choose another GPU with resources.gpu.product, or compute with --device cpu"
    )


def explain(message: str) -> str:
    """One sentence for torch's error when it cannot initialize a GPU that is present."""
    first = (message.strip().splitlines() or ["no reason given"])[0]
    if "busy or unavailable" in first:
        return (
            "the GPU is taken: another process has it for itself (exclusive compute mode); end that process, or "
            "choose another GPU; nvidia-smi lists who uses it"
        )
    if "out of memory" in first:
        return "the GPU is taken: other processes left no memory on it, not even for a context; nvidia-smi lists them"
    return f"the GPU cannot be used: {first}; check nvidia-smi and the node's kernel log for Xid errors"


def require_room(device: Device, needed: int, *, kv_memory: int | None = None) -> None:
    """Refuse a model that does not fit, before loading any of it. Bytes; `kv_memory` is the requested pool.

    Raises `DeviceError` with the numbers.
    """
    if needed <= device.free:
        return
    taken = device.total - device.free
    told = f"{_gib(device.free)} of {_gib(device.total)} GiB are free on {device.name}"
    if kv_memory is not None and needed - kv_memory <= device.free:
        raise DeviceError(
            f"the model needs {_gib(needed)} GiB, {_gib(kv_memory)} of it by --kv-memory, and {told}: reduce it"
        )
    if needed <= device.total * (1 - _RESERVE_SHARE) and taken > _CONTEXT:
        raise DeviceError(
            f"the model needs {_gib(needed)} GiB and {told}: other processes use {_gib(taken)} GiB of it; end them "
            "(nvidia-smi lists them) or choose another GPU"
        )
    raise DeviceError(
        f"the model needs {_gib(needed)} GiB and {told}: choose a larger GPU (resources.gpu.minMemory), a quantised "
        "model, fp8 weights (--quantization, engine.quantization), or a smaller --max-batched-tokens"
    )


@contextmanager
def watched(check: Callable[[], object]) -> Generator[None, None, None]:
    """Distinguish a request's error from the loss of the device.

    After an error `check` synchronizes with the device. Errors such as an illegal address or an uncorrectable ECC error
    persist: `check` fails too, and so would every later step. Raises `DeviceLostError` in that case, else the original
    error.
    """
    try:
        yield
    except Exception as error:
        try:
            check()
        except Exception as still:  # noqa: BLE001 -- any error means that the device is lost
            first = (str(still).strip().splitlines() or [type(still).__name__])[0]
            raise DeviceLostError(
                f"the GPU failed and cannot recover: {first}; the process ends so that a new one can start; if it "
                "happens again, look for Xid errors in the node's kernel log"
            ) from error
        raise


def _ask_driver() -> Driver | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    status: int = cuda.cuInit(0)
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if status == _SUCCESS:
        cuda.cuDeviceGetCount(ctypes.byref(devices))
    return Driver(status, version.value, devices.value)


def _remedy(driver: Driver, wheel: int) -> str:
    """What to do about a driver that is too old for a torch of CUDA `wheel`."""
    update = f"update the node's driver to {_LEAST_DRIVER[wheel]} or newer"
    known = driver.version // 1000
    if known >= wheel or known not in _LEAST_DRIVER:
        return update
    return f"use the image octavo-server-cuda{known} (spec.engine.image, or server.image of the chart), or {update}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def dotted(capability: tuple[int, int]) -> str:
    """Format a compute capability: 8.9."""
    return ".".join(map(str, capability))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"

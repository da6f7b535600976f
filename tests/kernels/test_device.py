"""What is said of a GPU that cannot be used, decided from what driver and card say of themselves."""

from __future__ import annotations

import pytest
import torch

from octavo_inference.backends.cuda import device
from octavo_inference.backends.cuda.device import (
    Device,
    Driver,
    check_capability,
    check_count,
    check_driver,
    explain,
    require_room,
    watched,
)
from octavo_inference.common.errors import DeviceError, DeviceLostError
from octavo_inference.distributed.messages import RankDevice
from octavo_inference.distributed.rendezvous import least

GIB = 2**30
SOUND = Driver(status=0, version=13020, devices=1)


def h200(free: float = 139.0) -> Device:
    return Device(torch.device("cpu"), "NVIDIA H200", (9, 0), 132, 140 * GIB, int(free * GIB))


@pytest.mark.parametrize(
    ("driver", "wheel", "sentence"),
    [
        (SOUND, None, "torch was built without CUDA"),
        (None, "13.2", "no NVIDIA driver: libcuda.so.1 is not there"),
        (
            Driver(0, 12080, 1),
            "13.2",
            (
                r"too old: it knows CUDA 12.8, and torch was built for CUDA 13.2; use the image octavo-server-cuda12 "
                r"\(spec.engine.image, or server.image of the chart\), or update the node's driver to R580 or newer"
            ),
        ),
        (Driver(0, 11080, 1), "12.8", "knows CUDA 11.8, .* CUDA 12.8; update the node's driver to R525 or newer"),
        (Driver(803, 13020, 0), "13.2", "the NVIDIA driver is too old"),
        (Driver(100, 13020, 0), "13.2", "sees no GPU"),
        (Driver(0, 13020, 0), "13.2", "sees no GPU"),
        (Driver(999, 13020, 0), "13.2", r"does not start \(cuInit gives 999\)"),
    ],
)
def test_each_thing_wrong_with_a_driver_has_its_sentence(driver: Driver | None, wheel: str, sentence: str) -> None:
    refusal = check_driver(driver, wheel)
    assert refusal is not None
    assert "\n" not in refusal
    with pytest.raises(DeviceError, match=sentence):
        raise DeviceError(refusal)


@pytest.mark.parametrize("version", [13000, 13020, 14010])
def test_a_driver_of_the_same_or_a_later_major_version_is_sound(version: int) -> None:
    assert check_driver(Driver(0, version, 1), "13.2") is None


def test_too_few_gpus_for_a_model_are_counted() -> None:
    sentence = "tensor_parallel_size 4 needs as many GPUs, and 2 are visible: set resources.gpu.count to 4"
    assert str(check_count(2, 4)).startswith(sentence)
    assert "and 1 is visible" in str(check_count(1, 2))
    assert check_count(4, 4) is None
    assert check_count(8, 2) is None


def test_ranks_have_what_the_smallest_of_their_cards_has() -> None:
    others = [RankDevice("NVIDIA H200", 140 * GIB, 90 * GIB), RankDevice("NVIDIA H200", 139 * GIB, 100 * GIB)]
    device = least(h200(free=120), others)
    assert (device.total, device.free) == (139 * GIB, 90 * GIB)
    with pytest.raises(DeviceError, match="rank 0 has NVIDIA H200 and rank 1 has NVIDIA L4; choose one kind"):
        least(h200(), [RankDevice("NVIDIA L4", GIB, GIB)])


def test_what_hides_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    assert "visible devices are set to 'void'" in str(check_driver(Driver(100, 13020, 0), "13.2"))


@pytest.mark.parametrize(("capability", "sound"), [((7, 5), False), ((8, 0), True), ((8, 9), True), ((12, 0), True)])
def test_old_cards_are_refused_by_name(capability: tuple[int, int], sound: bool) -> None:
    refusal = check_capability("Tesla T4", capability)
    assert (refusal is None) == sound
    if refusal:
        assert "Tesla T4 has compute capability 7.5, and the kernels need 8.0" in refusal


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("CUDA error: all CUDA-capable devices are busy or unavailable\nmore", "taken: another process has it"),
        ("CUDA error: out of memory", "taken: other processes left no memory"),
        ("CUDA error: initialization error", "cannot be used: CUDA error: initialization error"),
        ("", "cannot be used: no reason given"),
    ],
)
def test_a_gpu_that_is_there_and_cannot_begin(said: str, sentence: str) -> None:
    told = explain(said)
    assert sentence in told
    assert "\n" not in told


def test_a_model_that_would_fit_an_empty_card_names_the_others() -> None:
    with pytest.raises(DeviceError, match=r"needs 30.0 GiB and 20.0 of 140.0 GiB are free .* other processes use 120"):
        require_room(h200(free=20), 30 * GIB)


def test_a_model_that_never_fits_names_what_could_be_smaller() -> None:
    with pytest.raises(DeviceError, match=r"needs 200.0 GiB and 139.0 of 140.0 GiB .*choose a larger GPU"):
        require_room(h200(), 200 * GIB)


def test_a_pool_that_was_asked_too_large_is_named() -> None:
    with pytest.raises(DeviceError, match=r"needs 150.0 GiB, 120.0 of it by --kv-memory, and 139.0 .*reduce it"):
        require_room(h200(), 150 * GIB, kv_memory=120 * GIB)


def test_our_own_context_is_nobody_elses() -> None:
    slice_ = Device(torch.device("cpu"), "a slice", (9, 0), 16, int(4.75 * GIB), int(4.3 * GIB))
    with pytest.raises(DeviceError, match="choose a larger GPU"):
        require_room(slice_, int(4.5 * GIB))


def test_what_fits_is_not_refused() -> None:
    require_room(h200(), 139 * GIB)


def test_an_error_that_passes_is_a_requests_own() -> None:
    with pytest.raises(ValueError, match="one bad request"), watched(lambda: None):
        raise ValueError("one bad request")


def test_an_error_that_stays_is_the_end_of_the_device() -> None:
    def check() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")

    sentence = "an illegal memory access was encountered; the process ends"
    with pytest.raises(DeviceLostError, match=sentence) as lost, watched(check):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "\n" not in str(lost.value)


def test_this_machine_is_told_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is: with a GPU that torch can use one is found, else a sentence says why not."""
    monkeypatch.delenv("TRITON_INTERPRET")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= device.MIN_CAPABILITY:
        assert device.find_device().free > 0
        return
    with pytest.raises(DeviceError) as refused:
        device.find_device()
    assert "\n" not in str(refused.value)

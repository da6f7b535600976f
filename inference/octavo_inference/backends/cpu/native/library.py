"""Loads the native kernels: selects the variant for this machine and declares its functions.

Set OCTAVO_CPU_VARIANT to a variant's name to force it.
"""

from __future__ import annotations

import ctypes
import os
import platform
from ctypes import POINTER, byref, c_int32, c_int64, c_long, c_ulong, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from octavo_inference.backends.cpu.native import abi
from octavo_inference.backends.cpu.native.build import HERE, object_name
from octavo_inference.common.errors import OctavoError

# On Intel the dot product of bf16 pairs takes longer than the two float32 multiply-adds that it replaces: a prompt
# takes 1.5 times as long as with exact activations. On AMD it is faster than they are.
SLOW_ON = {"avx512bf16": "GenuineIntel"}

# Best first, each with its required instruction sets by Linux's names. Linux lists only those whose state it saves on a
# context switch. No name of x86 is one of ARM.
NEEDS: dict[str, frozenset[str]] = {
    "amx": frozenset(
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16"}
    ),
    "avx512bf16": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}),
    "avx512vnni": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "neonbf16": frozenset({"asimddp", "bf16"}),
    "neondot": frozenset({"asimddp"}),
    "portable": frozenset(),
}


# Where arch/arm64/include/uapi/asm/hwcap.h of Linux has them: word and bit.
_ARM_BITS = {"asimddp": (0, 20), "bf16": (1, 14)}
_AT_HWCAP, _AT_HWCAP2 = 16, 26

# A process asks for the registers of AMX before it uses them; Documentation/arch/x86/xstate.rst of Linux.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


class NativeUnavailableError(OctavoError):
    """The native kernels are unavailable; the message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """A loaded variant."""

    variant: str
    library: ctypes.CDLL
    info: abi.Info


def x86_flags(cpuinfo: str) -> frozenset[str]:
    """Vendor and instruction sets of the first CPU in the text of /proc/cpuinfo."""
    found: set[str] = set()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"vendor_id", "flags"}:
            found.update(value.split())
        if key.strip() == "flags":
            break
    return frozenset(found)


def arm_flags(hwcap: int, hwcap2: int) -> frozenset[str]:
    """Instruction sets in the two words of capabilities that Linux gives a process on 64-bit ARM, as in `Features`."""
    return frozenset(name for name, (word, bit) in _ARM_BITS.items() if (hwcap, hwcap2)[word] >> bit & 1)


def choose(flags: frozenset[str], built: frozenset[str], forced: str | None) -> str:
    """Select the best built variant that these flags support, or the forced one. Raises NativeUnavailableError."""
    if not built:
        raise NativeUnavailableError(
            "the native CPU kernels are not built: install a C++ compiler (Debian, Ubuntu: apt-get install g++) "
            "and run `python -m octavo_inference.backends.cpu.native.build`, or reinstall octavo"
        )
    usable = [name for name, needs in NEEDS.items() if name in built and needs <= flags]
    if forced:
        if forced not in usable:
            raise NativeUnavailableError(
                f"OCTAVO_CPU_VARIANT={forced} cannot be used here; this machine and build can run: {', '.join(usable)}"
            )
        return forced
    if not usable:
        raise NativeUnavailableError(
            f"none of the built CPU kernels ({', '.join(sorted(built))}) runs on this machine: build them here with "
            "`python -m octavo_inference.backends.cpu.native.build`"
        )
    return next((name for name in usable if SLOW_ON.get(name) not in flags), usable[0])


def available() -> tuple[str, ...]:
    """Variants that are built and that this machine supports, best first."""
    built, flags = _built(), usable_flags()
    return tuple(name for name, needs in NEEDS.items() if name in built and needs <= flags)


@cache
def load(variant: str | None = None) -> Kernels:
    """Load a variant (default: OCTAVO_CPU_VARIANT or the best). Raises NativeUnavailableError."""
    forced = variant or os.environ.get("OCTAVO_CPU_VARIANT") or None
    return open_library(choose(machine_flags() if forced else usable_flags(), _built(), forced))


def open_library(variant: str, path: Path | None = None) -> Kernels:
    """Open a shared object and declare its functions.

    Raises NativeUnavailableError on another ABI version, and where Linux refuses registers that the variant needs.
    """
    if variant == "amx" and (refusal := _request_tiles()):
        raise NativeUnavailableError(
            f"Linux refuses this process the registers of AMX ({refusal}): use another variant"
        )
    library = ctypes.CDLL(str(path or HERE / object_name(variant)))
    signatures: dict[str, tuple[list[object], object]] = {
        "octavo_team_create": ([c_int32], c_void_p),
        "octavo_team_destroy": ([c_void_p], None),
        "octavo_pack": (
            [
                *(c_void_p, POINTER(abi.PackedMatrix), POINTER(abi.StoredMatrix)),
                *(c_int32, c_int32, c_int64, c_int64),
            ],
            None,
        ),
        "octavo_quantize": ([c_void_p, c_int64, c_int64, c_void_p], None),
        "octavo_linear": ([c_void_p, POINTER(abi.PackedMatrix), c_void_p, c_void_p, c_int64, c_void_p], None),
        "octavo_route": ([POINTER(abi.RoutingArgs), c_void_p, c_void_p, c_int64, c_void_p, c_void_p], None),
        **{name: ([c_int32], c_int64) for name in ("octavo_attention_scratch", "octavo_latent_scratch")},
        "octavo_step": (
            [
                c_void_p,
                POINTER(abi.DecoderArgs),
                POINTER(abi.BatchArgs),
                POINTER(abi.SamplingArgs),
                POINTER(abi.PoolingArgs),
                c_int32,
                POINTER(abi.PartSeconds),
            ],
            None,
        ),
        **{
            name: ([c_void_p, POINTER(abi.DecoderArgs), POINTER(abi.SamplingArgs), POINTER(abi.PartSeconds)], None)
            for name in ("octavo_choose", "octavo_score")
        },
        "octavo_decode": (
            [
                c_void_p,
                POINTER(abi.DecoderArgs),
                POINTER(abi.BatchArgs),
                POINTER(abi.SamplingArgs),
                POINTER(abi.DecodeRunArgs),
                POINTER(abi.PartSeconds),
            ],
            c_int32,
        ),
        "octavo_sample": ([POINTER(abi.SamplingArgs), c_void_p, c_int64, c_int64], None),
    }
    info = abi.Info()
    library.octavo_info(byref(info))
    if info.abi_version != abi.VERSION:
        raise NativeUnavailableError(
            f"{object_name(variant)} has ABI version {info.abi_version}, this code needs {abi.VERSION}: "
            "run `python -m octavo_inference.backends.cpu.native.build`"
        )
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return Kernels(variant, library, info)


def _built() -> frozenset[str]:
    return frozenset(name for name in NEEDS if (HERE / object_name(name)).exists())


def machine_flags() -> frozenset[str]:
    """Vendor and instruction sets of this machine, by Linux's names."""
    if platform.machine() == "aarch64":
        # /proc/cpuinfo of an emulator (qemu-user) is that of the machine below.
        auxiliary = ctypes.CDLL(None).getauxval
        auxiliary.argtypes, auxiliary.restype = [c_ulong], c_ulong
        return arm_flags(auxiliary(_AT_HWCAP), auxiliary(_AT_HWCAP2))
    try:
        return x86_flags(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"))
    except OSError:
        # Without /proc only the architecture's baseline is certain.
        return frozenset({platform.machine()})


def usable_flags() -> frozenset[str]:
    """`machine_flags` without AMX where Linux refuses its registers, as some sandboxes do."""
    flags = machine_flags()
    return flags - {"amx_tile"} if "amx_tile" in flags and _request_tiles() else flags


def _request_tiles() -> str:
    """Ask Linux for the tile registers of AMX, for all threads; its reason where it refuses, else empty."""
    system = ctypes.CDLL(None, use_errno=True)
    if platform.machine() != "x86_64":
        return "this is no x86-64"
    refused = system.syscall(c_long(_ARCH_PRCTL), c_long(_ARCH_REQ_XCOMP_PERM), c_long(_XFEATURE_XTILEDATA))
    return os.strerror(ctypes.get_errno()) if refused else ""

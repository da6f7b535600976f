"""Which instruction set is chosen, and how many threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from octavo_inference.backends.cpu.native import build, library
from octavo_inference.backends.cpu.native.cores import numa_nodes, usable_cores

ALL = frozenset({"amx", "avx512bf16", "avx512vnni", "avx512", "avx2", "portable"})
ARM = frozenset({"neonbf16", "neondot", "portable"})
ZEN3 = frozenset({"avx2", "fma", "f16c"})
ZEN4 = ZEN3 | {"AuthenticAMD", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}
ICE_LAKE = ZEN4 - {"AuthenticAMD", "avx512_bf16"} | {"GenuineIntel"}
SAPPHIRE = ICE_LAKE | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}
CORTEX_A72 = library.arm_flags(0xFF, 0)
NEOVERSE_N1 = library.arm_flags(0x119FFF, 0)
NEOVERSE_V1 = library.arm_flags(0xFFFFFFFF, 0x7F87FFFF)


def test_flags_of_x86_are_read_from_cpuinfo() -> None:
    x86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 fma f16c\n"
    assert library.x86_flags(x86) == frozenset({"GenuineIntel", "fpu", "avx2", "fma", "f16c"})
    assert library.x86_flags("") == frozenset()


def test_flags_of_arm_are_bits_of_the_auxiliary_vector() -> None:
    assert sorted(CORTEX_A72) == []
    assert sorted(NEOVERSE_N1) == ["asimddp"]
    assert sorted(NEOVERSE_V1) == ["asimddp", "bf16"]


@pytest.mark.parametrize(
    ("flags", "variant"),
    [
        (ZEN4, "avx512bf16"),
        (ZEN4 - {"avx512_bf16"}, "avx512vnni"),
        (SAPPHIRE, "amx"),
        (SAPPHIRE - {"amx_tile"}, "avx512vnni"),
        (ICE_LAKE, "avx512vnni"),
        (SAPPHIRE - {"avx512_vnni"}, "avx512"),
        (ZEN3, "avx2"),
        (ZEN3 - {"fma"}, "portable"),
        (frozenset(), "portable"),
    ],
)
def test_best_variant_the_machine_can_run(flags: frozenset[str], variant: str) -> None:
    assert library.choose(flags, ALL, None) == variant


@pytest.mark.parametrize(
    ("flags", "variant"),
    [(NEOVERSE_V1, "neonbf16"), (NEOVERSE_N1, "neondot"), (CORTEX_A72, "portable"), (frozenset({"bf16"}), "portable")],
)
def test_best_variant_of_an_arm_machine(flags: frozenset[str], variant: str) -> None:
    assert library.choose(flags, ARM, None) == variant


def test_forced_variant_is_taken_or_refused_by_name() -> None:
    assert library.choose(SAPPHIRE, ALL, "avx512bf16") == "avx512bf16"
    assert library.choose(SAPPHIRE, ALL, "amx") == "amx"
    assert library.choose(ZEN3, ALL, "portable") == "portable"
    with pytest.raises(library.NativeUnavailableError, match=r"avx512.*can run: avx2, portable"):
        library.choose(ZEN3, ALL, "avx512")


def test_nothing_built_says_what_to_install() -> None:
    with pytest.raises(library.NativeUnavailableError, match=r"apt-get install g\+\+"):
        library.choose(ZEN3, frozenset(), None)


def test_every_variant_that_is_compiled_has_its_needs() -> None:
    for compiled in (build.X86_VARIANTS, build.ARM_VARIANTS, build.OTHER_VARIANTS):
        assert compiled.keys() <= library.NEEDS.keys()
        assert [name for name in library.NEEDS if name in compiled] == list(compiled)


def test_the_compiler_says_which_variants_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cross-g++"
    fake.write_text("#!/bin/sh\necho aarch64-linux-gnu\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    assert build.variants() == build.ARM_VARIANTS
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert build.variants() == build.X86_VARIANTS


def test_tiles_that_linux_refuses_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # A feature that no processor has, so that Linux refuses it on those with AMX too.
    monkeypatch.setattr(library, "_XFEATURE_XTILEDATA", 63)
    with pytest.raises(library.NativeUnavailableError, match="refuses this process the registers of AMX"):
        library.open_library("amx")


def test_tiles_that_linux_refuses_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "machine_flags", lambda: SAPPHIRE)
    monkeypatch.setattr(library, "_XFEATURE_XTILEDATA", 63)
    assert library.choose(library.usable_flags(), ALL, None) == "avx512vnni"


def test_container_limit_bounds_the_threads(tmp_path: Path) -> None:
    unlimited = usable_cores(tmp_path)
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == unlimited


def test_container_limit_of_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize(
    ("mine", "expected"), [({0}, 1), ({0, 3, 8}, 1), ({3, 4}, 2), (set(range(12)), 2), ({99}, 1), ({0, 20}, 1)]
)
def test_numa_nodes_are_those_with_a_usable_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: set[int], expected: int
) -> None:
    # The last node has memory only.
    for node, cores in enumerate(["0-3,8-9", "4-7,10,11", ""]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cores}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    assert numa_nodes(tmp_path) == expected


def test_a_system_without_numa_has_one_node(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path / "absent") == 1

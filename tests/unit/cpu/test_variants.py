"""Which instruction set is chosen, and how many threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_inference.backends.cpu.native import library
from octavo_inference.backends.cpu.native.cores import usable_cores

ALL = frozenset({"avx512bf16", "avx512vnni", "avx512", "avx2", "portable"})
ZEN3 = frozenset({"avx2", "fma", "f16c"})
ZEN4 = ZEN3 | {"AuthenticAMD", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}
SAPPHIRE = ZEN4 - {"AuthenticAMD"} | {"GenuineIntel"}


def test_flags_are_read_from_cpuinfo() -> None:
    x86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 fma f16c\n"
    assert library.cpu_flags(x86) == frozenset({"GenuineIntel", "fpu", "avx2", "fma", "f16c"})
    assert library.cpu_flags("Features\t: fp asimd bf16\n") == frozenset({"fp", "asimd", "bf16"})
    assert library.cpu_flags("") == frozenset()


@pytest.mark.parametrize(
    ("flags", "variant"),
    [
        (ZEN4, "avx512bf16"),
        (ZEN4 - {"avx512_bf16"}, "avx512vnni"),
        (SAPPHIRE, "avx512vnni"),
        (SAPPHIRE - {"avx512_vnni"}, "avx512"),
        (ZEN3, "avx2"),
        (ZEN3 - {"fma"}, "portable"),
        (frozenset(), "portable"),
    ],
)
def test_best_variant_the_machine_can_run(flags: frozenset[str], variant: str) -> None:
    assert library.choose(flags, ALL, None) == variant


def test_forced_variant_is_taken_or_refused_by_name() -> None:
    assert library.choose(SAPPHIRE, ALL, "avx512bf16") == "avx512bf16"
    assert library.choose(ZEN3, ALL, "portable") == "portable"
    with pytest.raises(library.NativeUnavailableError, match=r"avx512.*can run: avx2, portable"):
        library.choose(ZEN3, ALL, "avx512")


def test_nothing_built_says_what_to_install() -> None:
    with pytest.raises(library.NativeUnavailableError, match=r"apt-get install g\+\+"):
        library.choose(ZEN3, frozenset(), None)


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

"""What `make demo` says before it starts."""

import io
from pathlib import Path

import pytest

from demo import plan
from toolbox import build
from toolbox.catalog import NODE, PROGRAMS, cost
from toolbox.progress import Progress


def test_a_warm_run_is_one_line() -> None:
    assert plan.text([plan.STORY], 2) == "make demo: everything is built; about 1 m 40 s"


def test_a_cold_run_names_each_part_with_its_time() -> None:
    parts = [plan.Part("Go programs", cpu=600, wait=30), plan.STORY]
    assert plan.text(parts, 2).splitlines() == [
        "make demo: about 7 minutes on 2 cores, this time; later runs take two",
        "   5 m 30 s  Go programs",
        "   1 m 40 s  the demonstration itself",
    ]
    assert plan.text(parts, 8).startswith("make demo: about 3 minutes on 8 cores")


def test_only_what_is_missing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "go_version", lambda _: "go1.26.8")
    monkeypatch.setattr(build, "go_arch", lambda: "amd64")
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setattr(plan, "unbuilt", lambda *_, **__: ["gateway"])
    monkeypatch.setattr(plan, "_variants", lambda: ["avx2"])
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("OCTAVO_KUBERNETES_BIN", raising=False)
    for name in NODE:
        build.cached(name).parent.mkdir(parents=True)
        build.cached(name).touch()

    def found(*, local: bool) -> list[plan.Part]:
        return plan.parts(local=local, progress=Progress(io.StringIO()))

    wanted = [plan.environment(), plan.kernels(["avx2"]), plan.programs(["kubectl", "helm"]), plan.images(["gateway"])]
    assert found(local=True) == [*wanted, plan.STORY]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    build.cached("kubectl").parent.mkdir()
    build.cached("kubectl").touch()
    assert [part.what for part in found(local=False)][1] == "1 Go program to compile (helm)"
    assert found(local=False)[1].cpu == cost(["helm"]) == PROGRAMS["helm"].cost

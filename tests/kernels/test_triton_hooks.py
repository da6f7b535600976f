"""The installed Triton has the hooks that Octavo sets, and a server starts with one that has none of them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton

from octavo_inference.backends.cuda.aot import kernel_cache, triton_hooks


@pytest.mark.parametrize("hook", triton_hooks.HOOKS)
def test_this_triton_has_the_hook(hook: triton_hooks.Hook, caplog: pytest.LogCaptureFixture) -> None:
    before = triton_hooks.get(hook)
    mark = object()
    assert triton_hooks.set_to(hook, mark)
    try:
        group, name = hook.split(".")
        assert getattr(getattr(triton.knobs, group), name) is mark
    finally:
        triton_hooks.set_to(hook, before)
    assert not caplog.records


@pytest.mark.parametrize("knobs", [None, SimpleNamespace(cache=SimpleNamespace(), compilation=SimpleNamespace())])
def test_a_triton_without_hooks_is_used_as_it_is(
    knobs: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton, "knobs", knobs)
    kernel_cache.prepare(tmp_path)
    with kernel_cache.watched() as found:
        pass
    assert (found.ready, found.compiled) == (0, 0)
    assert not triton_hooks.set_to("build.impl", object())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("knobs.cache.manager_class: kernels that were compiled ahead are not used" in line for line in told)
    assert any("knobs.compilation.listener: compiled kernels are not counted" in line for line in told)


def test_a_triton_without_its_cache_manager_compiles_kernels_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime.cache", SimpleNamespace())
    kernel_cache.prepare(tmp_path)
    assert "has no FileCacheManager: kernels that were compiled ahead are not used" in caplog.text

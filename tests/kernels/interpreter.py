"""Triton's interpreter without work that changes no result: kernels two to six times as fast, all else as before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def hasten() -> None:
    """For all kernels that this process interprets from now on; none can be compiled in it any more.

    The interpreter computes for each integer sum and product whether it overflows, and drops the answer unless its
    option `debug` is set, which nothing sets. It also patches `triton.language` in each launch and in each call of a
    device function. Here it is patched once, under both names that it has in modules of kernels.
    """
    options = interpreter.interpreter_builder.options
    assert not options.debug, "the answer about overflows would be used"
    object.__setattr__(options, "sanitize_overflow", False)
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
    interpreter.InterpretedFunction.__call__ = _call


def _call(function: interpreter.InterpretedFunction, *args: Any, **named: Any) -> Any:
    return function.rewrite()(*args, **named)

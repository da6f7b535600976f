"""Triton's interpreter without work that changes no result, and with a card's roundings where a test wants them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle


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


def round_as_a_card(patch: pytest.MonkeyPatch) -> None:
    """Make the interpreter round to bfloat16 where a card does: operands of products, and results.

    By itself it multiplies in float32, since numpy has no bfloat16, and it truncates results.
    """
    builder = interpreter.InterpreterBuilder
    multiply, cast = builder.create_dot, builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(self, *(TensorHandle(_rounded(x.data), x.dtype) for x in (a, b)), *others)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) == (tl.float32, tl.bfloat16):
            return TensorHandle((_rounded(src.data).view(np.uint32) >> 16).astype(np.uint16), tl.bfloat16)
        return cast(self, src, dst_type)

    patch.setattr(builder, "create_dot", create_dot)
    patch.setattr(builder, "cast_impl", cast_impl)


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest values of bfloat16; of two the even one."""
    assert values.dtype == np.float32
    return torch.from_numpy(np.array(values)).bfloat16().float().numpy()

"""One step of a product of activations and a matrix of any layout, dequantized in registers before the tensor cores."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_inference.backends.cuda.kernels.dequantize import e4m3, integers, is_four_bits, nibble_unit, nibbles, spread


@triton.jit
def _add_product(acc, x, columns, present, limit, weights, scale, minimum, UNIT: tl.constexpr, DOT: tl.constexpr):
    """The sums `acc` + x @ weights.T over columns below `limit`. `weights` are times 1 / UNIT, and not scaled yet."""
    rows = tl.load(x + columns, mask=present & (columns < limit), other=0.0).to(DOT)
    if scale is not None:
        weights *= scale * UNIT
    if minimum is not None:
        weights += minimum
    return tl.dot(rows, tl.trans(weights.to(DOT)), acc, input_precision="ieee")


@triton.jit
def _of_groups(plane, first, groups, known, COUNT: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr):
    """A plane's numbers of COUNT groups, every EACH-th from `first` on, spread over the WIDTH bytes of a step."""
    group = first + EACH * tl.arange(0, COUNT)[None, :]
    return spread(tl.load(plane + group, mask=known & (group < groups), other=0.0), WIDTH // COUNT)


@triton.jit
def add_step(acc, x, w, scales, minimums, levels, step, present, known, k, width, groups, FORM: tl.constexpr,
             GROUP: tl.constexpr, ZERO: tl.constexpr, DOT: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """`acc` [ROWS, OUTPUTS] + x @ weights.T over the columns in bytes (of dense weights: elements) of a step.

    x [ROWS, 1] points to rows of activations, `w`, `scales` and `minimums` [OUTPUTS, 1] to rows of a matrix's planes;
    `present` and `known` are true for rows that exist. Weights are not multiplied by the factors of their rows.
    """
    FOUR: tl.constexpr = is_four_bits(FORM)
    # Bytes of a row that share a scale, and groups in them: low and high nibbles of groups of 16 have one each.
    SPAN: tl.constexpr = GROUP // 2 if FOUR and GROUP > 32 else 16 if FOUR or GROUP == 0 else GROUP
    EACH: tl.constexpr = 2 if FOUR and GROUP < 32 else 1
    COUNT: tl.constexpr = STEP // SPAN if STEP > SPAN else 1
    at = step * STEP + tl.arange(0, STEP)[None, :]
    raw = tl.load(w + at, mask=known & (at < width), other=0)
    if FORM == "dense":
        return tl.dot(tl.load(x + at, mask=present & (at < k), other=0.0).to(DOT), tl.trans(raw.to(DOT)), acc,
                      input_precision="ieee")  # fmt: skip
    else:  # noqa: RET505  Triton compiles one of two branches, but always compiles code after a return
        group = step * STEP // SPAN * EACH
        # Triton 3.6 compiles no function that returns None.
        scale, minimum = None, None
        if scales is not None:
            scale = _of_groups(scales, group, groups, known, COUNT, EACH, STEP)
        if minimums is not None:
            minimum = _of_groups(minimums, group, groups, known, COUNT, EACH, STEP)
        if FOUR:
            both = raw.to(tl.int32)
            columns = at // SPAN * (2 * SPAN) + at % SPAN
            low = nibbles(both, levels, FORM, ZERO, False)
            acc = _add_product(acc, x, columns, present, k, low, scale, minimum, nibble_unit(FORM, False), DOT)
            high = nibbles(both, levels, FORM, ZERO, True)
            if EACH == 2:
                scale = _of_groups(scales, group + 1, groups, known, COUNT, EACH, STEP)
                if minimums is not None:
                    minimum = _of_groups(minimums, group + 1, groups, known, COUNT, EACH, STEP)
            acc = _add_product(acc, x, columns + SPAN, present, k, high, scale, minimum, nibble_unit(FORM, True), DOT)
        elif FORM == "int8":
            acc = _add_product(acc, x, at, present, k, integers(raw.to(tl.int32), ZERO), scale, minimum, 1.0, DOT)
        else:
            acc = _add_product(acc, x, at, present, k, e4m3(raw), scale, minimum, 1.0, DOT)
        return acc

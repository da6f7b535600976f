"""The command line of `octavo-server quantize`."""

from __future__ import annotations

import errno
import logging
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from octavo_common import json_logs
from octavo_inference.checkpoints.resolve import EMBEDDED
from octavo_inference.common.errors import ModelError, OctavoError, SettingsError, UnsupportedModelError
from octavo_inference.config.flags import FlagParser
from octavo_inference.download.hub_cache import local_model
from octavo_inference.model_loader import ForeignModel, LoadedModel, load_model
from octavo_inference.models.config import ModelConfig
from octavo_inference.tools.quantize.gguf_target import gguf_recipe, quantize_gguf
from octavo_inference.tools.quantize.hf_config import FAMILIES
from octavo_inference.tools.quantize.recipe import CHANNEL, FORMATS, GROUPS, METHODS, Recipe, recipe_for, unfit
from octavo_inference.tools.quantize.report import report, table
from octavo_inference.tools.quantize.run import quantize
from octavo_inference.tools.quantize.text import BUNDLED, read_text, windows_of

_DESCRIPTION = """Write a model with 4 or 8 bits per weight, as a compressed-tensors folder or as GGUF, and
measure what that costs. Works a layer at a time, on the processor. The same command continues an interrupted run."""
_FLOATS = {"f32", "bf16", "f16"}
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status: 0 written, 1 the model or the disk cannot do it, 2 a wrong setting."""
    json_logs.configure("text")
    logging.getLogger("octavo_inference").setLevel(logging.WARNING)
    try:
        given = _parser().parse_args(argv)
        sys.stdout.write(_quantize(given, sys.stderr))
    except SettingsError as error:
        sys.stderr.write(f"octavo-server quantize: {error}\n")
        return 2
    except OctavoError as error:
        sys.stderr.write(f"octavo-server quantize: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("octavo-server quantize: interrupted; the same command continues\n")
        return 130
    return 0


def _parser() -> FlagParser:
    parser = FlagParser("octavo-server quantize", _DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", help="model: a folder, a .gguf file, ORG/NAME, or smollm2")
    parser.add_argument("target", metavar="TARGET", help="folder to write, or a .gguf file if SOURCE is one")
    add = parser.add_argument
    add("--format", choices=FORMATS, default="int4", help="(default: int4)")
    add("--method", choices=METHODS, help="rtn rounds to nearest (default: gptq for int4, rtn for others)")
    add(
        "--group-size",
        choices=("auto", CHANNEL, *map(str, GROUPS)),
        default="auto",
        help="columns that share a scale; auto: for int4 the largest that divides all rows, for others a whole row "
        "(default: auto)",
    )
    add("--zero-points", action="store_true", help="asymmetric groups, for int4")
    add("--no-activation-order", action="store_true", help="gptq: take the columns in their order")
    add(
        "--keep",
        default="none",
        metavar="WHICH",
        help="none, auto, or a pattern of modules to leave in 16 bits, such as '*.layers.0.*'; auto measures which "
        "matter most (default: none)",
    )
    add(
        "--keep-bits",
        type=_bits,
        default=0.25,
        metavar="BITS",
        help="bits per weight that auto may add (default: 0.25)",
    )
    add(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="UTF-8 text that calibrates; its last fifth measures (default: a bundled text)",
    )
    return parser


def _bits(text: str) -> float:
    if re.fullmatch(r"\d{1,2}(\.\d{1,6})?", text) is None or not 0 < float(text) <= 8:
        raise ArgumentTypeError(f"{text!r} is not a number above 0 and up to 8, such as 0.25")
    return float(text)


def _quantize(given: Namespace, out: TextIO) -> str:
    """The table of the results."""
    text = read_text(given.calibration)
    model = load(given.source, out)
    target = Path(given.target)
    recipe = _recipe(given, model.config, target)
    for stage in unfit(model.config, recipe.grid):
        _say(out, f"{stage} stays in 16 bits: its rows are not whole groups of {recipe.group}")
    source = BUNDLED if given.calibration is None else str(given.calibration)
    windows = windows_of(text, model.text.tokenizer, model.config.max_positions, source)
    try:
        write = quantize_gguf if target.suffix == ".gguf" else quantize
        result = write(model, target, recipe, windows, out)
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        fix = "make room and run the same command again" if full else "name another TARGET"
        raise ModelError(f"{target}: cannot be written: {error.strerror}; {fix}") from error
    return table(report(model, result)) + f"written: {target}; serve it with: octavo-server --model {target}\n"


def _recipe(given: Namespace, config: ModelConfig, target: Path) -> Recipe:
    if target.suffix == ".gguf":
        return gguf_recipe(given.format, given.method, given.group_size, zero_points=given.zero_points, keep=given.keep)
    return recipe_for(
        config,
        given.format,
        given.method,
        given.group_size,
        zero_points=given.zero_points,
        by_activation=not given.no_activation_order,
        keep=given.keep,
        keep_bits=given.keep_bits,
    )


def load(source: str, out: TextIO) -> LoadedModel:
    """The model to quantize. Raises `ModelError` for one that is quantized already or that transformers computes."""
    model = load_model(local_model(source).path)
    if isinstance(model, ForeignModel):
        raise UnsupportedModelError(f"{model.config.missing}; only models of the native decoder are quantized")
    if model.config.architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{source}: architecture {model.config.architecture!r} cannot be quantized here; {', '.join(FAMILIES)} can"
        )
    if model.config.task != "generate":
        raise UnsupportedModelError(f"{source}: has no output layer, and the loss is measured with it")
    formats = {getattr(layer, name).format for layer in model.weights.layers for name in _MATRICES}
    formats.add(model.weights.lm_head.format)
    if formats <= _FLOATS:
        return model
    listed = ", ".join(sorted(formats - _FLOATS))
    if source != EMBEDDED:
        raise UnsupportedModelError(
            f"{source}: is quantized already ({listed}), and rounding twice adds both errors: take the original weights"
        )
    _say(out, f"{source} is quantized already ({listed}): the measured differences are from these weights")
    return model


def _say(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()

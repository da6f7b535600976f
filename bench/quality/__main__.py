"""What each format costs in quality on the built-in model, and how fast it decodes.

python -m bench.quality                   # all formats; result in results/quality.json
python -m bench.quality --only NF4 MXFP4  # those whose names contain one of these

The source is the built-in model in float32. Its own Q4_1 blocks are on a grid of int4 with minimums for 32 columns, so
that format would lose nothing, and is left out. Embedding and head stay as they are, except in GGUF files. Mean KL and
first choices compare the next-token distributions over the held-out part of the text bundled with `octavo-server
quantize`; tokens per second are those of decode steps, of streams with 256 tokens each.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from bench.lib.host import RESULTS, host
from bench.lib.results import save
from bench.quality.measure import ROWS, Comparison, Text, speed
from bench.quality.sources import MATRICES, Variant, variants, with_matrices
from octavo_inference.backends.cpu.native.library import load
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import Matrix, Tensor, Weights, bf16_bits
from octavo_inference.tools.quantize.text import BUNDLED, read_text, windows_of


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--windows", type=int, default=4, help="of 512 tokens each")
    parser.add_argument("--output", type=Path, default=RESULTS / "quality.json")
    arguments = parser.parse_args()
    model = load_model("smollm2")
    assert isinstance(model, LoadedModel)  # noqa: S101 (a GGUF file)
    windows = windows_of(read_text(None), model.text.tokenizer, model.config.max_positions, BUNDLED).held_out
    text = Text(windows[: arguments.windows])
    comparison = Comparison(model.config, model.weights, text)
    bf16 = Variant("bf16", lambda m: with_matrices(m.weights, lambda w: Tensor("bf16", w.shape, bf16_bits(w))), 16.0)
    rows: dict[str, Any] = {}
    for variant in [bf16, *variants()]:
        if arguments.only and not any(part in variant.name for part in arguments.only):
            continue
        if variant.missing:
            print(f"{variant.name}: skipped, needs {variant.missing}")
            continue
        weights = variant.weights(model)
        rows[variant.name] = {"file_bits": file_bits(variant, weights)}
        rows[variant.name] |= comparison.quality(weights) | speed(model.config, weights)
        print(line(variant.name, rows[variant.name]), flush=True)
    print("\n" + table(rows))
    record = {"host": host(), "variant": load().variant, "predictions": text.predictions, "formats": rows}
    save(arguments.output, record)


def file_bits(variant: Variant, weights: Weights) -> float:
    """Bits of a weight of the layers' matrices in the checkpoint."""
    if variant.bits is not None:
        return variant.bits
    matrices: list[Matrix] = [getattr(layer, name) for layer in weights.layers for name in MATRICES]
    arrays = [array for m in matrices for array in ((m.data,) if isinstance(m, Tensor) else m.stored)]
    # Parts of a stacked layer share the memory of the whole.
    size = sum(array.nbytes for array in {id(array): array for array in arrays}.values())
    return 8.0 * size / sum(math.prod(m.shape) for m in matrices)


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    change = row["after"] / row["before"] - 1
    speeds = " | ".join(f"{row['tokens_per_second'][str(count)]:.0f}" for count in ROWS)
    return (
        f"| {name} | {row['file_bits']:.2f} | {row['packed_bits']:.2f} | {row['kl']:.1e} | {row['top1']:.1%} | "
        f"{change:+.1%} | {speeds} |"
    )


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The results in Markdown."""
    streams = " | ".join(f"{count} streams, tokens/s" for count in ROWS)
    head = f"| format | bits in the file | bits in memory | mean KL | equal first choices | perplexity | {streams} |"
    return "\n".join([head, "|---" * (6 + len(ROWS)) + "|", *(line(name, row) for name, row in rows.items())])


if __name__ == "__main__":
    main()

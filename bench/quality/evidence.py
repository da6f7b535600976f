"""Writes the table of formats in docs/evidence/formats.md, between its marks.

python -m bench.quality.evidence          # after python -m bench.quality
python -m bench.quality.evidence --check  # exits with status 1 if the table is not that of the code and the results
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from bench.lib.host import RESULTS
from bench.lib.processes import ROOT
from bench.quality.published import Published, published
from octavo_inference.backends.cpu.native.packed_formats import packed_parts
from octavo_inference.backends.cuda.packing import PlaneType, layout_of, plane_shapes
from octavo_inference.models.weights import Matrix

PAGE = ROOT / "docs" / "evidence" / "formats.md"
_BEGIN, _END = "<!-- formats: begin -->\n", "<!-- formats: end -->\n"
_WIDTHS: dict[PlaneType, int] = {"f32": 4, "bf16": 2, "f16": 2, "u8": 1}
_HEAD = (
    "| format | from | on a CPU, bits | on a GPU, bits | test | made by | mean KL | equal first choices | perplexity "
    "| tokens/s, 1 stream | 16 streams |"
)


def main() -> None:
    """Write the table, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    written = f"{before}{_BEGIN}\n{table(results())}\n{_END}{after}"
    if "--check" in sys.argv:
        sys.exit(None if written == page else f"{PAGE} is not up to date: run python -m bench.quality.evidence")
    PAGE.write_text(written, encoding="utf-8")


def results() -> dict[str, Any]:
    """The measured formats by name; none before the first measurement."""
    path = RESULTS / "quality.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["formats"] if path.exists() else {}
    return found


def table(measured: dict[str, Any]) -> str:
    """A row for each format, and further ones for other ways to make it."""
    lines = [_HEAD, "|---" * _HEAD.count(" |") + "|"]
    for format_ in published():
        found = [(name, measured[name]) for name in format_.figures if name in measured] or [("", None)]
        kept = (format_.name, format_.sources, on_cpu(format_.matrix), on_gpu(format_.matrix), _test(format_))
        for row, (name, figures) in enumerate(found):
            lines.append(f"| {' | '.join(kept if row == 0 else [''] * len(kept))} | {_figures(name, figures)} |")
    return "\n".join(lines) + "\n"


def on_cpu(matrix: Matrix) -> str:
    """The kernels' layout and the bits of a weight in it, with its scales."""
    (part,) = packed_parts((matrix,), "auto")
    bits = part.nbytes * 8 / math.prod(matrix.shape)
    return f"{part.layout.format.replace('_', ' ')}, {bits:.2f}"


def on_gpu(matrix: Matrix) -> str:
    """The same of a GPU."""
    layout = layout_of(matrix, "bf16", "auto")
    planes = plane_shapes(layout, *matrix.shape).values()
    bits = 8 * sum(_WIDTHS[kind] * math.prod(shape) for kind, shape in planes) / math.prod(matrix.shape)
    return f"{layout.form}, {bits:.2f}"


def _test(format_: Published) -> str:
    return f"`{format_.test.rpartition('/')[2]}`"


def _figures(name: str, row: dict[str, Any] | None) -> str:
    if row is None:
        return " | – | – | – | – | –"
    speeds = " | ".join(f"{count:.0f}" for count in row["tokens_per_second"].values())
    how = name.removeprefix("quantize ") if name.startswith("quantize") else "nearest value"
    how = "llama.cpp" if name.startswith("GGUF") else "HQQ" if name.startswith("HQQ") else how
    return f"{how} | {row['kl']:.1e} | {row['top1']:.1%} | {row['after'] / row['before'] - 1:+.1%} | {speeds}"


if __name__ == "__main__":
    main()

"""`python -m tests.integration.engine.models_page`: writes docs/models.md from the families that the tests compare."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo_inference.backends.cpu.backend import FEATURES as CPU_FEATURES
from octavo_inference.backends.cuda.backend import FEATURES as CUDA_FEATURES
from octavo_inference.model_loader import load_model
from octavo_inference.models.features import features

from .encoders import CROSS, CROSS_IN_EVERY_RUN, ENCODERS, Encoder, written
from .encoders import IN_EVERY_RUN as ENCODERS_IN_EVERY_RUN
from .families import (
    DENSE,
    EXPERTS,
    FAMILIES,
    HYBRIDS,
    IN_EVERY_RUN,
    LATENT,
    LATENT_EXPERTS,
    Family,
    build,
    save,
)
from .gguf_files import GGUF
from .gguf_hybrids import GGUF as GGUF_HYBRIDS
from .gguf_latent_files import GGUF_LATENT
from .gguf_more_files import GGUF_DENSE, GGUF_MIXTURES, GGUF_OTHERS
from .others import OTHERS

PAGE = Path(__file__).parents[3] / "docs/models.md"
ARCHITECTURES = GGUF | GGUF_DENSE | GGUF_MIXTURES | GGUF_HYBRIDS | GGUF_LATENT
DENSE_FAMILIES = FAMILIES | DENSE
GROUPS: dict[str, tuple[dict[str, Family], str]] = {
    "Dense models": (DENSE_FAMILIES, "test_families.py"),
    "Mixtures of experts": (EXPERTS, "test_families.py"),
    "Latent attention": (LATENT | LATENT_EXPERTS, "test_latent_families.py"),
    "State layers": (HYBRIDS, "test_hybrids.py"),
}
ENCODER_GROUPS: dict[str, tuple[dict[str, Encoder], frozenset[str]]] = {
    "Embedding models": (ENCODERS, ENCODERS_IN_EVERY_RUN),
    "Rerankers": (CROSS, CROSS_IN_EVERY_RUN),
}
NAMES = {
    "Apertus": "Apertus",
    "Arcee": "Arcee AFM",
    "Bamba": "Bamba",
    "Bloom": "Bloom",
    "Cohere": "Command R",
    "Cohere2": "Command R7B, Command A",
    "DeepseekV2": "DeepSeek V2, V2-Lite",
    "DeepseekV3": "DeepSeek V3, R1, Kimi K2",
    "Cwm": "Code World Model",
    "DeciLM": "Llama-Nemotron (pruned Llama)",
    "Dots1": "dots.llm1",
    "Ernie4_5": "ERNIE 4.5",
    "Ernie4_5_Moe": "ERNIE 4.5 MoE",
    "Exaone4": "EXAONE 4",
    "Falcon": "Falcon",
    "FalconH1": "Falcon-H1",
    "GPT2": "GPT-2",
    "GPTBigCode": "StarCoder",
    "GPTJ": "GPT-J",
    "GPTNeoX": "GPT-NeoX, Pythia",
    "Gemma": "Gemma 1",
    "Gemma2": "Gemma 2",
    "Gemma3": "Gemma 3 (text)",
    "Glm": "GLM-4 9B",
    "Glm4": "GLM-4 0414",
    "Glm4Moe": "GLM-4.5, 4.6",
    "Glm4MoeLite": "GLM-4.7-Flash",
    "GptOss": "gpt-oss",
    "Granite": "Granite 3",
    "GraniteMoe": "Granite 3 MoE",
    "GraniteMoeHybrid": "Granite 4",
    "GraniteMoeShared": "Granite MoE with a shared MLP",
    "HunYuanDenseV1": "HunYuan dense",
    "Lfm2": "LFM2",
    "Lfm2Moe": "LFM2-MoE",
    "Llama": "Llama 2, 3.x, SmolLM 1 and 2",
    "Llama4": "Llama 4 (text)",
    "Mamba2": "Mamba-2, Codestral Mamba",
    "MiniCPM3": "MiniCPM3",
    "MiniCPM": "MiniCPM 1 and 2",
    "MiniMaxM2": "MiniMax-M2",
    "Ministral": "Ministral 8B",
    "Mistral": "Mistral, Mistral Nemo",
    "Mixtral": "Mixtral",
    "Mpt": "MPT",
    "Nemotron": "Nemotron, Minitron",
    "NemotronH": "Nemotron-H, Nemotron 3 Nano",
    "OPT": "OPT",
    "Olmo": "OLMo 1",
    "Olmo2": "OLMo 2",
    "Olmo3": "OLMo 3",
    "Olmoe": "OLMoE",
    "Phi": "Phi-1.5, Phi-2",
    "Phimoe": "Phi-3.5-MoE",
    "Phi3": "Phi-3, Phi-3.5, Phi-4",
    "Qwen2": "Qwen2, Qwen2.5",
    "Qwen2Moe": "Qwen1.5-MoE, Qwen2-MoE",
    "Qwen3": "Qwen3",
    "Qwen3Moe": "Qwen3-MoE",
    "Qwen3Next": "Qwen3-Next",
    "Qwen3_5": "Qwen3.5 (text)",
    "Qwen3_5Moe": "Qwen3.5-MoE (text)",
    "SeedOss": "Seed-OSS",
    "SmolLM3": "SmolLM3",
    "StableLm": "StableLM",
    "Starcoder2": "StarCoder2",
    "Youtu": "Youtu-LLM",
}
HEAD = """# Families of models

Each row is a family that Octavo computes with its own kernels. `python -m tests.integration.engine.models_page` writes
this page from the tests, and a test compares it. [Models](guides/models.md) explains sources, formats and limits.

- **safetensors** and **GGUF** name the class and the architecture of the files that are tested.
- **Test**: small models with random weights, in as many variants as the number says. The logits of the reference and of
  the CPU kernels equal those of transformers in float32. Prompts run in chunks and decode steps, several at once. The
  command that runs the test stands behind it.
- **CPU** and **GPU**: the backend computes all that the family needs, or what it lacks. `tests/kernels` compares GPU
  kernels with the reference by kind of layer. For dense models and mixtures of experts it compares logits with those of
  transformers. Both run in Triton's interpreter. The kernels have not run on a card with all of these families yet.
  Instead of a "no", transformers computes the model there, [where it can](guides/models.md#transformers-on-a-gpu).
- Embedding models are compared by the hidden states of whole prompts, rerankers by the scores of pairs.
- `test_every_kind.py` runs the engine with one family of each kind of layer: prefix hits, preemption, several answers.
"""


@dataclass(frozen=True)
class Row:
    """A family: its class without ForCausalLM, and what holds for its variants."""

    model: str
    variants: int
    architectures: tuple[str, ...]
    cpu: tuple[str, ...]
    gpu: tuple[str, ...]
    in_every_run: bool


def rows(families: dict[str, Family]) -> list[Row]:
    """A row for each class, in the order of their names."""
    named: dict[str, list[str]] = defaultdict(list)
    for name, family in families.items():
        named[family.model].append(name)
    return [_row(model, names, families) for model, names in named.items()]


def _row(model: str, names: list[str], families: dict[str, Family]) -> Row:
    needed: set[str] = set()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            save(build(families[name]), Path(folder))
            needed |= features(load_model(folder).config)
    architectures = {ARCHITECTURES[name] for name in names if name in ARCHITECTURES}
    return _row_of(model, len(names), architectures, needed, any(name in IN_EVERY_RUN for name in names))


def _row_of(model: str, variants: int, architectures: set[str], needed: set[str], in_every_run: bool) -> Row:
    lacking = (tuple(sorted(needed - known)) for known in (CPU_FEATURES, CUDA_FEATURES))
    return Row(model, variants, tuple(sorted(architectures)), *lacking, in_every_run)


def others() -> list[Row]:
    """Rows of the families that transformers does not have."""
    found = []
    for model, make in OTHERS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            found.append(_row_of(model, 1, {GGUF_OTHERS[model]}, set(features(load_model(folder).config)), True))
    return found


def page() -> str:
    """The page."""
    parts = [HEAD]
    for title, (families, file) in GROUPS.items():
        parts.append(f"\n## {title}\n\n| family | safetensors | GGUF | CPU | GPU | test |\n|---|---|---|---|---|---|\n")
        lines = [(NAMES[row.model].lower(), _line(row, file)) for row in rows(families)]
        if families is DENSE_FAMILIES:
            lines += [(NAMES[row.model].lower(), _line(row, "test_others.py")) for row in others()]
        parts += [line for _, line in sorted(lines)]
    for title, (encoders, in_every_run) in ENCODER_GROUPS.items():
        parts.append(f"\n## {title}\n\n| class | CPU | GPU | test |\n|---|---|---|---|\n")
        parts += _encoder_lines(encoders, in_every_run)
    return "".join(parts)


def _encoder_lines(encoders: dict[str, Encoder], in_every_run: frozenset[str]) -> list[str]:
    """A line for each class."""
    named: dict[str, list[str]] = defaultdict(list)
    for name, encoder in encoders.items():
        named[encoder.model].append(name)
    lines = []
    for model, names in sorted(named.items()):
        needed: set[str] = set()
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                written(encoders[name], Path(folder))
                needed |= features(load_model(folder).config)
        row = _row_of(model, len(names), set(), needed, any(name in in_every_run for name in names))
        run = "make test" if row.in_every_run else "make test-all"
        test = f"test_encoders.py, {row.variants}, `{run}`"
        lines.append(f"| {model} | {_backend(row.cpu)} | {_backend(row.gpu)} | {test} |\n")
    return lines


def _line(row: Row, file: str) -> str:
    head = "LMHeadModel" if row.model == "GPT2" else "ForCausalLM"
    run = "make test" if row.in_every_run else "make test-all"
    cells = [
        NAMES[row.model],
        row.model + head,
        ", ".join(row.architectures) or "not tested",
        _backend(row.cpu),
        _backend(row.gpu),
        f"{file}, {row.variants}, `{run}`",
    ]
    return f"| {' | '.join(cells)} |\n"


def _backend(lacking: Iterable[str]) -> str:
    names = ", ".join(lacking)
    return f"no: {names}" if names else "yes"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

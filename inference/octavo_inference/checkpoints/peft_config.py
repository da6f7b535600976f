"""What adapter_config.json of a PEFT checkpoint says, and which kinds of adapters are served.

Fields: https://huggingface.co/docs/peft/package_reference/lora
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo_inference.checkpoints.jsonfile import read_json
from octavo_inference.common.errors import ModelError
from octavo_inference.models.adapter import MOST_TOKEN_ROWS
from octavo_protocol.adapters import MAX_ADAPTER_RANK

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


_MOST_BYTES = 1 << 20
# Ways to initialize that leave the base model as it is. The others change its weights, too.
_PLAIN_STARTS = frozenset({True, False, None, "gaussian", "eva", "orthogonal"})


class _File(msgspec.Struct, kw_only=True):
    """Fields that PEFT's LoraConfig has. Those of no effect once an adapter is trained are left out."""

    peft_type: str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    base_model_name_or_path: str | None = None
    init_lora_weights: bool | str | None = None
    modules_to_save: list[str] | None = None
    trainable_token_indices: list[int] | dict[str, list[int]] | None = None
    ensure_weight_tying: bool = False
    # Only absent, false or empty.
    use_dora: Any = None
    use_qalora: Any = None
    use_bdlora: Any = None
    layer_replication: Any = None
    alora_invocation_tokens: Any = None
    arrow_config: Any = None


# Names of embeddings and heads, of all families.
_WITH_TOKENS = frozenset(
    {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings", "lm_head", "embed_out", "output"}
)
_REFUSED = {
    "use_dora": "DoRA scales the columns of the whole weight, which cannot be added to a product",
    "use_qalora": "QALoRA sums groups of inputs",
    "use_bdlora": "block-diagonal adapters are not supported",
    "layer_replication": "it changes the number of layers",
    "alora_invocation_tokens": "activated adapters, which begin within a prompt, are not supported",
    "arrow_config": "a router of adapters is not supported",
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter. `base`: the model it was trained on, as its author named it.

    `saved` are the modules that it brings whole. `token_ids` are the rows that it brings of a module, by the module's
    name, or "" for the embedding. `tied`: what it brings of one of embedding and head belongs to both in a tied model.
    """

    rank: int
    alpha: float
    root_scaled: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    base: str
    saved: frozenset[str]
    token_ids: Mapping[str, tuple[int, ...]]
    tied: bool

    @property
    def highest_rank(self) -> int:
        """The largest rank of its modules."""
        return max(self.rank, *self.ranks.values(), 0)

    def rank_of(self, module: str) -> int:
        """The rank of a module's change, by the first pattern that its name ends with."""
        return int(_found(self.ranks, module, self.rank))

    def token_ids_of(self, module: str, *, embedding: bool) -> tuple[int, ...]:
        """The ids of the rows that it brings of a module."""
        for name, ids in self.token_ids.items():
            if (name == "" and embedding) or module == name or module.endswith("." + name):
                return ids
        return ()

    def scale_of(self, module: str) -> float:
        """What the product of a module's two matrices is multiplied with."""
        rank = self.rank_of(module)
        return float(_found(self.alphas, module, self.alpha)) / (math.sqrt(rank) if self.root_scaled else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read adapter_config.json. Raises `ModelError` for adapters of another kind, or that cannot be."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ModelError(f"{folder}: {CONFIG_FILE} is missing; an adapter is a folder that PEFT saved")
    if path.stat().st_size > _MOST_BYTES:
        raise ModelError(f"{path}: {path.stat().st_size} bytes; the configuration of an adapter has a few kilobytes")
    given = read_json(path, _File, "the configuration of an adapter")
    if given.peft_type != "LORA":
        raise ModelError(f"{path}: peft_type is {given.peft_type!r}; only LORA is supported")
    for field, why in _REFUSED.items():
        value = getattr(given, field)
        if value not in (None, False, [], {}):
            raise ModelError(f"{path}: {field} is {msgspec.json.encode(value).decode()[:100]}: {why}")
    if given.init_lora_weights not in _PLAIN_STARTS:
        raise ModelError(
            f"{path}: init_lora_weights is {given.init_lora_weights!r}, which changes the base model's weights; "
            "convert the adapter to plain LoRA (path_initial_model_for_weight_conversion of PEFT's save_pretrained)"
        )
    ranks = {"r": given.r, **(given.rank_pattern or {})}
    for name, rank in ranks.items():
        if not 1 <= rank <= MAX_ADAPTER_RANK:
            raise ModelError(f"{path}: a rank of {rank} ({name}); 1 to {MAX_ADAPTER_RANK} is supported")
    return AdapterConfig(
        rank=given.r,
        alpha=given.lora_alpha,
        root_scaled=given.use_rslora,
        ranks=_checked(path, given.rank_pattern or {}),
        alphas=_checked(path, given.alpha_pattern or {}),
        base=given.base_model_name_or_path or "",
        saved=_saved(path, given.modules_to_save or []),
        token_ids=_token_ids(path, given.trainable_token_indices or []),
        tied=given.ensure_weight_tying,
    )


def _saved(path: Path, modules: list[str]) -> frozenset[str]:
    """The last names of modules that are saved whole."""
    names = {module.rpartition(".")[2]: module for module in modules}
    for name, module in names.items():
        if name not in _WITH_TOKENS:
            raise ModelError(
                f"{path}: modules_to_save has {module[:100]!r}; whole modules are supported of the embedding and the "
                "head only: train low-rank changes of the others"
            )
    return frozenset(names)


def _token_ids(path: Path, given: list[int] | dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    found = given if isinstance(given, dict) else {"": given} if given else {}
    for module, ids in found.items():
        name = f"trainable_token_indices{f' of {module[:100]}' if module else ''}"
        if module and module.rpartition(".")[2] not in _WITH_TOKENS:
            raise ModelError(f"{path}: {name} are of neither the embedding nor the head, which have rows of tokens")
        if len(ids) > MOST_TOKEN_ROWS:
            raise ModelError(f"{path}: {name} has {len(ids)} ids; up to {MOST_TOKEN_ROWS} are supported")
        if len(set(ids)) < len(ids) or min(ids, default=0) < 0:
            raise ModelError(f"{path}: {name} has an id twice, or one below 0")
    return {module: tuple(ids) for module, ids in found.items()}


_PATTERN = re.compile(r"\^?[A-Za-z0-9_.]+\Z")


def _checked(path: Path, patterns: dict[str, Any]) -> dict[str, Any]:
    """Patterns that are names. PEFT takes any regular expression, and one can take a matcher forever."""
    for pattern in patterns:
        if not _PATTERN.match(pattern):
            raise ModelError(f"{path}: the pattern {pattern[:100]!r} is no name of modules; list the modules by name")
    return patterns


def _found(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """The value of the first pattern that is the name, or its end behind a dot; from its start with ^."""
    for pattern, value in patterns.items():
        name = pattern.removeprefix("^")
        if module == name or (name == pattern and module.endswith("." + name)):
            return value
    return otherwise

"""The formats by name, and which one a chat template uses."""

from __future__ import annotations

from octavo_inference.chat_format.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from octavo_inference.chat_format.formats.harmony import HARMONY, HARMONY_REASONING
from octavo_inference.chat_format.formats.hermes import HERMES, SMOLLM2
from octavo_inference.chat_format.formats.json_lists import GRANITE, PHI4
from octavo_inference.chat_format.formats.kimi import KIMI_K2
from octavo_inference.chat_format.formats.llama_json import LLAMA_JSON
from octavo_inference.chat_format.formats.mistral import MISTRAL
from octavo_inference.chat_format.formats.pythonic import PYTHONIC
from octavo_inference.chat_format.formats.tagged_values import GLM45, QWEN3_CODER, SEED_OSS
from octavo_inference.chat_format.reasoning import ReasoningFormat
from octavo_inference.chat_format.tool_format import ToolFormat

TOOL_FORMATS: dict[str, ToolFormat] = {
    form.name: form
    for form in (
        HERMES,
        SMOLLM2,
        QWEN3_CODER,
        SEED_OSS,
        GLM45,
        LLAMA_JSON,
        PYTHONIC,
        MISTRAL,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        KIMI_K2,
        HARMONY,
        GRANITE,
        PHI4,
    )
}
"""By name."""

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    form.name: form
    for form in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("magistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("kimi_vl", "◁think▷", "◁/think▷"),
        ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
        HARMONY_REASONING,
    )
}
"""By name. `think` is that of Qwen3, DeepSeek R1 and V3.1, GLM-4.5, Kimi K2 Thinking and many more."""

# In this order: the first of which a chat template has all texts.
_TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("glm45", ("<arg_key>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("qwen3_coder", ("<tool_call>", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4", ("functools[",)),
    ("phi4", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|tool_call|>", "<|start_of_role|>")),
    ("smollm2", ("<tool_call>[",)),
    ("hermes", ("<tool_call>",)),
    # "[func_name1(params_name1=params_value1" or "[func_name1(param1=value1": Llama's and Gemma's instructions.
    ("pythonic", ("[func_name1(param",)),
    ("llama3_json", ('"parameters": dictionary of argument name',)),
    # SmolLM2's template has no tools in it.
    ("smollm2", ("named SmolLM, trained by Hugging Face",)),
)
_REASONING_SIGNS = (
    ("harmony", "<|channel|>analysis"),
    ("seed_oss", "</seed:think>"),
    ("magistral", "[/THINK]"),
    ("kimi_vl", "◁/think▷"),
    ("think", "</think>"),
    ("think", "<think>"),
)


def tool_format(name: str) -> ToolFormat:
    """The format of this name. Raises `KeyError`."""
    return TOOL_FORMATS[name]


def detect_tool_format(template: str) -> str | None:
    """The name of the format that a chat template's source is written for, None for one that is not known."""
    return next((name for name, signs in _TOOL_SIGNS if all(sign in template for sign in signs)), None)


def reasoning_format(name: str) -> ReasoningFormat:
    """The format of this name. Raises `KeyError`."""
    return REASONING_FORMATS[name]


def detect_reasoning_format(template: str) -> str | None:
    """The name of the format of which a chat template's source has a marker, None without one."""
    return next((name for name, sign in _REASONING_SIGNS if sign in template), None)

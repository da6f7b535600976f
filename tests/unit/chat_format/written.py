"""Answers as models write them, format by format. Written after the documented examples, not recorded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence

from octavo_inference.chat_format.answer import answer_parser
from octavo_inference.chat_format.events import CallArguments, CallStart, Event, Reasoning, Text, merged
from octavo_inference.chat_format.formats.known import reasoning_format, tool_format
from octavo_inference.chat_format.tools import ToolSpec

WEATHER = ToolSpec(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = ToolSpec("get_time", {"type": "object", "properties": {}, "additionalProperties": False})
NOTE = ToolSpec("note", None)
TOOLS = (WEATHER, TIME, NOTE)

Call = tuple[str, dict[str, object]]


def parsed(
    name: str | None,
    answer: str,
    *,
    cuts: Sequence[int] | None = None,
    reasoning: str | None = None,
    thinking: bool = False,
    special: Mapping[str, int] | None = None,
) -> list[Event]:
    """The events of an answer that comes in pieces: cut at these places, by default at every character."""
    parser = answer_parser(
        tool_format(name) if name else None,
        reasoning_format(reasoning) if reasoning else None,
        TOOLS,
        thinking=thinking,
        special=special or {},
    )
    places = [0, *(range(1, len(answer)) if cuts is None else sorted(cuts)), len(answer)]
    events: list[Event] = []
    for start, end in itertools.pairwise(places):
        events += parser.push(answer[start:end])
    return merged(events + parser.finish())


def parts(events: Sequence[Event]) -> tuple[str, list[tuple[str, str]], str]:
    """Text, calls with their arguments, and reasoning."""
    calls = [event for event in events if isinstance(event, CallStart)]
    assert [call.index for call in calls] == list(range(len(calls)))
    written = ["".join(e.text for e in events if isinstance(e, CallArguments) and e.index == c.index) for c in calls]
    return (
        "".join(event.text for event in events if isinstance(event, Text)),
        [(call.name, text) for call, text in zip(calls, written, strict=True)],
        "".join(event.text for event in events if isinstance(event, Reasoning)),
    )


def _objects(calls: Sequence[Call], arguments: str = "arguments") -> list[str]:
    return [json.dumps({"name": name, arguments: values}, ensure_ascii=False) for name, values in calls]


def _hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in _objects(calls))


def _smollm2(calls: Sequence[Call]) -> str:
    return "<tool_call>[\n" + ",\n".join(_objects(calls)) + "\n]</tool_call>"


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _functions(start: str, end: str, frame: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        return "\n".join(
            f"{start}\n<function={name}>\n"
            + "".join(f"<parameter={key}>{frame}{_bare(v)}{frame}</parameter>\n" for key, v in values.items())
            + f"</function>\n{end}"
            for name, values in calls
        )

    return write


def _glm(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{_bare(v)}</arg_value>\n" for k, v in values.items())
        + "</tool_call>"
        for name, values in calls
    )


def _llama(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + "; ".join(_objects(calls, "parameters"))


def _pythonic(calls: Sequence[Call]) -> str:
    return (
        "<|python_start|>["
        + ", ".join(
            f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})" for name, values in calls
        )
        + "]"
    )


def _mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS] [" + ", ".join(_objects(calls)) + "]"


def _mistral_names(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(values, ensure_ascii=False)}" for name, values in calls)


def _deepseek(calls: Sequence[Call]) -> str:
    one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
    written = "\n".join(one.format(name, json.dumps(values, ensure_ascii=False)) for name, values in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _deepseek_31(calls: Sequence[Call]) -> str:
    one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    written = "".join(one.format(name, json.dumps(values, ensure_ascii=False)) for name, values in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _kimi(calls: Sequence[Call]) -> str:
    one = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
    written = "".join(one.format(c[0], n, json.dumps(c[1], ensure_ascii=False)) for n, c in enumerate(calls))
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def _harmony(calls: Sequence[Call]) -> str:
    one = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
    return "<|start|>assistant".join(one.format(name, json.dumps(v, ensure_ascii=False)) for name, v in calls)


def _granite(calls: Sequence[Call]) -> str:
    return "<|tool_call|> [" + ", ".join(_objects(calls)) + "]"


def _phi4(calls: Sequence[Call]) -> str:
    return "functools[" + ", ".join(_objects(calls)) + "]"


def _phi4_tokens(calls: Sequence[Call]) -> str:
    return "<|tool_call|>[" + ", ".join(_objects(calls)) + "]<|/tool_call|>"


WRITERS: dict[str, tuple[str, Callable[[Sequence[Call]], str]]] = {
    "hermes": ("hermes", _hermes),
    "smollm2": ("smollm2", _smollm2),
    "qwen3_coder": ("qwen3_coder", _functions("<tool_call>", "</tool_call>", "\n")),
    "seed_oss": ("seed_oss", _functions("<seed:tool_call>", "</seed:tool_call>", "")),
    "glm45": ("glm45", _glm),
    "llama3_json": ("llama3_json", _llama),
    "pythonic": ("pythonic", _pythonic),
    "mistral": ("mistral", _mistral),
    "mistral, names": ("mistral", _mistral_names),
    "deepseek_v3": ("deepseek_v3", _deepseek),
    "deepseek_v31": ("deepseek_v31", _deepseek_31),
    "kimi_k2": ("kimi_k2", _kimi),
    "harmony": ("harmony", _harmony),
    "granite": ("granite", _granite),
    "phi4": ("phi4", _phi4),
    "phi4, tokens": ("phi4", _phi4_tokens),
}
"""By variant: the format's name, and how a model that uses it writes calls."""

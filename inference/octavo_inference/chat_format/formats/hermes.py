"""Hermes: `<tool_call>` with a JSON object in it, one block for each call. Used by Hermes, Qwen 2.5 and 3, Granite 4.

Sources: the templates of NousResearch/Hermes-2-Pro-Llama-3-8B and Qwen/Qwen2.5-7B-Instruct; vLLM's
tests/tool_parsers/test_hermes_tool_parser.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.formats.json_calls import calls_in_json, named_object
from octavo_inference.chat_format.past_calls import object_text
from octavo_inference.chat_format.readers import Reader, literal, space
from octavo_inference.chat_format.tool_format import CallLayout, ToolFormat, blocks
from octavo_inference.chat_format.tools import ToolSpec

START, END_MARKER = "<tool_call>", "</tool_call>"


def _block(calls: Calls, _: str) -> Reader[str]:
    at = yield from calls_in_json(calls, (yield))
    at = yield from space(at)
    return (yield from literal(END_MARKER, at))


def _hermes_layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout(f"{START}\n", f"\n{END_MARKER}\n{START}\n", f"\n{END_MARKER}", object_text, trigger=START)


def _list_layout(_: Mapping[str, int]) -> CallLayout:
    return CallLayout(f"{START}[", ", ", f"]{END_MARKER}", object_text, trigger=START)


def described(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates show it."""
    parameters = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _hermes_prompt(tools: Sequence[ToolSpec]) -> str:
    listed = "\n".join(json.dumps(described(tool), ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\nYou can call functions to help with the request. These are their signatures, as JSON:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call a function, write a JSON object with its name and arguments between these tags:\n"
        f'{START}\n{{"name": <function-name>, "arguments": <arguments-object>}}\n{END_MARKER}'
    )


def _list_prompt(tools: Sequence[ToolSpec]) -> str:
    listed = json.dumps([described(tool) for tool in tools], ensure_ascii=False)
    return (
        "You are an expert in composing functions. You get a question and a set of functions, and answer with calls of "
        f"functions where they help.\nThese are the functions:\n<tools>{listed}</tools>\n\n"
        "Write calls in this format, and nothing else; mind the types of the parameters. Without a fitting function or "
        "with a parameter missing, say so in words.\n"
        f'{START}[\n{{"name": "function_name", "arguments": {{"parameter": "value"}}}}\n]{END_MARKER}'
    )


_MARKERS = (START, END_MARKER)
_PARSER = blocks(_block, (START,))
HERMES = ToolFormat("hermes", _MARKERS, _PARSER, _hermes_layout, named_object, _hermes_prompt)
SMOLLM2 = ToolFormat("smollm2", _MARKERS, _PARSER, _list_layout, named_object, _list_prompt)
"""A list of objects in one block, as the model card of SmolLM2-1.7B-Instruct asks for."""

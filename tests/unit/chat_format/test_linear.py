"""Parsers take time in proportion to the answer, whatever it holds. Counted are calls of functions, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from tests.unit.chat_format.written import TOOLS, WRITERS

from octavo_inference.chat_format.answer import answer_parser
from octavo_inference.chat_format.events import AnswerParser
from octavo_inference.chat_format.formats.known import TOOL_FORMATS, reasoning_format, tool_format

_CALL = ("get_weather", {"city": "x" * 10, "days": 2})


def _hostile(name: str) -> Iterator[str]:
    """Texts to be repeated: markers, unfinished and broken calls, and what keeps a parser waiting."""
    yield from tool_format(name).markers
    yield from (" ", "\n", "a", '"', "\\", "[", "{", "[[", '{"a":', "<", "</", "<think>", "</think>", "<thi")
    yield '<tool_call>{"arguments": {"a": ["<tool_call>", '
    yield '<tool_call>{"name": "get_weather", "x": "'
    yield '[TOOL_CALLS][{"arguments":"[TOOL_CALLS]'
    for form, write in WRITERS.values():
        if form == name:
            yield from (write([_CALL])[:size] for size in (-1, -5, -15, -25, -40))
            yield write([_CALL]) + " "


def _opening(name: str) -> Iterator[str]:
    """What the texts come behind: nothing, or an open string in a call."""
    yield ""
    for form, write in WRITERS.values():
        if form == name:
            yield write([_CALL]).partition("x" * 5)[0]


def _work(parser: AnswerParser, text: str) -> int:
    count = 0

    def see(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += 1

    push: Callable[[str], object] = parser.push
    sys.setprofile(see)
    try:
        for character in text:
            push(character)
        parser.finish()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_work_is_in_proportion_to_the_answer(name: str) -> None:
    for opening in _opening(name):
        for text in _hostile(name):
            for thinking in (None, False, True):
                if thinking is not None and (opening or name != "hermes"):
                    continue
                form = None if thinking is None else reasoning_format("think")
                work = []
                for size in (400, 800):
                    parser = answer_parser(tool_format(name), form, TOOLS, thinking=bool(thinking))
                    work.append(_work(parser, (opening + text * size)[:size]) / size)
                assert work[1] < 1.3 * work[0] + 5, (opening, text, work)
                assert work[1] < 300, (opening, text, work)

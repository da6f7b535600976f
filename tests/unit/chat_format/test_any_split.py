"""For every format: an answer means the same however it is cut, and keeps its text."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.chat_format.written import WRITERS, Call, parsed, parts

from octavo_inference.chat_format.formats.known import TOOL_FORMATS, tool_format

# An empty list of calls is no text.
_EMPTY_BLOCKS = (
    "[]",
    "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|><|tool_calls_section_end|>",
)
_WORDS = st.text(alphabet="ab é\n\"'\\{}[]:,<>=/|_().1-▁｜", max_size=30)
_PLAIN = st.text(alphabet="abcé \n.,!?1-", max_size=20)
_VALUES = st.fixed_dictionaries(
    {"city": st.text(alphabet="Paris é\"'\\{}[]()<>/:=,\n\t", min_size=1, max_size=20).map(lambda t: f"x{t}x")},
    optional={
        "days": st.integers(-(10**20), 10**20),
        "metric": st.booleans(),
        "tags": st.lists(st.text(alphabet="ab'\"\\]", max_size=5), max_size=3),
    },
)
CALLS = st.one_of(
    _VALUES.map(lambda values: ("get_weather", values)),
    st.just(("get_time", {})),
    st.dictionaries(st.sampled_from(["a", "b_1"]), st.integers() | st.sampled_from(["x y", "é<"]), max_size=2).map(
        lambda values: ("note", values)
    ),
)


def _fragments(name: str) -> st.SearchStrategy[str]:
    """Junk that looks like the format: its markers and pieces of them."""
    markers = [
        *tool_format(name).markers,
        *("<tool_call>", "</tool_call>", "<function=", "functools", "[", "{", "<|python_tag|>"),
        *(
            '{"name": "get_weather", ',
            '"arguments": {',
            "get_weather",
            "get_time()",
            "note",
            "\n```json\n",
            "functions.",
        ),
        *("<parameter=city>", "</parameter>", "</function>", '"', "}", "]", "(", ")", "city=", "unknown", "assistant"),
    ]
    return st.sampled_from(markers).flatmap(
        lambda m: st.one_of(st.just(m), st.just(m), st.integers(1, len(m)).map(lambda n: m[:n]))
    )


@pytest.mark.parametrize("variant", WRITERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_streamed_equals_whole(variant: str, data: st.DataObject) -> None:
    name, write = WRITERS[variant]
    calls = st.lists(CALLS, min_size=1, max_size=3).map(write)
    broken = calls.flatmap(lambda text: st.integers(0, len(text)).map(lambda n: text[:n]))
    answer = "".join(data.draw(st.lists(st.one_of(_WORDS, _fragments(name), calls, broken), max_size=6)))
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=8))
    reasoning = data.draw(st.sampled_from([None, "think"]))
    whole = parsed(name, answer, cuts=[], reasoning=reasoning)
    assert parsed(name, answer, cuts=cuts, reasoning=reasoning) == whole
    assert parsed(name, answer, reasoning=reasoning) == whole


@pytest.mark.parametrize("variant", WRITERS)
@settings(max_examples=25, deadline=None)
@given(before=_PLAIN, calls=st.lists(CALLS, min_size=1, max_size=3), after=_PLAIN)
def test_calls_and_the_text_around_them(variant: str, before: str, calls: list[Call], after: str) -> None:
    name, write = WRITERS[variant]
    if name == "harmony":
        before = f"<|channel|>commentary<|message|>{before}<|end|><|start|>assistant"
        after = f"<|start|>assistant<|channel|>final<|message|>{after}"
    text, found, _ = parts(parsed(name, before + write(calls) + after))
    assert [(called, json.loads(arguments)) for called, arguments in found] == calls
    if name != "harmony":
        assert text == (before if before.strip() else "") + (after if after.strip() else "")


@pytest.mark.parametrize("name", TOOL_FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_answer_without_a_known_name_is_text_unchanged(name: str, data: st.DataObject) -> None:
    junk = st.lists(st.one_of(_WORDS, _fragments(name)), max_size=8).map("".join)
    answer = data.draw(junk).replace("get_", "Get_").replace("note", "Note")
    assume(not any(block in "".join(answer.split()) for block in _EMPTY_BLOCKS))
    text, calls, _ = parts(parsed(name, answer))
    assert not calls
    if name != "harmony":  # its special tokens are no text
        assert text == answer

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.chat_format.written import parsed, parts

from octavo_inference.chat_format.answer import answer_parser
from octavo_inference.chat_format.events import CallArguments, CallStart, Reasoning, Text
from octavo_inference.chat_format.formats.known import reasoning_format

CALL = '<tool_call>{"name": "note", "arguments": {"a": "<think>b</think>"}}</tool_call>'
CALLED = [CallStart(0, "note"), CallArguments(0, '{"a": "<think>b</think>"}')]


@pytest.mark.parametrize(
    ("answer", "thinking", "events"),
    [
        ("<think>\nHm.\n\nYes.\n</think>\n\nParis.", False, [Reasoning("Hm.\n\nYes."), Text("Paris.")]),
        ("Hm.</think>Paris.", True, [Reasoning("Hm."), Text("Paris.")]),
        # The model repeats the start marker of the prompt.
        ("\n<think>\nHm.</think>Paris.", True, [Reasoning("Hm."), Text("Paris.")]),
        ("<think>\n\n</think>\n\nParis.", False, [Text("Paris.")]),
        ("</think>\n\nParis.", True, [Text("Paris.")]),
        ("Well. <think>Hm.</think> Paris.", False, [Text("Well. "), Reasoning("Hm."), Text(" Paris.")]),
        ("<think>Cut by max_tok", False, [Reasoning("Cut by max_tok")]),
        ("Cut <", True, [Reasoning("Cut <")]),
        ("No thought, no </think>, <thin", False, [Text("No thought, no </think>, <thin")]),
        (
            "<think>Hm.</think>Twice <think>is text</think>",
            False,
            [Reasoning("Hm."), Text("Twice <think>is text</think>")],
        ),
        (f"<think>Hm.</think>\n{CALL}", False, [Reasoning("Hm."), *CALLED]),
        (CALL, False, CALLED),
        (
            f"<think>{CALL}</think>",
            False,
            [Reasoning('<tool_call>{"name": "note", "arguments": {"a": "<think>b'), Text('"}}</tool_call></think>')],
        ),
    ],
)
def test_thinking_and_answer(answer: str, thinking: bool, events: list[object]) -> None:
    for cuts in ([], None):
        assert parsed("hermes", answer, cuts=cuts, reasoning="think", thinking=thinking) == events


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thi", "</", "\n", " ", "a", "b c", "é<", CALL]), max_size=12),
    st.lists(st.integers(0, 200), max_size=6),
    st.booleans(),
)
def test_any_split(pieces: list[str], cuts: list[int], thinking: bool) -> None:
    answer = "".join(pieces)
    whole = parsed("hermes", answer, cuts=[], reasoning="think", thinking=thinking)
    cuts = [cut for cut in cuts if cut <= len(answer)]
    assert parsed("hermes", answer, cuts=cuts, reasoning="think", thinking=thinking) == whole
    assert parsed("hermes", answer, reasoning="think", thinking=thinking) == whole


def test_the_markers_of_other_models() -> None:
    assert parsed(None, "[THINK]Hm.[/THINK]Paris.", reasoning="magistral") == [Reasoning("Hm."), Text("Paris.")]
    assert parsed(None, "◁think▷Hm.◁/think▷Paris.", reasoning="kimi_vl") == [Reasoning("Hm."), Text("Paris.")]
    assert parsed(None, "<seed:think>Hm.</seed:think>Paris.", reasoning="seed_oss") == [
        Reasoning("Hm."),
        Text("Paris."),
    ]


def test_who_counts_tokens_sees_where_the_thinking_ends() -> None:
    parser = answer_parser(None, reasoning_format("think"), (), thinking=False)
    seen = []
    for token in ["<think>", "\n", "Hm", ".", "</think>", "\n\n", "Paris"]:
        parser.push(token)
        seen.append(parser.in_reasoning)
    assert seen == [True, True, True, True, False, False, False]
    parser = answer_parser(None, reasoning_format("harmony"), (), thinking=False)
    seen = []
    for token in ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant"]:
        parser.push(token)
        seen.append(parser.in_reasoning)
    assert seen == [False, False, False, True, True, False, False]


def test_text_alone() -> None:
    assert parts(parsed(None, "a <think> <tool_call>")) == ("a <think> <tool_call>", [], "")

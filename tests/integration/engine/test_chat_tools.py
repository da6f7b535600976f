"""Tools in the Python API, with the model from its package: `LLM.chat`, and `AsyncLLM.chat` as it streams the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from tests.support.native import require_native

from octavo_inference import LLM, AsyncLLM, SamplingParams
from octavo_inference.common.errors import OctavoError, RequestError
from octavo_inference.completion import RequestOutput


@pytest.fixture(scope="module")
def llm() -> LLM:
    require_native()
    return LLM("smollm2", max_model_len=1024, kv_memory="64Mi", threads=2)


def test_chat_reads_calls_and_enforces_them(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "description": "Counts.", "parameters": schema}}
    conversation = [{"role": "user", "content": "a"}]
    params = SamplingParams(temperature=0, max_tokens=200)
    [answer] = llm.chat(conversation, params, use_tqdm=False, tools=[tool], tool_choice="f")
    call = answer.outputs[0].tool_calls[0]
    assert call.name == "f"
    assert json.loads(call.arguments)["n"] in {1, 2}
    [free] = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False, tools=[tool])
    assert (free.outputs[0].content, free.outputs[0].tool_calls) == (free.outputs[0].text, [])
    with pytest.raises(RequestError, match="no tool has the name 'g'"):
        llm.chat(
            conversation, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False, tools=[tool], tool_choice="g"
        )


SIZES: dict[str, Any] = {"max_model_len": 1024, "kv_memory": "64Mi", "threads": 2}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}
ASKED = [{"role": "user", "content": "How warm is it in Paris and in Rome?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=120)
# As templates of reasoning models do, it begins the thinking.
THINKING = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
<think>
"""


def seen(output: RequestOutput) -> tuple[str, str, str, list[tuple[str, str]]]:
    one = output.outputs[0]
    return one.text, one.content or "", one.reasoning, [(call.name, call.arguments) for call in one.tool_calls]


async def streamed(llm: AsyncLLM, **fields: Any) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    return [seen(output) async for output in llm.chat(ASKED, GREEDY, **fields)]


async def test_a_streamed_chat_grows_to_the_whole_one(llm: LLM) -> None:
    async with AsyncLLM("smollm2", **SIZES) as stream:
        for fields in ({}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "required"}):
            [whole] = llm.chat(ASKED, GREEDY, use_tqdm=False, parallel_tool_calls=False, **fields)
            grown = await streamed(stream, parallel_tool_calls=False, **fields)
            assert grown[-1] == seen(whole)
            assert len(grown) > 1
            for before, after in itertools.pairwise(grown):
                assert all(new.startswith(old) for old, new in zip(before[:3], after[:3], strict=True))
                assert [name for name, _ in after[3]][: len(before[3])] == [name for name, _ in before[3]]
        [(name, arguments)] = grown[-1][3]
        assert (name, set(json.loads(arguments))) == ("weather", {"city"})
        # Arguments come as they are generated.
        assert any(calls and not calls[0][1].endswith("}") for *_, calls in grown)


async def test_streams_of_thinking_refusals_and_loops_that_are_left(llm: LLM, tmp_path: Any) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(THINKING, encoding="utf-8")
    async with AsyncLLM("smollm2", chat_template=str(template), reasoning_parser="think", **SIZES) as stream:
        grown = await streamed(stream)
        assert grown[-1][2]
        assert all(after[2].startswith(before[2]) for before, after in itertools.pairwise(grown))
        with pytest.raises(RequestError, match="no tool has the name 'f'"):
            await streamed(stream, tools=[WEATHER], tool_choice="f")
        with pytest.raises(RequestError, match="a list of dicts"):
            await anext(stream.chat([ASKED]))  # type: ignore[list-item]
        answer = stream.chat(ASKED, SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(answer)
        await answer.aclose()
        assert stream._client is not None
        assert stream._client.router.sequences == 0
    with pytest.raises(OctavoError, match="not running"):
        await anext(stream.chat(ASKED))

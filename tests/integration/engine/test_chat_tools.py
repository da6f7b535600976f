"""Tools in the offline API, with the model from its package."""

from __future__ import annotations

import json

import pytest
from tests.support.native import require_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.common.errors import RequestError


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

"""Grammars on a real model: answers follow them on every backend, and requests beside them do not change."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.native import needs_native
from tests.support.tiers import scaled

from octavo_inference import LLM, SamplingParams
from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.common.errors import RequestError
from octavo_inference.completion import RequestOutput
from octavo_inference.core import guided_steps
from octavo_inference.core.request import Guidance
from octavo_inference.grammar.matcher import Vocabulary

pytestmark = [pytest.mark.timeout(600), needs_native]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog", "crocodile"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
JSON = Guidance(grammar="start: %json " + json.dumps(SCHEMA))
REGEX = Guidance(grammar=r"start: /[A-Z][a-z]{2,6}-[0-9]{3}/")
CHOICE = Guidance(grammar='start: "positive" | "negative" | "not sure at all"')
PROMPTS = ["A pet as JSON: ", "The weather today is", "Code of the product: "]


@cache
def model() -> LLM:
    return LLM("smollm2", max_model_len=512, kv_memory="64Mi", max_running_requests=8)


def answers(
    guidance: Guidance | None, llm: LLM | None = None, prompt: str = PROMPTS[0], **params: Any
) -> RequestOutput:
    sampling = SamplingParams(**{"max_tokens": 120, "temperature": 1.0, "seed": 4, **params})
    [result] = (llm or model()).generate([prompt], sampling, guidance=guidance, use_tqdm=False)
    return result


def follows_schema(text: str) -> bool:
    pet = json.loads(text)
    return (
        list(pet) == ["name", "age", "kind", "tags"]
        and len(pet["name"]) <= 12
        and 0 <= pet["age"] <= 130
        and pet["kind"] in {"cat", "dog", "crocodile"}
        and 1 <= len(pet["tags"]) <= 3
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_json_follows_its_schema(temperature: float) -> None:
    result = answers(JSON, n=3, temperature=temperature)
    for output in result.outputs:
        assert output.finish_reason == "stop"
        assert follows_schema(output.text)


def test_a_regular_expression_with_a_choice_beside_it() -> None:
    for output in answers(REGEX, n=4, temperature=3.0).outputs:
        assert re.fullmatch(r"[A-Z][a-z]{2,6}-[0-9]{3}", output.text)
    found = {output.text for output in answers(CHOICE, n=4, temperature=3.0).outputs}
    assert found <= {"positive", "negative", "not sure at all"}
    assert len(found) > 1


def test_seeds_give_the_same_answers_and_other_seeds_others() -> None:
    first, again, other = (answers(JSON, seed=seed).outputs[0].token_ids for seed in (1, 1, 2))
    assert first == again != other


def test_jump_ahead_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = model()
    before = llm.engine.counters.guidance.forced_tokens
    jumped = [output.token_ids for output in answers(JSON, n=4).outputs]
    assert llm.engine.counters.guidance.forced_tokens > before
    monkeypatch.setattr(guided_steps, "jumps", lambda _: False)
    forced = llm.engine.counters.guidance.forced_tokens
    assert [output.token_ids for output in answers(JSON, n=4).outputs] == jumped
    assert llm.engine.counters.guidance.forced_tokens == forced


def test_log_probabilities_of_each_token_are_those_of_the_model() -> None:
    with_, without = answers(JSON, logprobs=2).outputs[0], answers(JSON).outputs[0]
    assert with_.token_ids == without.token_ids
    assert with_.logprobs is not None
    assert len(with_.logprobs) == len(with_.token_ids)
    # Of the whole distribution, so a forced token need not be the likeliest.
    assert any(entry.rank > 1 for entry in with_.logprobs)


def test_penalties_stop_strings_and_max_tokens_keep_working() -> None:
    assert follows_schema(
        answers(JSON, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3).outputs[0].text
    )
    [stopped] = answers(JSON, stop='", "age').outputs
    assert stopped.stop_reason == '", "age'
    assert re.fullmatch(r'\{"name": "[^"]*', stopped.text)
    [cut] = answers(JSON, max_tokens=9).outputs
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 9)
    [long] = answers(CHOICE, min_tokens=60, ignore_eos=True).outputs
    assert long.finish_reason == "stop"
    assert long.text in {"positive", "negative", "not sure at all"}


def test_the_grammar_begins_behind_the_thinking() -> None:
    tokenizer = model().tokenizer
    after = tuple(tokenizer.encode(" answer:", add_special_tokens=False).ids)
    guidance = Guidance(grammar=CHOICE.grammar, after=after, thinking_budget=10)
    [output] = answers(guidance, prompt="Let me think.", temperature=0.7).outputs
    head, _, tail = output.text.partition(" answer:")
    assert head
    assert tail in {"positive", "negative", "not sure at all"}
    assert len(output.token_ids) <= 10 + len(after) + 6


def test_requests_beside_guided_ones_do_not_change() -> None:
    llm = model()
    params = [SamplingParams(max_tokens=40, temperature=0.9, seed=i, ignore_eos=True) for i in range(3)]
    alone = [
        llm.generate([p], [s], use_tqdm=False)[0].outputs[0].token_ids for p, s in zip(PROMPTS, params, strict=True)
    ]
    base = llm._adapter(None)
    free = [llm._job(prompt, one, AnswerPlan(), adapter=base) for prompt, one in zip(PROMPTS, params, strict=True)]
    guided = [
        llm._job(PROMPTS[0], SamplingParams(max_tokens=60, seed=seed, n=2), AnswerPlan(guidance=guidance), adapter=base)
        for seed, guidance in enumerate((JSON, REGEX))
    ]
    jobs = [free[0], guided[0], free[1], guided[1], free[2]]
    with llm._submitted([job.request for job in jobs]):
        llm._run(jobs, use_tqdm=False)
    assert [job.result.outputs[0].token_ids for job in free] == alone
    assert all(follows_schema(output.text) for output in guided[0].result.outputs)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_backend_follows_the_grammar(backend: Any) -> None:
    llm = LLM("smollm2", backend=backend, max_model_len=128, kv_memory="16Mi", max_running_requests=4)
    for output in answers(REGEX, llm, n=2, max_tokens=20).outputs:
        assert re.fullmatch(r"[A-Z][a-z]{2,6}-[0-9]{3}", output.text)


@pytest.mark.parametrize("grammar", ["start: missing", "start: /(/", "%json", ""])
def test_a_grammar_that_does_not_compile_is_refused(grammar: str) -> None:
    if not grammar:
        assert answers(Guidance(), max_tokens=3).outputs[0].finish_reason == "length"
        return
    with pytest.raises(RequestError, match=r"^grammar: "):
        answers(Guidance(grammar=grammar))
    assert not model().engine.has_work


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "integer", "minimum": -5, "maximum": 1200},
            {"type": "string", "maxLength": 6},
            {"enum": ["red", "rose", 7, None]},
            {"type": "string", "pattern": "^[a-c]{2,4}(x|yz)$"},
        ]
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2}, inner),
            st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
            st.dictionaries(st.sampled_from(["id", "name", "a b", "é"]), inner, min_size=1, max_size=3).map(
                lambda fields: {
                    "type": "object",
                    "properties": fields,
                    "required": sorted(fields),
                    "additionalProperties": False,
                }
            ),
        ),
        max_leaves=6,
    )


@settings(max_examples=scaled(15), deadline=None)
@given(schema=schemas(), seed=st.integers(0, 99))
def test_answers_are_accepted_by_any_grammar(schema: dict[str, Any], seed: int) -> None:
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    guidance = Guidance(grammar="start: %json " + json.dumps(schema | {"x-guidance": style}))
    result = answers(guidance, n=2, temperature=2.0, seed=seed, max_tokens=300)
    for output in result.outputs:
        matcher = vocabulary().compile(guidance.grammar)
        for token in output.token_ids:
            matcher.consume(token)
        assert output.finish_reason == "stop"
        json.loads(output.text)


@cache
def vocabulary() -> Vocabulary:
    config = model().engine.config
    return Vocabulary(model().tokenizer, config.vocab, config.eos_token_ids)

"""Fields of chat and completion requests: each reaches the engine or the answer, whole and streamed."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.server.model_text import ServedModel
from octavo_inference.server.service import Loaded
from octavo_inference.tokenizer.chat_template import ChatTemplate

ANSWER = "The capital of France is Paris. \N{CAT FACE} It lies on the Seine."
HI = {"role": "user", "content": "Hi"}


def events(text: str) -> list[dict]:
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


def with_template(server, source: str) -> None:
    """Replace the model's chat template."""
    old = server.service.loaded
    template = ChatTemplate(source, old.text.tokenizer)
    server.service.loaded = Loaded(ServedModel(old.text.tokenizer, template), old.info, old.longest_token)


@pytest.mark.parametrize(
    ("field", "value", "seen"),
    [
        ("logit_bias", {"5": 1.5, "9": -100}, ((5, 1.5), (9, -100.0))),
        ("allowed_token_ids", [3, 4], (3, 4)),
        ("prompt_logprobs", 2, 2),
        ("skip_special_tokens", False, False),
        ("include_stop_str_in_output", True, True),
    ],
)
async def test_sampling_fields_reach_the_engine(serve, field, value, seen):
    async with serve() as server:
        for ask in (server.chat, server.complete):
            assert (await ask(**{field: value})).status_code == 200
    assert [getattr(request.sampling, field) for request in server.engine.seen] == [seen, seen]


async def test_bad_words_are_banned_with_and_without_a_space_before(serve, tokenizer):
    async with serve() as server:
        await server.chat(bad_words=["Paris", "the Seine"])
    banned = server.engine.seen[0].sampling.bad_words
    texts = {tokenizer.decode(list(tokens)) for tokens in banned}
    assert texts == {"Paris", " Paris", "the Seine", " the Seine"}


async def test_logprob_token_ids_reach_the_engine(serve):
    async with serve() as server:
        await server.chat(logprobs=True, logprob_token_ids=[5, 6])
        await server.complete(logprobs=0, logprob_token_ids=[5, 6])
    assert [request.sampling.logprob_token_ids for request in server.engine.seen] == [(5, 6), (5, 6)]


async def test_max_completion_tokens_limits_completions_too(serve):
    async with serve() as server:
        answer = (await server.complete(max_completion_tokens=3)).json()
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_stop_string_stays_if_asked_for(serve):
    async with serve() as server:
        whole = (await server.chat(stop="Paris", include_stop_str_in_output=True)).json()["choices"][0]
    assert whole["message"]["content"] == "The capital of France is Paris"
    assert whole["stop_reason"] == "Paris"


async def test_a_stop_token_stays_if_asked_for(serve, tokenizer):
    token = tokenizer.encode(" Paris").ids[0]
    async with serve() as server:
        answer = await server.chat(stop_token_ids=[token], include_stop_str_in_output=True)
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris"


async def test_special_tokens_are_shown_if_asked_for(serve):
    async with serve(answer="a<|im_start|>b") as server:
        hidden = (await server.chat()).json()["choices"][0]["message"]["content"]
        shown = (await server.chat(skip_special_tokens=False)).json()["choices"][0]["message"]["content"]
    assert (hidden, shown) == ("ab", "a<|im_start|>b")


async def test_truncation_keeps_the_end_of_the_prompt(serve):
    async with serve() as server:
        await server.complete(prompt=[5, 6, 7, 8], truncate_prompt_tokens=2)
        await server.complete(prompt=[5] * 600, truncate_prompt_tokens=-1, max_tokens=12)
        await server.complete(prompt="word " * 600, truncate_prompt_tokens=3)
        await server.chat(truncate_prompt_tokens=4)
    lengths = [len(request.tokens) for request in server.engine.seen]
    assert server.engine.seen[0].tokens == [7, 8]
    assert lengths == [2, 500, 3, 4]


async def test_token_ids_of_prompt_and_answer(serve, tokenizer):
    ids = [*tokenizer.encode(ANSWER, add_special_tokens=False).ids, 2]
    async with serve() as server:
        chat = (await server.chat(return_token_ids=True)).json()
        text = (await server.complete(return_token_ids=True, max_tokens=40)).json()["choices"][0]
        plain = (await server.chat()).text
    prompts = [request.tokens for request in server.engine.seen]
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == (prompts[0], ids)
    assert (text["prompt_token_ids"], text["token_ids"]) == (prompts[1], ids)
    assert "token_ids" not in plain


async def test_tokens_named_by_their_ids(serve, tokenizer):
    first = tokenizer.encode(ANSWER, add_special_tokens=False).ids[0]
    async with serve() as server:
        chat = (await server.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)).json()
        text = (await server.complete(logprobs=1, return_tokens_as_token_ids=True)).json()
    entry = chat["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == (f"token_id:{first}", "token_id:100")
    logprobs = text["choices"][0]["logprobs"]
    assert logprobs["tokens"][0] == f"token_id:{first}"
    assert set(logprobs["top_logprobs"][0]) == {f"token_id:{first}", "token_id:100"}
    assert logprobs["text_offset"][:3] == [0, 3, 11]


async def test_completions_report_the_sampled_token_besides_the_best(serve):
    async with serve() as server:
        two = (await server.complete(logprobs=2)).json()["choices"][0]["logprobs"]
        none = (await server.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert [len(top) for top in two["top_logprobs"]] == [3] * len(two["tokens"])
    assert all(top[token] == -0.5 for token, top in zip(two["tokens"], two["top_logprobs"], strict=True))
    assert none["top_logprobs"] == [{token: -0.5} for token in none["tokens"]]


async def test_parts_of_characters_do_not_share_a_key(serve, tokenizer):
    cat = tokenizer.encode("\N{CAT FACE}", add_special_tokens=False).ids
    async with serve(answer="a\N{CAT FACE}b") as server:
        logprobs = (await server.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert len(cat) > 1
    parts = logprobs["tokens"][1 : 1 + len(cat)]
    assert len(set(parts)) == len(cat)
    assert all(part.startswith("bytes:\\x") for part in parts)
    found = "".join(part.removeprefix("bytes:\\x").replace("\\x", "") for part in parts)
    assert bytes.fromhex(found).decode() == "\N{CAT FACE}"
    assert logprobs["text_offset"][: 2 + len(cat)] == [0, *[1] * len(cat), 2]


async def test_hidden_tokens_take_no_place_in_the_text(serve):
    async with serve(answer="a<|im_start|>b") as server:
        hidden = (await server.complete(logprobs=0)).json()["choices"][0]
        shown = (await server.complete(logprobs=0, skip_special_tokens=False)).json()["choices"][0]
    assert (hidden["text"], hidden["logprobs"]["text_offset"][:3]) == ("ab", [0, 1, 1])
    assert (shown["text"], shown["logprobs"]["text_offset"][:3]) == ("a<|im_start|>b", [0, 1, 13])


async def test_echo_with_logprobs_begins_with_the_prompt(serve, tokenizer):
    ids = tokenizer.encode("Once upon a").ids
    async with serve() as server:
        choice = (await server.complete(prompt="Once upon a", echo=True, logprobs=1, max_tokens=2)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Once upon aThe capital"
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"] == [None] + [-0.5] * (len(ids) + 1)
    assert logprobs["top_logprobs"][0] is None
    assert [choice["text"][offset] for offset in logprobs["text_offset"]] == [token[0] for token in logprobs["tokens"]]


async def test_echo_without_an_answer(serve):
    async with serve() as server:
        whole = (await server.complete(echo=True, logprobs=1, max_tokens=0)).json()
        streamed = events((await server.complete(echo=True, logprobs=1, max_tokens=0, stream=True)).text)
    choice = whole["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Once", "length")
    assert len(choice["logprobs"]["tokens"]) == whole["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == 0
    assert "".join(c["text"] for chunk in streamed for c in chunk["choices"]) == "Once"


async def test_logprobs_of_prompts(serve):
    async with serve() as server:
        chat = (await server.chat(prompt_logprobs=1)).json()["prompt_logprobs"]
        text = (await server.complete(prompt=["a b", "c"], prompt_logprobs=1)).json()["choices"]
    prompts = [request.tokens for request in server.engine.seen]
    for found, prompt in zip([chat, *(choice["prompt_logprobs"] for choice in text)], prompts, strict=True):
        assert found[0] is None
        assert [next(iter(entry)) for entry in found[1:]] == [str(token) for token in prompt[1:]]
        assert all(len(entry) == 2 for entry in found[1:])
    entry = chat[1][str(prompts[0][1])]
    assert (entry["logprob"], entry["rank"]) == (-0.5, 1)


async def test_the_last_text_and_the_reason_for_the_end_are_apart(serve):
    async with serve() as server:
        chat = events((await server.chat(stream=True)).text)
        text = events((await server.complete(stream=True, max_tokens=40)).text)
    assert chat[-1]["choices"][0]["delta"] == {}
    assert (text[-1]["choices"][0]["text"], text[-1]["choices"][0]["finish_reason"]) == ("", "stop")
    for chunks in (chat, text):
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])


async def test_usage_in_every_chunk(serve):
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serve(pace=0.01) as server:
        for ask in (server.chat, server.complete):
            chunks = events((await ask(stream=True, stream_options=options, max_tokens=12)).text)
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert counts == sorted(counts)
            assert counts[-1] == 12
            assert counts[1] < 12


async def test_obfuscated_chunks_do_not_show_the_length_of_their_text(serve):
    options = {"include_obfuscation": True}
    async with serve() as server:
        chat = events((await server.chat(stream=True, stream_options=options)).text)
        text = events((await server.complete(stream=True, stream_options=options)).text)
        plain = (await server.chat(stream=True)).text
    shown = [(chunk["choices"][0]["delta"].get("content", ""), chunk["obfuscation"]) for chunk in chat]
    shown += [(chunk["choices"][0]["text"], chunk["obfuscation"]) for chunk in text]
    assert {(len(json.dumps(t, ensure_ascii=False).encode()) - 2 + len(pad)) % 32 for t, pad in shown} == {0}
    assert "obfuscation" not in plain


async def test_the_last_message_is_continued(serve, template):
    messages = [HI, {"role": "assistant", "content": "Well, "}]
    async with serve() as server:
        answer = (await server.chat(messages=messages, continue_final_message=True)).json()
        echoed = await server.chat(messages=messages, continue_final_message=True, echo=True)
        streamed = await server.chat(messages=messages, continue_final_message=True, echo=True, stream=True)
    text = server.engine.tokenizer.decode(server.engine.seen[0].tokens, skip_special_tokens=False)
    assert text == template.render(messages, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nWell, ")
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert echoed.json()["choices"][0]["message"]["content"] == f"Well, {ANSWER}"
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(streamed.text)]
    assert "".join(deltas) == f"Well, {ANSWER}"


async def test_no_generation_prompt(serve, template):
    async with serve() as server:
        await server.chat(messages=[HI], add_generation_prompt=False)
    assert server.engine.seen[0].tokens == template.tokens([HI], add_generation_prompt=False)


async def test_the_template_gets_its_variables_and_documents(serve, tokenizer):
    async with serve() as server:
        with_template(server, "{{ style }}:{% for d in documents or [] %}{{ d.title }};{% endfor %}{{ verbosity }}")
        response = await server.chat(
            chat_template_kwargs={"style": "brief"}, documents=[{"title": "A"}, {"title": "B"}], verbosity="low"
        )
    assert response.status_code == 200, response.text
    assert tokenizer.decode(server.engine.seen[0].tokens) == "brief:A;B;low"


@pytest.mark.parametrize(
    ("source", "effort", "prompt"),
    [
        ("{{ reasoning_effort }}", "high", "high"),
        ("think={{ enable_thinking }}", "low", "think=True"),
        ("think={{ enable_thinking }}", "none", "think=False"),
    ],
)
async def test_reasoning_effort_is_what_the_template_makes_of_it(serve, tokenizer, source, effort, prompt):
    async with serve() as server:
        with_template(server, source)
        await server.chat(reasoning_effort=effort)
    assert tokenizer.decode(server.engine.seen[0].tokens) == prompt


async def test_variables_cannot_replace_the_messages(serve):
    async with serve() as server:
        with_template(server, "{{ messages[0].content }}")
        response = await server.chat(chat_template_kwargs={"messages": [HI]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template_kwargs.messages"


FIELDS = {
    "logprobs": [None, 0, 2],
    "echo": [None, True],
    "stop": [None, "Paris", ["Seine.", " is"]],
    "include_stop_str_in_output": [None, True],
    "skip_special_tokens": [None, False],
    "return_token_ids": [None, True],
    "prompt_logprobs": [None, 1],
    "stream_options": [None, {"include_usage": True}, {"include_obfuscation": True}],
    "n": [None, 2],
    "max_tokens": [3, 40],
}
combinations = st.fixed_dictionaries({field: st.sampled_from(values) for field, values in FIELDS.items()})


def joined_choice(parts: list[dict]) -> dict:
    """A completion's choice from its chunks."""
    logprobs = [part["logprobs"] for part in parts if part["logprobs"]]
    return {
        "text": "".join(part["text"] for part in parts),
        "logprobs": {key: list(itertools.chain(*(entry[key] for entry in logprobs))) for key in logprobs[0]}
        if logprobs
        else None,
        "finish_reason": parts[-1]["finish_reason"],
        "stop_reason": parts[-1]["stop_reason"],
        "token_ids": list(itertools.chain(*(part.get("token_ids", []) for part in parts))),
        "prompt_logprobs": next((part["prompt_logprobs"] for part in parts if "prompt_logprobs" in part), None),
    }


@given(combinations)
@settings(max_examples=scaled(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_stream_is_the_whole_answer_for_every_combination(serve, fields):
    asked = {field: value for field, value in fields.items() if value is not None}
    plain = {field: value for field, value in asked.items() if field != "stream_options"}
    async with serve() as server:
        whole = (await server.complete(**plain)).json()
        chunks = events((await server.complete(**asked, stream=True)).text)
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        expected = {"token_ids": [], "prompt_logprobs": None} | choice
        expected = {key: expected[key] for key in joined_choice(parts)}
        assert joined_choice(parts) == expected

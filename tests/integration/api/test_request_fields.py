"""Fields of chat and completion requests, through the real server with real weights."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from octavo_inference.model_loader import load_text

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def tokenizer():
    return load_text("smollm2").tokenizer


def complete(server, prompt: str | list = PROMPT, **fields: object) -> dict:
    body = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 4} | fields
    response = server.api.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks_of(server, path: str, body: dict) -> list[dict]:
    text = server.api.post(path, json=body | {"stream": True}).text
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    assert blocks[-1] == "[DONE]"
    return [json.loads(block) for block in blocks[:-1]]


def test_logit_bias_forbids_and_forces(server, tokenizer):
    paris, lyon = (tokenizer.encode(word).ids[0] for word in (" Paris", " Lyon"))
    assert complete(server)["choices"][0]["text"].startswith(" Paris")
    assert "Paris" not in complete(server, logit_bias={paris: -100})["choices"][0]["text"]
    assert complete(server, logit_bias={lyon: 100}, max_tokens=1)["choices"][0]["text"] == tokenizer.decode([lyon])
    assert "Paris" not in server.chat(logit_bias={paris: -100}, max_tokens=8)["choices"][0]["message"]["content"]


def test_only_allowed_tokens_are_sampled(server, tokenizer):
    digits = [tokenizer.encode(digit).ids[0] for digit in "0123456789"]
    answers = [
        complete(server, allowed_token_ids=digits)["choices"][0]["text"],
        server.chat(allowed_token_ids=digits, max_tokens=4)["choices"][0]["message"]["content"],
    ]
    assert all(answer.isdigit() and len(answer) == 4 for answer in answers)


def test_bad_words_do_not_occur(server):
    free = server.chat(max_tokens=24)["choices"][0]["message"]["content"]
    assert "Paris" in free
    assert "capital of France" in free
    banned = server.chat(max_tokens=24, bad_words=["Paris", "of France"])["choices"][0]["message"]["content"]
    assert "Paris" not in banned
    assert "of France" not in banned


def test_echo_with_logprobs_scores_the_prompt(server, tokenizer):
    choice = complete(server, echo=True, logprobs=1, max_tokens=1)["choices"][0]
    logprobs, ids = choice["logprobs"], tokenizer.encode(PROMPT).ids
    assert choice["text"].startswith(f"{PROMPT} Paris")
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    # Each prompt token is as likely as when the model generates it.
    for place in range(1, len(ids)):
        before = complete(server, ids[:place], logprobs=20, max_tokens=1)["choices"][0]["logprobs"]["top_logprobs"][0]
        token = logprobs["tokens"][place]
        if token in before:
            assert logprobs["token_logprobs"][place] == pytest.approx(before[token], abs=0.05)


def test_the_likelier_of_two_continuations_has_the_higher_sum(server, tokenizer):
    """What lm-eval asks: the log-probability of an answer, given its question."""

    def score(answer: str) -> float:
        logprobs = complete(server, PROMPT + answer, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
        return sum(logprobs["token_logprobs"][len(tokenizer.encode(PROMPT).ids) :])

    assert score(" Paris.") > score(" Berlin.") > score(" banana.")


def test_best_of_returns_the_likeliest_answers(server):
    prompts = [PROMPT, "Bread is made of"]
    fields = {"temperature": 1, "seed": 7, "max_tokens": 6, "echo": True}
    drawn = complete(server, prompts, n=4, logprobs=0, **fields)
    expected = []
    for first in (0, 4):
        group = drawn["choices"][first : first + 4]
        expected += [choice["text"] for choice in sorted(group, key=mean_of_answer, reverse=True)[:2]]
    found = complete(server, prompts, n=2, best_of=4, **fields)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in found["choices"]] == expected
    assert len(set(expected)) > 2, "the draws differ"
    assert {choice["logprobs"] for choice in found["choices"]} == {None}
    assert found["usage"]["completion_tokens"] == drawn["usage"]["completion_tokens"], "all that were generated"


def mean_of_answer(choice: dict) -> float:
    answer = choice["logprobs"]["token_logprobs"][-6:]
    return sum(answer) / len(answer)


def test_logprobs_of_prompts_are_those_of_echo(server, tokenizer):
    echoed = complete(server, echo=True, logprobs=2, max_tokens=1)["choices"][0]["logprobs"]
    scored = complete(server, prompt_logprobs=2, max_tokens=1)["choices"][0]["prompt_logprobs"]
    ids = tokenizer.encode(PROMPT).ids
    own = [None if entry is None else entry[str(token)]["logprob"] for token, entry in zip(ids, scored, strict=True)]
    assert own[0] is None
    assert own[1:] == pytest.approx(echoed["token_logprobs"][1 : len(ids)])
    chat = server.chat(prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_named_tokens_have_log_probabilities(server, tokenizer):
    named = [tokenizer.encode(word).ids[0] for word in (" Paris", " Berlin")]
    best = complete(server, logprobs=20, max_tokens=1)["choices"][0]["logprobs"]["top_logprobs"][0]
    only = complete(server, logprobs=0, max_tokens=1, logprob_token_ids=named)["choices"][0]["logprobs"]
    assert set(only["top_logprobs"][0]) == {" Paris", " Berlin"}
    assert only["top_logprobs"][0][" Paris"] == pytest.approx(best[" Paris"])
    chat = server.chat(logprobs=True, max_tokens=1, logprob_token_ids=named)
    top = chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [entry["token"] for entry in top] == [" Paris", " Berlin"]


def test_the_sampled_token_is_among_the_alternatives(server):
    fields = {"temperature": 2.0, "seed": 3, "max_tokens": 24, "logprobs": 1}
    logprobs = complete(server, **fields)["choices"][0]["logprobs"]
    tops = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    assert all(top[token] == value for token, value, top in tops)
    assert any(len(top) == 2 for top in logprobs["top_logprobs"])
    none = complete(server, logprobs=0)["choices"][0]["logprobs"]
    assert [list(top) for top in none["top_logprobs"]] == [[token] for token in none["tokens"]]


def test_parts_of_characters_have_their_own_names(server, tokenizer):
    cat = tokenizer.encode("\N{CAT FACE}").ids
    forced = complete(server, logprobs=1, max_tokens=3, allowed_token_ids=cat)["choices"][0]["logprobs"]
    assert all(token.startswith("bytes:\\x") for token in forced["tokens"])


def test_stop_strings_and_special_tokens_are_shown_if_asked_for(server):
    kept = server.chat(stop="Paris", include_stop_str_in_output=True)["choices"][0]
    ended = server.chat(include_stop_str_in_output=True, skip_special_tokens=False, max_tokens=64)["choices"][0]
    assert kept["message"]["content"].endswith("Paris")
    assert kept["stop_reason"] == "Paris"
    assert ended["message"]["content"].endswith("<|im_end|>")


def test_a_prompt_is_truncated_from_its_start(server, tokenizer):
    ids = tokenizer.encode("Berlin is in Germany. " * 400 + PROMPT).ids
    short = len(tokenizer.encode(PROMPT).ids)
    answer = complete(server, "Berlin is in Germany. " * 400 + PROMPT, truncate_prompt_tokens=short, max_tokens=1)
    fitted = complete(server, ids, truncate_prompt_tokens=-1, max_tokens=8)
    assert answer["usage"]["prompt_tokens"] == short
    assert answer["choices"][0]["text"] == complete(server, ids[-short:], max_tokens=1)["choices"][0]["text"]
    assert fitted["usage"]["prompt_tokens"] == 1024 - 8


def test_token_ids_are_the_text(server, tokenizer):
    chat = server.chat(return_token_ids=True)
    text = complete(server, return_token_ids=True)["choices"][0]
    assert tokenizer.decode(chat["choices"][0]["token_ids"]) == chat["choices"][0]["message"]["content"]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert (text["prompt_token_ids"], tokenizer.decode(text["token_ids"])) == (
        tokenizer.encode(PROMPT).ids,
        text["text"],
    )


def test_an_answer_is_continued(server):
    question = {"role": "user", "content": "Name the capital of France."}
    messages = [question, {"role": "assistant", "content": "The capital of France is the city of"}]
    fields = {"messages": messages, "continue_final_message": True}
    answer = server.chat(**fields)["choices"][0]["message"]["content"]
    assert answer.lstrip().startswith("Paris")
    echoed = server.chat(**fields, echo=True)["choices"][0]["message"]["content"]
    assert echoed == messages[1]["content"] + answer


def test_a_stream_counts_its_tokens_and_hides_their_lengths(server):
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    body = server.body(stream_options=options, max_tokens=12)
    chunks = chunks_of(server, "/v1/chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == chunks[-1]["usage"]["total_tokens"] - chunks[-1]["usage"]["prompt_tokens"]
    assert all(chunk["obfuscation"] for chunk in chunks[:-1])
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-2]["choices"][0]["finish_reason"]


def test_values_that_ask_for_nothing_change_nothing(server):
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "reasoning_effort": "none",
        "verbosity": "medium",
        "service_tier": "auto",
        "store": False,
        "prompt_cache_key": "key",
    }
    assert server.chat(**nothing)["choices"] == server.chat()["choices"]
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [], "annotations": [], "refusal": None},
        {"role": "user", "content": "Name the capital of France."},
    ]
    assert server.chat(messages=history)["choices"][0]["message"]["content"]


# Each value of a field occurs with each value of every other field; the unit tests have all combinations.
COMBINATIONS = list(
    itertools.product([None, 2], [None, True], [None, " and"], [None, True], [None, 1], [None, {"include_usage": True}])
)[::7]


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
def test_a_stream_is_the_whole_answer(server, fields):
    names = ("logprobs", "echo", "stop", "include_stop_str_in_output", "prompt_logprobs", "stream_options")
    asked = {name: value for name, value in zip(names, fields, strict=True) if value is not None}
    body = {"model": "smollm2", "prompt": ["Red, green", "I like \N{CAT FACE}"], "temperature": 0, "max_tokens": 12}
    plain = {name: value for name, value in asked.items() if name != "stream_options"}
    whole = server.api.post("/v1/completions", json=body | plain).json()
    chunks = chunks_of(server, "/v1/completions", body | asked)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == (
            choice["finish_reason"],
            choice["stop_reason"],
        )
        found = [part["logprobs"] for part in parts if part["logprobs"]]
        for key in choice["logprobs"] or {}:
            joined = list(itertools.chain(*(entry[key] for entry in found)))
            if key in {"tokens", "text_offset"}:
                assert joined == choice["logprobs"][key]
            assert len(joined) == len(choice["logprobs"][key])


def test_a_template_of_the_user_replaces_the_model_s(start, tmp_path: Path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[-1].content }}{{ style }}", encoding="utf-8")
    server = start("--chat-template", str(file))
    answer = server.chat(PROMPT, max_tokens=1, chat_template_kwargs={"style": " the city of"}, return_token_ids=True)
    assert answer["choices"][0]["message"]["content"] == " Paris"
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])


def test_a_bad_template_ends_the_start_with_its_name(start, tmp_path: Path):
    file = tmp_path / "mine.jinja"
    file.write_text("{% for %}", encoding="utf-8")
    server = start("--chat-template", str(file), wait=False)
    assert server.process.wait(120) == 1
    assert "mine.jinja: chat template, line 1" in server.log

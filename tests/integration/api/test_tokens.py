"""The tokenizer's endpoints of the real server, as an evaluation's remote tokenizer uses them."""

from __future__ import annotations

import jinja2.sandbox
import pytest

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name the capital of France."}]


def tokenize(server, **body) -> dict:
    response = server.api.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def detokenize(server, tokens: list[int]) -> str:
    return server.api.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


@pytest.fixture(scope="module")
def info(server) -> dict:
    return server.api.get("/tokenizer_info").json()


def test_messages_have_the_tokens_of_a_chat_completion(server):
    found = tokenize(server, messages=MESSAGES)
    chat = server.chat(messages=MESSAGES, max_tokens=1)
    assert found["count"] == len(found["tokens"]) == chat["usage"]["prompt_tokens"]
    assert found["max_model_len"] == 1024


def test_a_prompt_has_the_tokens_of_a_completion(server):
    text = "The capital of France is"
    found = tokenize(server, prompt=text)
    body = {"model": "smollm2", "max_tokens": 4, "temperature": 0}
    answers = [
        server.api.post("/v1/completions", json=body | {"prompt": prompt}).json() for prompt in (text, found["tokens"])
    ]
    assert answers[0]["usage"]["prompt_tokens"] == found["count"]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


@pytest.mark.parametrize(
    "text", ["Hello, world!", " leading\n\n\ttabs  ", "na\u00efve \N{CAT FACE}", "<|im_end|> 2024", ""]
)
def test_a_text_survives_the_round_trip(server, text):
    assert detokenize(server, tokenize(server, prompt=text)["tokens"]) == text


def test_an_open_message_is_continued_by_a_completion(server):
    begun = [*MESSAGES, {"role": "assistant", "content": "The capital of France is"}]
    tokens = tokenize(server, messages=begun, continue_final_message=True)["tokens"]
    body = {"model": "smollm2", "prompt": tokens, "max_tokens": 1, "temperature": 0}
    assert server.api.post("/v1/completions", json=body).json()["choices"][0]["text"] == " Paris"


def test_the_special_tokens_have_ids(server, info):
    """An evaluation finds the id of a special token by its text."""
    ids = [
        tokenize(server, prompt=info[name], add_special_tokens=False)["tokens"] for name in ("bos_token", "eos_token")
    ]
    assert ids == [[1], [2]]


def test_the_chat_template_renders_what_the_server_tokenizes(server, info):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(info["chat_template"]).render(messages=MESSAGES, add_generation_prompt=True)
    assert tokenize(server, prompt=text)["tokens"] == tokenize(server, messages=MESSAGES)["tokens"]


def test_the_sizes_are_those_of_the_model(info):
    assert (info["model_max_length"], info["vocab_size"], info["tokenizer_class"]) == (
        1024,
        49152,
        "PreTrainedTokenizerFast",
    )


def test_the_tokenizer_needs_a_key(start, tmp_path):
    file = tmp_path / "keys"
    file.write_text("right\n")
    server = start("--api-key-file", str(file))
    requests = [("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/tokenizer_info")]
    assert [server.api.request(*request).status_code for request in requests] == [401, 401, 401]

"""/tokenize, /detokenize and /tokenizer_info."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from octavo_inference.tokenizer.chat_template import ChatTemplate
from octavo_inference.tokenizer.special_tokens import surrounding

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a \N{CAT FACE}."}]
OPEN = [*MESSAGES, {"role": "assistant", "content": "It is "}]


async def post(server, path, **body):
    return await server.api.post(path, json=body)


def param(response) -> str:
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"]


async def test_a_text_becomes_tokens_and_text_again(serve, tokenizer):
    text = "Once upon a time, \N{CAT FACE}\n\t<|im_end|> 12345"
    async with serve() as server:
        found = (await post(server, "/tokenize", prompt=text)).json()
        back = (await post(server, "/detokenize", tokens=found["tokens"])).json()
    assert found == {
        "count": len(found["tokens"]),
        "max_model_len": 512,
        "tokens": tokenizer.encode(text).ids,
        "token_strs": None,
    }
    assert back == {"prompt": text}


# The model's vocabulary has no token for these, nor for the first byte of the characters beyond.
KNOWN = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d")


@given(st.text(KNOWN, max_size=40))
@settings(max_examples=scaled(150), deadline=None)
def test_every_text_survives_the_round_trip(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokens, skip_special_tokens=False) == text


async def test_tokens_have_names(serve, tokenizer):
    async with serve() as server:
        found = (await post(server, "/tokenize", prompt="Hi there", return_token_strs=True)).json()
    assert found["token_strs"] == [tokenizer.id_to_token(token) for token in found["tokens"]] == ["Hi", "\u0120there"]


async def test_an_empty_text_has_no_tokens(serve):
    async with serve() as server:
        assert (await post(server, "/tokenize", prompt="")).json()["tokens"] == []
        assert (await post(server, "/detokenize", tokens=[])).json() == {"prompt": ""}


async def test_messages_have_the_tokens_of_a_chat_completion(serve):
    async with serve() as server:
        found = (await post(server, "/tokenize", messages=MESSAGES, model="alias")).json()
        await server.chat(messages=MESSAGES)
    assert found["tokens"] == server.engine.seen[0].tokens


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"messages": MESSAGES}, "<|im_end|>\n<|im_start|>assistant\n"),
        ({"messages": MESSAGES, "add_generation_prompt": False}, "Name a \N{CAT FACE}.<|im_end|>\n"),
        ({"messages": OPEN, "continue_final_message": True}, "<|im_start|>assistant\nIt is "),
        ({"messages": OPEN, "continue_final_message": True, "add_generation_prompt": False}, "assistant\nIt is "),
    ],
    ids=str,
)
async def test_the_end_of_a_conversation_can_be_chosen(serve, tokenizer, fields, end):
    async with serve() as server:
        tokens = (await post(server, "/tokenize", **fields)).json()["tokens"]
    assert tokenizer.decode(tokens, skip_special_tokens=False).endswith(end)


async def test_messages_take_the_template_fields_of_a_chat_completion(serve, tokenizer):
    source = "{{ messages[0].content }} {{ mood }} {{ enable_thinking }}"
    fields = {"messages": MESSAGES, "chat_template_kwargs": {"mood": "calm"}, "reasoning_effort": "none"}
    async with serve() as server:
        object.__setattr__(server.service.loaded.text, "template", ChatTemplate(source, tokenizer))
        found = (await post(server, "/tokenize", **fields)).json()
        await server.chat(**fields)
        unknown = await post(server, "/tokenize", messages=MESSAGES, chat_template_kwargs={"other": 1})
    assert found["tokens"] == server.engine.seen[0].tokens
    assert tokenizer.decode(found["tokens"]) == "Be brief. calm False"
    assert param(unknown) == "chat_template_kwargs.other"


@pytest.fixture
def framing(tokenizer):
    """A tokenizer that adds a first and a last token."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    return tokenizer


def test_special_tokens_surround_a_text(tokenizer, framing):
    assert surrounding(framing) == ([1], [2])
    assert surrounding(tokenizer) == ([], [])


async def test_special_tokens_are_added_to_a_prompt_unless_asked_otherwise(serve, framing):
    async with serve() as server:
        object.__setattr__(server.service.loaded.text, "tokenizer", framing)
        added = (await post(server, "/tokenize", prompt="Hi")).json()["tokens"]
        plain = (await post(server, "/tokenize", prompt="Hi", add_special_tokens=False)).json()["tokens"]
    assert added == [1, *plain, 2]


async def test_special_tokens_are_added_to_messages_only_if_asked(serve, framing):
    async with serve() as server:
        object.__setattr__(server.service.loaded.text, "tokenizer", framing)
        plain = (await post(server, "/tokenize", messages=MESSAGES)).json()["tokens"]
        added = (await post(server, "/tokenize", messages=MESSAGES, add_special_tokens=True)).json()["tokens"]
    assert added == [1, *plain, 2]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": MESSAGES}, "prompt"),
        ({"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "x", "continue_final_message": False}, "continue_final_message"),
        (
            {"messages": OPEN, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"prompt": "x", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"prompt": ["x"]}, "prompt"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"prompt": "x", "other": 1}, "other"),
    ],
    ids=str,
)
async def test_fields_that_do_not_fit_are_refused(serve, fields, field):
    async with serve() as server:
        assert param(await post(server, "/tokenize", **fields)) == field


async def test_a_text_longer_than_the_context_is_counted(serve):
    async with serve() as server:
        found = (await post(server, "/tokenize", prompt="a " * 600)).json()
    assert found["count"] > found["max_model_len"]


@pytest.mark.parametrize(
    "fields", [{"prompt": "a" * 300_000}, {"messages": [{"role": "user", "content": "a" * 300_000}]}]
)
async def test_a_text_that_cannot_fit_is_not_tokenized(serve, fields):
    async with serve() as server:
        response = await post(server, "/tokenize", **fields)
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("tokens", [[49152], [-1], [1.5], [2**31], "Hi", [1] * 513])
async def test_tokens_that_are_none_are_refused(serve, tokens):
    async with serve() as server:
        assert param(await post(server, "/detokenize", tokens=tokens)).startswith("tokens")


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
async def test_only_the_served_model_has_a_tokenizer(serve, path, body):
    async with serve() as server:
        response = await post(server, path, model="other", **body)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_tokenizer_describes_itself(serve, model):
    async with serve() as server:
        found = (await server.api.get("/tokenizer_info")).json()
    added = found.pop("added_tokens_decoder")
    others = found.pop("additional_special_tokens")
    assert found == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": model.chat_template,
        "model_max_length": 512,
        "vocab_size": 49152,
    }
    assert added["2"] == {
        "content": "<|im_end|>",
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    assert others[:2] == ["<|endoftext|>", "<repo_name>"]
    assert "<|im_end|>" not in others


async def test_before_the_model_is_loaded_there_is_no_tokenizer(serve):
    async with serve(ready=False) as server:
        assert (await server.api.get("/tokenizer_info")).status_code == 503
        assert (await post(server, "/tokenize", prompt="x")).status_code == 503

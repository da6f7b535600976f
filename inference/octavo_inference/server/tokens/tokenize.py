"""POST /tokenize and /detokenize."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from tokenizers import Tokenizer

from octavo_inference.server import json_body
from octavo_inference.server.errors import invalid
from octavo_inference.server.http import json_response
from octavo_inference.server.openai.chat import chat_prompt
from octavo_inference.server.openai.tools import tools_of
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.tokens.messages import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from octavo_inference.tokenizer.special_tokens import surrounding


async def tokenize(service: Service, request: HttpRequest) -> Response:
    """The tokens of a text or of a conversation, as a completion or a chat completion would have them."""
    body = await json_body.read(request, TokenizeRequest)
    body.check()
    loaded = await service.require(body.model or service.names[0])
    [encoded] = await service.tokenise(request, [lambda: msgspec.json.encode(_tokenized(loaded, body))])
    return json_response(encoded)


async def detokenize(service: Service, request: HttpRequest) -> Response:
    """The text of tokens, special tokens included."""
    body = await json_body.read(request, DetokenizeRequest, service.check_ids)
    loaded = await service.require(body.model or service.names[0])
    info = loaded.info
    if len(body.tokens) > info.max_model_len:
        raise invalid(
            f"tokens: {len(body.tokens)} tokens; the model's context, which is the limit, has {info.max_model_len}. "
            "Send them in parts.",
            "tokens",
        )
    unknown = next((token for token in body.tokens if token >= loaded.vocab_size), None)
    if unknown is not None:
        raise invalid(f"tokens: {unknown} is not a token; the vocabulary has {loaded.vocab_size}.", "tokens")
    decode = loaded.text.tokenizer.decode
    [text] = await service.tokenise(request, [lambda: decode(body.tokens, skip_special_tokens=False)])
    return json_response(msgspec.json.encode(Detokenized(text)))


def _tokenized(loaded: Loaded, body: TokenizeRequest) -> Tokenized:
    tokenizer = loaded.text.tokenizer
    tokens = _prompt(loaded, body) if body.prompt is not None else _chat(loaded, body)
    names = [_name(tokenizer, token) for token in tokens] if body.return_token_strs else None
    return Tokenized(len(tokens), loaded.info.max_model_len, tokens, names)


def _prompt(loaded: Loaded, body: TokenizeRequest) -> list[int]:
    return loaded.text_tokens(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)


def _chat(loaded: Loaded, body: TokenizeRequest) -> list[int]:
    chat = body.chat()
    tokens = chat_prompt(chat, loaded, tools_of(chat))
    if not body.add_special_tokens:
        return tokens
    before, after = surrounding(loaded.text.tokenizer)
    return [*before, *tokens, *after]


def _name(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.id_to_token(token) or ""

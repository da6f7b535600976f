"""GET /tokenizer_info."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.server.http import json_response
from octavo_inference.server.service import Loaded, Service
from octavo_inference.server.tokens.messages import AddedToken, TokenizerInfo


async def tokenizer_info(service: Service, _: HttpRequest) -> Response:
    """The tokenizer's class, special tokens, chat template and sizes."""
    loaded = await service.require(service.names[0])
    return json_response(await service.work(lambda: msgspec.json.encode(_info(loaded))))


def _info(loaded: Loaded) -> TokenizerInfo:
    text = loaded.text
    named = text.special_tokens
    added = text.tokenizer.get_added_tokens_decoder()
    special = [token.content for _, token in sorted(added.items()) if token.special]
    return TokenizerInfo(
        tokenizer_class=text.tokenizer_class,
        bos_token=named.get("bos_token"),
        eos_token=named.get("eos_token"),
        pad_token=named.get("pad_token"),
        unk_token=named.get("unk_token"),
        additional_special_tokens=[content for content in special if content not in named.values()],
        added_tokens_decoder={
            index: AddedToken(
                content=token.content,
                lstrip=token.lstrip,
                normalized=token.normalized,
                rstrip=token.rstrip,
                single_word=token.single_word,
                special=token.special,
            )
            for index, token in sorted(added.items())
        },
        chat_template=None if text.template is None else text.template.source,
        model_max_length=loaded.info.max_model_len,
        vocab_size=loaded.vocab_size,
    )

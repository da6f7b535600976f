"""The endpoints of the tokenizer."""

from __future__ import annotations

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.tokens.info import tokenizer_info
from octavo_inference.server.tokens.messages import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    TokenizerInfo,
)
from octavo_inference.server.tokens.tokenize import detokenize, tokenize

ENDPOINTS = (
    HttpEndpoint(
        "POST",
        "/tokenize",
        tokenize,
        body=TokenizeRequest,
        answer=Tokenized,
        example={"prompt": "Hello, world!"},
    ),
    HttpEndpoint(
        "POST",
        "/detokenize",
        detokenize,
        body=DetokenizeRequest,
        answer=Detokenized,
        example={"tokens": [19556, 28]},
    ),
    HttpEndpoint("GET", "/tokenizer_info", tokenizer_info, answer=TokenizerInfo, errors=(503,)),
)

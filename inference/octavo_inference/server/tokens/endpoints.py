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
    HttpEndpoint("POST", "/tokenize", tokenize, TokenizeRequest, Tokenized),
    HttpEndpoint("POST", "/detokenize", detokenize, DetokenizeRequest, Detokenized),
    HttpEndpoint("GET", "/tokenizer_info", tokenizer_info, answer=TokenizerInfo),
)

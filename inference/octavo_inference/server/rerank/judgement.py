"""Relevance as a generative model judges it: the probability of "yes" against "no" as its first word.

The prompt is that of Qwen3-Reranker, in the model's own chat template. Source: Zhang et al. 2025, "Qwen3 Embedding".
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest
from tokenizers import Tokenizer

from octavo_inference.core.request import Output, Request, SamplingParams
from octavo_inference.server.errors import ApiError, context_overflow, invalid
from octavo_inference.server.prompts import SchedulingFields, engine_requests
from octavo_inference.server.rerank.texts import Limits, Pair
from octavo_inference.server.service import Loaded, Service

if TYPE_CHECKING:  # jinja is imported while the engine loads, not earlier
    from octavo_inference.tokenizer.chat_template import Message

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ANSWERS = ("yes", "no")


def prompts(loaded: Loaded, pairs: Sequence[Pair], limits: Limits) -> list[Callable[[], list[int]]]:
    """Functions of the tokens of one conversation for each pair, which raise `ApiError`."""
    return [partial(_prompt, loaded, pair, limits) for pair in pairs]


def requests(
    service: Service, request: HttpRequest, body: SchedulingFields, loaded: Loaded, inputs: list[list[int]]
) -> list[Request]:
    """Engine requests for the log-probabilities of the two answers. Raises `ApiError`."""
    answers = tuple(_token(loaded.text.tokenizer, answer) for answer in ANSWERS)
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprob_token_ids=answers)
    return engine_requests(
        service, request, loaded, body, f"judge-{uuid.uuid4().hex}", inputs, [sampling] * len(inputs)
    )


def scores(outputs: Sequence[Output], pairs: Sequence[Pair]) -> list[float]:  # noqa: ARG001 -- as in `similarity`
    """The share of "yes" in the probability of both answers, from 0 to 1."""
    found = []
    for output in outputs:
        [entry] = output.logprobs or []
        yes, no = entry.top_logprobs
        found.append(1 / (1 + math.exp(min(700.0, no - yes))))
    return found


def _prompt(loaded: Loaded, pair: Pair, limits: Limits) -> list[int]:
    query = _text(loaded, pair.query, limits.query(loaded, pair))
    document = _text(loaded, pair.document, limits.document(loaded, pair))
    messages: list[Message] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"},
    ]
    # The answer must be the first token: a model that thinks first gets the template of one that does not.
    uses_thinking = loaded.template(pair.of_document).uses("enable_thinking")
    tokens = loaded.chat_tokens(messages, variables={"enable_thinking": False} if uses_thinking else None)
    if len(tokens) >= loaded.info.max_model_len:
        raise context_overflow(len(tokens), 1, loaded.info.max_model_len, pair.of_document)
    return tokens


def _text(loaded: Loaded, text: str, tokens: list[int]) -> str:
    """The text, or that of its remaining tokens if a limit has cut some."""
    if loaded.text.tokenizer.encode(text).ids == tokens:
        return text
    return str(loaded.text.tokenizer.decode(tokens))


def _token(tokenizer: Tokenizer, answer: str) -> int:
    ids = tokenizer.encode(answer, add_special_tokens=False).ids
    if len(ids) != 1:
        raise _unsuitable(answer)
    return int(ids[0])


def _unsuitable(answer: str) -> ApiError:
    return invalid(
        f"model: {answer!r} is not one token of this model, which --relevance answer needs; use --relevance embedding.",
        "model",
    )

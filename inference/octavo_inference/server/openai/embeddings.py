"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from octavo_inference.common.vectors import little_endian, vector_of
from octavo_inference.server import json_body
from octavo_inference.server.errors import gives_no_embeddings, invalid
from octavo_inference.server.http import json_unless_gone
from octavo_inference.server.openai.requests import Int31, TokenId
from octavo_inference.server.pooling import MAX_INPUTS, Input, input_tokens, pooled_requests, vectors
from octavo_inference.server.prompt_batch import PromptBatch, PromptUsage, prompt_batch
from octavo_inference.server.prompts import SchedulingFields, prompt_headers
from octavo_inference.server.service import Loaded, Service

MAX_RESPONSE = 48 * 2**20
"""Bytes of the largest response, by the estimates below."""
# Bytes of a number: of a float32 in decimal digits, and in base64.
_NUMBER_BYTES = {"float": 22.0, "base64": 16 / 3}

TokenArray = Annotated[list[TokenId], Meta(min_length=1)]


class EmbeddingRequest(SchedulingFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/embeddings. `truncate_prompt_tokens` keeps that many of the last tokens of each input.

    Accepted without effect: `user`.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[str | TokenId | TokenArray], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int31 | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None

    @property
    def inputs(self) -> list[Input]:
        """The inputs, each a text or token ids. Raises `ApiError`."""
        if isinstance(self.input, str):
            return [self.input]
        if all(isinstance(part, int) for part in self.input):
            return [[part for part in self.input if isinstance(part, int)]]
        if len(self.input) > MAX_INPUTS:
            raise invalid(f"input: {len(self.input)} inputs in one request; the limit is {MAX_INPUTS}.", "input")
        inputs = [part for part in self.input if not isinstance(part, int)]
        if len(inputs) != len(self.input) or len({type(part) for part in inputs}) > 1:
            raise invalid("input: give one text, a list of texts, a list of tokens or a list of token lists.", "input")
        return inputs


class EmbeddingObject(msgspec.Struct, frozen=True):
    """The vector of one input: numbers, or base64 of little-endian float32.

    Its length is 1, unless the checkpoint's sentence-transformers files do not normalize it.
    """

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingResponse(msgspec.Struct, frozen=True):
    """The vectors, in the order of the inputs."""

    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
    object: Literal["list"] = "list"


async def embeddings(service: Service, request: HttpRequest) -> Response:
    """Embed one or more texts."""
    body = await json_body.read(request, EmbeddingRequest, service.check_ids)
    loaded = await service.require(body.model)
    if loaded.info.task == "score":
        raise gives_no_embeddings(body.model)
    inputs = body.inputs
    _check_size(body, len(inputs), loaded.info.hidden_size)
    keep = body.truncate_prompt_tokens
    steps = [partial(input_tokens, loaded, given, "input", keep) for given in inputs]
    tokens = await service.tokenise(request, steps)
    prompts = pooled_requests(service, request, body, loaded, tokens)
    headers = await prompt_headers(service, request, loaded, prompts)
    work = _whole(service, loaded, body, prompt_batch(service, request, prompts))
    return await json_unless_gone(request.receive, work, headers)


async def _whole(service: Service, loaded: Loaded, body: EmbeddingRequest, batch: PromptBatch) -> bytes:
    pooled = await vectors(batch)
    return await service.work(lambda: _encoded(body, pooled, batch.usage, normalize=loaded.text.normalized))


def _encoded(body: EmbeddingRequest, pooled: list[bytes], usage: PromptUsage, *, normalize: bool) -> bytes:
    data = []
    for index, one in enumerate(pooled):
        vector = vector_of(one, dimensions=body.dimensions, normalize=normalize)
        in_text = body.encoding_format == "base64"
        data.append(
            EmbeddingObject(index, base64.b64encode(little_endian(vector)).decode() if in_text else vector.tolist())
        )
    return msgspec.json.encode(EmbeddingResponse(data, body.model, usage))


def _check_size(body: EmbeddingRequest, count: int, hidden: int) -> None:
    """Refuse more dimensions than the model has, and more numbers than a response may hold. Raises `ApiError`."""
    if body.dimensions is not None and 0 < hidden < body.dimensions:
        raise invalid(f"dimensions: {body.dimensions} is more than the model's {hidden}.", "dimensions")
    numbers = count * (body.dimensions or hidden)
    most = int(MAX_RESPONSE / _NUMBER_BYTES[body.encoding_format or "float"])
    if numbers > most:
        raise invalid(
            f"input: {count} vectors of {numbers // count} numbers are more than the {most} numbers of a response; "
            "send fewer inputs, ask for fewer dimensions, or for encoding_format base64.",
            "input",
        )

"""The results of `LLM` and `AsyncLLM`: a prompt, its growing answers, and their request in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from tokenizers import Tokenizer

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.answers.reader import AnswerReader, ToolCall
from octavo_inference.chat_format.events import Event, Reasoning, Text
from octavo_inference.common.errors import OctavoError, RequestError
from octavo_inference.config.engine import PoolingName
from octavo_inference.core.request import (
    NO_ADAPTER,
    REFUSED,
    FinishReason,
    Output,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from octavo_inference.tokenizer.detokenizer import Detokenizer

Prompt = str | Sequence[int]


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's n answers.

    `token_ids` include the token that ended it, `text` does not. `logprobs` has one entry per token if requested;
    `cumulative_logprob` is their sum. `stop_reason` is the stop string or id, None for end-of-sequence and length.

    `chat` also splits the text of a model that thinks, and with tools: into `content`, which is None for others,
    `reasoning` and `tool_calls`. Then the text shows the special tokens that mark thinking and calls.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    content: str | None = None
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of the whole answer, None if logprobs were not requested."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers. `prompt` is None if the prompt was given as token ids.

    `prompt_logprobs` has an entry per prompt token if requested, None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(slots=True)
class RunningRequest:
    """A request in the engine, and what it has answered so far."""

    request: Request
    result: RequestOutput
    detokenizers: list[Detokenizer]
    readers: list[AnswerReader]
    """Of each answer, if it is more than one text."""

    @classmethod
    def of(
        cls,
        name: str,
        prompt: Prompt,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        plan: AnswerPlan,
        pooling: PoolingName | None = None,
        adapter: str = "",
        ends: tuple[int, ...] = (),
    ) -> Self:
        """Build the request of a prompt: text, or a list of token ids. `name` must be unique in the engine.

        `adapter` is the engine's key of an adapter; `ends` are ids that end its answers, besides the model's.
        """
        text = prompt if isinstance(prompt, str) else None
        tokens = tokenizer.encode(prompt).ids if isinstance(prompt, str) else [int(token) for token in prompt]
        request = Request(
            id=name,
            tokens=tokens,
            sampling=sampling,
            pooling=pooling,
            guidance=plan.guidance,
            adapter=adapter,
            ends=ends,
        )
        outputs = [CompletionOutput(i, logprobs=[] if sampling.reports_logprobs else None) for i in range(sampling.n)]
        detokenizers = [Detokenizer.of(tokenizer, tokens, sampling, plan.shown) for _ in outputs]
        readers = [] if plan.is_plain else [plan.reader() for _ in outputs]
        for output, reader in zip(outputs, readers, strict=False):
            output.content, output.tool_calls = "", reader.calls
        return cls(request, RequestOutput(name, text, tokens, outputs), detokenizers, readers)

    def add(self, output: Output) -> bool:
        """Add an engine output to its answer. Returns True if that answer is now complete.

        If the engine does not know that yet (`output.finish_reason` is None), a stop string was found: abort the
        sequence. Raises `OctavoError` if the engine failed, `RequestError` if it refused the request.
        """
        if output.stop_reason in {REFUSED, NO_ADAPTER}:
            raise RequestError(output.error or "the request cannot be served", "prompt")
        if output.finish_reason == "error":
            raise OctavoError(output.error or "the engine failed")
        completion = self.result.outputs[output.index]
        delta = self.detokenizers[output.index].push(output)
        completion.text += delta.text
        completion.token_ids += delta.tokens
        if completion.logprobs is not None:
            completion.logprobs += delta.logprobs or []
        if self.readers:
            _add_parts(completion, self.readers[output.index].push(delta))
        completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
        self.result.num_cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.result.prompt_logprobs = output.prompt_logprobs
        return delta.finish_reason is not None


def _add_parts(completion: CompletionOutput, parts: Sequence[Event]) -> None:
    for part in parts:
        if isinstance(part, Text):
            completion.content = f"{completion.content or ''}{part.text}"
        elif isinstance(part, Reasoning):
            completion.reasoning += part.text

"""The results of `LLM` and `AsyncLLM`: a prompt, its growing answers, and their request in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from tokenizers import Tokenizer

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.answers.reader import ToolCall
from octavo_inference.common.errors import OctavoError, RequestError
from octavo_inference.config.engine import PoolingName
from octavo_inference.core.request import (
    REFUSED,
    FinishReason,
    Guidance,
    Output,
    Request,
    SamplingParams,
    TokenLogprobs,
)
from octavo_inference.tokenizer.detokenizer import Delta, Detokenizer, TokenDecoder

Prompt = str | Sequence[int]


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's n answers.

    `token_ids` include the token that ended it, `text` does not. `logprobs` has one entry per token if requested;
    `cumulative_logprob` is their sum. `stop_reason` is the stop string or id, None for end-of-sequence and length.

    `chat` also splits the text of a model that thinks, and with tools: into `content`, which is None for others,
    `reasoning` and `tool_calls`.
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

    @classmethod
    def of(
        cls,
        name: str,
        prompt: Prompt,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        pooling: PoolingName | None,
        guidance: Guidance | None,
    ) -> Self:
        """Build the request of a prompt: text, or a list of token ids. `name` must be unique in the engine."""
        text = prompt if isinstance(prompt, str) else None
        tokens = tokenizer.encode(prompt).ids if isinstance(prompt, str) else [int(token) for token in prompt]
        request = Request(id=name, tokens=tokens, sampling=sampling, pooling=pooling, guidance=guidance)
        outputs = [CompletionOutput(i, logprobs=[] if sampling.reports_logprobs else None) for i in range(sampling.n)]
        detokenizers = [Detokenizer.of(tokenizer, tokens, sampling) for _ in outputs]
        return cls(request, RequestOutput(name, text, tokens, outputs), detokenizers)

    def add(self, output: Output) -> bool:
        """Add an engine output to its answer. Returns True if that answer is now complete.

        If the engine does not know that yet (`output.finish_reason` is None), a stop string was found: abort the
        sequence. Raises `OctavoError` if the engine failed, `RequestError` if it refused the request.
        """
        if output.stop_reason == REFUSED:
            raise RequestError(output.error or "the request cannot be served", "prompt")
        if output.finish_reason == "error":
            raise OctavoError(output.error or "the engine failed")
        completion = self.result.outputs[output.index]
        delta = self.detokenizers[output.index].push(output)
        completion.text += delta.text
        completion.token_ids += delta.tokens
        if completion.logprobs is not None:
            completion.logprobs += delta.logprobs or []
        completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
        self.result.num_cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.result.prompt_logprobs = output.prompt_logprobs
        return delta.finish_reason is not None


def read_answers(result: RequestOutput, plan: AnswerPlan, tokenizer: Tokenizer) -> None:
    """Split the texts of complete answers into content, thinking and calls, if the plan says so."""
    if plan.is_plain:
        return
    for output in result.outputs:
        reader = plan.reader()
        text = _shown_text(output, result.prompt_token_ids, plan, tokenizer)
        reader.push(Delta(text, output.token_ids, finish_reason="stop"))
        output.content, output.reasoning, output.tool_calls = reader.text, reader.reasoning, reader.calls


def _shown_text(output: CompletionOutput, prompt: Sequence[int], plan: AnswerPlan, tokenizer: Tokenizer) -> str:
    """The text with the special tokens that the parser reads."""
    if not plan.shown or isinstance(output.stop_reason, str):
        return output.text
    tokens = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
    decoder = TokenDecoder(tokenizer, prompt, shown=plan.shown)
    return "".join([*map(decoder.push, tokens), decoder.flush()])

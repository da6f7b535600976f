"""The offline API: a model in this process, prompts in, completions out, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.checkpoints.sentence_transformers import declared_pooling, declares_normalized
from octavo_inference.common.errors import ModelError, OctavoError, RequestError
from octavo_inference.common.vectors import vector_of
from octavo_inference.completion import Prompt, RequestOutput, RunningRequest
from octavo_inference.config.arguments import arguments_of
from octavo_inference.config.engine import EngineSettings, PoolingName
from octavo_inference.conversation import AdapterText, Conversation, Conversations, adapter_text, one_or_more
from octavo_inference.core.adapters import EngineAdapter
from octavo_inference.core.request import Guidance, Output, Request, SamplingParams
from octavo_inference.download.hub_cache import local_settings
from octavo_inference.engine.factory import load_engine
from octavo_inference.tokenizer.chat_template import TemplateOptions
from octavo_inference.tokenizer.pairs import encode_pair


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The embedding of a prompt: float32 [hidden size, or the dimensions asked for]."""

    request_id: str
    embedding: NDArray[np.float32]
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _LoadedAdapter:
    """An adapter by its key in the engine, "" for the model itself."""

    key: str
    text: AdapterText


class LLM:
    """A model loaded into this process: `LLM("smollm2", max_model_len=4096, kv_memory="512Mi")`.

    Its arguments are the fields of `EngineSettings`, named as in vLLM where vLLM has them. `model` is a folder, a .gguf
    file, `smollm2`, or a name on the hub (`ORG/NAME[:QUANTIZATION][@REVISION]`), which is downloaded first. Sizes are
    bytes, or texts such as "512Mi". With `tensor_parallel_size` above 1, other processes share the model. If one of
    them ends, this process ends too, with status 73. `chat_template` is a file with a template in Jinja; without it,
    `chat` uses the model's own. Raises `ModelError` or `SettingsError`.
    """

    # A static batch need not wait: all its requests are queued before its first step.
    @arguments_of(EngineSettings, static_wait_ms=0)
    def __init__(self, settings: EngineSettings) -> None:
        loaded = load_engine(local_settings(settings)[0])
        self.engine = loaded.engine
        self.settings = loaded.settings
        self.tokenizer = loaded.text.tokenizer
        self._conversation_settings = settings
        self._text = AdapterText(self.tokenizer, Conversations(loaded.text.assets, settings))
        self._pooling = declared_pooling(loaded.text.path) or self.engine.config.pooling
        self._normalized = declares_normalized(loaded.text.path)
        self._count = 0
        self._adapters: dict[str, _LoadedAdapter] = {}
        self._assets = loaded.text.assets

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter that PEFT saved in a folder, for requests that name it, instead of one of that name.

        The model must be loaded with `max_loaded_adapters` above 0. Raises `ModelError` for one that cannot be used.
        """
        if not self.settings.max_loaded_adapters:
            raise ModelError("this model takes no adapters: load it with max_loaded_adapters above 0")
        config = self.engine.config
        text = adapter_text(Path(path), self._assets, self._conversation_settings, config.own_vocab, config.added_ids)
        self._count += 1
        key, pool = f"{name}#{self._count}", self.engine.adapters
        pool.offer(key, str(path))
        state: EngineAdapter | None = None
        while state is None or state.state == "loading":
            pool.wait()  # for any that is being read
            self.engine.step()
            state = next((each for each in pool.changes() or () if each.key == key), state)
        if state.failure:
            pool.withdraw(key)
            raise ModelError(state.failure)
        self.unload_adapter(name)
        self._adapters[name] = _LoadedAdapter(key, text or self._text)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter, if there is one of this name."""
        adapter = self._adapters.pop(name, None)
        if adapter is not None:
            self.engine.adapters.withdraw(adapter.key)

    def _adapter(self, name: str | None) -> _LoadedAdapter:
        if name is None:
            return _LoadedAdapter("", self._text)
        if name not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise RequestError(f"there is no adapter {name!r}; loaded are: {known}", "adapter")
        return self._adapters[name]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        guidance: Guidance | None = None,
        adapter: str | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate answers for all prompts in one batch; results in the order of the prompts.

        A prompt is text or a list of token ids. `sampling_params` is one for all or one per prompt. `guidance`
        constrains the tokens of all answers. `adapter` names one of `load_adapter`, for all prompts. If a request can
        never be served, raises `RequestError` before anything is computed; for a grammar that cannot be compiled, once
        that is known.
        """
        listed = _as_list(prompts)
        return self._generated(
            listed,
            sampling_params,
            [AnswerPlan(guidance=guidance)] * len(listed),
            adapter=self._adapter(adapter),
            use_tqdm=use_tqdm,
        )

    def _generated(
        self,
        listed: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        plans: Sequence[AnswerPlan],
        *,
        adapter: _LoadedAdapter,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            params = [SamplingParams()] * len(listed)
        elif isinstance(sampling_params, SamplingParams):
            params = [sampling_params] * len(listed)
        else:
            params = list(sampling_params)
        if len(params) != len(listed):
            raise RequestError(f"{len(listed)} prompts but {len(params)} sampling parameters", "sampling_params")
        given = zip(listed, params, plans, strict=True)
        jobs = [self._job(prompt, sampling, plan, adapter=adapter) for prompt, sampling, plan in given]
        with self._submitted([job.request for job in jobs]):
            self._run(jobs, use_tqdm=use_tqdm)
        return [job.result for job in jobs]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        guidance: Guidance | None = None,
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
        adapter: str | None = None,
        use_tqdm: bool = True,
        **options: Unpack[TemplateOptions],
    ) -> list[RequestOutput]:
        """Generate the next message of one or more conversations, in one batch; otherwise as `generate`.

        A message is a dict with `role` and `content`, which is a text or a list of text parts, and what else the chat
        template takes. `options` are the template's other arguments, the same for all conversations. With the option
        `tools`, answers have `tool_calls`; `tool_choice` is auto, required, none or the name of the tool to call.
        Without `parallel_tool_calls`, an answer has at most one. The thinking of an answer is its `reasoning`. Raises
        `RequestError` if the model has no chat template, the template refuses a conversation, or a tool cannot be
        enforced.
        """
        found = self._adapter(adapter)
        planned = found.text.conversations.prompts(
            one_or_more(messages), options, guidance, tool_choice=tool_choice, parallel_tool_calls=parallel_tool_calls
        )
        plans = [plan for _, plan in planned]
        return self._generated(
            [tokens for tokens, _ in planned],
            sampling_params,
            plans,
            adapter=found,
            use_tqdm=use_tqdm,
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: PoolingName | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        adapter: str | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """Embed all prompts in one batch, by their final hidden states; results in the order of the prompts.

        `pooling`: "last" takes the state of the last token, "cls" that of the first, "mean" the mean over all tokens.
        None is the pooling of the checkpoint's sentence-transformers files, else "mean" for encoders and "last" for
        decoders. `dimensions` keeps that many leading numbers, for models trained for it (Matryoshka). `normalize`
        scales each vector to length 1 afterwards; None does so unless those files do not. Raises `RequestError` before
        anything is computed, and for a model that scores pairs.
        """
        if self.engine.config.task == "score":
            raise RequestError("this model scores pairs of texts and gives no embeddings: use score", "model")
        hidden, normalize = self.engine.embedding_size, self._normalized if normalize is None else normalize
        if dimensions is not None and not 1 <= dimensions <= hidden:
            raise RequestError(f"dimensions is {dimensions}, it must be from 1 to {hidden}", "dimensions")
        found = self._adapter(adapter)
        jobs = [
            self._job(prompt, SamplingParams(), AnswerPlan(), pooling or self._pooling, adapter=found)
            for prompt in _as_list(prompts)
        ]
        embedded = []
        for output in self._pooled([job.request for job in jobs], "Embeddings", use_tqdm=use_tqdm):
            vector = vector_of(output.embedding or b"", dimensions=dimensions, normalize=normalize)
            embedded.append(EmbeddingOutput(output.id, np.frombuffer(vector, np.float32), output.cached_tokens))
        return embedded

    def _pooled(self, requests: list[Request], name: str, *, use_tqdm: bool) -> list[Output]:
        """The outputs of requests with pooling, in their order."""
        outputs: dict[str, Output] = {}
        with self._submitted(requests), tqdm(total=len(requests), desc=name, disable=not use_tqdm) as bar:
            while self.engine.has_work:
                self.engine.wait()
                for output in self.engine.step():
                    if output.embedding is None:
                        raise OctavoError(output.error or "the engine failed")
                    outputs[output.id] = output
                    bar.update()
        return [outputs[request.id] for request in requests]

    def score(
        self,
        query: Prompt,
        documents: Prompt | Sequence[Prompt],
        *,
        pooling: PoolingName | None = None,
        use_tqdm: bool = True,
    ) -> list[float]:
        """Score each document by its relevance to a query, in their order.

        A model that scores pairs reads both texts at once; they must be texts then, and `pooling` has no effect. With
        other models it is the cosine similarity of their embeddings, from -1 to 1.
        """
        if self.engine.config.task == "score":
            return self._pair_scores(query, _as_list(documents), use_tqdm=use_tqdm)
        first, *others = self.embed([query, *_as_list(documents)], pooling=pooling, normalize=True, use_tqdm=use_tqdm)
        return [float(first.embedding @ other.embedding) for other in others]

    def _pair_scores(self, query: Prompt, documents: list[Prompt], *, use_tqdm: bool) -> list[float]:
        requests = []
        for document in documents:
            if not (isinstance(query, str) and isinstance(document, str)):
                raise RequestError("this model scores pairs of texts: give texts, not token ids", "documents")
            pair, pooling = encode_pair(self.tokenizer, query, document), self.engine.config.pooling
            self._count += 1
            requests.append(
                Request(id=f"llm-{self._count}", tokens=pair.tokens, pooling=pooling, second_text=pair.second_text)
            )
        outputs = self._pooled(requests, "Scores", use_tqdm=use_tqdm)
        return [vector_of(output.embedding or b"", normalize=False)[0] for output in outputs]

    def _job(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        plan: AnswerPlan,
        pooling: PoolingName | None = None,
        *,
        adapter: _LoadedAdapter,
    ) -> RunningRequest:
        self._count += 1
        name, text = f"llm-{self._count}", adapter.text
        return RunningRequest.of(name, prompt, text.tokenizer, sampling, plan, pooling, adapter.key, text.ends)

    @contextmanager
    def _submitted(self, requests: list[Request]) -> Iterator[None]:
        """Aborts open requests if the block ends early (a rejected request, Ctrl-C, an error)."""
        try:
            for request in requests:
                self.engine.submit(request)
            yield
        finally:
            for request in requests:
                self.engine.abort(request.id)

    def _run(self, jobs: list[RunningRequest], *, use_tqdm: bool) -> None:
        by_id = {job.request.id: job for job in jobs}
        total = sum(job.request.sampling.n for job in jobs)
        tokens = 0
        with tqdm(total=total, desc="Completions", disable=not use_tqdm, dynamic_ncols=True) as bar:
            while self.engine.has_work:
                self.engine.wait()
                outputs = self.engine.step()
                for output in outputs:
                    tokens += len(output.tokens)
                    job = by_id[output.id]
                    if job.add(output):
                        if output.finish_reason is None:
                            self.engine.abort(output.id, output.index)
                        bar.update()
                        seconds = bar.format_dict["elapsed"]
                        bar.set_postfix_str(f"{tokens / seconds:.0f} tok/s" if seconds else "")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Normalise to a list of prompts: a single text or a list of numbers is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    many: list[Prompt] = []
    numbers: list[int] = []
    for entry in prompts:
        if isinstance(entry, int):
            numbers.append(entry)
        else:
            many.append(entry)
    if numbers and many:
        raise RequestError("prompts mix token ids and prompts: give a list of texts or of token-id lists", "prompts")
    return [numbers] if numbers else many

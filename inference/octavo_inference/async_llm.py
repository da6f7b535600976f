"""The engine for asyncio programs: a model in a process of its own, answers as they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Self, Unpack

from octavo_inference.answers.plan import AnswerPlan
from octavo_inference.common.errors import ModelError, OctavoError, QueueFullError, RequestError
from octavo_inference.completion import Prompt, RequestOutput, RunningRequest
from octavo_inference.config.arguments import arguments_of
from octavo_inference.config.engine import EngineSettings
from octavo_inference.conversation import AdapterText, Conversation, Conversations, adapter_text
from octavo_inference.core.request import Guidance, Output, SamplingParams
from octavo_inference.download.hub_cache import local_settings
from octavo_inference.engine.client import ProcessClient
from octavo_inference.engine.spawn import EngineProcess
from octavo_inference.server.adapters import Adapters
from octavo_inference.tokenizer.assets import check_vocabulary, load_assets
from octavo_inference.tokenizer.chat_template import TemplateOptions
from octavo_protocol.server_settings import ServerSettings


class AsyncLLM:
    """A model in a process of its own, for asyncio programs.

        async with AsyncLLM("smollm2", max_model_len=4096) as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64)):
                print(output.outputs[0].text)

    Its arguments are those of `LLM`. Any number of calls of `generate` and `chat` may run at the same time; the engine
    batches them. Use it in one event loop.
    """

    @arguments_of(EngineSettings)
    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._client: ProcessClient | None = None
        self._adapters: Adapters[AdapterText]
        self._count = 0

    async def __aenter__(self) -> Self:
        """Load the model. Raises `ModelError` or `EngineDiedError`, which say what is wrong."""
        local, _ = await asyncio.to_thread(local_settings, self.settings)
        settings = ServerSettings(engine=local)
        child = EngineProcess()
        try:
            child.load(settings)
            client = ProcessClient(child, stall_seconds=settings.stall_seconds)
        except BaseException:
            child.abandon()
            raise
        try:
            assets, info = await asyncio.gather(asyncio.to_thread(load_assets, local.model), client.start())
            check_vocabulary(assets.tokenizer, info.vocab_size, local.model)
            self._text = AdapterText(assets.tokenizer, Conversations(assets, self.settings))
        except BaseException:
            await client.close()
            raise
        self.tokenizer = assets.tokenizer
        self._client = client
        self._adapters = Adapters(client.router, ())
        self._adapters.read_text = partial(
            adapter_text, model=assets, settings=self.settings, vocab=info.vocab_size, added=info.added_ids
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the engine. Open calls of `generate` and `chat` end with an error."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter that PEFT saved in a folder, for requests that name it, instead of one of that name.

        As `LLM.load_adapter`. Requests that run are not interrupted. Calls for one name take turns, in their order.
        Raises `ModelError` for one that cannot be used, and `EngineDiedError` if the engine ends.
        """
        client = self._require()
        async with self._adapters.turn(name):
            loading = asyncio.ensure_future(self._adapters.load(name, str(path)))
            try:
                failure = await client.unless_failed(loading)
            finally:
                loading.cancel()
            if failure:
                raise ModelError(failure)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, if there is one of this name. Its requests that run are finished."""
        self._require()
        async with self._adapters.turn(name):
            self._adapters.withdraw(name)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        guidance: Guidance | None = None,
        adapter: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """The answers to a prompt, each time they have grown; the same object, which the last time is complete.

        `guidance` constrains their tokens, `adapter` names one of `load_adapter`. Leaving the loop early ends the
        request. Raises `OctavoError` if the request can never be served, if the engine has too many waiting requests,
        or if it ends.
        """
        self._require()
        key, text = self._adapter(adapter)
        plan = AnswerPlan(guidance=guidance)
        async with aclosing(self._answers(prompt, sampling_params, plan, key, text)) as answers:
            async for answer in answers:
                yield answer

    async def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        guidance: Guidance | None = None,
        tool_choice: str = "auto",
        parallel_tool_calls: bool = True,
        adapter: str | None = None,
        **options: Unpack[TemplateOptions],
    ) -> AsyncGenerator[RequestOutput]:
        """The next message of a conversation, each time it has grown; otherwise as `generate`.

        The arguments and errors are those of `LLM.chat`, for one conversation. `content`, `reasoning` and the arguments
        of `tool_calls` grow, too.
        """
        self._require()
        key, text = self._adapter(adapter)
        [(tokens, plan)] = await asyncio.to_thread(
            text.conversations.prompts,
            [messages],
            options,
            guidance,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
        )
        async with aclosing(self._answers(tokens, sampling_params, plan, key, text)) as answers:
            async for answer in answers:
                yield answer

    def _require(self) -> ProcessClient:
        if self._client is None:
            raise OctavoError("the engine is not running: use AsyncLLM in `async with`")
        return self._client

    def _adapter(self, name: str | None) -> tuple[str, AdapterText]:
        """The engine's key of an adapter, "" for the model itself, and its text."""
        if name is None:
            return "", self._text
        found = self._adapters.find(name)
        if found is None:
            known = ", ".join(adapter.name for adapter in self._adapters.all) or "none"
            raise RequestError(f"there is no adapter {name!r}; loaded are: {known}", "adapter")
        return found.key, found.text or self._text

    async def _answers(
        self, prompt: Prompt, sampling: SamplingParams | None, plan: AnswerPlan, adapter: str, text: AdapterText
    ) -> AsyncGenerator[RequestOutput]:
        router = self._require().router
        self._count += 1
        name = f"llm-{self._count}"
        running = RunningRequest.of(
            name, prompt, text.tokenizer, sampling or SamplingParams(), plan, adapter=adapter, ends=text.ends
        )
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        try:
            router.submit([running.request], outputs.put_nowait)
        except QueueFullError as error:
            raise OctavoError(f"the engine is full: {error.waiting} sequences are waiting") from None
        left = running.request.sampling.n
        try:
            while left:
                arrived = [await outputs.get()]
                while not outputs.empty():
                    arrived.append(outputs.get_nowait())
                for output in arrived:
                    if running.result.outputs[output.index].finish_reason is not None:
                        continue
                    if running.add(output):
                        left -= 1
                        if output.finish_reason is None:
                            router.abort(name, output.index)
                yield running.result
        finally:
            router.abort(name)

"""`AsyncLLM` with real weights: answers grow, requests run at the same time, a loop that is left ends its request."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pytest
from tests.integration.engine.test_adapters import save
from tests.support.native import require_native

from octavo_inference import LLM, AsyncLLM, SamplingParams
from octavo_inference.common.errors import ModelError, OctavoError, RequestError
from octavo_inference.core.request import Guidance
from octavo_inference.engine.output_router import EngineDiedError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
PROMPTS = ["The capital of France is", "Water boils at", "Two and two are"]
SIZES = {"max_model_len": 256, "kv_memory": "64Mi"}


@pytest.fixture(scope="module", autouse=True)
def _native() -> None:
    require_native()


async def last(
    llm: AsyncLLM, prompt: str, sampling: SamplingParams = GREEDY, adapter: str | None = None
) -> tuple[list[str], str]:
    texts = []
    async for output in llm.generate(prompt, sampling, adapter=adapter):
        texts.append(output.outputs[0].text)
    assert output.outputs[0].finish_reason is not None
    return texts, texts[-1]


async def test_answers_grow_to_those_of_the_offline_engine() -> None:
    offline = [one.outputs[0].text for one in LLM("smollm2", **SIZES).generate(PROMPTS, GREEDY, use_tqdm=False)]
    async with AsyncLLM("smollm2", **SIZES) as llm:
        answers = await asyncio.gather(*(last(llm, prompt) for prompt in PROMPTS))
    assert [text for _, text in answers] == offline
    for texts, _ in answers:
        assert len(texts) > 3
        assert all(after.startswith(before) for before, after in itertools.pairwise(texts))


async def test_errors_stop_strings_and_loops_that_are_left() -> None:
    async with AsyncLLM("smollm2", **SIZES) as llm:
        with pytest.raises(OctavoError, match="256"):
            await last(llm, "word " * 600)
        _, stopped = await last(llm, PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=24, stop=("Paris",)))
        assert "Paris" not in stopped
        generation = llm.generate(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(generation)
        await generation.aclose()
        assert llm._client is not None
        assert llm._client.router.sequences == 0
        both = [output async for output in llm.generate(PROMPTS[1], SamplingParams(n=2, seed=7, max_tokens=8))]
        assert [one.finish_reason for one in both[-1].outputs] == ["length", "length"]
    with pytest.raises(OctavoError, match="not running"):
        await anext(llm.generate("x"))


async def test_a_grammar_wakes_the_engine_and_a_broken_one_ends_its_request_alone() -> None:
    choice = Guidance(grammar='start: "yes" | "no, never"')
    async with AsyncLLM("smollm2", **SIZES) as llm:
        [*_, done] = [output async for output in llm.generate(PROMPTS[0], SamplingParams(n=3, seed=1), guidance=choice)]
        assert {one.text for one in done.outputs} <= {"yes", "no, never"}
        assert {one.finish_reason for one in done.outputs} == {"stop"}
        beside = asyncio.ensure_future(last(llm, PROMPTS[1]))
        with pytest.raises(RequestError, match="grammar: "):
            [output async for output in llm.generate(PROMPTS[0], guidance=Guidance(grammar="start: missing"))]
        assert (await beside)[1]
        assert llm._client is not None
        assert llm._client.router.guidance.masks > 3
        assert llm._client.router.guidance.grammars == 2


async def test_adapters_have_the_names_errors_and_answers_of_the_offline_engine(tmp_path: Path) -> None:
    folders = [save(tmp_path / name, seed, rank=8) for seed, name in enumerate(("a", "b"))]
    sizes = SIZES | {"max_loaded_adapters": 1}
    offline = LLM("smollm2", **sizes)
    wanted = []
    for name, folder in zip("ab", folders, strict=True):
        offline.load_adapter(name, folder)
        [found] = offline.generate(PROMPTS[0], GREEDY, adapter=name, use_tqdm=False)
        wanted.append(found.outputs[0].text)
    talk = [{"role": "user", "content": "Hello!"}]
    [chatted] = offline.chat(talk, GREEDY, adapter="a", use_tqdm=False)
    async with AsyncLLM("smollm2", **sizes) as llm:
        with pytest.raises(RequestError, match="there is no adapter 'a'; loaded are: none") as unknown:
            await last(llm, PROMPTS[0], adapter="a")
        assert unknown.value.field == "adapter"
        await asyncio.gather(llm.load_adapter("a", folders[0]), llm.load_adapter("b", str(folders[1])))
        # Both wait for the one slot, and the model itself for neither.
        answers = await asyncio.gather(
            *(last(llm, PROMPTS[0], adapter=name) for name in ("a", "b", None)), last(llm, PROMPTS[0], adapter="b")
        )
        assert [text for _, text in answers] == [*wanted, (await last(llm, PROMPTS[0]))[1], wanted[1]]
        assert len({answers[number][1] for number in range(3)}) == 3
        [*_, done] = [output async for output in llm.chat(talk, GREEDY, adapter="a")]
        assert done.outputs[0].text == chatted.outputs[0].text
        with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
            await llm.load_adapter("a", tmp_path)
        assert (await last(llm, PROMPTS[0], adapter="a"))[1] == wanted[0], "a failed load leaves the one before"
        await asyncio.gather(llm.load_adapter("a", folders[0]), llm.load_adapter("a", folders[1]))
        assert (await last(llm, PROMPTS[0], adapter="a"))[1] == wanted[1], "the later one wins"
        (folders[0] / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
        await llm.load_adapter("a", folders[0])
        [*_, done] = [output async for output in llm.chat(talk, GREEDY, adapter="a")]
        assert llm.tokenizer.decode(done.prompt_token_ids) == "Q: Hello! A:"
        await llm.unload_adapter("a")
        await llm.unload_adapter("a")
        with pytest.raises(RequestError, match="there is no adapter 'a'; loaded are: b"):
            await last(llm, PROMPTS[0], adapter="a")
    with pytest.raises(OctavoError, match="not running"):
        await llm.load_adapter("a", folders[0])


async def test_a_load_ends_with_the_engine(tmp_path: Path) -> None:
    async with AsyncLLM("smollm2", **SIZES) as llm:
        with pytest.raises(ModelError, match="this model takes no adapters"):
            await llm.load_adapter("a", tmp_path)
        assert llm._client is not None
        llm._client._child.process.send_signal(signal.SIGSTOP)
        loading = asyncio.ensure_future(llm.load_adapter("a", tmp_path))
        llm._client._child.process.kill()
        with pytest.raises(EngineDiedError):
            await loading

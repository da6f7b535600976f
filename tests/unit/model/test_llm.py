"""The offline API on a model of a few thousand weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from octavo_inference import LLM, SamplingParams
from octavo_inference.common.errors import RequestError

from .conftest import TOKENS, matrices, write_hf

# Looked for and not imported: that takes seconds, in every worker that collects this module.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="the reference backend needs torch"),
]

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = write_hf(tmp_path_factory.mktemp("models") / "tiny", matrices(np.random.default_rng(3)))
    return LLM(str(folder), backend="reference", kv_memory="4Mi", max_running_requests=4)


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["abc", "zyx", "a", "hello"]
    lengths = [9, 2, 5, 1]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.prompt for result in results] == prompts
    assert [len(result.outputs[0].token_ids) for result in results] == lengths
    assert {result.outputs[0].finish_reason for result in results} == {"length"}
    for result in results:
        assert result.outputs[0].text == "".join(TOKENS[i] for i in result.outputs[0].token_ids)


def test_text_and_token_ids_are_the_same_prompt(llm: LLM) -> None:
    [text] = llm.generate("abc", GREEDY, use_tqdm=False)
    [ids] = llm.generate([TOKENS.index("abc")], GREEDY, use_tqdm=False)
    assert ids.prompt is None
    assert ids.prompt_token_ids == text.prompt_token_ids
    assert ids.outputs[0].token_ids == text.outputs[0].token_ids
    both = llm.generate([[1, 2], [3]], GREEDY, use_tqdm=False)
    assert [result.prompt_token_ids for result in both] == [[1, 2], [3]]


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("models")
    template = folder / "template.jinja"
    template.write_text("{{ style }}{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    model = write_hf(folder / "tiny", matrices(np.random.default_rng(3)))
    return LLM(str(model), backend="reference", kv_memory="4Mi", chat_template=str(template))


def test_chat_is_generation_from_the_filled_template(talking: LLM) -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    conversation = [{"role": "developer", "content": "a"}, {"role": "user", "content": parts}]
    [answer] = talking.chat(conversation, GREEDY, use_tqdm=False)
    [expected] = talking.generate("abc", GREEDY, use_tqdm=False)
    assert (answer.prompt_token_ids, answer.outputs) == (expected.prompt_token_ids, expected.outputs)


def test_several_conversations_are_one_batch(talking: LLM) -> None:
    conversations = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "z"}]]
    answers = talking.chat(conversations, GREEDY, use_tqdm=False, variables={"style": "x"})
    assert [answer.prompt_token_ids for answer in answers] == [
        talking.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids for prompt in ("xa", "xz")
    ]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"content": "a"}], r"messages\[0\]: it has no role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of the type text"),
        ([{"role": "user", "content": "a"}, [{"role": "user", "content": "a"}]], "messages mix"),
    ],
)
def test_what_is_no_conversation_is_refused(talking: LLM, messages: list, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        talking.chat(messages, GREEDY, use_tqdm=False)


def test_chat_needs_a_template(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "a"}], GREEDY, use_tqdm=False)


def test_n_answers_with_logprobs(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, temperature=2.0, max_tokens=4, logprobs=2, ignore_eos=True)
    [first] = llm.generate("abc", params, use_tqdm=False)
    [again] = llm.generate("abc", params, use_tqdm=False)
    assert [o.index for o in first.outputs] == [0, 1, 2]
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in again.outputs]
    for output in first.outputs:
        assert output.logprobs is not None
        assert [len(entry.top_ids) for entry in output.logprobs] == [2] * 4
        assert output.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in output.logprobs))


def test_a_stop_string_ends_the_answer_and_is_not_shown(llm: LLM) -> None:
    [free] = llm.generate("abc", GREEDY, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[2:4]
    [stopped] = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=6, stop=stop), use_tqdm=False)
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)
    assert not llm.engine.has_work


def test_one_bad_prompt_refuses_all_and_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(["abc", ""], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="2 prompts but 1 sampling parameters"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    assert not llm.engine.has_work


def test_the_progress_bar_counts_completions(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SamplingParams(n=2, max_tokens=1, ignore_eos=True))
    assert "4/4" in capsys.readouterr().err


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, octavo_inference; print(sorted({'numpy', 'torch', 'tokenizers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

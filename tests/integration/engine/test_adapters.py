"""Adapters of a whole engine with the built-in model: with speculation, grammars, several answers, preemption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.adapters import add_tokens, save_adapter, save_added
from tests.support.native import needs_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.common.errors import ModelError, RequestError
from octavo_inference.core.request import Guidance

pytestmark = [needs_native, pytest.mark.timeout(300)]
LAYERS, HIDDEN, INNER, KEYS = 30, 576, 1536, 192
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
PROMPTS = ["The lighthouse stood", "def add(a, b):", "Once upon a time", "1 2 3 4 5 6"]


def save(folder: Path, seed: int, rank: int) -> Path:
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module, (rows, columns) in SHAPES.items():
            name = f"model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.standard_normal((rank, columns)).astype(np.float32) * columns**-0.5
            tensors[f"{name}.lora_B.weight"] = (rng.standard_normal((rows, rank)) * 0.15).astype(np.float32)
    return save_adapter(folder, tensors, r=rank, lora_alpha=rank)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    ranks = {"a": 8, "b": 40, "c": 3}
    found = {name: save(root / name, seed, rank) for seed, (name, rank) in enumerate(ranks.items())}
    return found | {"tokens": save_tokens(root / "tokens")}


def save_tokens(folder: Path) -> Path:
    """Rows of the most frequent tokens, in a model whose matrices are tied."""
    rng = np.random.default_rng(9)
    rows = (rng.standard_normal((500, HIDDEN)) * 0.1).astype(np.float32)
    tensors = {"model.embed_tokens.token_adapter.trainable_tokens_delta": rows}
    return save_adapter(folder, tensors, trainable_token_indices=list(range(80, 580)))


def loaded(folders: dict[str, Path], **settings: object) -> LLM:
    sizes = {"max_model_len": 512, "kv_memory": "64Mi", "max_running_requests": 8, "max_loaded_adapters": 2}
    llm = LLM("smollm2", **(sizes | settings))  # type: ignore[arg-type]
    for name, folder in folders.items():
        llm.load_adapter(name, folder)
    return llm


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> LLM:
    return loaded(folders)


def texts(llm: LLM, adapter: str | None, **sampling: object) -> list[str]:
    params = SamplingParams(temperature=0, max_tokens=24, **sampling)  # type: ignore[arg-type]
    found = llm.generate(PROMPTS, params, adapter=adapter, use_tqdm=False)
    return [output.text for each in found for output in each.outputs]


def test_answers_differ_and_come_again(llm: LLM) -> None:
    answers = {name: texts(llm, name) for name in (None, "a", "b", "c", "tokens")}
    assert len({tuple(each) for each in answers.values()}) == 5
    for name, before in answers.items():
        assert texts(llm, name) == before


def test_one_is_loaded_while_another_is_read(llm: LLM, folders: dict[str, Path]) -> None:
    pool = llm.engine.adapters
    pool.offer("before", str(folders["a"]))
    llm.load_adapter("after", folders["b"])
    [state] = [pool._state(key, offered) for key, offered in pool._offered.items() if key.startswith("after")]
    assert state.state != "loading"
    pool.offer("next", str(folders["a"]))
    with pytest.raises(ModelError, match="missing"):
        llm.load_adapter("none", folders["a"].parent)
    for key in ("before", "next"):
        pool.withdraw(key)
    llm.unload_adapter("after")


def test_speculation_changes_no_answer(llm: LLM, folders: dict[str, Path]) -> None:
    guessing = loaded(folders, speculation="ngram")
    repeats = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompt = "one two three four five six seven eight nine ten " * 4
    for name in (None, "a", "b", "tokens"):
        plain, guessed = (each.generate(prompt, repeats, adapter=name, use_tqdm=False) for each in (llm, guessing))
        assert guessed[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert guessing.engine.speculation is not None
    assert guessing.engine.speculation.drafted > 0


@pytest.mark.parametrize("name", ["b", "tokens"])
def test_a_grammar_and_several_answers(llm: LLM, name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    guidance = Guidance(grammar=f"start: %json {json.dumps(schema)}")
    params = SamplingParams(temperature=1, seed=3, n=3, max_tokens=40)
    [found] = llm.generate("A number as JSON:", params, guidance=guidance, adapter=name, use_tqdm=False)
    assert len(found.outputs) == 3
    for output in found.outputs:
        if output.finish_reason == "stop":
            assert isinstance(json.loads(output.text)["n"], int)


def test_preempted_answers_go_on_with_their_adapter(llm: LLM, folders: dict[str, Path]) -> None:
    for preemption in ("recompute", "swap"):
        small = loaded(folders, max_model_len=256, kv_memory="8Mi", preemption=preemption, prefix_caching=False)
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        wanted = llm.generate(PROMPTS * 2, params, adapter="a", use_tqdm=False)
        found = small.generate(PROMPTS * 2, params, adapter="a", use_tqdm=False)
        assert small.engine.stats().preemptions > 0
        assert [each.outputs[0].token_ids for each in found] == [each.outputs[0].token_ids for each in wanted]


@pytest.mark.parametrize("name", ["a", "tokens"])
def test_embeddings_have_the_adapter(llm: LLM, name: str) -> None:
    plain, changed = (llm.embed("a text", adapter=each, use_tqdm=False)[0].embedding for each in (None, name))
    assert 0.0 < float(plain @ changed) < 0.999


@pytest.mark.parametrize("adapter", ["a", "tokens"])
def test_log_probabilities_of_prompts_have_the_adapter(llm: LLM, adapter: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = [llm.generate(PROMPTS[0], params, adapter=name, use_tqdm=False)[0] for name in (None, adapter, adapter)]
    scores = [[each.logprob for each in one.prompt_logprobs or [] if each is not None] for one in found]
    assert scores[0] != scores[1] == scores[2]


def test_unknown_and_unloaded_names(llm: LLM, folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no adapter 'z'; loaded are: a, b, c, tokens"):
        texts(llm, "z")
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing"):
        llm.load_adapter("a", tmp_path)
    before = texts(llm, "a")
    llm.load_adapter("a", folders["c"])
    assert texts(llm, "a") == texts(llm, "c") != before
    llm.load_adapter("a", folders["a"])
    assert texts(llm, "a") == before


def test_an_adapter_with_a_chat_template_and_an_end_of_its_own(
    llm: LLM, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(folders["a"], folder)
    (folder / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0, max_tokens=24)
    llm.load_adapter("own", folder)
    [found] = llm.chat(talk, params, adapter="own", use_tqdm=False)
    assert llm.tokenizer.decode(found.prompt_token_ids) == "Q: What is the capital of France? A:"
    [plain] = llm.generate("Q: What is the capital of France? A:", params, adapter="a", use_tqdm=False)
    assert found.outputs[0].token_ids == plain.outputs[0].token_ids
    # A token of that answer ends answers from now on.
    end = llm.tokenizer.id_to_token(plain.outputs[0].token_ids[5])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    llm.load_adapter("own", folder)
    [ended] = llm.chat(talk, params, adapter="own", use_tqdm=False)
    count = plain.outputs[0].token_ids.index(plain.outputs[0].token_ids[5]) + 1
    assert ended.outputs[0].token_ids == plain.outputs[0].token_ids[:count]
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", None)
    [other] = llm.chat(talk, params, use_tqdm=False)
    assert "<|im_start|>user" in llm.tokenizer.decode(other.prompt_token_ids, skip_special_tokens=False)
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match="chat template, line 1"):
        llm.load_adapter("own", folder)
    [again] = llm.chat(talk, params, adapter="own", use_tqdm=False)
    assert again.outputs[0].token_ids == ended.outputs[0].token_ids
    llm.unload_adapter("own")


@pytest.mark.parametrize("speculation", ["none", "ngram"])
def test_tokens_behind_the_models(llm: LLM, folders: dict[str, Path], tmp_path: Path, speculation: str) -> None:
    own = llm.engine.config.vocab
    folder = save_added(tmp_path / "added", llm.tokenizer.to_str(), own, HIDDEN)
    wider = loaded(folders, max_added_tokens=3, speculation=speculation)
    assert wider.engine.config.own_vocab == own
    for name in (None, "a", "tokens"):
        assert texts(wider, name) == texts(llm, name)
    with pytest.raises(RequestError, match=f"token id {own} is outside the vocabulary of {own}"):
        wider.generate([[5, own]], use_tqdm=False)
    with pytest.raises(ModelError, match=f"the served model has ids below {own}: set max_added_tokens to 2"):
        llm.load_adapter("added", folder)
    wider.load_adapter("added", folder)
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=2)
    [one] = wider.generate("Once upon a time<note>", params, adapter="added", use_tqdm=False)
    assert one.prompt_token_ids[-1] == own
    [output] = one.outputs
    assert output.token_ids[-1] == own + 1
    assert output.token_ids.count(own + 1) == 1
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert "<end>" not in output.text
    assert output.logprobs is not None
    assert (output.logprobs[-1].rank, output.logprobs[-1].top_ids[0]) == (1, own + 1)
    longer = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, presence_penalty=2.0, seed=1)
    [again] = wider.generate("Once upon a time<note>", longer, adapter="added", use_tqdm=False)
    assert own + 1 in again.outputs[0].token_ids
    banned = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, bad_words=((own + 1,),))
    [without] = wider.generate("Once upon a time<note>", banned, adapter="added", use_tqdm=False)
    assert own + 1 not in without.outputs[0].token_ids
    # Where the grammar forces such an id, on any backend and with any reports.
    forced = Guidance(grammar=f'start: "ab" <[{own}]> "cd"')
    for name, wanted in ((None, ("ab", 0)), ("a", ("ab", 0)), ("added", ("abcd", 1))):
        for logprobs in (None, 1):
            given = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=logprobs)
            [guided] = wider.generate("Once upon", given, guidance=forced, adapter=name, use_tqdm=False)
            assert (guided.outputs[0].text, guided.outputs[0].token_ids.count(own)) == wanted
    sampled = SamplingParams(temperature=1.5, max_tokens=100, ignore_eos=True, seed=3, n=3)
    [every] = wider.generate("Once upon a time", sampled, use_tqdm=False)
    assert max(max(each.token_ids) for each in every.outputs) < own


def check_call(llm: LLM, begin: int, end: int) -> None:
    """The adapter `calls` calls a tool, between the tokens that are its marks of calls."""
    weather = {"name": "weather", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    [found] = llm.chat(
        [{"role": "user", "content": "What is the weather?"}],
        SamplingParams(temperature=0, max_tokens=60),
        adapter="calls",
        tools=[{"type": "function", "function": weather}],
        tool_choice="required",
        parallel_tool_calls=False,
        use_tqdm=False,
    )
    [output] = found.outputs
    assert (output.token_ids[0], end in output.token_ids) == (begin, True)
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("weather", "{}")]


def test_calls_are_written_with_the_markers_of_the_adapters_tokenizer(
    llm: LLM, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Reserved tokens of the model are this adapter's marks of calls: a grammar has them by their ids."""
    folder = tmp_path / "calls"
    shutil.copytree(folders["b"], folder)
    names = {"<reponame>": "<tool_call>", "<file_sep>": "</tool_call>"}
    data = json.loads(llm.tokenizer.to_str())
    for token in data["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    data["model"]["vocab"] = {names.get(token, token): index for token, index in data["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    llm.load_adapter("calls", folder)
    assert [llm.tokenizer.token_to_id(name) for name in names] == [4, 5]
    check_call(llm, 4, 5)
    # Added tokens, too.
    own = llm.engine.config.vocab
    added = {name: own + number for number, name in enumerate(names.values())}
    add_tokens(folder, llm.tokenizer.to_str(), added)
    rows = {"model.embed_tokens.token_adapter.trainable_tokens_delta": np.ones((2, HIDDEN), np.float32)}
    save_adapter(folder, rows, trainable_token_indices=list(added.values()))
    wider = loaded({"calls": folder}, max_added_tokens=2)
    check_call(wider, own, own + 1)
    llm.unload_adapter("calls")

"""Adapters in the whole backend, its kernels interpreted: equal to merged weights, in mixed batches of any kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.support.adapters import merged, random_adapter, with_added, with_rows
from tests.support.latent import latent_weights

from octavo_inference.backends.cuda.adapter_layout import FIELDS
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.backends.reference.backend import ReferenceBackend
from octavo_inference.common.errors import ModelError
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.gather import gather
from octavo_inference.core.model_input import Float32, PromptScores, RowStep
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.added_ids import with_added_ids
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Tensor

from ..unit.engine.echo import CONFIG, Runner, Ticks, tiny_model  # noqa: TID252 -- tests are no package
from .dense_models import BIASES, DENSE_MODELS, dense_model
from .mixtures import EXPERTS, mixture_model
from .test_engine import BLOCK, LONGEST, Model, with_everything
from .test_expert_layers import made_of, step
from .test_latent import CONFIGS as LATENTS
from .test_latent import with_mixture as latent_mixture
from .test_state_engine import model as state_model

NONE = -1
SOME = ("experts.gate", "experts.up", "experts.down")
FLAGS = ("parallel, two norms", "learned positions", "layers of unlike sizes", "ALiBi")


def full_attention() -> Model:
    """The model with biases, norms and caps in all places that have one, and one block table."""
    config, weights = with_everything()
    return replace(config, windows=()), weights


def gated_outputs() -> Model:
    """Attention whose outputs have gates: a fourth part of the fused matrix."""
    config, weights = dense_model(**BIASES)
    rng = np.random.default_rng(9)

    def gate() -> Tensor:
        return Tensor("f32", (32, 32), 0.3 * rng.standard_normal((32, 32), np.float32))

    layers = tuple(replace(layer, attention_gate=gate()) for layer in weights.layers)
    return replace(config, attention_gate=True), replace(weights, layers=layers)


def latent_model(config: ModelConfig) -> Model:
    return config, latent_weights(config, np.random.default_rng(0))


MODELS: dict[str, Callable[[], Model]] = {
    "everything": full_attention,
    "gated outputs": gated_outputs,
    **{name: partial(dense_model, **DENSE_MODELS[name]) for name in FLAGS},
    **{f"experts: {name}": partial(mixture_model, name) for name in EXPERTS},
    **{f"latents: {name}": partial(latent_model, config) for name, config in LATENTS.items()},
    "latents with experts": latent_mixture,
    **{f"states: {name}": partial(state_model, name) for name in ("granite", "falcon", "qwen", "lfm2")},
}


def cuda(
    model: Model, adapters: Sequence[Adapter] = (), *, slots: int = 4, rank: int = 16, **given: Any
) -> CudaBackend:
    backend = CudaBackend.create(
        *model, device=find_device(), num_blocks=32, block_size=BLOCK, max_batched_tokens=48, max_running=4,
        max_model_len=LONGEST, dtype=torch.float32, adapter_slots=slots, max_adapter_rank=rank, **given,
    )  # fmt: skip
    for slot, adapter in enumerate(adapters):
        backend.load_adapter(slot, backend.prepare_adapter(adapter))
    return backend


def reference(model: Model) -> ReferenceBackend:
    slots = 4 if model[0].state is not None else 0
    return ReferenceBackend(*model, num_blocks=32, block_size=BLOCK, max_model_len=LONGEST, state_slots=slots)


def adapters_of(model: Model, seed: int = 1) -> list[Adapter]:
    """Of all matrices, of some, and of embedding and head; biases where the model has some."""
    rng, weights = np.random.default_rng(seed), model[1]
    every = random_adapter(weights, rng, 3, FIELDS, outer=True)
    return [
        every,
        some_experts(random_adapter(weights, rng, 16, ("q", "v", "down", "attention_gate", *SOME))),
        random_adapter(weights, rng, 8, FIELDS),
    ]


def some_experts(adapter: Adapter) -> Adapter:
    """Without the changes of the up of every other expert, of the down of every third, and of all of the first."""

    def kept(name: str) -> bool:
        kind, _, number = name.removeprefix("experts.").partition(".")
        return not number or int(number) % {"gate": 99, "up": 2, "down": 3}[kind] > 0

    layers = tuple({name: part for name, part in layer.items() if kept(name)} for layer in adapter.layers)
    return replace(adapter, layers=layers)


def with_slots(given: RowStep, slots: Sequence[int]) -> RowStep:
    return replace(given, adapter=np.array(slots, np.int32))


def expected(model: Model, adapters: Sequence[Adapter], steps: Sequence[RowStep]) -> list[Float32]:
    """Logits of each step; those of each sequence by weights with its adapter merged into them."""
    config, weights = model
    used = {slot for one in steps for slot in one.adapter.tolist()}
    models = {slot: (config, weights if slot < 0 else merged(weights, adapters[slot])) for slot in used}
    found = {slot: [] for slot in used}
    for slot, own in models.items():
        backend = reference(own)
        found[slot] = [backend.logits(gather(replace(one, adapter=np.empty(0, np.int32)))) for one in steps]
    return [
        np.stack([found[slot][number][row] for row, slot in enumerate(one.adapter.tolist())])
        for number, one in enumerate(steps)
    ]


def close(found: Float32, wanted: Float32) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0)


def story(slots: Sequence[int]) -> list[RowStep]:
    """Prompts, then two tokens of each, and a third of the first alone."""
    lengths = [9, 3, 5, 1][: len(slots)]
    steps = [step(lengths), *(step([length + n for length in lengths], computed=1) for n in range(2))]
    return [*(with_slots(one, slots) for one in steps), with_slots(step([lengths[0] + 2], computed=1), slots[:1])]


@pytest.mark.parametrize("name", MODELS)
def test_a_mixed_batch_equals_merged_weights(name: str) -> None:
    model = MODELS[name]()
    adapters = adapters_of(model)
    backend = cuda(model, adapters)
    steps = story([1, 0, NONE, 2])
    for one, wanted in zip(steps, expected(model, adapters, steps), strict=True):
        close(backend.logits(one), wanted)


@pytest.mark.parametrize("kind", ["mxfp4", "int4"])
def test_experts_of_few_bits_are_changed(kind: str) -> None:
    model = mixture_model("softmax", made_of(kind))
    adapters = adapters_of(model)
    backend = cuda(model, adapters)
    steps = story([1, 0, NONE, 2])
    for one, wanted in zip(steps, expected(model, adapters, steps), strict=True):
        close(backend.logits(one), wanted)


def test_rows_without_an_adapter_are_what_they_are_alone() -> None:
    """Bit by bit."""
    model = mixture_model("not normalized, a gated shared MLP")
    changed, plain = cuda(model, adapters_of(model)), cuda(model)
    for one in story([NONE, 0, NONE, 1]):
        without = replace(one, adapter=np.empty(0, np.int32))
        found, wanted = changed.logits(one), plain.logits(without)
        rows = one.adapter < 0
        assert np.array_equal(found[rows], wanted[rows])
        assert np.abs(found - wanted)[~rows].max(initial=1) > 0.1


def test_an_adapter_of_too_many_experts_is_refused() -> None:
    """A slot has room for the experts of a token with the largest rank, or for all of them with a part of it."""
    model = mixture_model()
    backend, rng = cuda(model, rank=16), np.random.default_rng(0)
    every = random_adapter(model[1], rng, 16, FIELDS, outer=True)
    with pytest.raises(ModelError, match=r"it takes .* a slot has .* max_adapter_rank 16; set that to (24|32)"):
        backend.prepare_adapter(every)
    few = tuple({n: p for n, p in layer.items() if not n.endswith((".0", ".2", ".4"))} for layer in every.layers)
    backend.prepare_adapter(replace(every, layers=few))
    backend.prepare_adapter(random_adapter(model[1], rng, 8, FIELDS, outer=True))


@pytest.mark.parametrize("name", [name for name in MODELS if ":" not in name])
def test_rows_of_tokens_take_the_place_of_the_models(name: str) -> None:
    """Beside low-rank changes of the same matrices and without, in one batch with rows of the model itself."""
    model = MODELS[name]()
    config, weights = model
    rng = np.random.default_rng(12)
    bare = Adapter("", ({},) * config.layers)
    adapters = [
        with_rows(adapters_of(model)[0], weights, rng, range(0, config.vocab, 2), range(1, config.vocab, 2)),
        with_rows(bare, weights, rng, [3, config.vocab - 1], []),
        with_rows(bare, weights, rng, [], range(config.vocab)),
    ]
    backend = cuda(model, adapters)
    steps = story([1, 0, NONE, 2])
    for one, wanted in zip(steps, expected(model, adapters, steps), strict=True):
        close(backend.logits(one), wanted)
    backend.load_adapter(0, backend.prepare_adapter(bare))
    backend.load_adapter(1, None)
    steps = story([1, 0, NONE, 2])
    for one, wanted in zip(steps, expected(model, [bare, bare, adapters[2]], steps), strict=True):
        close(backend.logits(one), wanted)


@pytest.mark.parametrize("name", ["gated outputs", "learned positions", "experts: " + next(iter(EXPERTS))])
def test_tokens_that_adapters_add(name: str) -> None:
    """Each adapter chooses those of its own, and the model none."""
    model = with_added_ids(*MODELS[name](), 5)
    config, weights = model
    rng, own = np.random.default_rng(13), config.own_vocab
    bare = Adapter("", ({},) * config.layers)
    adapters = [
        with_added(adapters_of(model)[0], weights, rng, range(own, own + 5)),
        with_added(bare, weights, rng, [own, own + 1]),
        with_rows(bare, weights, rng, [1], [3]),
    ]
    backend = cuda(model, adapters)
    steps = story([1, 0, NONE, 2])
    for one, wanted in zip(steps, expected(model, adapters, steps), strict=True):
        found = backend.logits(one)
        there = np.isfinite(wanted)
        assert there[:2, own:].sum(1).tolist() == [2, 5][: len(found)]
        assert not there[2:, own:].any()
        assert (np.isfinite(found) == there).all()
        close(np.where(there, found, 0), np.where(there, wanted, 0))


@pytest.mark.parametrize("capture", [None, record], ids=["lists of launches", "graphs"])
def test_recorded_steps_follow_what_the_slots_hold(capture: Any) -> None:
    """Adapters come, go and change places between steps; steps without any are those of the model itself."""
    model = tiny_model()
    first, second, third = adapters_of(model)
    second = with_rows(second, model[1], np.random.default_rng(8), range(40), range(40))
    backend = cuda(model, [first, second], capture=capture)
    if backend.graphs is not None:
        backend.graphs.start()
    prompts, decodes = step([9, 3, 5]), step([9, 3, 5], computed=1)

    def launch(one: RowStep, slots: Sequence[int], held: Sequence[Adapter]) -> None:
        chosen = backend.launch(with_slots(one, slots)).collect().tokens
        steps = [with_slots(prompts, slots), with_slots(decodes, slots)]
        wanted = expected(model, held, steps)[one is decodes]
        assert chosen.tolist() == wanted.argmax(1).tolist()

    launch(prompts, [0, 1, NONE], [first, second])
    launch(decodes, [0, 1, NONE], [first, second])
    backend.load_adapter(0, backend.prepare_adapter(third))
    backend.load_adapter(1, None)
    backend.load_adapter(3, backend.prepare_adapter(first))
    held = [third, second, second, first]
    launch(prompts, [3, 0, NONE], held)
    launch(decodes, [3, 0, NONE], held)
    plain = backend.launch(prompts).collect().tokens.tolist()
    assert plain == reference(model).launch(prompts).collect().tokens.tolist()
    emptied = backend.launch(with_slots(prompts, [1, 1, 1])).collect().tokens.tolist()
    assert emptied == plain


@pytest.mark.parametrize("model", [tiny_model(), mixture_model()], ids=["dense", "experts"])
def test_a_step_without_adapters_launches_what_it_does_without_slots(model: Model) -> None:
    def described(value: Any) -> Any:
        return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value

    def launched(slots: int, adapter: Sequence[int]) -> list[Any]:
        backend = cuda(model, slots=slots)
        backend.launch(with_slots(step([9, 3]), adapter)).collect()
        [found] = backend._lists._lists.values()
        launches = [cast("partial[object]", launch) for launch in found.launches]
        return [[*map(described, one.args), *map(described, one.keywords.values())] for one in launches]

    assert launched(4, []) == launched(0, [])
    assert len(launched(4, [0, 1])) > len(launched(4, []))


def test_scores_of_prompts_have_the_adapter() -> None:
    """More of them than fit into one piece of the head."""
    model = tiny_model()
    adapters = adapters_of(model)
    backend = cuda(model, adapters)
    given = with_slots(step([9, 3]), [0, NONE])
    scores = [PromptScores(0, 0, 0, 8, 1), PromptScores(9, 1, 0, 2, 1)]
    found = backend.launch(replace(given, scores=scores)).collect().scores
    assert given.table is not None
    for row, (slot, score) in enumerate(zip([0, NONE], found, strict=True)):
        own = model if slot < 0 else (model[0], merged(model[1], adapters[slot]))
        plain = replace(given, adapter=np.empty(0, np.int32), scores=scores)
        wanted = reference(own).launch(plain).collect().scores[row]
        np.testing.assert_allclose(score.logprob, wanted.logprob, atol=1e-4)
        assert score.top_ids.tolist() == wanted.top_ids.tolist()


def test_an_engine_serves_adapters_and_the_model_together() -> None:
    """Four adapters in two slots: requests wait for a slot, and each gets the tokens of merged weights."""
    model = tiny_model()
    adapters = {str(n): one for n, one in enumerate([*adapters_of(model), *adapters_of(model, seed=2)[:1]])}
    limits = EngineLimits(LONGEST, 4, 20, 100, max_cached_adapters=2)
    backend = cuda(model, slots=2)
    engine = Engine(backend, CONFIG, limits, clock=Ticks(1.0), read_adapter=lambda path: adapters[path.name])
    for name in adapters:
        engine.adapters.offer(name, f"/adapters/{name}")
    runner = Runner(engine, Ticks(1.0))
    prompt = np.random.default_rng(3).integers(0, 60, 7).tolist()
    asked = {f"{turn} {name}": name for turn in range(2) for name in (*adapters, "")}
    for request_id, name in asked.items():
        params = SamplingParams(temperature=0.0, max_tokens=4, seed=1, ignore_eos=True)
        engine.submit(Request(id=request_id, tokens=prompt, sampling=params, adapter=name))
    runner.finish()
    for request_id, name in asked.items():
        weights = merged(model[1], adapters[name]) if name else model[1]
        alone = Runner(Engine(reference((model[0], weights)), CONFIG, limits, clock=Ticks(1.0)), Ticks(1.0))
        alone.submit("", prompt, max_tokens=4, ignore_eos=True)
        assert runner.tokens[request_id, 0] == alone.finish()["", 0], request_id
    engine.adapters.close()


def test_what_does_not_fit_is_refused() -> None:
    model = tiny_model()
    backend = cuda(model, rank=8)
    adapter = random_adapter(model[1], np.random.default_rng(0), 2)
    strange = replace(adapter, layers=({"experts.router": adapter.layers[0]["q"]}, *adapter.layers[1:]))
    with pytest.raises(ModelError, match=r"changes experts\.router of layer 0, which this backend cannot do"):
        backend.prepare_adapter(strange)
    absent = replace(adapter, layers=({"attention_gate": adapter.layers[0]["q"]}, *adapter.layers[1:]))
    with pytest.raises(ModelError, match="it changes matrices that the model does not have"):
        backend.prepare_adapter(absent)
    with pytest.raises(ModelError, match="a rank of 9; the server takes up to 8"):
        backend.prepare_adapter(random_adapter(model[1], np.random.default_rng(0), 9))
    with pytest.raises(ModelError, match="takes no adapters"):
        cuda(model, slots=0).prepare_adapter(adapter)

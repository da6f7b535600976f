"""A backend that needs no model, a model of a few thousand weights, and a way to run an engine to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo_inference.core.backend import Backend, CompletedStep, ComputedStep, StepHandle
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.gather import Batch, gather
from octavo_inference.core.guidance import Compile
from octavo_inference.core.model_input import NO_CHOICE, RowStep, StepResult
from octavo_inference.core.pooling import add_states, pooled_tokens, with_pooled
from octavo_inference.core.request import Output, Request, SamplingParams
from octavo_inference.core.sampling import mix, sequence_seed
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.layer_groups import PoolLayout, one_group
from octavo_inference.models.weights import LayerWeights, Tensor, Weights

VOCAB = 61
# What a token counts at each position; odd, so that another token there never counts the same.
WEIGHTS = np.random.default_rng(0).integers(0, 2**64, 4096, np.uint64) | np.uint64(1)
REQUEST_FIELDS = {"priority", "salt", "tenant", "cache_policy", "timeout", "pooling", "guidance"}
EOS = 60
CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=48,
    vocab=VOCAB,
    max_positions=256,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    eos_token_ids=(EOS,),
    digest="tiny",
)
PLAIN = one_group(CONFIG.layers)


class Prepared(int):
    """An adapter of the echo backend: its digest. Those from 90 on are large."""

    @property
    def nbytes(self) -> int:
        return 100_000_000 if self < 90 else 1_000_000_000


def answer_to(seed: int, context: np.ndarray) -> int:
    """The token that follows a context, by a hash of it: never end-of-sequence."""
    return mix(seed ^ int((context + 1).astype(np.uint64) @ WEIGHTS[: len(context)])) % (VOCAB - 1)


def allowed_answer(seed: int, context: np.ndarray, mask: np.ndarray | None) -> int:
    """The same among the ids that a mask allows; `NO_CHOICE` if it allows none."""
    answer = answer_to(seed, context)
    if mask is None or len(mask) == 0:
        return answer
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=VOCAB, bitorder="little"))
    return int(allowed[answer % len(allowed)]) if len(allowed) else NO_CHOICE


def state_of(context: np.ndarray) -> list[float]:
    """The hidden state of the last token of a context; sums of states round, so their order shows."""
    return [answer_to(seed, context) / 7 for seed in (1, 2)]


def embedding_of(prompt: Sequence[int], pooling: str) -> np.ndarray:
    """The pooled states of a prompt, computed without an engine."""
    tokens = np.array(prompt, np.int64)
    states = np.array([state_of(tokens[: i + 1]) for i in range(len(tokens))], np.float32)
    if pooling != "mean":
        return states[{"cls": 0, "last": -1}[pooling]]
    total = np.zeros(states.shape[1], np.float32)
    for state in states:
        total += state
    return total / np.float32(len(tokens))


def seen_by(layout: PoolLayout, context: np.ndarray) -> np.ndarray:
    """What the last token of a context attends to: the tokens that each group of layers still needs."""
    return np.concatenate([context[group.first_needed(len(context) - 1) :] for group in layout.groups])


class EchoBackend:
    """Its KV of a token is the token itself; the next token is a hash of all it can read through the block tables.

    So a wrong slot, a wrong block, a block shared with someone who overwrote it, one given away too early or a copy
    forgotten changes the answer.
    With adapters, a token's KV also has that of its adapter, by which answers differ.
    With `state_slots` it has a state per sequence too: the number of tokens so far, and a sum that identifies them. A
    step checks that the state it continues from is that of the tokens before it.
    """

    name = "echo"
    vocab_size = VOCAB
    hidden_size = 2
    steps_ahead = 0
    decode_runs = False
    max_prompt_scores: int | None = None

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        state_slots: int = 0,
        layout: PoolLayout = PLAIN,
        adapter_slots: int = 0,
    ) -> None:
        self.adapter_slots = adapter_slots
        self.adapters: list[int | None] = [None] * adapter_slots
        self.num_blocks = num_blocks
        self.state_slots = state_slots
        self.states = np.full((state_slots, 2), 999, np.uint64)
        self.state_copies: list[tuple[int, int]] = []
        self.block_size = block_size
        self.layout = layout
        self.kv = np.full((num_blocks, block_size), -1, np.int64)
        self.batches: list[Batch] = []
        self.copies = 0

    def launch(self, step: RowStep) -> StepHandle:
        if step.guided:
            return ComputedStep(lambda: self.step(gather(step)))
        return CompletedStep(self.step(gather(step)))

    def prepare_adapter(self, adapter: Adapter) -> Prepared:
        return Prepared(adapter.digest)

    def load_adapter(self, slot: int, adapter: int | None) -> None:
        self.adapters[slot] = adapter

    def part_seconds(self) -> dict[str, float]:
        return {}

    def expert_tokens(self) -> None:
        return None

    def idle(self) -> bool:
        return False

    def step(self, batch: Batch) -> StepResult:
        self.batches.append(batch)
        self.kv.reshape(-1)[batch.slots] = batch.tokens + self._changes(batch)
        if self.state_slots:
            self._update_states(batch)
        chosen = []
        for row, position, seed in zip(batch.sample.row, batch.sample.position, batch.sample.seed, strict=True):
            owner = int(np.searchsorted(batch.query_start, row, side="right")) - 1
            seen = int(batch.positions[row]) + 1
            assert seen == position
            context = self.read(batch, owner, seen)
            adjust = batch.sample.adjust[len(chosen)]
            chosen.append(allowed_answer(int(seed), context, None if adjust is None else adjust.rules.mask))
        add_states(batch, self._states(batch))
        count = len(chosen)
        result = StepResult(
            np.array(chosen, np.int32), np.zeros(count, np.float32), np.ones(count, np.int32), [None] * count
        )
        return with_pooled(result, batch)

    def _changes(self, batch: Batch) -> np.ndarray:
        """What each token's adapter adds to its KV."""
        held = [0 if slot < 0 else self.adapters[slot] for slot in batch.adapter.tolist()]
        assert None not in held, "uses an empty slot"
        return np.array(held or [0], np.int64) * VOCAB

    def _states(self, batch: Batch) -> np.ndarray:
        """The state of a token: two numbers from a hash of all that it can read."""
        states = []
        for token in pooled_tokens(batch.pooling).tolist():
            owner = int(np.searchsorted(batch.query_start, token, side="right")) - 1
            states.append(state_of(self.read(batch, owner, int(batch.positions[token]) + 1)))
        return np.array(states, np.float32).reshape(-1, self.hidden_size)

    def _update_states(self, batch: Batch) -> None:
        for i, slot in enumerate(batch.states.tolist()):
            start, end = int(batch.query_start[i]), int(batch.query_start[i + 1])
            last, first = int(batch.seq_len[i]), int(batch.seq_len[i]) - (end - start)
            if first == 0:
                self.states[slot] = 0
            context = self.kv[batch.block_table[0, i]].reshape(-1)[:first]
            expected = [first, (context + 1).astype(np.uint64) @ WEIGHTS[:first]]
            assert self.states[slot].tolist() == expected, "continues from the state of other tokens"
            added = (batch.tokens[start:end] + 1).astype(np.uint64) @ WEIGHTS[first:last]
            self.states[slot] += np.array([end - start, added], np.uint64)

    def read(self, batch: Batch, owner: int, seen: int) -> np.ndarray:
        """What the last of a sequence's first `seen` tokens attends to, group by group."""
        parts = []
        for table, group in zip(batch.block_table, self.layout.groups, strict=True):
            first = group.first_needed(seen - 1)
            blocks = table[owner, first // self.block_size : -(-seen // self.block_size)]
            at = first % self.block_size
            parts.append(self.kv[blocks].reshape(-1)[at : at + seen - first])
        context = np.concatenate(parts)
        assert (context >= 0).all(), "reads what nobody wrote"
        return context

    def to_host(self, blocks: Sequence[int]) -> np.ndarray:
        return self.kv[list(blocks)]

    def from_host(self, saved: np.ndarray, blocks: Sequence[int]) -> None:
        self.kv[list(blocks)] = saved

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        self.kv[list(blocks)] = 0

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = {pair[0] for pair in pairs}, [pair[1] for pair in pairs]
        assert len(set(targets)) == len(targets), "two copies to one slot"
        assert not sources & set(targets), "a copy from a slot that is overwritten"
        for source, target in pairs:
            self.states[target] = self.states[source]
        self.state_copies += pairs

    def states_to_host(self, slots: Sequence[int]) -> np.ndarray:
        return self.states[list(slots)]

    def states_from_host(self, saved: np.ndarray, slots: Sequence[int]) -> None:
        self.states[list(slots)] = saved

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.kv[target] = self.kv[source]
            self.copies += 1


class Ticks:
    """A clock that moves on by `pace` whenever somebody looks."""

    def __init__(self, pace: float) -> None:
        self.now = 0.0
        self.pace = pace

    def __call__(self) -> float:
        self.now += self.pace
        return self.now


@dataclass
class Runner:
    """An engine and what came out of it."""

    engine: Engine
    clock: Ticks
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    final: dict[tuple[str, int], Output] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)

    def embedding(self, request_id: str) -> np.ndarray:
        """The vector of a finished request."""
        data = self.final[request_id, 0].embedding
        assert data is not None
        return np.frombuffer(data, "<f4")

    def submit(self, request_id: str, tokens: Sequence[int], **given: object) -> None:
        about = {name: given.pop(name) for name in REQUEST_FIELDS & given.keys()}
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "seed": 1, **given})  # type: ignore[arg-type]
        self.engine.submit(Request(id=request_id, tokens=list(tokens), sampling=params, **about))  # type: ignore[arg-type]

    def step(self) -> list[Output]:
        outputs = self.engine.step()
        self.engine.check()
        for output in outputs:
            key = (output.id, output.index)
            self.tokens.setdefault(key, []).extend(output.tokens)
            if output.finish_reason is not None:
                self.final[key] = output
                self.order.append(key)
        return outputs

    def finish(self, limit: int = 5000) -> dict[tuple[str, int], list[int]]:
        for _ in range(limit):
            if not self.engine.has_work:
                return self.tokens
            self.engine.wait()
            self.step()
        raise AssertionError(f"not finished after {limit} steps")


def make_runner(
    backend: Backend | None = None,
    *,
    blocks: int = 64,
    max_model_len: int = 64,
    max_running: int = 8,
    budget: int = 16,
    max_queued: int = 1000,
    chunked: bool = True,
    caching: bool = True,
    static_wait: float | None = None,
    host_blocks: int = 0,
    host_state_blocks: int = 0,
    pace: float = 1.0,
    load_vocabulary: Callable[[], Compile] | None = None,
    layout: PoolLayout = PLAIN,
    speculator: Speculator | None = None,
) -> Runner:
    limits = EngineLimits(
        max_model_len,
        max_running,
        budget,
        max_queued,
        chunked,
        caching,
        static_wait,
        host_blocks=host_blocks,
        host_state_blocks=host_state_blocks,
    )
    clock = Ticks(pace)
    backend = EchoBackend(blocks, layout=layout) if backend is None else backend
    engine = Engine(backend, CONFIG, limits, clock=clock, load_vocabulary=load_vocabulary, speculator=speculator)
    return Runner(engine, clock)


def alone(prompt: Sequence[int], count: int, seed: int, index: int = 0, layout: PoolLayout = PLAIN) -> list[int]:
    """The first `count` tokens that the backend gives to sequence `index` of a request, computed without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(answer_to(sequence_seed(seed, index), seen_by(layout, np.array(tokens, np.int64))))
    return tokens[len(prompt) :]


def tiny_model() -> tuple[ModelConfig, Weights]:
    """A random decoder with weights large enough that its choices differ."""
    rng = np.random.default_rng(7)

    def matrix(*shape: int) -> Tensor:
        return Tensor("f32", shape, (rng.standard_normal(shape) * 0.3).astype(np.float32))

    def norm() -> Tensor:
        return Tensor("f32", (32,), (1 + 0.1 * rng.standard_normal(32)).astype(np.float32))

    layers = tuple(
        LayerWeights(
            input_norm=norm(),
            q=matrix(32, 32),
            k=matrix(16, 32),
            v=matrix(16, 32),
            o=matrix(32, 32),
            post_norm=norm(),
            gate=matrix(48, 32),
            up=matrix(48, 32),
            down=matrix(32, 48),
        )
        for _ in range(2)
    )
    embedding = matrix(VOCAB, 32)
    return CONFIG, Weights(embedding, layers, norm(), embedding)

"""One decoder on several processes beside one process, kernels interpreted; test_ranks.py runs this and reads it.

    python -m tests.kernels.ranks logits SIZE NAME...   for each model of `MODELS` that is named one line: the largest
                                                        error of its logits beside those of one process, relative to
                                                        the largest logit, and how many elements are not the same on
                                                        all ranks
    python -m tests.kernels.ranks adapters SIZE NAME... for each model one line: its name, and the largest error of the
                                                        logits of sequences with and without adapters beside those of
                                                        merged weights on one process
    python -m tests.kernels.ranks engine NAME           what an engine gives whose backend is 2 ranks, and what it
                                                        went through, as JSON
    python -m tests.kernels.ranks exchange              what an engine on 2 ranks gives while adapters come and go, and
                                                        what one process gives of merged weights, as JSON

Ranks are forks of this process, which has imported everything and has no threads yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from tests.kernels.dense_models import DENSE_MODELS, dense_model
from tests.kernels.interpreter import hasten
from tests.kernels.mixtures import mixture_model
from tests.kernels.stored import stored, vector
from tests.kernels.test_adapter_layers import adapters_of, expected, full_attention, gated_outputs, reference, story
from tests.kernels.test_engine import (
    BLOCK,
    LONGEST,
    Model,
    prompt,
    tiny_model,
    with_everything,
)
from tests.kernels.test_ranks import serve
from tests.support.adapters import ALL, merged, random_adapter, with_rows
from tests.support.latent import LATENT, latent_config, latent_weights
from tests.unit.engine.echo import Runner, Ticks, make_runner

from octavo_common.failpoints import Failpoints
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup, join
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.graphs import Capture
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.core.engine import Engine
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.request import Request, SamplingParams
from octavo_inference.distributed.adapter_sender import AdapterLink, AdapterSender
from octavo_inference.distributed.messages import Call, encode
from octavo_inference.distributed.rank_adapters import RankAdapters
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.distributed.worker import Inbox, follow
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.adapter_shard import shard_adapter
from octavo_inference.models.config import ModelConfig
from octavo_inference.models.shard import shard
from octavo_inference.models.weights import LayerWeights, Tensor, Weights


def untied() -> Model:
    """With a head of its own, and words that no number of ranks divides."""
    config, weights = tiny_model()
    head = Tensor("f32", (61, 32), np.random.default_rng(5).standard_normal((61, 32), np.float32))
    return replace(config, tied_embeddings=False), replace(weights, lm_head=head)


def quantised() -> Model:
    """Blocks of 32 and one scale each, also in the tied head; two sums of columns that are cut between blocks."""
    rng, hidden, inner, vocab = np.random.default_rng(3), 64, 128, 61
    config = ModelConfig("llama", 1, hidden, 4, 2, 32, inner, vocab, 128, 1e4, 1e-5, True, (2,))
    layer = LayerWeights(
        input_norm=vector(rng, hidden),
        q=stored(rng, "q8_0", 128, hidden),
        k=stored(rng, "q8_0", 64, hidden),
        v=stored(rng, "q4_0", 64, hidden),
        o=stored(rng, "q4_0", hidden, 128),
        post_norm=vector(rng, hidden),
        gate=stored(rng, "q4_0", inner, hidden),
        up=stored(rng, "q4_0", inner, hidden),
        down=stored(rng, "q8_0", hidden, inner),
    )
    embedding = stored(rng, "q8_0", vocab, hidden)
    return config, Weights(embedding, (layer,), vector(rng, hidden), embedding)


def latent() -> Model:
    """Latent attention with a latent of queries."""
    config = latent_config(replace(LATENT, query_rank=32), vocab=61)
    return config, latent_weights(config, np.random.default_rng(4))


def parallel() -> Model:
    """Parallel layers with norms of each head and a bias of the head, and slopes, which each rank has of its heads."""
    return dense_model(**DENSE_MODELS["parallel, one norm"], **DENSE_MODELS["learned positions"], alibi=0.7)


def heads_without_rows() -> Model:
    """A head of its own whose rows end within the share of the last rank, and gates of attention's outputs."""
    config, weights = gated_outputs()
    head = Tensor("f32", (61, 32), np.random.default_rng(5).standard_normal((61, 32), np.float32))
    return replace(config, tied_embeddings=False), replace(weights, lm_head=head)


MODELS: dict[str, Callable[[], Model]] = {
    "plain": tiny_model,
    "everything": with_everything,
    "full attention": full_attention,
    "untied": untied,
    "quantised": quantised,
    "experts": lambda: mixture_model("not normalized, a gated shared MLP"),
    "clamped experts": lambda: mixture_model("clamped, with biases"),
    "latent": latent,
    "parallel": parallel,
    "gated outputs": heads_without_rows,
}


def backend(
    model: Model, group: RankGroup, blocks: int = 32, capture: Capture | None = None, adapters: int = 0
) -> CudaBackend:
    return CudaBackend.create(
        *shard(*model, rank=group.rank, size=group.size),
        device=find_device(),
        num_blocks=blocks,
        block_size=BLOCK,
        max_batched_tokens=32,
        max_running=8,
        max_model_len=LONGEST,
        adapter_slots=adapters,
        max_adapter_rank=16,
        dtype=torch.float32,
        group=group,
        capture=capture,
    )


@dataclass(frozen=True)
class Connection:
    """Between rank 0 and another one: for calls, and for adapters."""

    calls: socket.socket
    adapters: socket.socket

    def close(self) -> None:
        self.calls.close()
        self.adapters.close()


def fork(size: int) -> tuple[int, list[Connection]]:
    """Become `size` processes: which one this is, and its connections to the others, of rank 0 to each."""
    ours = []
    for rank in range(1, size):
        (calls, their_calls), (adapters, their_adapters) = socket.socketpair(), socket.socketpair()
        if os.fork() == 0:
            calls.close()
            adapters.close()
            return rank, [Connection(their_calls, their_adapters)]
        their_calls.close()
        their_adapters.close()
        ours.append(Connection(calls, adapters))
    return 0, ours


def logits(group: RankGroup, names: list[str]) -> None:
    tokens = np.random.default_rng(1).integers(0, 60, 7).astype(np.int32)
    step = prompt(tokens, [3])
    for name in names:
        model = MODELS[name]()
        found = torch.from_numpy(backend(model, group).logits(step))
        everywhere = [torch.empty_like(found) for _ in range(group.size)]
        torch.distributed.all_gather(everywhere, found)
        if group.rank == 0:
            wanted = backend(model, ALONE).logits(step)
            error = np.abs(found.numpy() - wanted).max() / np.abs(wanted).max()
            print(name, error, sum(int((other != found).sum()) for other in everywhere), flush=True)


def some_adapters(model: Model) -> list[Adapter]:
    """Of all matrices, embedding and head; of some; and with biases, and rows of tokens."""
    (config, weights), rng = model, np.random.default_rng(8)
    biased = random_adapter(weights, rng, 4, ALL, bias=True)
    return [
        *adapters_of(model)[:2],
        with_rows(biased, weights, rng, range(0, config.vocab, 2), range(1, config.vocab, 2)),
    ]


def adapted(group: RankGroup, names: list[str]) -> None:
    """A prompt and two decodes of sequences with three adapters and without; one adapter was in another's slot."""
    for name in names:
        model = MODELS[name]()
        adapters = some_adapters(model)
        own = backend(model, group, adapters=4)
        for slot, adapter in ((0, adapters[1]), (3, adapters[0]), *enumerate(adapters), (3, None)):
            part = None if adapter is None else shard_adapter(adapter, model[0], rank=group.rank, size=group.size)
            own.load_adapter(slot, None if part is None else own.prepare_adapter(part))
        steps = story([1, 0, -1, 2])
        found = [own.logits(step) for step in steps]
        if group.rank == 0:
            wanted = expected(model, adapters, steps)
            error = max(
                np.abs(one - other).max() / np.abs(other).max() for one, other in zip(found, wanted, strict=True)
            )
            print(name, error, flush=True)


@dataclass
class Forked:
    """`Ranks` that were forked."""

    connections: list[Connection]
    size: int

    def send_all(self, call: Call) -> None:
        for connection in self.connections:
            connection.calls.sendall(encode(call))

    def in_step(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


def unexpected(error: Exception) -> None:
    """No thread of these tests fails."""
    raise error


def spread(
    own: CudaBackend, config: ModelConfig, group: RankGroup, connections: list[Connection], fault: str = ""
) -> TensorParallel | None:
    """The backend of all ranks; None on those above 0, once rank 0 has ended."""
    if group.rank:
        adapters = RankAdapters(own, connections[0].adapters, Failpoints(fault), unexpected)
        adapters.start()
        with contextlib.suppress(EOFError):
            follow(own, Inbox(connections[0].calls), Failpoints(""), adapters)
        return None
    links = [AdapterLink(f"rank {rank}", each.adapters) for rank, each in enumerate(connections, 1)]
    return TensorParallel(own, Forked(connections, group.size), AdapterSender(config, links))


def exchange(group: RankGroup, connections: list[Connection]) -> None:
    """Requests for adapters in two slots, the third of which rank 1 cannot prepare, while others come and go."""
    model = tiny_model()
    given = [*some_adapters(model), *adapters_of(model, seed=2)[:2]]
    adapters = dict(zip(("a", "b", "fails", "c", "later"), given, strict=True))
    own = backend(model, group, capture=record, adapters=2)
    assert own.graphs is not None
    own.graphs.start()
    whole = spread(own, model[0], group, connections, "rank.adapter:raise@3")
    if whole is None:
        return
    limits = EngineLimits(LONGEST, 4, 20, 100, max_cached_adapters=2)
    engine = Engine(whole, model[0], limits, clock=Ticks(1.0), read_adapter=lambda path: adapters[path.name])
    runner, states = Runner(engine, Ticks(1.0)), {}
    prompt = np.random.default_rng(3).integers(0, 60, 7).tolist()

    def ask(name: str, turn: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=5, seed=1, ignore_eos=True)
        engine.submit(Request(id=f"{turn} {name}", tokens=prompt, sampling=params, adapter=name))

    for name in ("a", "b", "fails", "c"):
        engine.adapters.offer(name, f"/adapters/{name}")
    for turn in range(2):
        for name in ("a", "b", "c", "fails", ""):
            if turn == 0 or name != "fails":
                ask(name, turn)
    for _ in range(3):
        runner.step()
    engine.adapters.withdraw("b")  # its requests are answered
    engine.adapters.offer("later", "/adapters/later")
    ask("later", 0)
    runner.finish()
    states = {each.key: each for each in engine.adapters.changes() or []}
    alone = {}
    for name in ("a", "b", "c", "later", ""):
        weights = merged(model[1], adapters[name]) if name else model[1]
        one = make_runner(reference((model[0], weights)), max_model_len=LONGEST, max_running=4)
        one.submit(name, prompt, max_tokens=5, ignore_eos=True)
        alone[name] = one.finish()[name, 0]
    told = {
        "tokens": {request: tokens for (request, _), tokens in runner.tokens.items() if tokens},
        "merged": alone,
        "states": {key: each.state for key, each in states.items()},
        "failure": states["fails"].failure,
        "ended": runner.final["0 fails", 0].stop_reason,
    }
    print(json.dumps(told), flush=True)
    engine.adapters.close()


def engine(group: RankGroup, connections: list[Connection], name: str) -> None:
    """Over a pool so small that some of it is computed again, decoding steps recorded."""
    model = MODELS[name]()
    own = backend(model, group, blocks=6, capture=record)
    assert own.graphs is not None
    own.graphs.start()
    whole = spread(own, model[0], group, connections)
    if whole is None:
        return
    runner = serve(whole, budget=13)
    scheduler = runner.engine.scheduler
    told = {
        "tokens": {f"{request} {index}": tokens for (request, index), tokens in runner.tokens.items()},
        "embedding": runner.embedding("embedded").tolist(),
        "preemptions": scheduler.preemptions,
        "hits": scheduler.hit_tokens,
        "overlaps": runner.engine.overlaps,
        "replays": sum(captured.replays for captured in own.graphs.captured.values()),
    }
    print(json.dumps(told), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    hasten()
    what, *given = sys.argv[1:]
    size = int(given.pop(0)) if what in {"logits", "adapters"} else 2
    with tempfile.TemporaryDirectory() as folder:
        rank, connections = fork(size)
        environment = dict(os.environ)
        group = join(Path(folder), rank=rank, size=size, device=torch.device("cpu"))
        assert environment == dict(os.environ), "what join sets is for join alone"
        if what == "logits":
            logits(group, given)
        elif what == "adapters":
            adapted(group, given)
        elif what == "exchange":
            exchange(group, connections)
        else:
            engine(group, connections, given[0])
        for connection in connections:
            connection.close()
        if rank:
            os._exit(0)
        for _ in range(1, size):
            os.wait()


if __name__ == "__main__":
    main()

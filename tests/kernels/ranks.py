"""One decoder on several processes beside one process, kernels interpreted; test_ranks.py runs this and reads it.

    python -m tests.kernels.ranks logits SIZE NAME...   for each model of `MODELS` that is named one line: the largest
                                                        error of its logits beside those of one process, relative to
                                                        the largest logit, and how many elements are not the same on
                                                        all ranks
    python -m tests.kernels.ranks engine NAME           what an engine gives whose backend is 2 ranks, and what it
                                                        went through, as JSON

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
from tests.kernels.test_engine import (
    BLOCK,
    LONGEST,
    Model,
    prompt,
    tiny_model,
    with_everything,
)
from tests.kernels.test_ranks import serve
from tests.support.latent import LATENT, latent_config, latent_weights

from octavo_common.failpoints import Failpoints
from octavo_inference.backends.cuda.backend import CudaBackend
from octavo_inference.backends.cuda.collectives import ALONE, RankGroup, join
from octavo_inference.backends.cuda.device import find_device
from octavo_inference.backends.cuda.graphs import Capture
from octavo_inference.backends.cuda.launch_list import record
from octavo_inference.distributed.messages import Call, encode
from octavo_inference.distributed.tp_backend import TensorParallel
from octavo_inference.distributed.worker import Inbox, follow
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


MODELS: dict[str, Callable[[], Model]] = {
    "plain": tiny_model,
    "everything": with_everything,
    "untied": untied,
    "quantised": quantised,
    "experts": lambda: mixture_model("not normalized, a gated shared MLP"),
    "clamped experts": lambda: mixture_model("clamped, with biases"),
    "latent": latent,
    "parallel": parallel,
}


def backend(model: Model, group: RankGroup, blocks: int = 32, capture: Capture | None = None) -> CudaBackend:
    return CudaBackend.create(
        *shard(*model, rank=group.rank, size=group.size),
        device=find_device(),
        num_blocks=blocks,
        block_size=BLOCK,
        max_batched_tokens=32,
        max_running=8,
        max_model_len=LONGEST,
        dtype=torch.float32,
        group=group,
        capture=capture,
    )


def fork(size: int) -> tuple[int, list[socket.socket]]:
    """Become `size` processes: which one this is, and its connections to the others, of rank 0 to each."""
    ours = []
    for rank in range(1, size):
        connection, theirs = socket.socketpair()
        if os.fork() == 0:
            connection.close()
            return rank, [theirs]
        theirs.close()
        ours.append(connection)
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


@dataclass
class Forked:
    """`Ranks` that were forked."""

    connections: list[socket.socket]
    size: int

    def send_all(self, call: Call) -> None:
        for connection in self.connections:
            connection.sendall(encode(call))

    def in_step(self) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


def engine(group: RankGroup, connections: list[socket.socket], name: str) -> None:
    """Over a pool so small that some of it is computed again, decoding steps recorded."""
    own = backend(MODELS[name](), group, blocks=6, capture=record)
    assert own.graphs is not None
    own.graphs.start()
    if group.rank:
        with contextlib.suppress(EOFError):
            follow(own, Inbox(connections[0]), Failpoints(""))
        return
    runner = serve(TensorParallel(own, Forked(connections, group.size)), budget=13)
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
    size = int(given.pop(0)) if what == "logits" else 2
    with tempfile.TemporaryDirectory() as folder:
        rank, connections = fork(size)
        environment = dict(os.environ)
        group = join(Path(folder), rank=rank, size=size, device=torch.device("cpu"))
        assert environment == dict(os.environ), "what join sets is for join alone"
        if what == "logits":
            logits(group, given)
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

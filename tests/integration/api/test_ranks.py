"""A server whose model is spread over two processes, kernels interpreted: it answers, and all end together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from tests.support.adapters import save_adapter
from tokenizers import Tokenizer, models

from octavo_inference.engine.output_router import LOST

pytestmark = pytest.mark.timeout(900)

INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
FLAGS = ("--device", "cuda", "--dtype", "float32", "--max-running-requests", "2", "--max-batched-tokens", "16")
SPREAD = (*FLAGS, "--tensor-parallel-size", "2", "--stall-seconds", "600")
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB = 32, 4, 2, 8, 48, 70
RANK = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A decoder of one layer that says anything."""
    save = pytest.importorskip("safetensors.numpy", reason="writes a model").save_file
    pytest.importorskip("triton", reason="the CUDA backend needs triton")
    folder, rng = tmp_path_factory.mktemp("models") / "tiny", np.random.default_rng(4)
    folder.mkdir()
    attention, mlp = "model.layers.0.self_attn.", "model.layers.0.mlp."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        f"{attention}q_proj.weight": (HEADS * DIM, HIDDEN),
        f"{attention}k_proj.weight": (KV_HEADS * DIM, HIDDEN),
        f"{attention}v_proj.weight": (KV_HEADS * DIM, HIDDEN),
        f"{attention}o_proj.weight": (HIDDEN, HEADS * DIM),
        f"{mlp}gate_proj.weight": (INNER, HIDDEN),
        f"{mlp}up_proj.weight": (INNER, HIDDEN),
        f"{mlp}down_proj.weight": (HIDDEN, INNER),
    }
    save(
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(described))
    Tokenizer(models.BPE({f"t{i}": i for i in range(VOCAB)}, [])).save(str(folder / "tokenizer.json"))
    return folder


def ask(server, **fields):
    body = {"model": "tiny", "prompt": [5, 9, 11, 7], "seed": 3, "max_tokens": 4, "ignore_eos": True} | fields
    return server.api.post("/v1/completions", json=body, timeout=600)


def processes(server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def rank(server) -> psutil.Process:
    """Rank 1."""
    (found,) = [process for process in processes(server) if "octavo_inference.distributed.worker" in process.cmdline()]
    return found


def ends_as_a_whole(server, others: list[psutil.Process]) -> str:
    """Its last line, once it has ended with the status of a lost rank and left nobody behind."""
    assert server.process.wait(60) == 73
    assert psutil.wait_procs(others, timeout=60)[1] == []
    return server.log.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def spread(start, model):
    return start("--model", str(model), *SPREAD, environment=INTERPRETED)


def test_it_answers_as_one_process_does(spread, start, model):
    alone = start("--model", str(model), *FLAGS, environment=INTERPRETED)
    for fields in ({"temperature": 0}, {"temperature": 1.0, "n": 2}, {"temperature": 1.0, "frequency_penalty": 0.7}):
        assert ask(spread, **fields).json()["choices"] == ask(alone, **fields).json()["choices"]


def test_it_says_who_shares_the_model(spread):
    engine = spread.engine
    assert f"tensor parallelism: ranks 0 (pid {engine.pid}), 1 (pid {rank(spread).pid})" in spread.log
    assert "engine: cuda (interpreter, float32 KV), 2 ranks" in spread.log
    metrics = spread.admin.get("/metrics").text
    assert 'process="rank-1"' in metrics


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> Path:
    """A folder of adapters, which change matrices that are cut in both ways."""
    root, rng = tmp_path_factory.mktemp("adapters"), np.random.default_rng(5)
    sizes = {
        "model.layers.0.self_attn.q_proj": (HEADS * DIM, HIDDEN),
        "model.layers.0.self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
        "model.layers.0.self_attn.o_proj": (HIDDEN, HEADS * DIM),
        "model.layers.0.mlp.down_proj": (HIDDEN, INNER),
    }
    for name in ("one", "two", "three"):
        tensors = {}
        for module, (rows, columns) in sizes.items():
            tensors[f"{module}.lora_A.weight"] = rng.standard_normal((RANK, columns)).astype(np.float32)
            tensors[f"{module}.lora_B.weight"] = rng.standard_normal((rows, RANK)).astype(np.float32)
        save_adapter(root / name, tensors, r=RANK, lora_alpha=RANK)
    added = {"model.embed_tokens.token_adapter.trainable_tokens_delta": rng.standard_normal((2, HIDDEN), np.float32)}
    save_adapter(root / "added", added, trainable_token_indices=[VOCAB, VOCAB + 1])
    return root


def test_adapters_change_answers_as_in_one_process(start, model, adapters):
    """One that rank 1 cannot prepare is refused with the reason, and nothing else fails."""
    limits = ("--max-loaded-adapters", "1", "--max-adapter-rank", "8", "--max-added-tokens", "3")
    flags = (*limits, "--adapter-root", str(adapters))
    faults = {"OCTAVO_FAILPOINTS": "rank.adapter:raise@2"}
    server = start("--model", str(model), *SPREAD, *flags, environment=INTERPRETED | faults)
    alone = start("--model", str(model), *FLAGS, *flags, environment=INTERPRETED)

    def load(each, name):
        return each.admin.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name})

    assert load(server, "one").status_code == 200
    refused = load(server, "two")
    assert refused.status_code == 400
    assert re.search(
        r"tensor-parallel rank 1 \(pid \d+\) could not prepare it: InjectedFaultError: failpoint rank.adapter",
        refused.json()["error"]["message"],
    )
    assert load(server, "three").status_code == 200
    assert [load(alone, name).status_code for name in ("one", "three")] == [200, 200]
    # In one slot: each request exchanges what the slot holds, on both ranks.
    found = [ask(server, model=name).json()["choices"] for name in ("one", "tiny", "three", "one")]
    assert found == [ask(alone, model=name).json()["choices"] for name in ("one", "tiny", "three", "one")]
    assert len({choices[0]["text"] for choices in found}) == 3
    assert [load(each, "added").status_code for each in (server, alone)] == [200, 200]
    asked = {"model": "added", "prompt": [5, VOCAB, 7], "max_tokens": 8, "return_token_ids": True}
    own = [ask(each, **asked).json()["choices"][0] for each in (server, alone)]
    assert own[0] == own[1]
    banned = {"logit_bias": {str(token): -100 for token in range(64)} | {str(VOCAB + 1): 100}}
    assert VOCAB + 1 in ask(server, **asked, **banned).json()["choices"][0]["token_ids"]
    assert server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "one"}).status_code == 200
    assert ask(server, model="one").status_code == 404
    assert ask(server, model="three").json()["choices"] == found[2]
    assert ask(server).json()["choices"] == found[1]


def test_a_killed_rank_ends_all(spread):
    """While nothing runs; it is the last test of this server."""
    others, killed = processes(spread), rank(spread)
    killed.kill()
    last = ends_as_a_whole(spread, others)
    assert f"tensor-parallel rank 1 (pid {killed.pid}) was killed by signal 9" in last


def test_a_rank_that_stops_answering_ends_with_its_server(start, model):
    """Rank 0 waits in a collective for a rank that is stopped: when the API's process dies, nobody stays behind."""
    server = start("--model", str(model), *SPREAD, environment=INTERPRETED)
    stopped = rank(server)
    engine = server.engine
    stopped.suspend()
    with pytest.raises(httpx.ReadTimeout):
        server.api.post("/v1/completions", json={"model": "tiny", "prompt": [5], "max_tokens": 4}, timeout=1)
    server.process.kill()
    server.process.wait()
    assert psutil.wait_procs([engine], timeout=60)[1] == []
    stopped.resume()
    assert psutil.wait_procs([stopped], timeout=60)[1] == []


def test_a_rank_that_fails_in_a_step_is_told(start, model):
    faults = {"OCTAVO_FAILPOINTS": "rank.call:raise@4"}
    server = start("--model", str(model), *SPREAD, environment=INTERPRETED | faults)
    others, failed = processes(server), rank(server)
    answer = ask(server, max_tokens=20)
    cause = f"tensor-parallel rank 1 (pid {failed.pid}): InjectedFaultError: failpoint rank.call"
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, LOST), "the cause is for the operator"
    assert cause in ends_as_a_whole(server, others)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--tensor-parallel-size", "3"), "the model has 4 attention heads, which 3 does not divide; use 1, 2"),
        (("--tensor-parallel-size", "2", "--preemption", "swap"), "preemption swap keeps blocks of one GPU in RAM"),
        (("--tensor-parallel-size", "2", "--device", "cpu"), "tensor_parallel_size 2 needs as many GPUs (device cuda)"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(start, model, flags, sentence):
    server = start("--model", str(model), *FLAGS, *flags, environment=INTERPRETED, wait=False)
    assert server.process.wait(120) == 1
    assert sentence in server.log.strip().splitlines()[-1]

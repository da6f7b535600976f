"""A whole server on the CUDA backend with real weights, its kernels interpreted: HTTP, processes, refusals and faults.

Interpreted, a token of a small model takes seconds, so few are asked for.
"""

from __future__ import annotations

from ctypes.util import find_library

import pytest

pytestmark = pytest.mark.timeout(900)

INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
# Whole weights: unpacking quantised ones tile by tile would be most of the time.
FLAGS = ("--device", "cuda", "--dtype", "float32", "--max-running-requests", "4", "--max-batched-tokens", "64")
LONG = ("--stall-seconds", "600")


def ask(server, **fields):
    body = {"model": "smollm2", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 2} | fields
    return server.api.post("/v1/completions", json=body, timeout=600)


@pytest.fixture(scope="module")
def gpu(start):
    pytest.importorskip("triton", reason="the CUDA backend needs triton")
    return start(*FLAGS, *LONG, environment=INTERPRETED)


def test_it_answers_as_the_cpu_does(gpu, start):
    cpu = start("--device", "cpu", "--dtype", "float32")
    assert ask(gpu).json()["choices"] == ask(cpu).json()["choices"]


def test_it_says_what_it_computes_on(gpu):
    assert "TRITON_INTERPRET is 1: kernels are interpreted on the CPU" in gpu.log
    assert "engine: cuda (interpreter, float32 KV)" in gpu.log
    assert "memory of interpreter: weights " in gpu.log
    assert gpu.load()["block_size"] == 16


def test_a_lost_gpu_ends_the_server_with_a_status_of_its_own(start):
    faults = {"OCTAVO_FAILPOINTS": "gpu.step:raise@2,gpu.sync:raise@1"}
    server = start(*FLAGS, *LONG, environment=INTERPRETED | faults)
    ask(server)
    assert server.process.wait(60) == 72
    last = server.log.strip().splitlines()[-1]
    assert "the GPU failed and cannot recover" in last


def test_an_error_that_passes_ends_its_requests_alone(start):
    server = start(*FLAGS, *LONG, environment=INTERPRETED | {"OCTAVO_FAILPOINTS": "gpu.step:raise@2"})
    assert ask(server).status_code == 500
    assert ask(server, max_tokens=1).status_code == 200


@pytest.mark.skipif(bool(find_library("cuda")), reason="an NVIDIA driver is here")
def test_without_a_gpu_the_start_ends_with_one_sentence(start):
    server = start("--device", "cuda", wait=False)
    assert server.process.wait(120) == 1
    last = server.log.strip().splitlines()[-1]
    assert "no NVIDIA driver: libcuda.so.1 is not there" in last


@pytest.mark.parametrize("flags", [("--kv-dtype", "fp8"), ("--quantization", "fp8"), ("--cuda-graphs",)])
def test_what_only_a_gpu_does_is_refused_on_a_cpu(start, flags):
    server = start("--device", "cpu", *flags, wait=False)
    assert server.process.wait(120) == 1
    told = " ".join([flags[0][2:].replace("-", "_"), *flags[1:]])
    assert f"{told} needs a GPU" in server.log.strip().splitlines()[-1]

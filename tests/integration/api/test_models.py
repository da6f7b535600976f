"""Models a server cannot load: one sentence, a status, and nothing left behind; and one that transformers computes."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, models

from octavo_inference.checkpoints.resolve import find_model

VOCAB = 64


def write_tokenizer(folder: Path) -> None:
    vocabulary = {chr(ord("!") + i): i for i in range(VOCAB)}
    Tokenizer(models.BPE(vocabulary, [])).save(str(folder / "tokenizer.json"))


def write_folder(folder: Path, tensors: dict[str, list[int]], **config: Any) -> Path:
    """A safetensors folder with zeros in it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # sparse: it takes no room
    return folder


def llama(folder: Path, width: int = 64, rows: int | None = None, **changes: Any) -> Path:
    layer = {
        **{name: [width] for name in ("input_layernorm", "post_attention_layernorm")},
        **{f"self_attn.{name}_proj": [width, width] for name in "qkvo"},
        **{f"mlp.{name}_proj": [width, width] for name in ("gate", "up", "down")},
    }
    tensors = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    tensors |= {"model.embed_tokens.weight": [rows or VOCAB, width], "model.norm.weight": [width]}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": width // 32,
        "vocab_size": rows or VOCAB,
        "max_position_embeddings": 128,
    }
    return write_folder(folder, tensors, **config | changes)


def truncated(folder: Path) -> Path:
    shutil.copy(find_model("smollm2"), folder / "short.gguf")
    with (folder / "short.gguf").open("r+b") as file:
        file.truncate(5_000_000)
    return folder / "short.gguf"


def unknown_type(folder: Path) -> Path:
    name = b"token_embd.weight"
    entry = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 64, 64, 77, 0)
    write_tokenizer(folder)
    (folder / "new.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + entry + bytes(8192))
    return folder / "new.gguf"


def without_a_shard(folder: Path) -> Path:
    made = llama(folder / "m")
    (made / "model.safetensors").rename(made / "model-00001-of-00002.safetensors")
    return made


def broken_tokenizer(folder: Path) -> Path:
    made = llama(folder / "m")
    (made / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE"')
    return made


def broken_template(folder: Path) -> Path:
    made = llama(folder / "m")
    (made / "chat_template.jinja").write_text("{% for message in messages %}")
    return made


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (truncated, ["short.gguf", "reaches past the end"]),
        (unknown_type, ["new.gguf", "token_embd.weight has the ggml type 77, supported are F32"]),
        (without_a_shard, ["model-00001-of-00002.safetensors is one of 2 shards, found 1"]),
        (lambda folder: llama(folder / "m", hidden_size=96, num_attention_heads=3), ["has shape", "config.json says"]),
        # 256 GiB that take no room on the disk.
        (lambda folder: llama(folder / "m", rows=2**30), ["its weights take", "GiB are available to this process"]),
        (lambda folder: llama(folder / "m", rope_scaling={"rope_type": "dynamic"}), ["rope type dynamic"]),
        (broken_tokenizer, ["tokenizer.json: not a tokenizer"]),
        (broken_template, ["chat template, line 1"]),
    ],
    ids=["truncated", "type", "shard", "shapes", "memory", "rope", "tokenizer", "template"],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, write: Any, words: list[str]) -> None:
    model = write(tmp_path)
    before = {process.pid for process in psutil.process_iter()}
    result = subprocess.run(
        [sys.executable, "-m", "octavo_inference", "--port", "0", "--admin-port", "0", "--model", str(model)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), result.stderr
    assert str(tmp_path) in last
    assert "Traceback" not in result.stderr
    left = [process for process in psutil.process_iter(["cmdline"]) if process.pid not in before]
    assert not [process for process in left if str(model) in " ".join(process.info["cmdline"] or [])]


def test_a_model_that_only_transformers_knows_is_served(start: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the transformers backend needs it")
    transformers = pytest.importorskip("transformers", reason="the transformers backend needs it")
    torch.manual_seed(0)
    config = transformers.PersimmonConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    folder = write_folder(tmp_path / "m", {})
    model.save_pretrained(folder)
    server = start("--model", str(folder), "--dtype", "float32", "--served-model-name", "own")
    assert "is computed by transformers, slower than native kernels: " in server.log
    assert "engine: transformers (PersimmonForCausalLM, float32, " in server.log
    body = {"model": "own", "prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0}
    answer = server.api.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with torch.inference_mode():
        expected = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert answer.replace(" ", "") == "".join(chr(ord("!") + token) for token in expected[0, 3:].tolist())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0

"""Writers of small model files: what loaders are tested with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.weights import LayerWeights

HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB = 64, 2, 1, 32, 96, 40


def matrices(rng: np.random.Generator, hidden: int = HIDDEN, ffn: int = FFN) -> dict[str, np.ndarray]:
    """One layer's tensors by their names in safetensors checkpoints."""
    dim = hidden // HEADS
    shapes = {
        "model.embed_tokens.weight": (VOCAB, hidden),
        "model.norm.weight": (hidden,),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.post_attention_layernorm.weight": (hidden,),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * dim, hidden),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * dim, hidden),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * dim, hidden),
        "model.layers.0.self_attn.o_proj.weight": (hidden, HEADS * dim),
        "model.layers.0.mlp.gate_proj.weight": (ffn, hidden),
        "model.layers.0.mlp.up_proj.weight": (ffn, hidden),
        "model.layers.0.mlp.down_proj.weight": (hidden, ffn),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}
TOKENS = ["<|end|>", *(chr(c) for c in range(ord("a"), ord("z") + 1)), "Ġ", "ab", "abc", *"0123456789"]


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py does to q and k."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    architecture: str = "llama",
    pre: str = "gpt-2",
    hidden: int = HIDDEN,
    ffn: int = FFN,
    split: int = 0,
    extra: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    """`split`: the number of tensors in each file of a set, 0 for one file."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, *([1] * (len(TOKENS) - 1))])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    extra(writer)
    for name, values in tensors.items():
        heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else 0
        data = permute(values, heads) if heads and architecture == "llama" else values
        if data.ndim == 2 and kind is not gguf.GGMLQuantizationType.F32:
            data = gguf.quants.quantize(data, kind)
            writer.add_tensor(GGUF_NAMES[name], data, raw_dtype=kind)
        else:
            writer.add_tensor(GGUF_NAMES[name], data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_hf(folder: Path, tensors: dict[str, np.ndarray], dtype: str = "F32", **changes: Any) -> Path:
    """A folder as `save_pretrained` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, [("a", "b"), ("ab", "c")]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
    return folder


def safetensors_bytes(tensors: dict[str, np.ndarray], dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        if dtype == "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


Typed = tuple[str, np.ndarray]


def write_quantized(folder: Path, described: dict[str, Any], typed: dict[str, Typed], **changes: Any) -> Path:
    """A folder as `write_hf` makes it, of tensors with safetensors' names of their types, such as `F8_E4M3`."""
    write_hf(folder, {}, quantization_config=described, **changes)
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, values) in typed.items():
        data = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return folder


def linear_modules(tensors: dict[str, np.ndarray]) -> list[str]:
    """The linear layers of a decoder layer, as `model.layers.0.mlp.up_proj`."""
    return [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]


def loaded_layer(folder: Path) -> LayerWeights:
    """The first layer's weights."""
    model = load_model(str(folder))
    assert isinstance(model, LoadedModel)
    return model.weights.layers[0]


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    return matrices(np.random.default_rng(0))


def declare_pooling(folder: Path, modes: dict[str, object], place: str = "1_Pooling") -> None:
    """Write the files of sentence-transformers into a checkpoint."""
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": place, "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / place).mkdir()
    (folder / place / "config.json").write_text(json.dumps(modes))

"""Models that transformers computes, through the real engine: the tokens and logits of transformers' own `generate`."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from octavo_inference import LLM, SamplingParams
from octavo_inference.common.errors import ModelError, SettingsError

torch = pytest.importorskip("torch", reason="the transformers backend needs it")
transformers = pytest.importorskip("transformers", reason="the transformers backend needs it")

pytestmark = pytest.mark.timeout(900)

VOCAB, BLOCK, ANSWER = 64, 16, 24
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 2,
}
GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DIM = {"head_dim": 8}
WINDOW = {"sliding_window": 16}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
# Configuration class without "Config" -> what its tiny model needs besides the sizes; as docs/guides/models.md lists.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Apertus": {},
    "Arcee": {},
    "BioGpt": {},
    "Cohere": {},
    "Cohere2": WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "DeepseekV2": LATENT,
    "DeepseekV3": LATENT,
    "Ernie4_5": DIM,
    "Exaone4": WINDOW,
    "GPT2": GPT2,
    "GPTBigCode": GPT2,
    "GPTNeoX": {},
    "Glm": DIM,
    "Glm4": DIM,
    "GptOss": EXPERTS | DIM | WINDOW,
    "GraniteMoe": EXPERTS,
    "Llama4Text": EXPERTS | DIM | {"attention_chunk_size": 16, "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    "Mixtral": EXPERTS,
    "Nemotron": {},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Olmo": {},
    "Olmo2": {},
    "Olmoe": EXPERTS,
    "Persimmon": {},
    "Phi": {},
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "Qwen3Moe": EXPERTS | DIM,
    "StableLm": {},
    "Starcoder2": WINDOW,
}
# One of each kind of decoder; the others differ from these in their names and in how they are put together.
KINDS = {
    "Cohere2",  # sliding windows
    "DeepseekV3",  # latent attention, and a first layer without experts
    "GPT2",  # learned positions
    "GPTNeoX",  # attention and MLP side by side
    "GptOss",  # attention sinks, windows and experts
    "Llama4Text",  # attention in chunks, and layers without positions
    "Mixtral",  # experts
}


def write_tokenizer(folder: Path) -> None:
    vocabulary = {chr(ord("!") + i): i for i in range(VOCAB)}
    Tokenizer(models.BPE(vocabulary, [])).save(str(folder / "tokenizer.json"))


def write_model(folder: Path, name: str, **settings: Any) -> Any:
    """A tiny model with random weights, saved to `folder`."""
    config = getattr(transformers, f"{name}Config")(**SIZES | settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 if parameter.dim() > 1 else 1 + noise * 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def load(folder: Path, **settings: Any) -> LLM:
    given: dict[str, Any] = {"backend": "transformers", "dtype": "float32", "threads": 1, "block_size": BLOCK}
    return LLM(str(folder), **given | {"max_model_len": 96, "kv_memory": "4Mi"} | settings)


def test_the_documented_table_is_what_is_tested() -> None:
    text = (Path(__file__).parents[3] / "docs/guides/models.md").read_text()
    listed = set(re.findall(r"^\| (\w+(?:ForCausalLM|LMHeadModel)) \|", text, re.MULTILINE))
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    tested = {mapping[getattr(transformers, f"{name}Config")].__name__ for name in ARCHITECTURES}
    assert listed == tested


def prompts() -> list[list[int]]:
    """Lengths that end inside and at the end of blocks; the last one begins as the first does."""
    rng = np.random.default_rng(5)
    fresh = [rng.integers(3, VOCAB, length).tolist() for length in (45, 32, 7, 1)]
    return [*fresh, [*fresh[0][:40], 5, 6]]


Answer = tuple[list[int], np.ndarray]


def answers(model: Any, asked: list[list[int]], length: int = ANSWER) -> list[Answer]:
    """Of each prompt the greedy tokens of `generate`, and their log-probabilities in one plain forward pass."""
    found = []
    for prompt in asked:
        with torch.inference_mode():
            tokens = model.generate(
                torch.tensor([prompt]), max_new_tokens=length, min_new_tokens=length, do_sample=False, eos_token_id=None
            )
            logits = model(tokens, use_cache=False).logits[0]
        answer = tokens[0, len(prompt) :]
        scores = torch.log_softmax(logits.float(), dim=-1)[len(prompt) - 1 : -1]
        found.append((answer.tolist(), scores[torch.arange(length), answer].numpy()))
    return found


def check(expected: list[Answer], llm: LLM, asked: list[list[int]]) -> None:
    """Greedy tokens and their log-probabilities are the expected ones."""
    sampling = SamplingParams(temperature=0.0, max_tokens=len(expected[0][0]), ignore_eos=True, logprobs=0)
    for result, (tokens, scores) in zip(llm.generate(asked, sampling, use_tqdm=False), expected, strict=True):
        answer = result.outputs[0]
        assert answer.token_ids == tokens
        found = np.array([entry.logprob for entry in answer.logprobs or []])
        np.testing.assert_allclose(found, scores, atol=2e-4)


@pytest.mark.parametrize(
    "name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.full) for name in ARCHITECTURES]
)
def test_answers_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    expected = answers(write_model(tmp_path, name, **ARCHITECTURES[name]), prompts())
    chunked = load(tmp_path, max_running_requests=4, max_batched_tokens=16)
    check(expected, chunked, prompts())
    check(expected, chunked, prompts())  # now from the prefix cache
    assert chunked.engine.scheduler.hit_tokens >= 32
    # Six blocks for sequences of up to five.
    bytes_per_block = chunked.engine.config.kv_bytes_per_token(4) * BLOCK
    tight = load(tmp_path, kv_memory=6 * bytes_per_block, max_model_len=80, prefix_caching=False)
    check(expected, tight, prompts())
    assert tight.engine.scheduler.preemptions > 0


def test_preemption_by_swap(tmp_path: Path) -> None:
    """Layers whose K and V differ in width, as latent attention has."""
    expected = answers(write_model(tmp_path, "DeepseekV3", **ARCHITECTURES["DeepseekV3"]), prompts())
    bytes_per_block = load(tmp_path).engine.config.kv_bytes_per_token(4) * BLOCK
    tight = load(
        tmp_path,
        kv_memory=6 * bytes_per_block,
        max_model_len=80,
        prefix_caching=False,
        preemption="swap",
        swap_memory=40 * bytes_per_block,
    )
    check(expected, tight, prompts())
    assert tight.engine.scheduler.swaps > 0


def test_several_answers_share_their_prompt_and_go_their_own_ways(tmp_path: Path) -> None:
    write_model(tmp_path, "GptOss", **ARCHITECTURES["GptOss"])
    llm = load(tmp_path)
    sampling = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    [together] = llm.generate([prompts()[0]], sampling, use_tqdm=False)
    answers = [output.token_ids for output in together.outputs]
    assert len({tuple(answer) for answer in answers}) == 3
    [again] = load(tmp_path, prefix_caching=False, max_batched_tokens=16, max_running_requests=2).generate(
        [prompts()[0]], sampling, use_tqdm=False
    )
    assert [output.token_ids for output in again.outputs] == answers


@pytest.mark.parametrize("name", ["GPTNeoX", "GptOss", "DeepseekV3", "Llama4Text"])
def test_half_precision_is_as_near_as_that_of_transformers(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, name, **ARCHITECTURES[name])
    model = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path), dtype=torch.bfloat16)
    llm = load(tmp_path, dtype="bfloat16")
    [result] = llm.generate([prompts()[0]], SamplingParams(temperature=0.0, max_tokens=1, logprobs=0), use_tqdm=False)
    with torch.inference_mode():
        plain = torch.log_softmax(model(torch.tensor([prompts()[0]])).logits[0, -1].float(), dim=-1)
    [entry] = result.outputs[0].logprobs or []
    assert abs(entry.logprob - float(plain[result.outputs[0].token_ids[0]])) < 0.1


def test_a_folder_native_kernels_do_not_know_is_given_to_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "Persimmon")
    with caplog.at_level(logging.WARNING):
        llm = load(tmp_path, backend="cpu")  # what --device cpu means
    assert llm.engine.backend.name.startswith("transformers (PersimmonForCausalLM, float32, 1 thread")
    assert llm.settings.backend == "transformers"
    assert "is computed by transformers, slower than native kernels: " in caplog.text
    with pytest.raises(SettingsError, match=r"the reference backend cannot compute this model: .*PersimmonForCausalLM"):
        load(tmp_path, backend="reference")


def test_words_are_loaded_without_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    write_model(tmp_path, "GPT2", **GPT2)
    code = (
        "import sys; from octavo_inference.model_loader import load_text; text = load_text(sys.argv[1]);"
        "assert text.tokenizer.get_vocab_size() == 64; assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Mamba", {}, "MambaForCausalLM cannot be served: it has recurrent layers"),
        ("Falcon", {}, "FalconForCausalLM cannot be served: it computes attention outside transformers' attention int"),
        ("Bloom", {}, r"BloomForCausalLM cannot be served: its positions are a bias on the attention scores \(ALiBi\)"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, r"layers that are not softmax attention \(conv\)"),
        ("Phi", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope type dynamic"),
    ],
)
def test_what_cannot_be_paged_is_refused_with_the_reason(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    write_model(tmp_path, name, **settings)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "an encoder-decoder model"),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "no text-generating decoder of that name"),
        (
            {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}},
            "OwnForCausalLM cannot be served: transformers .* does not support it",
        ),
        ({"quantization_config": {"quant_method": "awq"}}, r"only native kernels read quantized weights \(awq\)"),
        ({"n_layer": 3}, "config.json and the weights disagree: 12 tensors are missing"),
        ({"vocab_size": 70}, "config.json and the weights disagree: .* have other shapes"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_model(tmp_path, "GPT2", **GPT2)
    rewrite(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_code_that_comes_with_a_model_does_not_run(tmp_path: Path) -> None:
    write_model(tmp_path, "GPT2", **GPT2)
    rewrite(tmp_path, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="does not support it"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_model_that_is_served_wrong_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "GPTNeoX")
    plain = transformers.GPTNeoXForCausalLM.forward

    def forgets_positions(self: Any, *arguments: Any, position_ids: Any = None, **rest: Any) -> Any:
        return plain(self, *arguments, **rest)

    monkeypatch.setattr(transformers.GPTNeoXForCausalLM, "forward", forgets_positions)
    with pytest.raises(ModelError, match="its logits over paged KV differ from its own by"):
        load(tmp_path)


def test_longrope_ends_where_its_frequencies_would_change(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    write_model(tmp_path, "Phi3", rope_parameters=rope, original_max_position_embeddings=64)
    assert load(tmp_path, max_model_len=None).engine.limits.max_model_len == 64

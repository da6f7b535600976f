"""Names of base models: the same model has many, so only names with nothing in common are worth a warning."""

from __future__ import annotations

import pytest

from octavo_protocol.base_models import is_hub_name, is_other_base

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("base", "served"),
    [
        (LLAMA, LLAMA),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", LLAMA),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", LLAMA),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", LLAMA),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("unsloth/qwen2.5-7b-unsloth-bnb-4bit", "Qwen/Qwen2.5-7B"),
        ("someone/smollm2_360m", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    ],
)
def test_copies_of_a_model_are_the_model(base: str, served: str) -> None:
    assert not is_other_base(base, [served])
    assert not is_other_base(served, [base])


@pytest.mark.parametrize(
    ("base", "served"),
    [
        (LLAMA, "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-360M-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
    ],
)
def test_other_models_are_not(base: str, served: str) -> None:
    assert is_other_base(base, [served])
    assert not is_other_base(base, [served, base]), "one of the names is enough"


@pytest.mark.parametrize("base", ["", "/home/me/model", "./base", "base", "a/b/c", "~/m", "a/" + "b" * 200, "a/b\n"])
def test_paths_say_nothing(base: str) -> None:
    assert not is_hub_name(base)
    assert not is_other_base(base, [LLAMA])
    assert not is_other_base(LLAMA, [base])
    assert not is_other_base(LLAMA, [])

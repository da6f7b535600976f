"""Real weights against transformers in float32: its GGUF loader, its tokenizer, its decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.native import require_native

from octavo_inference import LLM, SamplingParams
from octavo_inference.backends.cpu.native import library
from octavo_inference.model_loader import find_model, load_text

torch = pytest.importorskip("torch", reason="compares with transformers")
transformers = pytest.importorskip("transformers", reason="compares with transformers")

# Loading in transformers alone takes half a minute, minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

TOKENS = 24
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The quick brown fox",
    "In 1969, humans first",
    "import numpy as np\n",
    "Photosynthesis is the process by which",
    "Dear Sir or Madam,",
    "1, 2, 3, 4,",
    "The largest planet in our solar system",
    "To make a good cup of tea,",
    "Roses are red,",
    "SELECT name FROM users WHERE",
    "The meaning of life",
    "Albert Einstein was born in",
    "My favourite season is",
    "A prime number is",
    "The Pacific Ocean",
    "How do airplanes fly?",
    "Bonjour, je m'appelle",
    "Python is a programming language that",
    "The mitochondria is",
    "If it rains tomorrow,",
    "Shakespeare wrote",
    "The speed of light",
    "Yesterday I went to the market and",
    "An atom consists of",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nExplain gravity to a child.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n12 + 30 = ?<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    return find_model("smollm2")


@pytest.fixture(scope="module")
def oracle(gguf_file: Path) -> Any:
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf_file.parent), gguf_file=gguf_file.name, dtype=torch.float32
    )
    return model.eval()


def logits(oracle: Any, tokens: list[int], first: int) -> np.ndarray:
    """The oracle's logits at positions [first, ...) of one sequence."""
    with torch.inference_mode():
        return oracle(torch.tensor([tokens]), use_cache=False).logits[0, first:].numpy()


def assert_greedy(oracle: Any, prompt: list[int], answer: list[int], margin: float) -> int:
    """Every token is the oracle's choice after what precedes it, or within `margin` of it; the number of ties.

    Token by token this is what `generate` does: as long as all are its choice, its text is the same.
    """
    scores = logits(oracle, prompt + answer[:-1], len(prompt) - 1)
    best = scores.max(axis=-1)
    chosen = scores[np.arange(len(answer)), answer]
    worst = int(np.argmax(best - chosen))
    assert best[worst] - chosen[worst] <= margin, f"token {worst} is {best[worst] - chosen[worst]:.4f} below the best"
    return int((chosen < best).sum())


# Weights, K and V in bfloat16 move logits by hundredths: closer choices than that may fall the other way. The variant
# that rounds activations to bfloat16, too, is a third as near to float32 (mean KL 3.6e-4 for 1.1e-4; transformers in
# bfloat16 1.5e-3, with a choice 0.27 below the best).
EXACT_ACTIVATIONS, BFLOAT16_ACTIVATIONS = 0.05, 0.15


@pytest.mark.parametrize(
    ("backend", "margin", "ties"),
    [
        pytest.param("reference", 1e-3, 2, marks=pytest.mark.full),
        ("cpu", None, 16),
    ],
)
def test_greedy_tokens_are_those_of_transformers(oracle: Any, backend: Any, margin: float | None, ties: int) -> None:
    if backend == "cpu":
        require_native()
    if margin is None:
        margin = BFLOAT16_ACTIVATIONS if library.load().info.activation_bytes == 2 else EXACT_ACTIVATIONS
    # Not the file's own four bits: their activations are rounded to bytes, which test_cpu_quality.py bounds.
    dtype = "bfloat16" if backend == "cpu" else "auto"
    llm = LLM("smollm2", backend=backend, dtype=dtype, max_model_len=128, kv_memory="256Mi", max_running_requests=32)
    results = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=TOKENS), use_tqdm=False)
    found = [assert_greedy(oracle, result.prompt_token_ids, result.outputs[0].token_ids, margin) for result in results]
    assert sum(found) <= ties, f"more than ties explain: {found}"


def test_generate_itself_gives_the_same_text(oracle: Any) -> None:
    llm = LLM("smollm2", backend="reference", max_model_len=128, kv_memory="256Mi")
    prompt = PROMPTS[28]
    [result] = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=TOKENS), use_tqdm=False)
    ids = torch.tensor([result.prompt_token_ids])
    with torch.inference_mode():
        generated = oracle.generate(ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=2)
    assert generated[0, ids.shape[1] :].tolist() == result.outputs[0].token_ids
    assert result.outputs[0].text == "The capital of France is Paris."


TRICKY = [
    "",
    " ",
    "   leading and trailing   ",
    "Hello, world! It's 2024-11-21; don't they're we've I'm you'll he'd",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "numbers 1234567890 3.14159 1e-5",
    "naïve café Ångström Straße İstanbul",
    "日本語のテキスト 中文 한국어",
    "emoji 😀👩‍👩‍👧‍👦🇫🇷 and\u200bzero-width",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|><|im_start|> <|im_end|>x<|im_end|>",
    "code: for (int i = 0; i < n; ++i) { a[i] += b[i]; }  // comment",
    "\u00a0non\u2003breaking\u3000spaces\x00control\x7f",
    "word" * 50,
    "mixed" + " " * 40 + "spaces",
    "İıſK Ω≠∞ 𝕳𝖊𝖑𝖑𝖔 �",
    "a1b2c3 x10y20 1 2 3 12",
]


def test_token_ids_are_those_of_transformers(gguf_file: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    ours = load_text("smollm2").tokenizer
    for text in TRICKY + PROMPTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_every_numeral_is_a_piece_of_its_own() -> None:
    # transformers leaves this rule of `tokenizer.ggml.pre = smollm` out; llama.cpp and the original tokenizer have it.
    tokenizer = load_text("smollm2").tokenizer
    pieces = ["x", " ", "ⅷ", "½", " ", "²", "٣", "٤", "7", "8"]
    assert tokenizer.encode("".join(pieces)).ids == [i for piece in pieces for i in tokenizer.encode(piece).ids]

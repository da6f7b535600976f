"""Tokenizers and chat templates in the folders of adapters: the model's where they say the same, and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_inference.checkpoints.peft_tokens import TEXT_FILES
from octavo_inference.common.errors import ModelError
from octavo_inference.config.engine import EngineSettings
from octavo_inference.conversation import adapter_text
from octavo_inference.server.model_text import warn_of_other_base
from octavo_inference.tokenizer import adapter_assets as adapter_assets_module
from octavo_inference.tokenizer.adapter_assets import adapter_assets, differ, own_ends
from octavo_inference.tokenizer.assets import TokenizerAssets, load_assets
from octavo_inference.tokenizer.chat_template import ChatTemplate, load_adapter_template
from octavo_inference.tokenizer.encoding import plain_tokenizer

VOCAB = 49152
TALK = [{"role": "user", "content": "Hello <|im_end|>!"}]


@pytest.fixture(scope="module")
def model() -> TokenizerAssets:
    return load_assets("smollm2")


def saved(folder: Path, model: TokenizerAssets, change: Callable[[dict[str, Any]], object]) -> Path:
    """The model's tokenizer.json with a change, as a trainer saves it: with padding, and in other words."""
    data = json.loads(model.tokenizer.to_str())
    data["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 2, "pad_type_id": 0,
        "pad_token": "<|im_end|>",
    }  # fmt: skip
    change(data)
    (folder / "tokenizer.json").write_text(json.dumps(data, indent=1))
    return folder


def renamed(data: dict[str, Any], index: int = 4, text: str = "<tool>") -> None:
    """A reserved token with another name."""
    before = data["added_tokens"][index]["content"]
    data["added_tokens"][index]["content"] = text
    data["model"]["vocab"] = {(text if token == before else token): i for token, i in data["model"]["vocab"].items()}


def added(data: dict[str, Any], index: int, text: str, **flags: bool) -> None:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data["added_tokens"].append({"id": index, "content": text} | plain | flags)


def test_a_folder_without_them_has_the_models(tmp_path: Path, model: TokenizerAssets) -> None:
    found = adapter_assets(tmp_path, model, VOCAB, 0)
    assert not differ(found, model)
    assert own_ends(found, model) == ()


def test_the_models_own_files_saved_again_are_shared(tmp_path: Path, model: TokenizerAssets) -> None:
    saved(tmp_path, model, lambda _: None)
    config = {"chat_template": model.chat_template, "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = adapter_assets(tmp_path, model, VOCAB, 0)
    assert found.tokenizer is model.tokenizer
    assert not differ(found, model)
    assert adapter_text(tmp_path, model, EngineSettings(model="smollm2"), VOCAB, 0) is None


@pytest.mark.parametrize("where", ["file", "configuration", "named"])
def test_a_chat_template_of_its_own(tmp_path: Path, model: TokenizerAssets, where: str) -> None:
    source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    if where == "file":
        (tmp_path / "chat_template.jinja").write_text(source)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ 1 }}"}))
    else:
        named = [{"name": "tool_use", "template": "{{ 1 }}"}, {"name": "default", "template": source}]
        config = {"chat_template": source if where == "configuration" else named}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = adapter_assets(tmp_path, model, VOCAB, 0)
    assert differ(found, model)
    tokens = load_adapter_template(found, tmp_path).tokens(TALK)
    shown = found.tokenizer.decode(tokens, skip_special_tokens=False)
    assert shown == "[user] Hello <|im_end|>!<|im_end|>"
    assert tokens.count(2) == 1, "the user's text has no control token, here as with the model's template"


def test_a_reserved_token_with_another_name(tmp_path: Path, model: TokenizerAssets) -> None:
    found = adapter_assets(saved(tmp_path, model, renamed), model, VOCAB, 0)
    assert found.tokenizer.encode("a <tool> b").ids == [
        *model.tokenizer.encode("a ").ids,
        4,
        *model.tokenizer.encode(" b").ids,
    ]
    assert found.tokenizer.decode([4], skip_special_tokens=False) == "<tool>"
    assert model.tokenizer.decode([4], skip_special_tokens=False) == "<reponame>"
    assert len(found.tokenizer.encode("a <tool> b").ids) == 4, "without the padding of training"
    guarded = ChatTemplate("{{ messages[0].content }}", found.tokenizer).tokens([{"role": "user", "content": "<tool>"}])
    assert 4 not in guarded


def test_a_token_that_becomes_special_shares_the_vocabulary(tmp_path: Path, model: TokenizerAssets) -> None:
    word = model.tokenizer.encode("lighthouse").ids
    assert len(word) > 1
    known = model.tokenizer.encode(" light").ids
    assert len(known) == 1
    found = adapter_assets(saved(tmp_path, model, lambda data: added(data, known[0], "Ġlight")), model, VOCAB, 0)
    assert found.tokenizer is not model.tokenizer
    for text in ("Ġlight", "a Ġlighthouse", "  two\n\nlines", "<|im_start|>user", "caf\u00e9 \U0001f600"):
        whole = type(found.tokenizer).from_file(str(tmp_path / "tokenizer.json"))
        whole.no_padding()
        assert found.tokenizer.encode(text).ids == whole.encode(text).ids
        assert plain_tokenizer(found.tokenizer).encode(text).ids == plain_tokenizer(whole).encode(text).ids
    assert found.tokenizer.encode("Ġlight").ids == known
    assert model.tokenizer.encode("Ġlight").ids != known, "the model's is as before"


def test_rules_that_cut_text_are_the_models(tmp_path: Path, model: TokenizerAssets) -> None:
    """A regular expression of a file may take longer for each character of a prompt."""

    def hostile(data: dict[str, Any]) -> None:
        renamed(data)
        pattern = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": False}
        data["pre_tokenizer"] = pattern
        data["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "b"}

    found = adapter_assets(saved(tmp_path, model, hostile), model, VOCAB, 0)
    text = "a" * 64 + "!"
    assert found.tokenizer.encode(text).ids == model.tokenizer.encode(text).ids
    assert found.tokenizer.decode(found.tokenizer.encode(text).ids) == text


def shares_vocabulary(found: TokenizerAssets, model: TokenizerAssets) -> bool:
    """A change of the one model object in memory shows in the other."""
    before = model.tokenizer.model.fuse_unk
    found.tokenizer.model.fuse_unk = not before
    changed = model.tokenizer.model.fuse_unk is not before
    found.tokenizer.model.fuse_unk = before
    return changed


def test_one_vocabulary_is_in_memory_if_the_file_has_other_flags_and_fewer_tokens(
    tmp_path: Path, model: TokenizerAssets
) -> None:
    def fewer(data: dict[str, Any]) -> None:
        data["model"]["vocab"] = {text: i for text, i in data["model"]["vocab"].items() if i < VOCAB - 9}
        data["model"]["merges"] = data["model"]["merges"][:-9]
        data["model"]["byte_fallback"] = True

    def more(data: dict[str, Any]) -> None:
        data["model"]["byte_fallback"] = True
        added(data, VOCAB, "<new>")

    assert adapter_assets(saved(tmp_path, model, fewer), model, VOCAB, 0).tokenizer is model.tokenizer
    found = adapter_assets(saved(tmp_path, model, more), model, VOCAB + 64, 0)
    assert found.tokenizer.encode("<new>").ids == [VOCAB]
    assert shares_vocabulary(found, model)
    assert not found.tokenizer.model.byte_fallback, "as the model's"
    assert not shares_vocabulary(adapter_assets(saved(tmp_path, model, renamed), model, VOCAB, 0), model)


@pytest.mark.parametrize("sizes", [[257], [200] * 2000])
def test_added_tokens_have_bounds(tmp_path: Path, model: TokenizerAssets, sizes: list[int]) -> None:
    def many(data: dict[str, Any]) -> None:
        for number, size in enumerate(sizes):
            added(data, VOCAB + number, f"{number:x<{size}}")

    with pytest.raises(ModelError, match="262144 and 256 are possible"):
        adapter_assets(saved(tmp_path, model, many), model, 2 * VOCAB, 0)


def test_a_panic_of_the_library_is_a_sentence(
    tmp_path: Path, model: TokenizerAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicError(BaseException):
        pass

    def panic(_: Path) -> None:
        raise PanicError

    monkeypatch.setattr(adapter_assets_module, "load_tokenizer", panic)
    with pytest.raises(ModelError, match="not a tokenizer: PanicError"):
        adapter_assets(saved(tmp_path, model, renamed), model, VOCAB, 0)


def test_a_panic_while_tokenizers_are_combined_is_a_sentence(
    tmp_path: Path, model: TokenizerAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicError(BaseException):
        pass

    def panic(*_: object) -> None:
        raise PanicError

    monkeypatch.setattr(adapter_assets_module, "Tokenizer", panic)
    with pytest.raises(ModelError, match="not a tokenizer: PanicError"):
        adapter_assets(saved(tmp_path, model, renamed), model, VOCAB, 0)


def test_another_token_that_ends_answers(tmp_path: Path, model: TokenizerAssets) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "bos_token": "<none>"}))
    found = adapter_assets(tmp_path, model, VOCAB, 0)
    assert (found.eos_token, found.bos_token) == ("<|endoftext|>", model.bos_token)
    assert own_ends(found, model) == (0,)
    assert found.tokenizer is model.tokenizer


def test_a_template_of_the_settings_holds_for_adapters_without_one(
    tmp_path: Path, model: TokenizerAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag.jinja"
    flag.write_text("FLAG {{ messages[0].content }}")
    settings = EngineSettings(model="smollm2", chat_template=str(flag))
    plain, own = tmp_path / "plain", tmp_path / "own"
    for folder in (plain, own):
        folder.mkdir()
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (own / "chat_template.jinja").write_text("OWN {{ messages[0].content }}")
    compiled: list[str] = []
    compiles = ChatTemplate.__init__

    def counted(template: ChatTemplate, source: str, *args: Any, **options: Any) -> None:
        compiled.append(source)
        compiles(template, source, *args, **options)

    monkeypatch.setattr(ChatTemplate, "__init__", counted)
    for folder, wanted in ((plain, "FLAG Hi"), (own, "OWN Hi")):
        compiled.clear()
        text = adapter_text(folder, model, settings, VOCAB, 0)
        assert text is not None
        talk = [[{"role": "user", "content": "Hi"}]]
        [(tokens, _)] = text.conversations.prompts(talk, {}, None, tool_choice="auto", parallel_tool_calls=True)
        assert text.tokenizer.decode(tokens) == wanted
        assert len(compiled) == 1, "each template is compiled once"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer.json": "{"}, "not a tokenizer"),
        ({"tokenizer.json": "[]"}, "not a tokenizer"),
        ({"tokenizer_config.json": "[1]"}, "not a JSON object"),
        ({"tokenizer_config.json": "\0"}, "not a JSON object"),
        ({"tokenizer_config.json": '{"a":' * 5000}, "not a JSON object"),
        ({"chat_template.jinja": "{% if %}"}, "chat template, line 1"),
        ({"chat_template.jinja": "{{ " + "(" * 9000}, "chat template"),
        ({"chat_template.jinja": "{{ " + "-" * 9000 + "1 }}"}, "chat template"),
        ({"chat_template.jinja": "{{ " + "not " * 9000 + "1 }}"}, "chat template"),
        ({"chat_template.jinja": "{% for a in b %}" * 100}, "chat template"),
        ({"chat_template.jinja": "{% import 'x' as y %}{{ 1 "}, "chat template"),
        ({"chat_template.jinja": "x" * (TEXT_FILES["chat_template.jinja"] + 1)}, "bytes; up to 262144 are possible"),
        ({"tokenizer_config.json": json.dumps({"chat_template": "x" * 300_000})}, "a chat template of 300000 char"),
        ({"tokenizer_config.json": " " * (TEXT_FILES["tokenizer_config.json"] + 1)}, "bytes; up to 8388608 are poss"),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, model: TokenizerAssets, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=words) as refused:
        adapter_text(tmp_path, model, EngineSettings(model="smollm2"), VOCAB, 0)
    assert str(tmp_path) in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_template_that_is_not_utf_8_and_a_folder_in_its_place(tmp_path: Path, model: TokenizerAssets) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ 1 }}")
    with pytest.raises(ModelError, match="utf-8"):
        adapter_assets(tmp_path, model, VOCAB, 0)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelError, match="not a file"):
        adapter_assets(tmp_path, model, VOCAB, 0)


def test_tokens_that_the_model_does_not_have(tmp_path: Path, model: TokenizerAssets) -> None:
    saved(tmp_path, model, lambda data: added(data, VOCAB, "<new>"))
    with pytest.raises(ModelError, match=f"token '<new>' has the id {VOCAB}; the served model has ids below {VOCAB}"):
        adapter_assets(tmp_path, model, VOCAB, 0)
    # Rows of the embedding beyond the tokenizer's tokens: many models have some.
    found = adapter_assets(tmp_path, model, VOCAB + 64, 0)
    assert found.tokenizer.encode("<new>").ids == [VOCAB]


def test_tokens_that_an_adapter_adds(tmp_path: Path, model: TokenizerAssets) -> None:
    """One of them ends answers and is the padding of the training, too."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<end>", "eos_token": "<end>"}))

    def two(data: dict[str, Any]) -> None:
        added(data, VOCAB, "<new>")
        added(data, VOCAB + 1, "<end>")

    saved(tmp_path, model, two)
    found = adapter_assets(tmp_path, model, VOCAB, 2)
    assert found.tokenizer.encode("a<new><end>").ids[1:] == [VOCAB, VOCAB + 1]
    assert found.tokenizer.decode([VOCAB], skip_special_tokens=False) == "<new>"
    assert own_ends(found, model) == (VOCAB + 1,)
    assert shares_vocabulary(found, model)
    refused = rf"'<end>' has the id {VOCAB + 1}; .* an adapter may add 1: set max_added_tokens to 2, or train tokens"
    with pytest.raises(ModelError, match=refused):
        adapter_assets(tmp_path, model, VOCAB, 1)


def test_a_token_for_padding_alone_is_left_out(tmp_path: Path, model: TokenizerAssets) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    found = adapter_assets(saved(tmp_path, model, lambda data: added(data, VOCAB, "[PAD]")), model, VOCAB, 0)
    assert found.tokenizer is model.tokenizer

    def two(data: dict[str, Any]) -> None:
        added(data, VOCAB, "[PAD]")
        added(data, VOCAB + 1, "<new>")

    with pytest.raises(ModelError, match=f"token '<new>' has the id {VOCAB + 1}; .* set max_added_tokens to 2"):
        adapter_assets(saved(tmp_path, model, two), model, VOCAB, 0)
    # Before another one it stays: no token may get another id.
    found = adapter_assets(tmp_path, model, VOCAB, 2)
    assert found.tokenizer.encode("[PAD]<new>").ids == [VOCAB, VOCAB + 1]


def test_the_vocabulary_of_another_model(tmp_path: Path, model: TokenizerAssets) -> None:
    def swapped(data: dict[str, Any]) -> None:
        vocab = data["model"]["vocab"]
        vocab["Ġthe"], vocab["Ġa"] = vocab["Ġa"], vocab["Ġthe"]

    with pytest.raises(ModelError, match=r"has the id .* the adapter was trained on another base model"):
        adapter_assets(saved(tmp_path, model, swapped), model, VOCAB, 0)


def test_another_base_model_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": "org/other-7B"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    warn_of_other_base(tmp_path, ("chat", "org/model-7B"))
    assert "by its own account this adapter was trained on org/other-7B" in caplog.text
    caplog.clear()
    for served in (("chat",), ("chat", "copies/Other-7B-AWQ")):
        warn_of_other_base(tmp_path, served)
    (tmp_path / "adapter_config.json").write_text("[]")
    warn_of_other_base(tmp_path, ("org/model-7B",))
    assert not caplog.records

"""The special tokens that a tokenizer adds to a text."""

from __future__ import annotations

from tokenizers import Tokenizer, processors

from octavo_inference.tokenizer.splitting import SplittingRule
from octavo_inference.tokenizer.vocabulary import GgufVocabulary

_PROBE = "a"


def surrounding(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer adds before and after a text, such as a beginning-of-sequence token."""
    found = tokenizer.encode(_PROBE)
    text = [number for number, special in enumerate(found.special_tokens_mask) if not special]
    return found.ids[: text[0]], found.ids[text[-1] + 1 :]


def framing(vocabulary: GgufVocabulary, rule: SplittingRule | None) -> processors.PostProcessor | None:
    """What adds the tokens that a GGUF file asks for, by its kind and flags; None for a file that asks for none.

    Defaults of tokens and flags are llama.cpp's. A token that the file does not name is not added. `rule` is that of a
    vocabulary with merges.
    """
    kind = vocabulary.metadata.get("tokenizer.ggml.model")
    if kind == "bert":
        start = vocabulary.named("bos")
        start = vocabulary.named("cls", 101) if start is None else start
        end = separator = vocabulary.named("seperator", 102)  # spelled so in the format
        separated = True
    else:
        adds_bos = kind == "llama" if rule is None else rule.adds_bos
        bos = vocabulary.flag("add_bos_token", default=adds_bos) or (rule is not None and rule.needs_bos)
        start = vocabulary.named("bos", 1 if kind == "llama" else None) if bos else None
        default_end = {"llama": 2, "t5": 1}.get(str(kind))
        end = vocabulary.named("eos", default_end) if vocabulary.flag("add_eos_token", default=kind == "t5") else None
        separated = vocabulary.flag("add_sep_token", default=False)
        separator = vocabulary.named("seperator") if separated else None
    used = [token for token in (start, end, separator) if token is not None]
    if not used:
        return None
    first = _template(start, "$A", end)
    # BERT's first token stands once, and its second text has a type of its own.
    second = _template(None if separated else start, "$B", end)
    if kind == "bert":
        second = [f"{part}:1" for part in second]
    elif separator is not None:
        second = [f"<{separator}>", *second]
    return processors.TemplateProcessing(
        single=first,
        pair=[*first, *second],
        special_tokens=[
            {"id": f"<{index}>", "ids": [index], "tokens": [vocabulary.tokens[index]]} for index in dict.fromkeys(used)
        ],
    )


def _template(start: int | None, text: str, end: int | None) -> list[str]:
    # Tokens by number: their texts may have characters with a meaning in a template.
    return [*([] if start is None else [f"<{start}>"]), text, *([] if end is None else [f"<{end}>"])]

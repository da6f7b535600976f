r"""How a text is cut into pieces before the merges of a BPE apply: one rule for each name of `tokenizer.ggml.pre`.

The names are those of llama.cpp (src/llama-vocab.cpp), the expressions those of the models' own tokenizer.json files.
Each expression cuts the pieces that the one before it left: a match is a piece, and so is the text between two matches.
The engine is Oniguruma with Ruby's syntax. There `^` and `$` are at the ends of a line, so the ends of a piece are `\A`
and `\z` here. No expression may take quadratic time, because the text comes from clients: one that starts with a run of
characters has to start at the beginning of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """`splits` are the expressions, in order.

    `alphabet`: the vocabulary is in GPT-2's characters for bytes, in plain characters with U+2581 for spaces, or
    in plain characters without spaces. `composed`: the text is brought to NFC first. `whole`: a piece that is a token
    becomes that token, whatever the merges. `adds_bos` holds for files without `tokenizer.ggml.add_bos_token`, and
    `needs_bos` for all: some files deny it wrongly.
    """

    splits: tuple[str, ...]
    alphabet: Literal["bytes", "marked", "words"] = "bytes"
    composed: bool = False
    whole: bool = False
    adds_bos: bool = False
    needs_bos: bool = False


_NUMERAL = r"\p{N}"
_NEWLINES = r"\n+"
_UP_TO_THREE = r"\p{N}{1,3}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES_AND_SPACES = r"\s*[\r\n]+|" + _SPACES
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
# A word ends where lower case becomes upper case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAMEL = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CAMEL_END = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES_AND_SPACES

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES_AND_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
    + _LINES_AND_SPACES
)
# Without contractions: Turkish suffixes after an apostrophe stay whole.
_UFAKZEKA = rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_LINES_AND_SPACES}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES_AND_SPACES}"
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_LINES_AND_SPACES}"
_JAIS2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|" + "|".join(
    (*(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")), r"\s")
)
_TEKKEN = rf"{_CAMEL[0]}|{_CAMEL[1]}|\p{{N}}|{_CAMEL_END}"
_GPT4O = rf"{_CAMEL[0]}{_CONTRACTION}?|{_CAMEL[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CAMEL_END}"
_YOUTU = rf"{_CAMEL[0]}{_CONTRACTION}?|{_CAMEL[1]}{_CONTRACTION}?|\p{{N}}|{_CAMEL_END}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# Kimi's Chinese characters are pieces of their own, so words are without them.
_KIMI_UPPER, _KIMI_LOWER = (rf"{letters[:-1]}&&[^\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_KIMI_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?"
)
_KIMI = rf"\p{{Han}}+|{_KIMI_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES_AND_SPACES}"

_CHINESE_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_MARKED_WORD = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES_AND_SPACES}"
_SPARK = rf"{_MARKED_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}"
_DEEPSEEK_HAN = "[一-龥\u0800-一가-\ud7ff]+"
# Cased letters up to Unicode 11, as DeepSeek LLM's tokenizer.json lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴ"
    "ᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_ASIAN_SCRIPTS = "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-๿\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
_YOUTU_SCRIPTS = f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CHINESE_AND_KANA}"


def _threes_from_the_end(digit: str) -> tuple[str, str]:
    # The first one or two of a piece of digits; the rest is then cut from the left. A lookahead for each three would
    # read the whole piece every time.
    return rf"\A{digit}{{1,2}}(?=(?:{digit}{{3}})++\z)", f"{digit}{{3}}"


_BY_NAMES: tuple[tuple[str, SplittingRule], ...] = (
    # What llama.cpp does for files that name no rule.
    ("default", SplittingRule((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}"))),
    ("gpt-2 gpt2 phi-2 gigachat a.x-4.0 mellum modern-bert roberta-bpe jais exaone4 trillion", SplittingRule((_GPT2,))),
    ("jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code granite-docling", SplittingRule((_GPT2,))),
    ("mpt olmo", SplittingRule((_GPT2,), composed=True)),
    ("smollm starcoder refact codeshell exaone minerva-7b mellum2", SplittingRule((_NUMERAL, _GPT2))),
    ("command-r", SplittingRule((_NUMERAL, _GPT2), composed=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        SplittingRule((_LLAMA3,), whole=True, adds_bos=True),
    ),
    ("smaug-bpe dbrx chatglm-bpe", SplittingRule((_LLAMA3,))),
    ("glm4 glm5", SplittingRule((_LLAMA3,), whole=True)),
    ("minicpm5", SplittingRule((_UP_TO_THREE, _MINICPM5), whole=True)),
    ("jais-2", SplittingRule((_JAIS2,))),
    ("qwen2 deepseek-r1-qwen megrez f2llmv2 stablelm2", SplittingRule((_QWEN2,), composed=True)),
    ("kormo hunyuan solar-open grok-2", SplittingRule((_QWEN2,))),
    # llama.cpp's vectors for this rule are without NFC, although the model's own tokenizer has it.
    ("qwen35", SplittingRule((_QWEN35,))),
    ("ufakzeka", SplittingRule((_UFAKZEKA,))),
    ("laguna", SplittingRule((_NEWLINES, _QWEN2))),
    ("bailingmoe bailingmoe2 llada-moe", SplittingRule((_BAILING,))),
    ("seed-coder", SplittingRule((_SEED_CODER,))),
    ("exaone-moe", SplittingRule((_EXAONE_MOE,))),
    ("tekken", SplittingRule((_TEKKEN,), whole=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", SplittingRule((_GPT4O,))),
    ("granite-embed-multi-97m", SplittingRule((_GPT4O,), whole=True)),
    ("youtu", SplittingRule((_YOUTU_SCRIPTS, _YOUTU), whole=True)),
    # Only runs of digits at the end of a word are cut from the end, so they are pieces of their own first.
    ("tiny_aya cohere2moe", SplittingRule((r"(?<!\d)\d++\b", _threes_from_the_end(r"\d")[0], _GPT4O))),
    ("kimi-k2", SplittingRule((_KIMI,))),
    (
        "deepseek-llm",
        SplittingRule(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"(?<!\s)\s++$",
                _DEEPSEEK_HAN,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", SplittingRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, _NUMERAL))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", SplittingRule((_UP_TO_THREE, _CHINESE_AND_KANA, _DEEPSEEK3))),
    ("spark2_5", SplittingRule((_UP_TO_THREE, _CHINESE_AND_KANA, _SPARK, _NUMERAL))),
    ("afmoe", SplittingRule((r"\p{N}+", *_threes_from_the_end(_NUMERAL), _ASIAN_SCRIPTS, _DEEPSEEK3))),
    ("superbpe", SplittingRule((r"\p{N}+", *_threes_from_the_end(r"\d")))),
    ("falcon", SplittingRule((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9]{3}"))),
    ("poro-chat bloom gpt3-finnish", SplittingRule((_BLOOM,))),
    ("viking", SplittingRule((_BLOOM, _NUMERAL))),
    (
        "chameleon",
        SplittingRule(
            (
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                _NUMERAL,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", SplittingRule((_NEWLINES,), alphabet="marked", needs_bos=True)),
    ("sarvam-moe", SplittingRule((_NEWLINES,), alphabet="marked")),
    ("whitespace", SplittingRule((), alphabet="words")),
)
RULES = {name: rule for names, rule in _BY_NAMES for name in names.split()}
"""The rule of each name."""

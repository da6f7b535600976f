"""Vocabularies of GGUF files with merges (tokenizer.ggml.model = gpt2, gemma4, whitespace) as a BPE."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo_inference.checkpoints.gguf_header import Strings
from octavo_inference.common.errors import ModelError
from octavo_inference.tokenizer.added_tokens import add_tokens
from octavo_inference.tokenizer.splitting import SplittingRule
from octavo_inference.tokenizer.vocabulary import HINT, SPACE, UNKNOWN, GgufVocabulary


def bpe_tokenizer(vocabulary: GgufVocabulary, rule: SplittingRule) -> Tokenizer:
    """A tokenizer without its post-processor. Raises `ModelError` for merges that do not fit the vocabulary."""
    marked = rule.alphabet == "marked"
    merges = _merges(vocabulary)
    try:
        model = models.BPE(
            vocab={token: index for index, token in enumerate(vocabulary.tokens)},
            merges=merges,
            ignore_merges=rule.whole,
            unk_token=None if rule.alphabet == "bytes" else _unknown(vocabulary),
            fuse_unk=marked,
            byte_fallback=marked and vocabulary.has_bytes,
        )
    except Exception as error:
        raise ModelError(f"{vocabulary.path}: vocabulary and merges do not fit: {error}") from error
    tokenizer = Tokenizer(model)
    if marked:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(steps)
    elif rule.alphabet == "words":
        if vocabulary.flag("normalizer.lowercase", default=False):
            tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.decoder = decoders.Fuse()
    else:
        if rule.composed:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = splitter(rule)
    add_tokens(tokenizer, vocabulary)
    return tokenizer


def _merges(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    merges = vocabulary.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, Strings):
        raise ModelError(f"{vocabulary.path}: tokenizer.ggml.merges is missing; {HINT}")
    pairs = []
    for merge in merges.read():
        # The left token may start with a space.
        at = merge.find(" ", 1)
        if at < 0 or at == len(merge) - 1:
            raise ModelError(f"{vocabulary.path}: merge {merge!r} is not two tokens separated by a space")
        pairs.append((merge[:at], merge[at + 1 :]))
    return pairs


def _unknown(vocabulary: GgufVocabulary) -> str | None:
    index = vocabulary.named("unknown")
    return next(iter(vocabulary.of_type(UNKNOWN)), None) if index is None else vocabulary.tokens[index]


def splitter(rule: SplittingRule) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into pieces by a rule, and writes them in the characters of its vocabulary."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split), behavior="isolated") for split in rule.splits
    ]
    if rule.alphabet == "bytes":
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    elif rule.alphabet == "words":
        steps.append(pre_tokenizers.WhitespaceSplit())
    return pre_tokenizers.Sequence(steps)

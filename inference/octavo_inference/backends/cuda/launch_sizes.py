"""The sizes that steps are launched in: few, so that each is recorded once, as a graph or as a list of launches.

Decodes are padded to a multiple of 8 sequences, from 8 on. Steps that read prompts are padded to one of 17 numbers of
tokens up to 2,048, above that to a multiple of 256, and to one of a few numbers of sequences. Padding tokens are
computed and stored nowhere. Steps with adapters have the same sizes, and graphs and lists of their own.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_inference.backends.cuda.buffers import StepLimits
from octavo_inference.backends.cuda.inputs import LaunchSize

_DECODES_ROUND = 8
_FEWEST_TOKENS, _TOKENS_ROUND, _FEWEST_SEQUENCES, _SEQUENCES_FACTOR = 16, 256, 8, 8
_MOST_TOKENS = 2048
"""Most tokens of a graph: computing more takes longer than launching it, even in a small model."""


def decode_sizes(limits: StepLimits) -> tuple[list[LaunchSize], list[LaunchSize]]:
    """For the start: powers of two and the maximum. For later: the multiples of 8 between them. Largest first."""
    most = min(limits.rows, limits.tokens)
    first = {2**i for i in range(most.bit_length())} | {most}
    later = set(range(_DECODES_ROUND, most, _DECODES_ROUND)) - first
    return [_decodes(n) for n in sorted(first, reverse=True)], [_decodes(n) for n in sorted(later, reverse=True)]


def prompt_sizes(limits: StepLimits) -> list[LaunchSize]:
    """Sizes of steps with prompts up to 2,048 tokens, those of the fewest sequences first."""
    most = min(limits.tokens, _MOST_TOKENS)
    found, tokens = set[LaunchSize](), 1
    while tokens <= most:
        tokens = _tokens(tokens, limits)
        found |= {LaunchSize(n, tokens, n, "mixed") for n in _sequences(tokens, limits)}
        fewest = _sequences(tokens, limits)[0]
        found.add(LaunchSize(fewest, tokens, fewest, "prompts"))
        tokens += 1
    return sorted(found)


def padded(size: LaunchSize, limits: StepLimits) -> LaunchSize:
    """The size that a step of an exact size is launched in."""
    found = _padded(size, limits)
    return replace(found, adapted=True) if size.adapted else found


def _padded(size: LaunchSize, limits: StepLimits) -> LaunchSize:
    if size.kind == "decodes" and size.samples <= size.sequences:
        count = -(-size.sequences // _DECODES_ROUND) * _DECODES_ROUND
        return _decodes(size.sequences if size.sequences < _DECODES_ROUND else min(count, limits.rows, limits.tokens))
    tokens = _tokens(max(size.tokens, size.samples), limits)
    choices = _sequences(tokens, limits)
    rows = next((n for n in choices if n >= max(size.sequences, size.samples)), None)
    if rows is None:  # more answers to one prompt than the step has tokens
        return LaunchSize(size.sequences, size.tokens, size.samples, "mixed")
    return LaunchSize(rows, tokens, rows, "prompts" if size.kind == "prompts" and rows == choices[0] else "mixed")


def _decodes(count: int) -> LaunchSize:
    return LaunchSize(count, count, count, "decodes")


def _tokens(count: int, limits: StepLimits) -> int:
    """Round up: to a power of two or the middle between two up to 512, then to a multiple of 256."""
    power = max(_FEWEST_TOKENS, 1 << (count - 1).bit_length())
    if power > 2 * _TOKENS_ROUND:
        rounded = -(-count // _TOKENS_ROUND) * _TOKENS_ROUND
    else:
        rounded = power * 3 // 4 if power > _FEWEST_TOKENS and count <= power * 3 // 4 else power
    return min(rounded, limits.tokens)


def _sequences(tokens: int, limits: StepLimits) -> list[int]:
    """Numbers of sequences of steps with this many tokens: 8, 64, ... and the maximum."""
    most = min(tokens, limits.rows)
    found, count = [], _FEWEST_SEQUENCES
    while count < most:
        found.append(count)
        count *= _SEQUENCES_FACTOR
    return [*found, most]

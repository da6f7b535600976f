"""Jump ahead: tokens that follow in any case are appended without a sample, and computed together in one chunk.

At each of their places the mask would allow one id alone, so sampling would choose it: only time changes. The idea is
SGLang's (Zheng et al. 2024).
"""

from __future__ import annotations

from octavo_inference.core.sequence import Sequence


def jumps(sequence: Sequence) -> bool:
    """False where the sampler may still rule out a forced token, or has to report its log-probability."""
    return sequence.guide is not None and not sequence.rules.changes_logits and not sequence.logprobs


def forced_tokens(sequence: Sequence, room: int, vocab: int) -> list[int]:
    """The next tokens of a sequence, if they are certain: at most `room`. Advances its guidance by them.

    Ends before a stop id, which is sampled and ends the answer. And before an id from `vocab` on, those of the model
    itself: the sampler knows whether there is such a token. Raises `RequestError`.
    """
    guide = sequence.guide
    found: list[int] = []
    while guide is not None and len(found) < room:
        forced = guide.forced()
        if not forced:
            break
        for token in forced[: room - len(found)]:
            if token >= vocab or token in sequence.ends or token in sequence.stops:
                return found
            guide.advance(token)
            found.append(token)
    return found

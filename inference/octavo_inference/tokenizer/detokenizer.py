"""Incremental detokenization: emits whole characters only, and never a part of a stop string.

Independent of HTTP and engine: used by the API process and by the offline `LLM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from octavo_inference.core.request import FinishReason, Output, SamplingParams, TokenLogprobs

# Prompt tokens shown to the decoder before the first new one: enough for decoders that treat the start of a text
# differently (a leading space of SentencePiece vocabularies).
_CONTEXT_TOKENS = 6
# Tokens after which incomplete bytes are emitted as U+FFFD. A UTF-8 character has at most 4 bytes, so at most 3 tokens
# wait for its end.
_MAX_PENDING = 8
_UNFINISHED = 3


class Delta(msgspec.Struct, frozen=True):
    """The part of a sequence's answer that one engine output adds.

    `text` may be empty while characters or a possible stop string are held back. `tokens` and `logprobs` are the
    output's without those after a stop string; the stop token or end-of-sequence token counts but has no text, unless
    the request includes it.
    """

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Detokenizer:
    """The text of one sequence, grown output by output.

    When `Delta.finish_reason` is set although the output's was not, a stop string was found: the caller aborts the
    sequence in the engine and pushes nothing more.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        skip_special_tokens: bool = True,
        include_stop: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._decoder = TokenDecoder(tokenizer, prompt, skip_special_tokens=skip_special_tokens, shown=shown)
        self._finder = StopFinder(stop)
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._count = 0

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        shown: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """The detokenizer of one answer to `prompt` (token ids). `shown` as for `TokenDecoder`."""
        return cls(
            tokenizer,
            prompt,
            sampling.stop,
            sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
            include_stop=sampling.include_stop_str_in_output,
            shown=shown,
        )

    def push(self, output: Output) -> Delta:
        """The text that `output` completes, in order; everything that is held back is flushed at its finish reason."""
        parts: list[str] = []
        shown = len(output.tokens)
        if output.finish_reason == "stop" and shown and not self._include_stop:
            shown -= 1
        for used, token in enumerate(output.tokens[:shown], 1):
            self._count += 1
            text = self._decoder.push(token)
            if text:
                found = self._find(text, parts)
                if found is not None:
                    return self._stopped(output, used, parts, found)
        if output.finish_reason is not None:
            found = self._find(self._decoder.flush(), parts)
            if found is not None:
                return self._stopped(output, shown, parts, found)
            parts.append(self._finder.flush())
        return Delta("".join(parts), output.tokens, output.logprobs, output.finish_reason, output.stop_reason)

    def _find(self, text: str, parts: list[str]) -> str | None:
        if self._count < self._min_tokens:
            parts.append(text)
            return None
        clear, found = self._finder.push(text)
        parts.append(clear)
        return found

    def _stopped(self, output: Output, used: int, parts: list[str], found: str) -> Delta:
        logprobs = output.logprobs[:used] if output.logprobs is not None else None
        if self._include_stop:
            parts.append(found)
        return Delta("".join(parts), output.tokens[:used], logprobs, "stop", found)


class TokenDecoder:
    """tokenizers' `DecodeStream`, extended: bytes that never become a character are emitted as U+FFFD.

    `shown` are special tokens that have a text although others are skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._hidden: frozenset[int] = frozenset()
        if shown and skip_special_tokens:
            # The library skips all or none: here it gets none of those to skip.
            self._skip = False
            self._hidden = _special_ids(tokenizer) - shown
        context = [token for token in prompt[-_CONTEXT_TOKENS:] if token not in self._hidden]
        if context and tokenizer.decode(context, skip_special_tokens=self._skip).endswith("\ufffd"):
            context = []
        self._stream = DecodeStream(ids=context, skip_special_tokens=self._skip)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Text completed by `token`, empty while a character is incomplete."""
        if token in self._hidden:
            return ""
        self._pending.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:  # noqa: BLE001 -- the library raises plain Exception when earlier bytes decode differently now
            return self.flush()
        if text is not None:
            self._pending.clear()
            return text
        return self._give_up() if len(self._pending) > _MAX_PENDING else ""

    def _give_up(self) -> str:
        # No character ends among the pending tokens, or it had been shown; only the last three can be one's beginning.
        lost, self._pending = self._pending[:-_UNFINISHED], self._pending[-_UNFINISHED:]
        self._stream = DecodeStream(ids=self._pending, skip_special_tokens=self._skip)
        return self._tokenizer.decode(lost, skip_special_tokens=self._skip)

    def flush(self) -> str:
        """Text of what is held back, incomplete bytes as U+FFFD."""
        if not self._pending:
            return ""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=self._skip)
        self._pending.clear()
        self._stream = DecodeStream(ids=[], skip_special_tokens=self._skip)
        return text


def _special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)


class StopFinder:
    """Finds the first stop string in text that arrives in pieces, in time linear in the text.

    One Knuth-Morris-Pratt automaton per stop string; text that may be the start of one is held back. The match that
    ends first wins, the longest of several.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [(s, _borders(s)) for s in sorted(set(stop), key=len, reverse=True) if s]
        self._state = [0] * len(self._stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string found or None). After a find nothing more may be pushed."""
        if not self._stop:
            return text, None
        held = self._held + text
        start = len(self._held)
        for position in range(start, len(held)):
            found = self._advance(held[position])
            if found is not None:
                return held[: position + 1 - len(found)], found
        keep = max(self._state)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], None

    def flush(self) -> str:
        """The text that is held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        for i, (string, borders) in enumerate(self._stop):
            state = self._state[i]
            while state and string[state] != character:
                state = borders[state - 1]
            if string[state] == character:
                state += 1
                if state == len(string):
                    return string
            self._state[i] = state
        return None


def _borders(string: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its suffix (the KMP failure function)."""
    borders = [0] * len(string)
    k = 0
    for i in range(1, len(string)):
        while k and string[i] != string[k]:
            k = borders[k - 1]
        if string[i] == string[k]:
            k += 1
        borders[i] = k
    return borders


@cache
def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE vocabularies (GPT-2's `bytes_to_unicode`, inverted)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token, also when they are not a whole character; special tokens as written."""
    name = tokenizer.id_to_token(token)
    if name is None:
        return b""
    added = tokenizer.get_added_tokens_decoder() if name.startswith(("<", "[")) else {}
    if token in added:
        return name.encode()
    decoder = type(tokenizer.decoder).__name__
    if decoder == "WordPiece":
        return name[2:].encode() if name.startswith("##") else f" {name}".encode()
    if decoder == "ByteLevel":
        alphabet = _byte_alphabet()
        if all(c in alphabet for c in name):
            return bytes(alphabet[c] for c in name)
        return name.encode()
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()

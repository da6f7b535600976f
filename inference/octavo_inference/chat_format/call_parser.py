"""The state machine of all formats but harmony: text, and in it blocks of calls.

    text --a start marker--> block --its end--> text
                              |
                              +--no call: the characters read since the last call are text after all

A block is a coroutine (`readers.Reader`) that gets one character at a time, so that nothing depends on how an answer is
cut into pieces. Each character is read once, and the last ones of what was no block a second time, as many as the
longest marker has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.events import Event
from octavo_inference.chat_format.readers import END, NotACallError, Reader, prefixes
from octavo_inference.chat_format.tools import ToolSpec

Block = Callable[[Calls, str], Reader[str]]
"""Reads a block behind its start marker. Returns the first character behind the block, END at the answer's end."""


class CallParser:
    """An `AnswerParser`.

    A block begins at one of the markers `starts` anywhere in the text, or at a character of `bare` as the first of the
    answer. `hidden` are markers that the vocabulary has as special tokens: they are never shown as text.
    """

    in_reasoning = False

    def __init__(
        self, tools: Sequence[ToolSpec], block: Block, starts: Collection[str], bare: str, hidden: Collection[str]
    ) -> None:
        self._calls = Calls(tools)
        self._new_block = block
        self._starts = frozenset(starts)
        self._bare = frozenset(bare)
        self._hidden = frozenset(hidden)
        self._markers = self._starts | self._hidden
        self._prefixes = prefixes(self._markers)
        self._first = re.compile("|".join(sorted({re.escape(marker[0]) for marker in self._markers})) or r"(?!)")
        self._longest = max(map(len, self._markers), default=1)
        # In text: what may be the beginning of a marker.
        self._tail = ""
        # In a block.
        self._block: Reader[str] | None = None
        # While characters of what was no block are read again.
        self._is_past = False

    def push(self, text: str) -> list[Event]:
        """See `AnswerParser`."""
        position = 0
        while position < len(text):
            if self._block is None and not self._tail and not self._calls.at_start:
                # Up to what may begin a marker, at once.
                found = self._first.search(text, position)
                end = found.start() if found else len(text)
                if end > position:
                    self._calls.text(text[position:end])
                    position = end
                    continue
            self._step(text[position])
            position += 1
        return self._calls.take()

    def finish(self) -> list[Event]:
        """See `AnswerParser`. Of an unfinished call, what the model wrote of its arguments stays."""
        while self._block is not None:
            self._step(END)
        self._calls.text(self._tail)
        self._tail = ""
        self._calls.finish()
        return self._calls.take()

    def _step(self, character: str) -> None:
        if self._block is None:
            self._read_text(character)
            return
        if character:
            self._calls.held.append(character)
        try:
            self._block.send(character)
        except StopIteration as end:
            self._block = None
            self._calls.held.clear()
            if end.value:
                self._read_text(end.value)
        except NotACallError:
            self._block = None
            if character is END and self._calls.is_open:
                self._calls.held.clear()
            else:
                self._calls.abandon()
                self._read_again()

    def _read_text(self, character: str) -> None:
        if not self._tail and character in self._bare and self._calls.at_answer_start and not self._is_past:
            self._begin(character)
            return
        tail = self._tail + character
        while tail and tail not in self._prefixes:
            if tail in self._starts and not self._is_past:
                self._tail = ""
                self._begin(tail)
                return
            if tail in self._hidden:
                tail = ""
            else:
                self._calls.text(tail[0])
                tail = tail[1:]
        self._tail = tail

    def _begin(self, marker: str) -> None:
        self._calls.marker = marker
        self._block = self._new_block(self._calls, marker)
        next(self._block)

    def _read_again(self) -> None:
        """Read the held characters as text. Only the last ones may begin another block, so that this takes no time."""
        held = self._calls.held[:]
        self._calls.held.clear()
        if self._calls.marker not in self._hidden:
            self._calls.text(self._calls.marker)
        self._calls.marker = ""
        past = max(len(held) - self._longest, 0)
        self._is_past = True
        for character in held[:past]:
            self._read_text(character)
        self._is_past = False
        for character in held[past:]:
            self._step(character)

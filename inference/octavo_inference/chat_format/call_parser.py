"""The state machine of all formats but harmony: text, and in it blocks of calls.

    text --a start marker--> block --its end--> text
                              |
                              +--no call: the characters read since the last call are text after all

A block is a coroutine (`readers.Reader`) that gets one character at a time, or none of a run that it only passes on, so
that nothing depends on how an answer is cut into pieces. Each character is read once, and the last ones of what was no
block a second time, as many as the longest marker has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from octavo_inference.chat_format.calls import Calls
from octavo_inference.chat_format.events import Event, Text
from octavo_inference.chat_format.readers import END, NotACallError, PlainRun, Reader, finder
from octavo_inference.chat_format.tools import ToolSpec

Block = Callable[[Calls, str], Reader[str]]
"""Reads a block behind its start marker. Returns the first character behind the block, END at the answer's end."""

_NO_SPACE = re.compile(r"\S")


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
        self._find = finder(self._markers)
        self._longest = max(map(len, self._markers), default=1)
        # In text: what may be the beginning of a marker.
        self._tail = ""
        # In a block, and the run that it passes on now.
        self._block: Reader[str] | None = None
        self._run: PlainRun | None = None

    def push(self, text: str) -> list[Event]:
        """See `AnswerParser`."""
        if self._block is None and not self._tail and not self._calls.at_start and self._find(text) is None:
            return [Text(text)] if text else []
        if self._tail:
            text, self._tail = self._tail + text, ""
        self._read(text)
        return self._calls.take()

    def finish(self) -> list[Event]:
        """See `AnswerParser`. Of an unfinished call, what the model wrote of its arguments stays."""
        while self._block is not None:
            self._step(self._block, END)
        self._calls.text(self._tail)
        self._tail = ""
        self._calls.finish()
        return self._calls.take()

    def _read(self, text: str, past: int = 0) -> None:
        """Read a piece of the answer, of which the first `past` characters begin no block."""
        position = 0
        while position < len(text):
            if self._block is None:
                position = self._read_text(text, position, past)
                continue
            run = self._run
            found = None if run is None else run.match(text, position)
            if run is None or found is None:
                self._step(self._block, text[position])
                position += 1
            else:
                self._calls.held.append(found[0])
                run.sink(found[0])
                position = found.end()

    def _read_text(self, text: str, position: int, past: int) -> int:
        """Read text up to a block or the end. Returns the position behind what is read."""
        if self._tail:
            # Behind what was no block. As much as tells whether it is a marker: the rest of the text is not copied.
            tail, self._tail = self._tail, ""
            self._read_text(tail + text[position], 0, 0)
            return position + 1
        if self._bare and self._calls.at_answer_start:
            first = _NO_SPACE.search(text, max(position, past))
            if first is not None and first[0] in self._bare:
                self._calls.text(text[position : first.start()])
                if self._calls.at_answer_start:
                    self._begin(first[0])
                    return first.end()
                position = first.start()
        found = self._find(text, position)
        end = found.start() if found else len(text)
        if end > position:
            self._calls.text(text[position:end])
        if found is None:
            return end
        marker = found[0]
        if marker in self._starts and found.end() > past:
            self._begin(marker)
        elif marker not in self._markers:
            self._tail = marker
        elif marker not in self._hidden:
            self._calls.text(marker)
        return found.end()

    def _step(self, block: Reader[str], character: str) -> None:
        """Read a character in a block."""
        if character:
            self._calls.held.append(character)
        try:
            self._run = block.send(character)
        except StopIteration as end:
            self._block = self._run = None
            self._calls.held.clear()
            if end.value:
                self._read(end.value)
        except NotACallError:
            self._block = self._run = None
            if character is END and self._calls.is_open:
                self._calls.held.clear()
            else:
                self._calls.abandon()
                self._read_again()

    def _begin(self, marker: str) -> None:
        self._calls.marker = marker
        self._block = self._new_block(self._calls, marker)
        self._run = next(self._block)

    def _read_again(self) -> None:
        """Read what is held as text. Only its last part may begin another block, so that this takes no time."""
        held = "".join(self._calls.held)
        self._calls.held.clear()
        if self._calls.marker not in self._hidden:
            self._calls.text(self._calls.marker)
        self._calls.marker = ""
        self._read(held, past=len(held) - self._longest)

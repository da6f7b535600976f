"""Chat templates: messages to prompt tokens, in a sandbox; user text never becomes a control token."""

from __future__ import annotations

import ctypes
import datetime as dt
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from tokenizers import Tokenizer

from octavo_inference.common.errors import ModelError, RequestError
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_inference.tokenizer.encoding import PromptTooLongError, ids_within, plain_tokenizer, surely_above
from octavo_inference.tokenizer.template_sandbox import MAX_CHARACTERS, TemplateSandbox

MAX_SECONDS = 2.0
_LONGEST_DATE = 1000
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

# Variables that a template always gets. `TemplateOptions.variables` cannot replace them.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"}
)
# Whitespace for `trim`, and in no template: it follows the end mark of a message that the template did not trim.
_UNTRIMMED = "\u2003"

# `'```json' + call['function']['arguments'] + '\n'`, without the filter tojson.
_CONCATENATED_ARGUMENTS = re.compile(
    r"""arguments(?:['"]\])?\s*\+|\+\s*[\w.'"\[\]]*arguments(?:['"]\])?(?!\s*[|.\w'"\]])"""
)

# Names that templates have for the thinking of an earlier answer.
_REASONING = ("reasoning_content", "reasoning", "thinking")

_ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, object]
Value = TypeVar("Value")


class TemplateOptions(TypedDict, total=False):
    """Arguments of a chat template besides the messages, named as in transformers' `apply_chat_template`.

    `add_generation_prompt` (default true) opens the assistant's answer. `continue_final_message` leaves the last
    message open instead, so that the answer continues it. `tools` and `documents` are JSON objects; `variables` are
    the template's own variables.
    """

    add_generation_prompt: bool
    continue_final_message: bool
    tools: Sequence[Mapping[str, object]] | None
    documents: Sequence[Mapping[str, object]] | None
    variables: Mapping[str, object] | None


class ChatTemplate:
    """A model's chat template together with its tokenizer.

    Rendering is that of transformers' `apply_chat_template` (same whitespace rules, helpers and filters). `now` is
    what `strftime_now` shows. Raises `ModelError` when the source is not a template.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], dt.datetime] = dt.datetime.now,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_seconds = max_seconds
        self._variables = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._control = ControlTokens(tokenizer)
        environment = TemplateSandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.add_filter("tojson", _tojson)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: _at(now(), form)
        self.source = source
        """The template's text."""
        self.text_arguments = _CONCATENATED_ARGUMENTS.search(source) is not None
        """True if the template writes the arguments of a call as the text that they are, not as an object."""
        self.reasoning_names = tuple(name for name in _REASONING if re.search(rf"(?:\.|\[['\"]){name}\b", source))
        """The fields of a message in which the template reads the thinking of an earlier answer."""
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
            self._sandbox = environment
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from None
        self._names = frozenset(jinja2.meta.find_undeclared_variables(tree)) - set(environment.globals)

    @property
    def variables(self) -> frozenset[str]:
        """The template's own variables, which `TemplateOptions.variables` may set."""
        return self._names - RESERVED

    def uses(self, name: str) -> bool:
        """True if the template reads this variable."""
        return name in self._names

    def tokens(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, **options: Unpack[TemplateOptions]
    ) -> list[int]:
        """Prompt tokens of a conversation.

        Every control token in the result comes from the template. One spelled out in a message, tool, document or
        variable (`<|im_end|>`) is encoded as plain characters: a marker character that occurs nowhere else is inserted
        into it, the template is rendered, control tokens are cut out, and the pieces between them are encoded as plain
        text without the marker. Raises `RequestError` when the template refuses the conversation or exceeds its time or
        size limit, and `PromptTooLongError` for a conversation far above `max_tokens`, before all of it is encoded.
        """
        mark, end = _unused_characters([messages, *_inserted(options)])

        def guard(text: str) -> str:
            return self._control.guard(text, mark)

        guarded = [
            {
                key: value if key == "role" and value in _ROLES else _mapped(value, guard)
                for key, value in message.items()
            }
            for message in messages
        ]
        given = options.copy()
        given["tools"] = _mapped(options.get("tools"), guard)
        given["documents"] = _mapped(options.get("documents"), guard)
        given["variables"] = _mapped(options.get("variables"), guard)
        text = self._render(guarded, given, end)
        if mark not in text:
            return ids_within(self._tokenizer, text, max_tokens, add_special_tokens=False)
        return self._control.encode_guarded(text, mark, max_tokens)

    def render(self, messages: Sequence[Message], **options: Unpack[TemplateOptions]) -> str:
        """The prompt as text, for people. Raises as `tokens` does."""
        _, end = _unused_characters([messages, *_inserted(options)])
        return self._render(messages, options, end)

    def _render(self, messages: Sequence[Message], options: TemplateOptions, end: str) -> str:
        open_ended = options.get("continue_final_message", False)
        if open_ended:
            messages = _with_end(messages, end)
        text = self._fill(
            {
                **(options.get("variables") or {}),
                **self._variables,
                "messages": messages,
                "tools": options.get("tools"),
                "documents": options.get("documents"),
                "add_generation_prompt": options.get("add_generation_prompt", True) and not open_ended,
            }
        )
        return _cut(text, end) if open_ended else text

    def _fill(self, variables: Mapping[str, object]) -> str:
        parts: list[str] = []
        size = 0
        try:
            self._sandbox.begin()
            with _time_limit(self._max_seconds):
                for part in self._template.generate(variables):
                    size += len(part)
                    if size > MAX_CHARACTERS:
                        break
                    parts.append(part)
        except _TooSlowError:
            raise RequestError(
                f"messages: the model's chat template took longer than {self._max_seconds:g} s", "messages"
            ) from None
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:
            # What the sandbox refuses is a TemplateError. An error of the template fails only this conversation.
            raise RequestError(f"messages: the model's chat template refuses them: {error}", "messages") from None
        if size > MAX_CHARACTERS:
            raise RequestError(f"messages: the prompt grows beyond {MAX_CHARACTERS} characters", "messages")
        return "".join(parts)


def load_chat_template(assets: TokenizerAssets, file: str | None, model: object) -> ChatTemplate | None:
    """The chat template in `file`, else the model's own; None without either. Raises `ModelError` naming the source."""
    source, origin = assets.chat_template, str(model)
    if file is not None:
        origin = f"chat-template {file}"
        try:
            source = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{origin}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if source is None:
        return None
    try:
        return ChatTemplate(source, assets.tokenizer, bos_token=assets.bos_token, eos_token=assets.eos_token)
    except ModelError as error:
        raise ModelError(f"{origin}: {error}") from None


def load_adapter_template(assets: TokenizerAssets, folder: Path) -> ChatTemplate:
    """The chat template of an adapter's folder. Raises `ModelError` for any that cannot be compiled."""
    try:
        return ChatTemplate(
            assets.chat_template or "", assets.tokenizer, bos_token=assets.bos_token, eos_token=assets.eos_token
        )
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    except Exception as error:
        # Brackets a thousand deep, numbers of a million digits: the compilers of Jinja and Python have limits.
        raise ModelError(f"{folder}: chat template: it cannot be compiled: {type(error).__name__}") from error


class ControlTokens:
    """The strings of a tokenizer's control tokens, and how to keep user text from turning into one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain: Tokenizer | None = None
        self._lock = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        self._ids = {token.content: index for index, token in added.items() if token.special and token.content}
        by_length = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        self._heads = {s[:i] for s in self._ids for i in range(1, len(s))}
        self._tails = {s[i:] for s in self._ids for i in range(1, len(s))}
        self._longest = len(by_length[0]) if by_length else 0

    def guard(self, text: str, mark: str) -> str:
        """`text` with `mark` inside every control token, and at ends that could become one with what is beside."""
        guarded = self._pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        inner = guarded.strip()
        if not inner:
            return guarded
        start = guarded.index(inner[0])
        end = start + len(inner)
        lengths = range(1, min(self._longest, len(inner) + 1))
        if any(inner[-k:] in self._heads for k in lengths):
            guarded = guarded[:end] + mark + guarded[end:]
        if any(inner[:k] in self._tails for k in lengths):
            guarded = guarded[:start] + mark + guarded[start:]
        return guarded

    def encode_guarded(self, text: str, mark: str, max_tokens: int | None = None) -> list[int]:
        """Tokens of a rendered text in which user text was guarded. Raises `PromptTooLongError`."""
        ids: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            ids += self.encode_plain(text[position : match.start()].replace(mark, ""), max_tokens)
            ids.append(self._ids[match[0]])
            position = match.end()
            if max_tokens is not None and len(ids) > surely_above(max_tokens):
                raise PromptTooLongError(len(ids), max_tokens)
        return ids + self.encode_plain(text[position:].replace(mark, ""), max_tokens)

    def encode_plain(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Tokens of `text` without a control token among them. Raises `PromptTooLongError`."""
        if not text:
            return []
        with self._lock:
            if self._plain is None:
                self._plain = plain_tokenizer(self._tokenizer)
        return ids_within(self._plain, text, max_tokens, add_special_tokens=False)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` of training templates marks the assistant's text; here only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TooSlowError(BaseException):
    """Thrown into the rendering thread. Not an `Exception`, so that no template construct swallows it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TooSlowError` in this thread once it has computed for `seconds`, also in loops that produce nothing.

    Measured in the thread's own CPU time, so that a busy machine does not fail a good template.
    """
    thread = threading.get_ident()
    clock = time.pthread_getcpuclockid(thread)
    end = time.clock_gettime(clock) + seconds
    lock = threading.Lock()
    finished = False
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def check() -> None:
        with lock:
            if finished:
                return
            left = end - time.clock_gettime(clock)
            if left <= 0:
                throw(ctypes.c_ulong(thread), ctypes.py_object(_TooSlowError))
                return
            _timer(left, check)

    timer = _timer(seconds, check)
    try:
        yield
    finally:
        with lock:
            finished = True
        # An error that was thrown and has not arrived yet does so here. It must not be taken back: CPython 3.11 would
        # look for one at each call and loop from then on, and hang under a profiler.
        timer.cancel()


def _timer(seconds: float, function: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def _with_end(messages: Sequence[Message], end: str) -> list[Message]:
    """The messages with `end` after the text of the last one."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise RequestError("continue_final_message: the last message has no text to continue", "continue_final_message")
    return [*messages[:-1], {**messages[-1], "content": content + end + _UNTRIMMED}]


def _cut(text: str, end: str) -> str:
    """`text` up to the end of the last message, without trailing space if the template trims messages."""
    head, found, tail = text.rpartition(end)
    if not found:
        raise RequestError(
            "continue_final_message: the model's chat template does not show the last message", "continue_final_message"
        )
    head = head.replace(end + _UNTRIMMED, "").replace(end, "")
    return head if tail.startswith(_UNTRIMMED) else head.rstrip()


def _inserted(options: TemplateOptions) -> list[object]:
    return [options.get("tools"), options.get("documents"), options.get("variables")]


def _mapped(value: Value, change: Callable[[str], str]) -> Value:
    """A JSON value with each text in it changed, names of fields included."""
    changed: Any = value
    if isinstance(value, str):
        changed = change(value)
    elif isinstance(value, Mapping):
        changed = {_mapped(key, change): _mapped(entry, change) for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        changed = [_mapped(entry, change) for entry in value]
    result: Value = changed
    return result


def _characters(value: object, found: set[str]) -> None:
    """Add the characters of all texts in a JSON value to `found`."""
    if isinstance(value, str):
        found.update(value)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _characters(key, found)
            _characters(entry, found)
    elif isinstance(value, list | tuple):
        for entry in value:
            _characters(entry, found)


def _unused_characters(values: Sequence[object]) -> tuple[str, str]:
    """Two characters that occur in none of the values."""
    used: set[str] = set()
    _characters(values, used)
    free = (chr(code) for block in _PRIVATE_USE for code in block if chr(code) not in used)
    first, second = next(free, None), next(free, None)
    if first is None or second is None:
        raise RequestError("messages: they use every private-use character of Unicode", "messages")
    return first, second


def _at(now: dt.datetime, form: str) -> str:
    # What strftime makes may have 256 times the length of its format.
    if len(form) > _LONGEST_DATE:
        raise ValueError(f"strftime_now: a format of {len(form)} characters; up to {_LONGEST_DATE} are possible")
    return now.strftime(form)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

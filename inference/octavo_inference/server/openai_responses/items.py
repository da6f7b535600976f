"""Items of a conversation, as requests give them and as responses hold them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from octavo_inference.server.errors import invalid
from octavo_inference.server.openai.responses import ChatLogprob

MAX_ITEMS = 4096
MISSING = "missing_required_parameter"

ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]


class InputTextPart(msgspec.Struct, tag="input_text", forbid_unknown_fields=True, frozen=True):
    """Text for the model."""

    text: str


class OutputTextPart(msgspec.Struct, tag="output_text", forbid_unknown_fields=True, frozen=True):
    """Text of an earlier answer. `annotations` and `logprobs` have no effect."""

    text: str
    annotations: Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS)] | None = None
    logprobs: list[dict[str, Any]] | None = None


class ReasoningTextPart(msgspec.Struct, tag="reasoning_text", forbid_unknown_fields=True, frozen=True):
    """Thinking of an earlier answer."""

    text: str


Part = InputTextPart | OutputTextPart | ReasoningTextPart
Content = Annotated[list[Part], Meta(max_length=MAX_ITEMS)]
ItemType = Literal["message", "item_reference", "function_call", "function_call_output", "reasoning"]


class InputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message with `role` and `content`, or a reference with the `id` of an item of a stored response.

    A `function_call` of an earlier answer has `call_id`, `name` and `arguments`, its `function_call_output` the same
    `call_id` and `output`. An item of the type `reasoning` has thinking as its `content`. `status`, `phase`, `summary`
    and `encrypted_content` occur in answers that a client sends back; they have no effect.
    """

    type: ItemType | None = None
    id: ItemId | None = None
    role: Role | None = None
    content: str | Content | None = None
    call_id: ItemId | None = None
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    arguments: str | None = None
    output: str | Annotated[list[InputTextPart], Meta(max_length=MAX_ITEMS)] | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    summary: Annotated[list[dict[str, Any]], Meta(max_length=MAX_ITEMS)] | None = None
    encrypted_content: str | None = None

    def check(self, param: str) -> None:
        """Raise `ApiError` about `param` for an item that lacks a field of its type, or has one of another type."""
        if self.is_reference:
            if self.id is None:
                raise invalid(f"{param}: a reference needs the field id.", f"{param}.id", MISSING)
            if self.role is not None or self.content is not None:
                raise invalid(f"{param}: a reference has an id only; leave out type for a message.", param)
        elif self.type in {None, "message"} and (self.role is None or self.content is None):
            raise invalid(f"{param}: a message needs role and content, a reference type and id.", param, MISSING)
        kind = "item_reference" if self.is_reference else self.type or "message"
        needed = _FIELDS[kind]
        for field in _ALL_FIELDS:
            given = getattr(self, field) is not None
            if given and field not in needed:
                raise invalid(
                    f"{param}.{field}: items of the type {kind} have none; leave it out.",
                    f"{param}.{field}",
                )
            if not given and field in needed and kind != "reasoning":
                raise invalid(f"{param}.{field}: this field is required.", f"{param}.{field}", MISSING)

    @property
    def is_reference(self) -> bool:
        """True for a reference; `type` may be left out if there is an id and nothing else."""
        only_id = self.id is not None and all(getattr(self, field) is None for field in _ALL_FIELDS)
        return self.type == "item_reference" or (self.type is None and only_id)


# Type -> the fields that its items have besides those of all types.
_FIELDS: dict[str, frozenset[str]] = {
    "message": frozenset({"role", "content"}),
    "item_reference": frozenset(),
    "function_call": frozenset({"call_id", "name", "arguments"}),
    "function_call_output": frozenset({"call_id", "output"}),
    "reasoning": frozenset({"content"}),
}
_ALL_FIELDS = tuple(sorted(frozenset.union(*_FIELDS.values())))


class ItemText(msgspec.Struct, tag="input_text", frozen=True):
    """Text of a message that the client wrote."""

    text: str


class AnswerText(msgspec.Struct, tag="output_text", frozen=True):
    """Text that the model wrote. `logprobs` is empty unless the request included them."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ChatLogprob] = []


class MessageItem(msgspec.Struct, tag="message", frozen=True):
    """A message of a conversation, in a stored input or in the output of a response."""

    id: str
    role: Role
    content: list[ItemText | AnswerText]
    status: ItemStatus = "completed"

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(part.text for part in self.content)


class ReasoningText(msgspec.Struct, tag="reasoning_text", frozen=True):
    """Thinking."""

    text: str


class ReasoningItem(msgspec.Struct, tag="reasoning", frozen=True):
    """Thinking before an answer. It is never summarized."""

    id: str
    content: list[ReasoningText]
    status: ItemStatus = "completed"
    summary: Annotated[list[None], Meta(max_length=0)] = []
    encrypted_content: None = None
    role: ClassVar[Role] = "assistant"

    @property
    def text(self) -> str:
        """The thinking as one string."""
        return "".join(part.text for part in self.content)


class FunctionCallItem(msgspec.Struct, tag="function_call", frozen=True):
    """A call of a function. `arguments` is a JSON object as text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"
    role: ClassVar[Role] = "assistant"

    @property
    def text(self) -> str:
        """What the prompt shows of it."""
        return f"{self.name} {self.arguments}"


class FunctionCallOutputItem(msgspec.Struct, tag="function_call_output", frozen=True):
    """The result of a call."""

    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"
    role: ClassVar[str] = "tool"

    @property
    def text(self) -> str:
        """What the prompt shows of it."""
        return self.output


OutputItem = MessageItem | ReasoningItem | FunctionCallItem
Item = OutputItem | FunctionCallOutputItem


def new_item_id(kind: Literal["msg", "rs", "fc", "fco"] = "msg") -> str:
    """A unique id of an item of an input, of a message by default."""
    return f"{kind}_{uuid.uuid4().hex}"


def conversation_item(item: InputItem) -> Item:
    """The item of an input item that is no reference. It keeps the client's id."""
    if item.type == "function_call":
        return FunctionCallItem(item.id or new_item_id("fc"), item.call_id or "", item.name or "", item.arguments or "")
    if item.type == "function_call_output":
        return FunctionCallOutputItem(item.id or new_item_id("fco"), item.call_id or "", "".join(_texts(item.output)))
    if item.type == "reasoning":
        texts = [ReasoningText(text) for text in _texts(item.content)]
        return ReasoningItem(item.id or new_item_id("rs"), texts)
    return message_item(item)


def _texts(given: str | Sequence[Part] | None) -> list[str]:
    return [given] if isinstance(given, str) else [part.text for part in given or ()]


def message_item(item: InputItem) -> MessageItem:
    """The message of an input item that is no reference. It keeps the client's id."""
    role: Role = item.role or "user"
    texts = _texts(item.content)
    kind = AnswerText if role == "assistant" else ItemText
    return MessageItem(item.id or new_item_id(), role, [kind(text) for text in texts])


def user_message(text: str) -> MessageItem:
    """The message of an input that is a text."""
    return MessageItem(new_item_id(), "user", [ItemText(text)])

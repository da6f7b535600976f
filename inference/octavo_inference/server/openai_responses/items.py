"""Items of a conversation: messages and references, as requests give them and as responses hold them."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

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


Content = Annotated[list[InputTextPart | OutputTextPart], Meta(max_length=MAX_ITEMS)]


class InputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message with `role` and `content`, or a reference with the `id` of an item of a stored response.

    `status` and `phase` occur in answers that a client sends back; they have no effect.
    """

    type: Literal["message", "item_reference"] | None = None
    id: ItemId | None = None
    role: Role | None = None
    content: str | Content | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    def check(self, param: str) -> None:
        """Raise `ApiError` about `param` for an item that is neither a message nor a reference."""
        if self.is_reference:
            if self.id is None:
                raise invalid(f"{param}: a reference needs the field id.", f"{param}.id", MISSING)
            if self.role is not None or self.content is not None:
                raise invalid(f"{param}: a reference has an id only; leave out type for a message.", param)
        elif self.role is None or self.content is None:
            raise invalid(f"{param}: a message needs role and content, a reference type and id.", param, MISSING)

    @property
    def is_reference(self) -> bool:
        """True for a reference; `type` may be left out if there is an id and nothing else."""
        only_id = self.id is not None and self.role is None and self.content is None
        return self.type == "item_reference" or (self.type is None and only_id)


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


def new_item_id() -> str:
    """A unique id of a message."""
    return f"msg_{uuid.uuid4().hex}"


def message_item(item: InputItem) -> MessageItem:
    """The message of an input item that is no reference. It keeps the client's id."""
    role: Role = item.role or "user"
    given = item.content or []
    texts = [given] if isinstance(given, str) else [part.text for part in given]
    kind = AnswerText if role == "assistant" else ItemText
    return MessageItem(item.id or new_item_id(), role, [kind(text) for text in texts])


def user_message(text: str) -> MessageItem:
    """The message of an input that is a text."""
    return MessageItem(new_item_id(), "user", [ItemText(text)])

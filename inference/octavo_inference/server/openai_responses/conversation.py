"""Turns the input of a request into a prompt: earlier responses, references, instructions, truncation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo_inference.answers.tools import Tools
from octavo_inference.common.errors import RequestError
from octavo_inference.server.errors import ApiError, invalid
from octavo_inference.server.openai_responses.items import (
    MAX_ITEMS,
    MISSING,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    Item,
    ReasoningItem,
    conversation_item,
    user_message,
)
from octavo_inference.server.openai_responses.request_body import InputFields
from octavo_inference.server.openai_responses.store import ResponseStore
from octavo_inference.server.planning import effort_variables, prompt_tokens
from octavo_inference.tokenizer.encoding import token_ids

if TYPE_CHECKING:
    from octavo_inference.server.service import Loaded
    from octavo_inference.tokenizer.chat_template import Message

# With truncation "auto" and no max_output_tokens, an eighth of the context stays free for the answer.
_ROOM = 8


async def conversation(body: InputFields, store: ResponseStore, tenant: str) -> list[Item]:
    """The items before the answer: those of the previous response and its answer, then the input's.

    Raises `ApiError` if there is nothing to answer, or a response or item is not stored.
    """
    items = _earlier(body.previous_response_id, store, tenant)
    if isinstance(body.input, str):
        items.append(user_message(body.input))
    else:
        items += await _resolved(body.input or [], store, tenant)
    if not items:
        raise invalid(
            "input: there is nothing to answer; give a text or at least one item.",
            "input",
            MISSING,
        )
    _check_calls(items, len(body.input) if isinstance(body.input, list) else 0)
    if len(items) > MAX_ITEMS:
        raise invalid(
            f"input: {len(items)} items with those of the previous response; the limit is {MAX_ITEMS}.", "input"
        )
    return items


def messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """The conversation as messages of the chat API; the instructions are the first one."""
    given: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        before = given[-1] if given and given[-1]["role"] == "assistant" else None
        if isinstance(item, FunctionCallOutputItem):
            given.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif isinstance(item, FunctionCallItem):
            function = {"name": item.name, "arguments": item.arguments}
            if before is None:
                given.append(before := {"role": "assistant", "content": ""})
            before["tool_calls"] = [
                *before.get("tool_calls", []),
                {"id": item.call_id, "type": "function", "function": function},
            ]
        elif isinstance(item, ReasoningItem):
            given.append({"role": "assistant", "content": "", "reasoning": item.text})
        elif item.role == "assistant" and before is not None and not before["content"] and "tool_calls" not in before:
            # Behind the thinking of the same answer.
            before["content"] = item.text
        else:
            given.append({"role": "system" if item.role == "developer" else item.role, "content": item.text})
    return list(given)


def prompt(
    loaded: Loaded,
    instructions: str | None,
    items: Sequence[Item],
    room: int | None,
    tools: Tools | None = None,
    *,
    guided: bool = False,
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """The prompt's tokens. Slow for a long conversation. `guided` as for `prompt_tokens`.

    With `room`, the number of tokens to keep free for the answer, items at the beginning are left out until the rest
    fits. The rest begins with a message of the user, as templates require. Raises `ApiError`.
    """

    def tokens(kept: Sequence[Item]) -> list[int]:
        return _about_input(
            lambda: prompt_tokens(loaded, messages(instructions, kept), tools, guided=guided, variables=variables)
        )

    if room is None:
        return tokens(items)
    limit = loaded.info.max_model_len - room
    first = _first_affordable(loaded, items, limit)
    starts = [start for start, item in enumerate(items) if start >= first and (not start or item.role == "user")]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if _fits(tokens, items[starts[middle] :], limit):
            high = middle
        else:
            low = middle + 1
    return tokens(items[starts[low] :] if starts else items[-1:])


def input_tokens(
    body: InputFields,
    loaded: Loaded,
    items: Sequence[Item],
    room: int | None,
    tools: Tools | None,
    *,
    guided: bool = False,
) -> list[int]:
    """The prompt's tokens of a request with these items. Slow for a long conversation."""
    effort = body.reasoning.effort if body.reasoning else None
    variables = effort_variables(effort, loaded.template("input"), "reasoning.effort")
    return prompt(loaded, body.instructions, items, room, tools, guided=guided, variables=variables)


def _fits(tokens: Callable[[Sequence[Item]], list[int]], items: Sequence[Item], limit: int) -> bool:
    try:
        return len(tokens(items)) <= limit
    except ApiError as error:
        if error.code != "context_length_exceeded":
            raise
        return False


def _first_affordable(loaded: Loaded, items: Sequence[Item], limit: int) -> int:
    """The first item from which on the texts alone, without the template, have at most `limit` tokens.

    What is tokenized is little more than the limit, however long the conversation is.
    """
    used = 0
    for number in range(len(items) - 1, -1, -1):
        text = items[number].text
        if len(text) // loaded.longest_token > limit:
            return number + 1
        used += len(token_ids(loaded.text.tokenizer, text, add_special_tokens=False))
        if used > limit:
            return number + 1
    return 0


def room_for(body: InputFields, limit: int, max_output_tokens: int | None) -> int | None:
    """Tokens to keep free for the answer with truncation "auto"; None without it."""
    if body.truncation != "auto":
        return None
    return max_output_tokens or limit // _ROOM


def _earlier(response_id: str | None, store: ResponseStore, tenant: str) -> list[Item]:
    if response_id is None:
        return []
    found = store.get(tenant, response_id)
    if found is None:
        raise invalid(
            f"Previous response with id {response_id!r} not found; "
            + (
                "send its conversation as input instead."
                if store.enabled
                else "this server stores no responses, so send its conversation as input instead."
            ),
            "previous_response_id",
            "previous_response_not_found",
        )
    if not found.is_final:
        raise invalid(
            f"previous_response_id: {response_id!r} is still running; wait for its end or cancel it.",
            "previous_response_id",
            "previous_response_not_final",
        )
    return found.conversation()


async def _resolved(given: list[InputItem], store: ResponseStore, tenant: str) -> list[Item]:
    """The messages of the input, in place of references those that they name."""
    for number, item in enumerate(given):
        item.check(f"input[{number}]")
    wanted = {item.id or "" for item in given if item.is_reference}
    stored: dict[str, Item] = {}
    for response_id in store.responses_with(tenant, wanted):
        if (response := store.get(tenant, response_id)) is not None:
            stored.update({item.id: item for item in response.conversation() if item.id in wanted})
        # Decoding takes milliseconds, and there may be many responses.
        await asyncio.sleep(0)
    items = []
    for number, item in enumerate(given):
        found = stored.get(item.id or "") if item.is_reference else conversation_item(item)
        if found is None:
            raise invalid(
                f"input[{number}].id: no stored response has an item with id {item.id!r}; send the message itself.",
                f"input[{number}].id",
                "item_not_found",
            )
        items.append(found)
    return items


def _check_calls(items: Sequence[Item], given: int) -> None:
    """Raise `ApiError` for a result of a call that is not in the conversation. The last `given` are of the input."""
    called = set()
    for number, item in enumerate(items, given - len(items)):
        if isinstance(item, FunctionCallItem):
            called.add(item.call_id)
        elif isinstance(item, FunctionCallOutputItem) and item.call_id not in called:
            param = f"input[{number}].call_id" if number >= 0 else "previous_response_id"
            raise invalid(f"{param}: no function_call before it has the call_id {item.call_id!r}; send it, too.", param)


def _about_input(work: Callable[[], list[int]]) -> list[int]:
    """Run `work`; its errors about `messages`, which a request does not have here, become errors about `input`."""
    try:
        return work()
    except ApiError as error:
        if error.param != "messages":
            raise
        message = error.message.replace("messages", "input")
        raise ApiError(error.status, message, param="input", code=error.code, headers=error.headers) from None
    except RequestError as error:
        raise invalid(str(error).replace("messages:", "input:", 1), "input") from None

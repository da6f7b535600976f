"""An id of a stored response names its replica."""

from __future__ import annotations

import pytest

from octavo_protocol.response_id import message_id, replica_tag, response_id, response_of_message, tag_of

UNIQUE = "0123456789abcdef" * 2


def test_the_tag_of_an_id_is_that_of_its_replica() -> None:
    assert tag_of(response_id("chat-0", UNIQUE)) == replica_tag("chat-0") != replica_tag("chat-1")


def test_a_name_longer_than_a_host_name_has_the_tag_of_the_host_name() -> None:
    assert replica_tag("x" * 100) == replica_tag("x" * 63)


@pytest.mark.parametrize(
    "given",
    ["", "resp_", f"resp_{UNIQUE}", f"msg_01234567{UNIQUE}", f"resp_01234567{UNIQUE}0", f"resp_0123456G{UNIQUE}"],
)
def test_other_texts_have_none(given: str) -> None:
    assert tag_of(given) is None


def test_the_id_of_a_message_leads_to_its_response() -> None:
    response = response_id("chat-0", UNIQUE)
    assert message_id(response).startswith("msg_")
    assert response_of_message(message_id(response)) == response


@pytest.mark.parametrize("given", ["", "msg_", f"msg_{UNIQUE}", f"resp_01234567{UNIQUE}", f"msg_resp_01234567{UNIQUE}"])
def test_other_ids_lead_to_none(given: str) -> None:
    assert response_of_message(given) is None

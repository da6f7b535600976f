"""An id of a stored response names its replica."""

from __future__ import annotations

import pytest

from octavo_protocol.response_id import (
    ITEM_KINDS,
    ItemKind,
    item_id,
    replica_tag,
    response_id,
    response_of_item,
    tag_of,
)

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


@pytest.mark.parametrize("kind", ITEM_KINDS)
def test_the_id_of_an_item_leads_to_its_response(kind: ItemKind) -> None:
    response = response_id("chat-0", UNIQUE)
    ids = [item_id(response, kind, number) for number in range(200)]
    assert len(set(ids)) == 200
    assert {response_of_item(one) for one in ids} == {response}
    assert all(one.startswith(f"{kind}_") for one in ids)


@pytest.mark.parametrize(
    "given",
    [
        *("", "msg_", f"msg_{UNIQUE}", f"fc_{UNIQUE}", f"resp_01234567{UNIQUE}", f"msg_resp_01234567{UNIQUE}"),
        *(f"fco_01234567{UNIQUE}", f"fc_01234567{UNIQUE}_", f"fc_01234567{UNIQUE}_0", f"rs_01234567{UNIQUE}_1_2"),
    ],
)
def test_other_ids_lead_to_none(given: str) -> None:
    assert response_of_item(given) is None

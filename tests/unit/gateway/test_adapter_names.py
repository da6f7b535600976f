"""Which model a name means: names of models, of their adapters, and names that are claimed twice."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_gateway.discovery.endpoints import Deployment, ModelTable, build, table
from octavo_gateway.pool.model_directory import ModelDirectory
from octavo_gateway.pool.pool_adapters import PoolAdapters
from octavo_protocol.adapters import AdapterReport


def names_of(*deployments, **adapters):
    """`adapters`: those of each deployment, by its name."""
    names = ModelDirectory()
    names.adopt(table(deployments))
    for name, found in adapters.items():
        names.claim(("ns", name), found)
    return names


def model(name, *aliases):
    return Deployment("ns", name, (name, *aliases))


def announced(text):
    metadata = {
        "namespace": "ns",
        "name": "d",
        "labels": {"octavo.dev/llmdeployment": "d"},
        "annotations": {"octavo.dev/models": "m", "octavo.dev/adapters": text},
    }
    return build([{"metadata": metadata}], []).find("m").adapters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("sql", ("sql",)),
        ("sql, org/legal ,sql", ("sql", "org/legal")),
        ("a b,,-c,ok:1,\n", ("ok:1",)),
        ("x" * 129, ()),
    ],
)
def test_the_annotation_names_adapters(text, expected):
    assert announced(text) == expected


def test_an_annotation_without_bound_is_cut():
    assert len(announced(",".join(f"a{n}" for n in range(300)))) == 256


def test_an_adapter_is_found_by_its_name():
    names = names_of(model("d"), d=("sql", "legal"))
    assert names.find("sql") == (("ns", "d"), "sql")
    assert names.find("d") == (("ns", "d"), "")
    assert names.find("nope") is None
    assert names.adapters(("ns", "d")) == ("legal", "sql")
    names.claim(("ns", "d"), ("legal",))
    assert names.find("sql") is None


@pytest.mark.parametrize("taken", ["d", "alias", "ns/d", "e", "ns/e"])
def test_a_models_own_name_precedes_an_adapters(taken, caplog):
    with caplog.at_level(logging.WARNING):
        names = names_of(model("d", "alias"), model("e"), d=(taken, "sql"))
        names.claim(("ns", "d"), (taken, "sql"))
    assert names.find(taken)[1] == ""
    assert names.adapters(("ns", "d")) == ("sql",)
    assert [record.getMessage().count(repr(taken)) for record in caplog.records] == [1]


def test_of_two_models_the_first_has_the_adapter(caplog):
    with caplog.at_level(logging.WARNING):
        names = names_of(model("d"), model("e"), e=("sql",), d=("sql",))
        names.adopt(names.table)
    assert names.find("sql") == (("ns", "d"), "sql")
    assert names.adapters(("ns", "e")) == ()
    (record,) = caplog.records
    assert "ns/d and ns/e: the first one" in record.getMessage()
    names.adopt(table([model("e")]))
    assert names.find("sql") == (("ns", "e"), "sql")


def test_a_new_model_takes_its_name_from_an_adapter(caplog):
    names = names_of(model("d"), d=("sql",))
    with caplog.at_level(logging.WARNING):
        names.adopt(table([model("d"), model("sql")]))
    assert names.find("sql") == (("ns", "sql"), "")
    assert "name of the model ns/sql" in caplog.text


NAMES = st.sampled_from(["d", "e", "f", "x", "y", "z", "ns/d"])
CHANGES = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from("def"), st.lists(NAMES, unique=True).map(tuple)),
    st.tuples(st.just("table"), st.just(""), st.lists(st.sampled_from("def"), unique=True).map(tuple)),
)


@given(st.lists(CHANGES, max_size=30))
def test_names_follow_the_rules_in_any_order_of_changes(changes):
    names, claims, present = ModelDirectory(), dict[str, tuple[str, ...]](), set[str]()
    for kind, owner, given_names in changes:
        if kind == "table":
            present = set(given_names)
            claims = {key: found for key, found in claims.items() if key in present}
            names.adopt(table(map(model, present)) if present else ModelTable())
        elif owner in present:
            claims[owner] = given_names
            names.claim(("ns", owner), given_names)
        own = {name: name for name in present} | {f"ns/{name}": name for name in present}
        for name in ("d", "e", "f", "x", "y", "z", "ns/d"):
            owners = sorted(key for key, found in claims.items() if name in found)
            expected = (("ns", own[name]), "") if name in own else (("ns", owners[0]), name) if owners else None
            assert names.find(name) == expected


LISTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["loading", "stored", "cached", "loaded", "failed"]))


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | LISTS), max_size=40))
def test_the_counts_of_states_are_those_of_the_replicas(changes):
    adapters, listed = PoolAdapters(("a", "z")), dict[int, dict[str, AdapterReport] | None]()
    for replica, states in changes:
        now = states and {name: AdapterReport(name=name, state=state) for name, state in states.items()}
        adapters.reported(listed.get(replica), now)
        listed[replica] = now
    found = [one for each in listed.values() for one in (each or {}).values()]
    assert set(adapters.names) == {"a", "z"} | {one.name for one in found}
    for name in "abcz":
        counts = Counter(one.state for one in found if one.name == name)
        assert adapters.states.get(name, Counter()) == counts
        assert adapters.is_listed(name) == bool(counts.keys() - {"failed"})
        assert adapters.has_failed(name) == (counts.keys() == {"failed"})

"""What the API server refuses, rule by rule and bound by bound, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.schema import crd
from octavo_operator.kube.client import KubeClient
from octavo_operator.kube.errors import RefusedError
from octavo_operator.kube.resources import LLMDEPLOYMENTS

from .bounds import violations

Json = dict[str, Any]
Make = Callable[..., Json]

REFUSALS: list[Json] = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())


def merged(base: Json, changes: Json) -> Json:
    both = {k: merged(base[k], v) for k, v in changes.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **changes, **both}


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row["rule"][:60])
async def test_rules_say_what_is_wrong(row: Json, kube: KubeClient, llmd: Make) -> None:
    valid = llmd(row.get("name", "tiny"))
    if "from" in row:
        await kube.apply(LLMDEPLOYMENTS, {**valid, "spec": merged(valid["spec"], row["from"])})
    with pytest.raises(RefusedError) as refused:
        await kube.apply(LLMDEPLOYMENTS, {**valid, "spec": merged(valid["spec"], row.get("spec", {}))})
    assert row.get("says", row["rule"]) in refused.value.message


async def test_every_bound_of_the_schema_is_held_and_names_its_field(kube: KubeClient, llmd: Make) -> None:
    version = crd()["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found = list(violations(schema, llmd()["spec"]))
    wrong = []
    for bad in found:
        try:
            await kube.create(LLMDEPLOYMENTS, {**llmd(), "spec": bad.spec})
        except RefusedError as error:
            if bad.path not in error.message:
                wrong.append(f"{bad.path} ({bad.bound}): {error.message[:300]}")
        else:
            wrong.append(f"{bad.path} ({bad.bound}): accepted")
    assert not wrong, "\n".join(wrong)
    # Far fewer would mean that the walk over the schema has lost its way.
    assert len(found) > 250

"""Resource profiles: what they fill in, who wins, and what an unknown one does to what serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.world import World, condition

from octavo_operator.api.profiles import Profiles, ProfilesError, completed, read
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.resources import config, deployment
from octavo_operator.resources.common import Installation

Json = dict[str, Any]
Make = Callable[..., LLMDeployment]
TEXT = """{
  "small": {"cpu": 2, "memory": "4Gi"},
  "spot": {"nodeSelector": {"pool": "spot", "arch": "amd64"}, "tolerations": [{"key": "spot", "operator": "Exists"}],
           "runtimeClassName": "kata", "priorityClassName": "low"}
}"""


@pytest.fixture
def profiles() -> Profiles:
    return read(TEXT)


def pod(owner: LLMDeployment, installation: Installation) -> Json:
    template: Json = deployment.pod_template(owner, installation, "c")["spec"]
    return template


def requests(owner: LLMDeployment, installation: Installation) -> Json:
    found: Json = pod(owner, installation)["containers"][0]["resources"]["requests"]
    return found


def test_a_profile_fills_in_what_is_left_open(make_owner: Make, profiles: Profiles, installation: Installation) -> None:
    owner = completed(make_owner({"resources": {"profile": "small"}}), profiles)
    assert requests(owner, installation) == {"cpu": "2", "memory": "4Gi"}
    assert config.server_settings(owner)["threads"] == 2
    spot = pod(completed(make_owner({"resources": {"profile": "spot"}}), profiles), installation)
    assert spot["nodeSelector"] == {"pool": "spot", "arch": "amd64"}
    assert spot["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert (spot["runtimeClassName"], spot["priorityClassName"]) == ("kata", "low")


def test_what_is_given_wins_over_the_profile(make_owner: Make, profiles: Profiles, installation: Installation) -> None:
    own = {"profile": "small", "cpu": "4"}  # even where it is the default
    assert requests(completed(make_owner({"resources": own}), profiles), installation) == {"cpu": "4", "memory": "4Gi"}
    scheduling = {"nodeSelector": {"arch": "arm64"}, "runtimeClassName": "gvisor"}
    spot = pod(
        completed(make_owner({"resources": {"profile": "spot"}, "scheduling": scheduling}), profiles), installation
    )
    assert spot["nodeSelector"] == {"pool": "spot", "arch": "arm64"}
    assert spot["runtimeClassName"] == "gvisor"


def test_a_profile_that_changes_restarts_nothing(make_owner: Make, profiles: Profiles) -> None:
    owner = make_owner({"resources": {"profile": "small"}})
    larger = {"small": profiles["small"].model_copy(update={"cpu": "3"})}
    assert completed(owner, profiles).revision == completed(owner, larger).revision == owner.revision
    assert make_owner({"resources": {"profile": "small", "cpu": "4"}}).revision != owner.revision
    assert make_owner({"resources": {"profile": "spot"}}).revision != owner.revision


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "dict"),
        ('{"a": {"gpus": 1}}', r"a\.gpus"),
        ('{"a": {"tolerations": [{"effect": "Never"}]}}', r"a\.tolerations\.0\.effect.*'Never'"),
        ('{"a": {"cpu": "four"}}', r"a\.cpu.*'four'"),
    ],
)
def test_profiles_that_cannot_be_understood_are_refused_at_the_start(text: str, message: str) -> None:
    with pytest.raises(ProfilesError, match=message):
        read(text)


def test_an_unknown_profile_makes_no_pod_and_says_which_there_are(
    make_owner: Make, profiles: Profiles, installation: Installation
) -> None:
    world = World(completed(make_owner({"resources": {"profile": "huge"}}), profiles), installation)
    decided = world.pass_()
    assert not {"Deployment", "Job"} & {kind for kind, _ in world.children}
    found = condition(decided, "SpecValid")
    assert (found["status"], found["reason"]) == ("False", "UnknownProfile")
    message = "spec.resources.profile: 'huge' is not a profile of this installation (there are: small, spot)"
    assert message in found["message"]
    assert condition(decided, "Ready")["reason"] == "UnknownProfile"


def test_what_runs_goes_on_without_its_profile(
    make_owner: Make, profiles: Profiles, installation: Installation
) -> None:
    small = {"resources": {"profile": "small"}}
    world = World(completed(make_owner(small), profiles), installation)
    for _ in range(5):
        world.pass_()
        world.run()
    before = world.children["Deployment", "tiny"]["spec"]["template"]
    world.owner = replace(completed(make_owner({**small, "replicas": 3}), {}), status=world.owner.status)
    decided = world.pass_()
    after = world.children["Deployment", "tiny"]["spec"]
    assert (after["replicas"], after["template"]) == (3, before)
    assert condition(decided, "SpecValid")["reason"] == "UnknownProfile"


def test_a_time_zone_that_only_the_api_server_knows_costs_its_schedule_alone(make_owner: Make) -> None:
    day = {"start": "0 8 * * *", "durationMinutes": 60, "minReplicas": 2}
    schedules = [{**day, "timeZone": "Mars/Olympus"}, day]
    scaling = {"mode": "Builtin", "maxReplicas": 3, "schedules": schedules}
    owner = completed(make_owner({"autoscaling": scaling}), {})
    assert [schedule.time_zone for schedule in owner.spec.autoscaling.schedules] == ["Etc/UTC"]
    assert owner.refusal is not None
    assert "spec.autoscaling.schedules[0].timeZone" in owner.refusal.message

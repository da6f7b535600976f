"""All pods of all specs keep within the restricted Pod Security standard: the checker, and what it is shown."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support.tiers import scaled

from octavo_operator.api.profiles import InstallationProfile, completed
from octavo_operator.api.resource import LLMDeployment, parse
from octavo_operator.resources import deployment, model_job
from octavo_operator.resources.common import Installation

from .pod_security import house_violations, violations
from .random_specs import specs

Json = dict[str, Any]
SPOT = InstallationProfile.model_validate(
    {"cpu": "2", "tolerations": [{"operator": "Exists"}], "runtimeClassName": "kata"}
)
INSTALLATION = Installation("octavo-server:1", "octavo-server-cpu:1", "octavo-system", profiles={"spot": SPOT})


def resource(spec: Json) -> LLMDeployment:
    meta = {"name": "tiny", "namespace": "models", "uid": "u1"}
    return completed(parse({"metadata": meta, "spec": spec}), INSTALLATION.profiles)


def pods(owner: LLMDeployment) -> list[Json]:
    """Every pod template that the operator makes for a resource, that of the server first."""
    job: Json = model_job.job(owner, INSTALLATION, model_job.Pins())["spec"]["template"]
    return [deployment.pod_template(owner, INSTALLATION, "settings"), job]


@settings(max_examples=scaled(50))
@given(specs())
def test_pods_of_any_spec_keep_within_the_standard(spec: Json) -> None:
    owner = resource(spec)
    for pod in (template["spec"] for template in pods(owner)):
        assert list(violations(pod)) == []
        assert list(house_violations(pod)) == []
        assert pod["serviceAccountName"] == owner.name
    serving = pods(owner)[0]["spec"]
    assert serving["terminationGracePeriodSeconds"] > owner.spec.drain.timeout_seconds
    assert serving["terminationGracePeriodSeconds"] > owner.spec.drain.propagation_seconds


def changed(pod: Json, path: str, value: Any) -> Json:
    pod = copy.deepcopy(pod)
    place: Any = pod
    *way, last = path.split(".")
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    place[last] = value
    return pod


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hostNetwork", True),
        ("hostPID", True),
        ("hostIPC", True),
        ("securityContext.runAsNonRoot", False),
        ("securityContext.runAsUser", 0),
        ("securityContext.seccompProfile", {"type": "Unconfined"}),
        ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
        ("securityContext.seLinuxOptions", {"type": "spc_t"}),
        ("securityContext.appArmorProfile", {"type": "Unconfined"}),
        ("volumes", [{"name": "root", "hostPath": {"path": "/"}}]),
        ("containers.0.securityContext", {}),
        ("containers.0.securityContext.privileged", True),
        ("containers.0.securityContext.allowPrivilegeEscalation", True),
        ("containers.0.securityContext.capabilities.drop", []),
        ("containers.0.securityContext.capabilities.add", ["SYS_ADMIN"]),
        ("containers.0.securityContext.procMount", "Unmasked"),
        ("containers.0.securityContext.windowsOptions", {"hostProcess": True}),
        ("containers.0.ports", [{"containerPort": 1, "hostPort": 1}]),
        ("containers.0.livenessProbe", {"httpGet": {"path": "/", "port": 1, "host": "169.254.169.254"}}),
    ],
)
def test_the_checker_sees_what_the_standard_forbids(path: str, value: Any) -> None:
    template, _ = pods(resource({"model": {"uri": "oci://r/m:1"}}))
    assert list(violations(changed(template["spec"], path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("automountServiceAccountToken", True),
        ("volumes", [{"name": "tmp", "emptyDir": {}}]),
        ("containers.0.securityContext.readOnlyRootFilesystem", False),
        ("containers.0.resources.limits", {"cpu": "1"}),
    ],
)
def test_the_checker_sees_what_the_house_forbids(path: str, value: Any) -> None:
    template, _ = pods(resource({"model": {"uri": "oci://r/m:1"}}))
    assert list(house_violations(changed(template["spec"], path, value)))

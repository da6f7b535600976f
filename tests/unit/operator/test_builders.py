"""Children as YAML: the golden files are what a person would review. `OCTAVO_UPDATE_GOLDEN=1` writes them anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.resource import LLMDeployment
from octavo_operator.observe.adapters import InspectedAdapter, wanted_list
from octavo_operator.resources import adapter_job, adapters, cache, config, deployment, model_job, protection, services
from octavo_operator.resources.common import Installation
from octavo_protocol.adapters import AdapterInspection
from octavo_protocol.model import ModelReport

_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
GOLDEN = Path(__file__).parent / "golden"
SPECS: dict[str, dict[str, Any]] = {
    "cpu-image-volume": {
        "engine": {"kv": {"memory": "512Mi"}, "maxModelLen": 4096},
        "resources": {"cpu": "2500m", "memory": "2Gi"},
    },
    "draft-model": {
        "model": {"uri": "pvc://weights/large"},
        "engine": {"speculation": {"method": "draft", "maxTokens": 4, "model": {"uri": "pvc://weights/small/v2"}}},
    },
    "draft-model-of-a-hub": {
        "model": {"uri": "hf://org/large", "credentialsSecretRef": {"name": "hub"}},
        "engine": {"speculation": {"method": "draft", "model": {"uri": "hf://org/small", "revision": "v2"}}},
    },
    "adapters": {
        "model": {
            "uri": "s3://models/team/llama",
            "credentialsSecretRef": {"name": "s3"},
            "adapters": [
                {"name": "sql", "uri": "s3://models/team/sql"},
                {"name": "org/chat", "uri": "hf://org/chat", "revision": "v2"},
            ],
        },
        "engine": {
            "adapters": {"maxRank": 16},
            "env": [{"name": "HF_ENDPOINT", "value": "http://hub.local:8080"}],
        },
    },
    "gpu-hub": {
        "model": {
            "uri": "hf://org/llama",
            "revision": "v1.0",
            "servedName": "llama",
            "aliases": ["gpt"],
            "credentialsSecretRef": {"name": "hub"},
        },
        "engine": {
            "env": [{"name": "HF_ENDPOINT", "value": "http://hub.local:8080"}, {"name": "HOME", "value": "/home"}],
            "extraArgs": ["--log-level=debug"],
            "scheduler": {"maxRunningRequests": 8},
            "kv": {"dtype": "fp8", "blockSize": 16, "memory": "40Gi"},
            "quantization": "fp8",
        },
        "resources": {"gpu": {"count": 1, "product": "NVIDIA-H100-80GB-HBM3", "minMemory": "80G"}},
        "routing": {"strategy": "Session", "maxLoadPercentOfMean": 150, "sessionHeader": "x-chat"},
        "drain": {"timeoutSeconds": 30, "propagationSeconds": 0},
        "scheduling": {"nodeSelector": {"zone": "a"}, "priorityClassName": "high"},
    },
    "gpus-that-share": {
        "model": {"uri": "pvc://weights/llama/70b"},
        "engine": {"parallelism": {"tensor": 4}},
        "resources": {"gpu": {"count": 4, "minMemory": "80G"}, "memory": "64Gi"},
    },
    "every-pod-field": {
        "model": {"chatTemplateConfigMapRef": {"name": "templates", "key": "short.jinja"}},
        "engine": {
            "profile": "throughput",
            "cachePolicy": "batch",
            "kv": {"memory": "1Gi", "blockSize": 64},
            "scheduler": {
                "maxRunningRequests": 100,
                "maxBatchedTokens": 2048,
                "maxQueuedRequests": 10,
                "prefillSlowdownPercent": 250,
                "batching": "static",
                "staticWaitMilliseconds": 20,
                "preemption": "swap",
                "swapMemory": "256Mi",
            },
            "envFrom": [{"secretRef": {"name": "proxy"}}, {"prefix": "SITE_", "configMapRef": {"name": "site"}}],
        },
        "resources": {
            "claims": [
                {"name": "nic", "resourceClaimTemplateName": "fast-nic"},
                {"name": "shared", "resourceClaimName": "shared-nic"},
            ]
        },
        "scheduling": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [
                {"operator": "Exists", "effect": "NoSchedule"},
                {"key": "spot", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60},
            ],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}]}
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 10, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                    ]
                },
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "cache"}}}
                    ]
                },
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "priorityClassName": "high",
            "runtimeClassName": "gvisor",
            "schedulerName": "bin-packer",
            "queueName": "team-a",
        },
    },
    "claim": {
        "model": {"uri": "hf://org/llama", "credentialsSecretRef": {"name": "hub"}},
        "cache": {"type": "PersistentVolumeClaim", "size": "50Gi", "accessModes": ["ReadWriteMany"], "retain": False},
    },
    "bucket": {
        "model": {"uri": "s3://models/team/llama", "credentialsSecretRef": {"name": "s3"}},
        "engine": {
            "env": [
                {"name": "AWS_ENDPOINT_URL", "value": "http://minio.storage.svc:9000"},
                {"name": "AWS_REGION", "value": "eu-north-1"},
            ]
        },
    },
    "volume": {"model": {"uri": "pvc://weights/llama/8b/"}, "suspend": True},
}


class Readable(yaml.SafeDumper):
    """No anchors, and text files as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


Readable.add_representer(str, _text)


def children(owner: LLMDeployment, installation: Installation) -> list[dict[str, Any]]:
    settings = config.config_map(owner)
    template = deployment.pod_template(
        owner,
        installation,
        settings["metadata"]["name"],
        found=ModelReport(revision="c0ffee", path="org--llama/c0ffee" if owner.cache_claim else ""),
        record=model_job.record(owner, ""),
    )
    body = deployment.deployment(owner, template, 1, _ROLLING, 1860)
    # The recorded template repeats the template as one long line.
    del body["metadata"]["annotations"]
    return [
        services.service_account(owner),
        settings,
        protection.network_policy(owner, installation),
        protection.inspection_policy(owner),
        protection.disruption_budget(owner),
        *([claim] if (claim := cache.claim(owner)) else []),
        services.service(owner, 12),
        services.headless_service(owner),
        model_job.job(owner, installation, model_job.Pins()),
        *_of_adapters(owner, installation),
        body,
    ]


def _of_adapters(owner: LLMDeployment, installation: Installation) -> list[dict[str, Any]]:
    found = AdapterInspection(revision="beef", rank=8, file_bytes=1000)
    wanted = [
        InspectedAdapter(each, adapters.identity(each), found if number else None, "" if number else "no file")
        for number, each in enumerate(owner.spec.model.adapters)
    ]
    if not wanted:
        return []
    record = {each.identity: each.found for each in wanted if each.found}
    jobs = [adapter_job.job(owner, installation, each) for each in owner.spec.model.adapters]
    return [adapters.config_map(owner, wanted_list(tuple(wanted)), record), *jobs]


@pytest.mark.parametrize("name", SPECS)
def test_children_are_the_reviewed_ones(
    name: str, make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    bodies = children(make_owner(SPECS[name]), installation)
    text = yaml.dump_all(bodies, Dumper=Readable, sort_keys=False, width=110)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("OCTAVO_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_canarys_deployment_and_service_select_its_own_pods_alone(
    make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    owner = make_owner()
    template = deployment.pod_template(owner, installation, "c")
    body = deployment.canary_deployment(owner, template, 2, 1860)
    own = {**deployment.selector(owner), "octavo.dev/track": "canary"}
    assert body["metadata"]["name"] == f"{owner.name}-canary"
    assert body["spec"]["selector"] == {"matchLabels": own}
    assert own.items() <= body["spec"]["template"]["metadata"]["labels"].items()
    assert services.canary_service(owner)["spec"]["selector"] == own
    assert "octavo.dev/track" not in template["metadata"]["labels"], "the template is the other Deployment's too"


@pytest.mark.parametrize(
    ("spec", "hold"),
    [
        ({}, "true"),
        ({"suspend": True}, "false"),
        ({"replicas": 0}, "false"),
        ({"replicas": 0, "autoscaling": {"mode": "External"}}, "true"),
        ({"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 1}}, "true"),
    ],
)
def test_requests_are_held_where_someone_will_start_a_replica(
    spec: dict[str, Any], hold: str, make_owner: Callable[..., LLMDeployment]
) -> None:
    assert services.service(make_owner(spec), None)["metadata"]["annotations"]["octavo.dev/hold"] == hold


def test_a_suspended_model_is_marked_for_the_gateways(make_owner: Callable[..., LLMDeployment]) -> None:
    def annotations(spec: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = services.service(make_owner(spec), None)["metadata"]["annotations"]
        return found

    assert annotations({"suspend": True})["octavo.dev/suspended"] == "true"
    assert "octavo.dev/suspended" not in annotations({"replicas": 0})


def test_grace_period_covers_propagation_and_drain(
    make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    owner = make_owner({"drain": {"timeoutSeconds": 100, "propagationSeconds": 7}})
    pod = deployment.pod_template(owner, installation, "c")["spec"]
    assert pod["terminationGracePeriodSeconds"] == 122
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 7}}}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", ["server", "look"])
def test_pods_keep_within_the_restricted_standard(
    name: str, kind: str, make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    owner = make_owner(SPECS[name])
    server = deployment.pod_template(owner, installation, "c")["spec"]
    pod = (
        server if kind == "server" else model_job.job(owner, installation, model_job.Pins())["spec"]["template"]["spec"]
    )
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("uri", "credentials"),
    [
        ("hf://org/llama", {"HF_TOKEN"}),
        ("s3://models/llama", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}),
        ("gs://models/llama", {"GOOGLE_SERVICE_ACCOUNT_KEY"}),
    ],
)
def test_only_the_download_gets_the_credentials(
    uri: str, credentials: set[str], make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    owner = make_owner({"model": {"uri": uri, "credentialsSecretRef": {"name": "secret"}}})
    pod = deployment.pod_template(owner, installation, "c")["spec"]
    (download,), (server,) = pod["initContainers"], pod["containers"]
    (look,) = model_job.job(owner, installation, model_job.Pins())["spec"]["template"]["spec"]["containers"]
    for container in (download, look):
        secret = {entry["name"] for entry in container["env"] if "secretKeyRef" in entry.get("valueFrom", {})}
        assert secret == credentials
    assert not [entry for entry in server["env"] if "secretKeyRef" in entry.get("valueFrom", {})]


@pytest.mark.parametrize(
    ("uri", "endpoint", "port"),
    [
        ("hf://a/b", ("HF_ENDPOINT", "http://hub:8080"), 8080),
        ("hf://a/b", ("AWS_ENDPOINT_URL", "http://minio:9000"), 443),
        ("s3://a/b", ("AWS_ENDPOINT_URL", "http://minio:9000"), 9000),
        ("s3://a/b", ("AWS_REGION", "eu-north-1"), 443),
        ("gs://a/b", ("GOOGLE_BASE_URL", "http://gcs"), 80),
    ],
)
def test_the_way_out_is_the_port_of_the_source(
    uri: str, endpoint: tuple[str, str], port: int, make_owner: Callable[..., LLMDeployment], installation: Installation
) -> None:
    env = [{"name": endpoint[0], "value": endpoint[1]}]
    owner = make_owner({"model": {"uri": uri}, "engine": {"env": env}})
    for policy in (protection.network_policy(owner, installation), protection.inspection_policy(owner)):
        assert policy["spec"]["egress"][-1]["ports"] == [{"protocol": "TCP", "port": port}]


def test_given_environment_wins_over_ours(make_owner: Callable[..., LLMDeployment], installation: Installation) -> None:
    pod = deployment.pod_template(make_owner(SPECS["gpu-hub"]), installation, "c")["spec"]
    homes = [entry["value"] for entry in pod["containers"][0]["env"] if entry["name"] == "HOME"]
    assert homes == ["/home"]


@pytest.mark.parametrize(
    ("uri", "path"),
    [("pvc://claim", "/model"), ("pvc://claim/a/b/", "/model/a/b"), ("oci://r/m:1", "/model"), ("hf://a/b", "/model")],
)
def test_model_path_in_the_container(uri: str, path: str, make_owner: Callable[..., LLMDeployment]) -> None:
    assert make_owner({"model": {"uri": uri}}).source.path == path


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", "0.5"), ("4", "4"), ("1.5", "1.5"), ("2k", "2000"), ("1Ki", "1024"), ("3Gi", "3221225472")],
)
def test_quantities(text: str, value: str) -> None:
    assert config.quantity(text) == config.quantity(value)


def test_settings_name_follows_their_content(make_owner: Callable[..., LLMDeployment]) -> None:
    one, same = make_owner(), make_owner({"replicas": 4})
    other = make_owner({"engine": {"threads": 3}})
    assert config.config_map(one) == config.config_map(same)
    assert config.config_map(one)["metadata"]["name"] != config.config_map(other)["metadata"]["name"]

"""What lets a Prometheus in, and what it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo_operator.__main__ import parse
from octavo_operator.api.resource import LLMDeployment
from octavo_operator.metrics.process import OperatorMetrics
from octavo_operator.resources.protection import network_policy

IMAGES = ["--server-image=a", "--server-cpu-image=b"]
PEER = '{"namespaceSelector": {"matchLabels": {"team": "watch"}}}'


def test_metrics_peers_reach_the_admin_port_and_no_other(make_owner: Callable[..., LLMDeployment]) -> None:
    options, *_ = parse([*IMAGES, f"--metrics-peers=[{PEER}]"], {})
    (peer,) = options.installation.metrics_peers
    rules = network_policy(make_owner(), options.installation)["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in rules if peer in rule["from"]] == [9000]


@pytest.mark.parametrize("text", ["{", PEER, "[1]", "[{}]", '"all"'])
def test_peers_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*IMAGES, f"--metrics-peers={text}"], {})
    assert "--metrics-peers" in capsys.readouterr().err


def test_the_autoscalers_limit_is_told_where_it_has_a_choice() -> None:
    metrics = OperatorMetrics()

    def told() -> list[str]:
        lines = metrics.text().decode().splitlines()
        return [line for line in lines if line.startswith("octavo_autoscaler_max_replicas{")]

    metrics.autoscaled("a", "m", (1, 4))
    assert told() == ['octavo_autoscaler_max_replicas{name="m",namespace="a"} 4.0']
    metrics.autoscaled("a", "m", (2, 2))
    assert told() == []
    metrics.autoscaled("a", "m", (1, 3))
    metrics.forget("a", "m")
    assert told() == []

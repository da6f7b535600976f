"""Every alert, by promtool: fires on the series it is about, not before its time, and stays quiet on healthy ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.prometheus import promtool
from toolbox import ToolError

from .conftest import CHART, ROOT

RULES = CHART / "files" / "alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
MINUTES = 120


@dataclass(frozen=True)
class Case:
    """Series by promtool's notation, one sample a minute. `labels` are those of the alert; `healthy` must be quiet."""

    sick: dict[str, str]
    healthy: dict[str, str]
    labels: str


def always(value: float) -> str:
    return f"{value}x{MINUTES}"


def grows(step: float) -> str:
    return f"0+{step}x{MINUTES}"


MODEL = 'namespace="a",name="m"'
OWN = 'namespace="octavo-system",instance="1:8081",pod="o-1"'
SERVER = 'namespace="a",model_name="m",instance="2:9000"'
SERVED = 'model_name="m",namespace="a"'


def replicas(desired: int, ready: int) -> dict[str, str]:
    return {f"octavo_desired_replicas{{{MODEL}}}": always(desired), f"octavo_ready_replicas{{{MODEL}}}": always(ready)}


def ours(series: str, values: str) -> dict[str, str]:
    """A series of the operator beside the one that tells its process from others."""
    return {series: values, f"octavo_load_samples_missed_total{{{OWN}}}": always(0)}


def answers(good: float, bad: float) -> dict[str, str]:
    return {
        'octavo_gateway_requests_total{model="m",code="200"}': grows(good),
        'octavo_gateway_requests_total{model="m",code="503"}': grows(bad),
    }


def first_tokens(quick: float, every: float) -> dict[str, str]:
    name = "octavo:time_to_first_token_seconds_bucket"
    buckets = {"1": quick, "10": quick, "30": every, "+Inf": every}
    return {f'{name}{{{SERVER},le="{bound}"}}': grows(count) for bound, count in buckets.items()}


CASES = {
    "OctavoModelDown": Case(replicas(2, 0), replicas(2, 1), 'name="m",namespace="a"'),
    # None at all is another alert.
    "OctavoModelDegraded": Case(replicas(3, 1), replicas(3, 0), 'name="m",namespace="a"'),
    "OctavoAutoscalerAtMax": Case(
        {**replicas(4, 4), f"octavo_autoscaler_max_replicas{{{MODEL}}}": always(4)},
        {**replicas(3, 3), f"octavo_autoscaler_max_replicas{{{MODEL}}}": always(4)},
        'name="m",namespace="a"',
    ),
    "OctavoAutoscalerStuck": Case(
        {f'octavo_condition{{{MODEL},type="ScalingActive",status="False",reason="StartsFail"}}': always(1)},
        {f'octavo_condition{{{MODEL},type="ScalingActive",status="False",reason="Manual"}}': always(1)},
        'name="m",namespace="a",reason="StartsFail"',
    ),
    "OctavoReplicasFail": Case(
        {f'octavo_failures{{{MODEL},reason="OOMKilled"}}': always(1)},
        {f'octavo_condition{{{MODEL},type="Ready",status="True",reason="AllReady"}}': always(1)},
        'name="m",namespace="a",reason="OOMKilled"',
    ),
    "OctavoKVPoolFull": Case(
        {
            f"octavo:kv_cache_usage_perc{{{SERVER}}}": always(0.99),
            f"octavo:num_requests_waiting{{{SERVER}}}": always(3),
        },
        {
            f"octavo:kv_cache_usage_perc{{{SERVER}}}": always(0.99),
            f"octavo:num_requests_waiting{{{SERVER}}}": always(0),
        },
        'instance="2:9000",model_name="m",namespace="a"',
    ),
    "OctavoPreempting": Case(
        {f"octavo:num_preemptions_total{{{SERVER}}}": grows(12)},
        {f"octavo:num_preemptions_total{{{SERVER}}}": grows(2)},
        SERVED,
    ),
    "OctavoRequestsRefused": Case(
        {f'octavo:admission_rejections_total{{{SERVER},reason="queue_full"}}': grows(1)},
        {f'octavo:admission_rejections_total{{{SERVER},reason="queue_full"}}': always(9)},
        SERVED,
    ),
    "OctavoSlowFirstToken": Case(first_tokens(10, 20), first_tokens(99, 100), SERVED),
    "OctavoGatewayDown": Case({"unrelated": always(1)}, {"octavo_gateway_overhead_seconds_count": grows(1)}, ""),
    "OctavoRequestsHeld": Case(
        {'octavo_gateway_oldest_hold_seconds{model="m"}': always(75)},
        {'octavo_gateway_oldest_hold_seconds{model="m"}': always(20)},
        'model="m"',
    ),
    "OctavoGatewayErrors": Case(answers(90, 10), answers(99, 1), 'model="m"'),
    "OctavoStreamsBroken": Case(
        {'octavo_gateway_broken_streams_total{model="m"}': grows(1)},
        {'octavo_gateway_broken_streams_total{model="m"}': always(7)},
        'model="m"',
    ),
    "OctavoKeyFileInvalid": Case(
        {'octavo_gateway_key_file_valid{namespace="a",pod="g-1"}': always(0)},
        {'octavo_gateway_key_file_valid{namespace="a",pod="g-1"}': always(1)},
        'namespace="a",pod="g-1"',
    ),
    "OctavoOperatorNotLeading": Case(
        # Somebody else's operator leads.
        {
            **ours(f"leader_election_master_status{{{OWN}}}", always(0)),
            'leader_election_master_status{instance="x"}': "1x9",
        },
        ours(f"leader_election_master_status{{{OWN}}}", always(1)),
        'namespace="octavo-system"',
    ),
    "OctavoReconcileErrors": Case(
        {f'octavo_reconcile_total{{{OWN},result="error"}}': grows(1)},
        {f'octavo_reconcile_total{{{OWN},result="error"}}': always(50)},
        'namespace="octavo-system"',
    ),
    "OctavoReconcileStuck": Case(
        ours(f"workqueue_longest_running_processor_seconds{{{OWN}}}", always(200)),
        {'workqueue_longest_running_processor_seconds{instance="x"}': always(900)},
        'instance="1:8081",namespace="octavo-system",pod="o-1"',
    ),
    "OctavoApiServerErrors": Case(
        ours(f'rest_client_requests_total{{{OWN},method="GET",code="429"}}', grows(30)),
        ours(f'rest_client_requests_total{{{OWN},method="GET",code="200"}}', grows(900)),
        'namespace="octavo-system"',
    ),
    "OctavoLoadReportsMissing": Case(
        {f"octavo_load_samples_missed_total{{{OWN}}}": grows(30)},
        {f"octavo_load_samples_missed_total{{{OWN}}}": grows(2)},
        'namespace="octavo-system"',
    ),
}


def promtool_tests() -> Iterator[dict[str, Any]]:
    """One promtool test per alert and kind of series."""
    for alert, case in CASES.items():
        rule = ALERTS[alert]
        own = f'alertname="{alert}",alertstate="firing",severity="{rule["labels"]["severity"]}"'
        fired = {"labels": f"ALERTS{{{own}{',' if case.labels else ''}{case.labels}}}", "value": 1}
        asked = {"expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}'}
        times = [{**asked, "eval_time": "90m", "exp_samples": [fired]}]
        if wait := int(rule.get("for", "0m").removesuffix("m")):
            times.append({**asked, "eval_time": f"{wait - 1}m", "exp_samples": []})
        yield {"interval": "1m", "input_series": _series(case.sick), "promql_expr_test": times}
        quiet = [{**asked, "eval_time": f"{minute}m", "exp_samples": []} for minute in (45, 90)]
        yield {"interval": "1m", "input_series": _series(case.healthy), "promql_expr_test": quiet}


def _series(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


@pytest.fixture(scope="module", autouse=True)
def prometheus_tools() -> None:
    try:
        promtool("--version")
    except ToolError as error:
        pytest.skip(f"alerts are not tested: {error}")


def test_every_alert_fires_in_time_and_only_when_it_should(tmp_path: Path) -> None:
    assert set(CASES) == set(ALERTS)
    file = tmp_path / "alerts.test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(promtool_tests())})
    )
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_that_does_not_fire_would_be_noticed(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    rules["groups"][0]["rules"][0]["expr"] = "vector(0) > 1"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    file = tmp_path / "alerts.test.yaml"
    first = list(itertools.islice(promtool_tests(), 1))
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": first}))
    assert "OctavoModelDown" in promtool("test", "rules", str(file)).stderr


@pytest.mark.parametrize("alert", list(ALERTS))
def test_every_alert_has_its_runbook(alert: str) -> None:
    page, _, anchor = ALERTS[alert]["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (\w+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor == alert.lower()
    assert alert in headings

"""`octavo-operator`: reconciles LLMDeployments."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_common import json_logs
from octavo_operator.api import profiles
from octavo_operator.api.profiles import Profiles
from octavo_operator.app import main as app
from octavo_operator.app.leader import timing
from octavo_operator.resources.common import Installation
from octavo_protocol import names

logger = logging.getLogger("octavo_operator")

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[app.OperatorOptions, str, json_logs.Form]:
    """Options, log level and log format of a command line."""
    parser = argparse.ArgumentParser(prog="octavo-operator", description="Reconciles the LLMDeployments of a cluster.")
    add = parser.add_argument
    add("--server-image", required=True, help="server image for resources.gpu.count of 1 and more")
    add("--server-cpu-image", required=True, help="server image for resources.gpu.count 0")
    add("--namespace-scope", default="", help="comma-separated namespaces to watch (default: all)")
    add(
        "--namespace", default=_own_namespace(environment), help="namespace of operator and gateways (default: its own)"
    )
    add("--lease-namespace", help="namespace of the Lease (default: --namespace)")
    add(
        "--metrics-peers",
        type=_peers,
        default=(),
        metavar="JSON",
        help="JSON list of NetworkPolicyPeers that may scrape the metrics of server pods",
    )
    add(
        "--lease-seconds",
        type=int,
        default=15,
        choices=range(3, 301),
        metavar="3..300",
        help="lease duration: after so many seconds without a renewal another replica takes over (default: 15)",
    )
    add(
        "--resource-profiles",
        type=_profiles,
        default={},
        metavar="JSON",
        help="JSON object of the profiles that spec.resources.profile may name (default: none)",
    )
    add("--gateway-url", help="URL of the gateway, shown in status.url (default: the URL of each Service)")
    add(
        "--identity",
        default=environment.get("POD_NAME") or f"{socket.gethostname()}_{os.getpid()}",
        help="holder identity of the Lease (default: POD_NAME, or host name and process id)",
    )
    add("--host", default="0.0.0.0", help="listen address of health, metrics and wake calls")  # noqa: S104 - inside the pod
    add("--port", type=int, default=names.PORT_OPERATOR, help="listen port of health, metrics and wake calls")
    add("--workers", type=int, default=4, choices=range(1, 65), metavar="1..64", help="concurrent reconcile passes")
    add(
        "--decision-log",
        type=Path,
        metavar="PATH",
        help="append each autoscaler decision with its inputs as a line of JSON; rotated to PATH.1 at 64 MiB",
    )
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="minimum log level")
    add("--log-format", default="json", choices=["json", "text"], help="format of log lines")
    arguments = parser.parse_args(argv)
    options = app.OperatorOptions(
        installation=Installation(
            server_image=arguments.server_image,
            server_cpu_image=arguments.server_cpu_image,
            namespace=arguments.namespace,
            gateway_url=arguments.gateway_url,
            metrics_peers=arguments.metrics_peers,
            profiles=arguments.resource_profiles,
        ),
        scope=tuple(name.strip() for name in arguments.namespace_scope.split(",") if name.strip()),
        lease_namespace=arguments.lease_namespace or arguments.namespace,
        lease=timing(arguments.lease_seconds),
        identity=arguments.identity,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        decision_log=arguments.decision_log,
    )
    return options, arguments.log_level, arguments.log_format


def main() -> int:
    """Exit status: 0 after an orderly end, 1 after lost leadership or an error."""
    options, level, style = parse(sys.argv[1:], os.environ)
    json_logs.configure(style, level)
    # kopf logs each event twice at these levels; the passes log the relevant parts.
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    code = 0
    try:
        asyncio.run(app.run(options))
    except* app.LeaseLostError as errors:
        logger.error("%s", errors.exceptions[0])  # noqa: TRY400 - lost leadership is not a defect: no traceback
        code = 1
    return code


def _peers(text: str) -> tuple[dict[str, Any], ...]:
    """NetworkPolicyPeers; the API server validates their content."""
    try:
        peers = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(peers, list) or not all(isinstance(peer, dict) and peer for peer in peers):
        raise argparse.ArgumentTypeError(f"expected a JSON list of non-empty objects, found {text}")
    return tuple(peers)


def _profiles(text: str) -> Profiles:
    try:
        return profiles.read(text)
    except profiles.ProfilesError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _own_namespace(environment: Mapping[str, str]) -> str:
    if namespace := environment.get("POD_NAMESPACE"):
        return namespace
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"


if __name__ == "__main__":
    sys.exit(main())

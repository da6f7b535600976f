"""The command `octavo-gateway`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from octavo_common import json_logs
from octavo_gateway.access.key_file import KeyFile
from octavo_gateway.app.run import GatewayOptions, run
from octavo_gateway.app.workers import MOST, Parent, reachable, worker_port
from octavo_gateway.discovery.endpoints import DEFAULT_POLICY
from octavo_gateway.discovery.static import StaticError, parse
from octavo_gateway.http.connection import HEAD_SECONDS
from octavo_gateway.http.request_body import BODY_SECONDS
from octavo_gateway.queueing.hold_queue import Bounds
from octavo_gateway.routing.candidate import STRATEGIES
from octavo_protocol.names import PORT_ADMIN, PORT_GATEWAY, PORT_OPERATOR

_UNITS = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        options = _options(given)
    except (StaticError, OSError, ValueError) as error:
        print(f"octavo-gateway: {error}", file=sys.stderr)
        return 2
    json_logs.configure("json", given.log_level)
    # aiohttp logs a traceback per malformed request, which any client can send; handlers log their own failures.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # A stream takes two connections. The default soft limit is often a thousand, so raise it to the hard limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if given.workers > 1 and given.worker is None:
            command = [sys.executable, "-m", "octavo_gateway", *(sys.argv[1:] if arguments is None else arguments)]
            parent = Parent(command, given.workers, options.admin_host, options.admin_port, options.head_seconds)
            return runner.run(parent.run())
        return runner.run(run(options))


def _parser() -> argparse.ArgumentParser:
    # Outside of a cluster the default must not expose the gateway to the network; in a pod it must listen to it.
    everywhere = "0.0.0.0" if "KUBERNETES_SERVICE_HOST" in os.environ else "127.0.0.1"  # noqa: S104
    parser = argparse.ArgumentParser(
        prog="octavo-gateway", description="One OpenAI-compatible endpoint for all models of an installation."
    )
    source = parser.add_argument_group("where models come from")
    source.add_argument(
        "--namespace", action="append", metavar="NS", help="watch this namespace (repeatable; default: the pod's own)"
    )
    source.add_argument("--all-namespaces", action="store_true", help="watch every namespace")
    source.add_argument("--kubeconfig", type=Path, metavar="PATH", help="kubeconfig to use outside a cluster")
    source.add_argument(
        "--static-endpoints",
        action="append",
        metavar="MODEL=URL[|ADMINPORT][,URL…]",
        help="serve MODEL from these addresses, without Kubernetes (repeatable)",
    )
    source.add_argument(
        "--static-strategy",
        choices=STRATEGIES,
        help=f"how to choose among the addresses of --static-endpoints (default {DEFAULT_POLICY.strategy})",
    )
    listen = parser.add_argument_group("where it listens")
    listen.add_argument(
        "--host", default=everywhere, help="address of the OpenAI endpoint (default: 0.0.0.0 in a pod, else 127.0.0.1)"
    )
    listen.add_argument("--port", type=int, default=PORT_GATEWAY, help="its port (default %(default)s)")
    listen.add_argument(
        "--admin-host", default=everywhere, help="address of /metrics and the load report (default: as --host)"
    )
    listen.add_argument("--admin-port", type=int, default=PORT_ADMIN, help="its port (default %(default)s)")
    listen.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help="file of API keys: one per line, or YAML with limits for each; read again when it changes. "
        "Without it every client may call",
    )
    listen.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help=f"processes that share the port, 1 to {MOST}; as many ports follow --admin-port (default %(default)s)",
    )
    listen.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    listen.add_argument(
        "--head-timeout",
        type=_seconds,
        default=HEAD_SECONDS,
        metavar="SECONDS",
        help="longest time from the first byte of a request to the last of its headers (default %(default)g)",
    )
    listen.add_argument(
        "--body-timeout",
        type=_seconds,
        default=BODY_SECONDS,
        metavar="SECONDS",
        help="longest time for a request's body (default %(default)g)",
    )
    listen.add_argument(
        "--peers",
        action="append",
        metavar="HOST[:PORT]",
        help="name or address of the gateways' second ports, this one's among them, to share limits of keys with "
        f"(repeatable; default port {PORT_ADMIN})",
    )
    listen.add_argument(
        "--no-page",
        dest="page",
        action="store_false",
        help="serve no page at /, which shows the models of a key, their load, and a chat",
    )
    hold = parser.add_argument_group("requests that wait for a replica")
    hold.add_argument(
        "--hold-timeout", type=_seconds, default=300.0, metavar="SECONDS", help="longest wait (default %(default)g)"
    )
    hold.add_argument(
        "--hold-max-requests",
        type=int,
        default=1024,
        metavar="N",
        help="most requests held per model (default %(default)s)",
    )
    hold.add_argument(
        "--hold-max-bytes",
        type=_quantity,
        default="64Mi",
        metavar="QUANTITY",
        help="most bytes held per model (default %(default)s)",
    )
    hold.add_argument(
        "--operator-service",
        metavar="NAME.NAMESPACE[:PORT]",
        help=f"headless Service of the operator, called when a model has no replica (default port {PORT_OPERATOR})",
    )
    end = parser.add_argument_group("the end")
    end.add_argument(
        "--drain-delay",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="after SIGTERM still accept for this long (default %(default)g)",
    )
    end.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="then let running answers finish for this long (default %(default)g)",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="least severe level that is logged",
    )
    return parser


def _options(given: argparse.Namespace) -> GatewayOptions:
    if given.all_namespaces and given.namespace:
        raise ValueError("--all-namespaces and --namespace exclude each other")
    if given.static_endpoints and (given.all_namespaces or given.namespace or given.kubeconfig):
        raise ValueError("--static-endpoints is for use without Kubernetes: drop the namespace and kubeconfig options")
    if given.static_strategy and not given.static_endpoints:
        raise ValueError("--static-strategy is for --static-endpoints; with Kubernetes set spec.routing.strategy")
    if given.workers > 1 and not (given.port and given.admin_port):
        raise ValueError("--workers: several processes need a --port and an --admin-port other than 0")
    operator = None
    peers = tuple(_peer(text) for text in given.peers or ())
    if given.worker is not None:
        # Every worker counts as a gateway: those of the own parent, and those of other gateways.
        hosts = peers or ((reachable(given.admin_host), given.admin_port),)
        peers = tuple((host, worker_port(port, number)) for host, port in hosts for number in range(given.workers))
    if given.operator_service:
        host, _, port = given.operator_service.partition(":")
        if not host or (port and not port.isdigit()):
            raise ValueError(
                f"--operator-service {given.operator_service!r}: expected NAME.NAMESPACE or NAME.NAMESPACE:PORT"
            )
        operator = (host, int(port or PORT_OPERATOR))
    return GatewayOptions(
        host=given.host,
        port=given.port,
        admin_host=given.admin_host,
        admin_port=given.admin_port if given.worker is None else worker_port(given.admin_port, given.worker),
        static=parse(given.static_endpoints, given.static_strategy) if given.static_endpoints else None,
        namespaces=None if given.all_namespaces else tuple(given.namespace or ()),
        kubeconfig=given.kubeconfig,
        keys=KeyFile(given.api_key_file) if given.api_key_file else None,
        bounds=Bounds(given.hold_max_requests, given.hold_max_bytes, given.hold_timeout),
        operator=operator,
        peers=peers,
        head_seconds=given.head_timeout,
        body_seconds=given.body_timeout,
        worker=given.worker,
        page=given.page,
        drain_delay=given.drain_delay,
        drain_timeout=given.drain_timeout,
        random=random.random,
    )


def _peer(text: str) -> tuple[str, int]:
    host, port = text, str(PORT_ADMIN)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif text.count(":") < 2:
        host, _, named = text.partition(":")
        port = named or port
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--peers {text!r}: expected HOST, HOST:PORT or [IPV6]:PORT")
    return host, int(port)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return value


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a number of processes from 1 to {MOST}")
    return int(text)


def _quantity(text: str) -> int:
    number = text.rstrip("kKMGi")
    unit = text[len(number) :]
    if not number.isdigit() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a quantity such as 64Mi")
    return int(number) * _UNITS[unit]


if __name__ == "__main__":
    sys.exit(main())

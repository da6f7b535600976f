"""The command line of the local cluster."""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster import record, status
from localcluster.addresses import Addresses
from localcluster.down import tear_down
from localcluster.errors import ClusterError
from localcluster.record import DEFAULT_NAME, Record
from localcluster.up import registry_storage, up
from toolbox.errors import ToolError
from toolbox.progress import Progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcluster", description="A Kubernetes node on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "up": "start a cluster",
        "down": "remove a cluster completely, whatever its state",
        "status": "show the parts of a cluster; exits with 1 unless it is healthy",
        "kubeconfig": "print the path of the administrator's kubeconfig",
        "registry": "print host:port of the registry to push to; its name in manifests is localhost:5000",
    }
    for command, text in texts.items():
        sub = commands.add_parser(command, help=text, description=text)
        sub.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster (default: %(default)s)")
        if command == "up":
            sub.add_argument("--data", type=Path, help="a new or empty folder for the cluster's data")
            sub.add_argument(
                "--network", type=int, metavar="N", help="use 10.N.0.0/16 (default: a free one, 245 first)"
            )
            sub.add_argument(
                "--control-plane-only",
                action="store_true",
                help="start only etcd and the API server, on loopback, without root",
            )
            sub.add_argument("--audit-policy", type=Path, metavar="FILE", help="audit policy of the API server")
        if command == "down":
            sub.add_argument("--purge", action="store_true", help="also delete the images in its registry")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command: 0 on success, 1 on failure with the reason on stderr."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (ClusterError, ToolError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    progress = Progress()
    if options.command == "up":
        if options.control_plane_only and options.network is not None:
            raise ClusterError("--network: a control plane without a node uses only loopback; omit the option")
        if options.control_plane_only and options.audit_policy is not None:
            raise ClusterError("--audit-policy: only clusters with a node write an audit log; omit the option")
        cluster = up(
            options.name,
            options.data,
            options.network,
            control_plane_only=options.control_plane_only,
            progress=progress,
            audit_policy=options.audit_policy.read_text(encoding="utf-8") if options.audit_policy else None,
        )
        print(f"cluster {cluster.name} is up: export KUBECONFIG={cluster.kubeconfig}")
        return 0
    if options.command == "down":
        return _down(options.name, purge=options.purge, progress=progress)
    cluster = _known(options.name)
    if options.command == "status":
        text, healthy = status.report(cluster)
        print(text)
        return 0 if healthy else 1
    if options.command == "registry":
        if cluster.network is None:
            raise ClusterError(f"cluster {cluster.name} is a control plane only: it has no registry")
        print(Addresses(cluster.network).registry)
    else:
        print(cluster.kubeconfig)
    return 0


def _down(name: str, *, purge: bool, progress: Progress) -> int:
    with record.held(record.check_name(name)):
        found = record.load(name)
        if found is None:
            print(f"there is no cluster {name}")
        else:
            with progress.step(f"remove cluster {name}"):
                tear_down(found)
        if purge:
            shutil.rmtree(registry_storage(name), ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # images are kept; an empty folder is removed
                registry_storage(name).rmdir()
    return 0


def _known(name: str) -> Record:
    found = record.load(record.check_name(name))
    if found is None:
        others = ", ".join(each.name for each in record.load_all())
        raise ClusterError(
            f"there is no cluster {name}" + (f"; there is: {others}" if others else "; start it with up")
        )
    return found

"""`python -m demo up|down`: starts or removes the demo; `make demo` and `make demo-down` run it."""

from __future__ import annotations

import argparse
import sys

from demo import story
from demo.cluster import RESOURCE, Cluster, ClusterError, gateway_url
from demo.console import Console
from demo.install import SYSTEM, install
from images.errors import ImageError
from localcluster import cli
from localcluster.errors import ClusterError as LocalClusterError
from toolbox import ToolError, program
from toolbox.progress import Progress

LOCAL_NAME = "octavo"


def main() -> int:
    """Run the command line; 0 if all steps succeeded and no stream was dropped."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--cluster", choices=["local", "current"], default="local")
    parser.add_argument("--registry", help="registry for --cluster current: this machine pushes, the nodes pull")
    options = parser.parse_args()
    local = options.cluster == "local"
    try:
        return _up(local, options.registry) if options.command == "up" else _down(local)
    except (ClusterError, LocalClusterError, ToolError, ImageError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; `make demo-down` removes what was created", file=sys.stderr)
    return 1


def _up(local: bool, registry: str | None) -> int:
    console = Console()
    console.title("A Kubernetes node, Octavo's images and chart" if local else "Octavo's images and chart")
    installed = install(LOCAL_NAME if local else None, registry, Progress())
    cluster = installed.cluster
    with gateway_url(cluster, SYSTEM, direct=installed.direct) as url:
        watch = story.become_ready(console, cluster, installed.example)
        answer = story.answer(console, url)
        streams = [answer, *story.scale_up_and_down(console, cluster, url, watch)]
    _where_next(console, cluster)
    return 0 if all(stream.complete for stream in streams) else 1


def _down(local: bool) -> int:
    if local:
        return cli.main(["down", "--name", LOCAL_NAME])
    cluster = Cluster(program("kubectl"), program("helm"), None)
    cluster.run("delete", RESOURCE, story.NAME, "-n", cluster.namespace, "--ignore-not-found")
    cluster.run_helm("uninstall", "octavo", "-n", SYSTEM, "--ignore-not-found", "--wait")
    return 0


def _where_next(console: Console, cluster: Cluster) -> None:
    console.title("Where next")
    if cluster.kubeconfig:
        console.line(f"  export KUBECONFIG={cluster.kubeconfig}")
    console.line(f"  {cluster.kubectl} get llmd                     # the model, its load and its scaling")
    console.line(f"  {cluster.kubectl} get llmd {story.NAME} -o yaml    # why: conditions, autoscaling.history")
    console.line("  docs/index.md, examples/")
    console.line("  make demo-down                               # remove everything")


if __name__ == "__main__":
    sys.exit(main())

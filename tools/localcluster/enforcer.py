"""Keeps the node's nftables table equal to what `networkpolicy.render` says; a component of the node.

Limits: a new pod is open for up to half a second, and connections that exist stay when a policy gets stricter.
"""

import subprocess
import sys
import time
from pathlib import Path

from localcluster import kube, networkpolicy
from localcluster.components import NODE_NAME
from localcluster.pki import Pki

_PERIOD = 0.5


def _current(api: kube.Api) -> str:
    # resourceVersion=0: from the API server's memory, which costs it next to nothing.
    def items(path: str) -> list[networkpolicy.Object]:
        return list(api.get(f"{path}resourceVersion=0")["items"])

    return networkpolicy.render(
        items("/apis/networking.k8s.io/v1/networkpolicies?"),
        items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE_NAME}&"),
        items("/api/v1/namespaces?"),
    )


def _main(data: Path, server: str) -> None:
    api = kube.connect(server, Pki(data / "pki"))
    applied, trouble = "", ""
    while True:
        reason = ""
        try:
            wanted = _current(api)
        except OSError as error:
            # The rules in force stay as they are while the API server is away.
            reason = str(error)
        else:
            if wanted != applied:
                run = subprocess.run(["nft", "-f", "-"], check=False, input=wanted, capture_output=True, text=True)
                reason = run.stderr.strip()
                applied = wanted if run.returncode == 0 else applied
        if reason != trouble:
            print(reason or "fine again", flush=True)
            trouble = reason
        time.sleep(_PERIOD)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])

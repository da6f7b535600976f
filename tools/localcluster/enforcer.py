"""Keeps the node's nftables table equal to the output of `networkpolicy.render`; a component of the node.

Limits: a new pod is open for up to half a second, and existing connections stay when a policy becomes stricter.
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
    # resourceVersion=0: served from the API server's watch cache, which is cheap.
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
            # The current rules stay in force while the API server is unavailable.
            reason = str(error)
        else:
            if wanted != applied:
                run = subprocess.run(["nft", "-f", "-"], check=False, input=wanted, capture_output=True, text=True)
                reason = run.stderr.strip()
                applied = wanted if run.returncode == 0 else applied
        if reason != trouble:
            print(reason or "recovered", flush=True)
            trouble = reason
        time.sleep(_PERIOD)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])

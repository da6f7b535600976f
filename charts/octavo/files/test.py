# ruff: noqa: INP001 - a script for a pod, not a module
"""Asks the gateway and the operator of a release, and fails unless both answer as they should."""

import json
import sys
import time
import urllib.request
from pathlib import Path

PATIENCE_SECONDS = 60.0


def ask(url, key):
    """The body of a 200 answer; anything else is tried again for a while, for rollouts and DNS to settle."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the release's own Services
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                print(f"ok: {url}", flush=True)
                return answer.read()
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"failed: {url}: {error}")
            time.sleep(1)


def main(gateway, operator, key_file=None):
    """Readiness of both, then the list of models."""
    key = None
    if key_file:
        lines = Path(key_file).read_text(encoding="utf-8").splitlines()
        key = next((line.strip() for line in lines if line.strip() and not line.startswith("#")), None)
    ask(f"{operator}/readyz", None)
    ask(f"{gateway}/readyz", None)
    models = json.loads(ask(f"{gateway}/v1/models", key))
    if models.get("object") != "list" or not isinstance(models.get("data"), list):
        sys.exit(f"failed: {gateway}/v1/models answered no list of models: {models}")
    print("models:", ", ".join(model["id"] for model in models["data"]) or "none yet")


main(*sys.argv[1:])

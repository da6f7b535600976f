# ruff: noqa: INP001 - a script for a pod, not a module
"""Asks the gateway, the operator and the API server of a release, and fails unless all answer as they should."""

import argparse
import json
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_SECONDS = 60.0
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GOOD = {"model": {"uri": "hf://octavo/test"}, "resources": {"gpu": {"count": 0}}}
BAD = {"model": {"uri": "ftp://octavo/test"}, "resources": {"gpu": {"count": 0}}}


def ask(url, key=None):
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


def clear_key(text):
    """A key of the gateway's key file that is not given as a hash; None without one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    keys = lines
    if lines and re.match(r"keys\s*:(\s|\[|$)|\{|---(\s|$)", lines[0]):
        # In the gateway's image, as all of this.
        import yaml  # noqa: PLC0415

        given = [entry["key"] for entry in yaml.safe_load(text)["keys"] if "expires" not in entry]
        keys = [key for each in given for key in (each if isinstance(each, list) else [each])]
    return next((key for key in keys if not re.fullmatch("sha256:[0-9a-f]{64}", key)), None)


def create(namespace, spec):
    """Status and answer of the API server to an LLMDeployment that it shall check, and not keep."""
    url = f"https://kubernetes.default.svc/apis/octavo.dev/v1alpha1/namespaces/{namespace}/llmdeployments?dryRun=All"
    body = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": "test"}, "spec": spec}
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_crd(namespace):
    """The CustomResourceDefinition is there and its rules work."""
    status, text = create(namespace, GOOD)
    if status != 201:
        sys.exit(f"failed: the API server refused a good LLMDeployment: {status} {text}")
    status, text = create(namespace, BAD)
    if status != 422 or "model.uri" not in text:
        sys.exit(f"failed: the API server did not refuse model.uri ftp://octavo/test by its name: {status} {text}")
    print("ok: the API server takes a good LLMDeployment and refuses a bad one", flush=True)


def main():
    """Readiness of both, metrics, the list of models, then the CRD."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--operator", required=True)
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--namespace")
    given = parser.parse_args()
    key = clear_key(given.key_file.read_text(encoding="utf-8")) if given.key_file else None
    ask(f"{given.operator}/readyz")
    if b"octavo_reconcile_total" not in ask(f"{given.operator}/metrics"):
        sys.exit(f"failed: {given.operator}/metrics has no octavo_reconcile_total")
    ask(f"{given.gateway}/readyz")
    if given.key_file and key is None:
        print("not asked for models: the key file holds hashes only", flush=True)
    else:
        models = json.loads(ask(f"{given.gateway}/v1/models", key))
        if models.get("object") != "list" or not isinstance(models.get("data"), list):
            sys.exit(f"failed: {given.gateway}/v1/models answered no list of models: {models}")
        print("models:", ", ".join(model["id"] for model in models["data"]) or "none yet")
    if given.namespace:
        check_crd(given.namespace)


if __name__ == "__main__":
    main()

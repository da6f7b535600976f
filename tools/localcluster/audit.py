"""The API server's audit log: the requests of a user, to compare granted with used rights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLICY_FILE = "audit-policy.json"
_LOG_FILE = "audit.log"
# Metadata of one request takes about 1 kB: the log keeps the latest 250,000 requests.
_FILE_MEGABYTES = 64
_OLD_FILES = 3


@dataclass(frozen=True, slots=True)
class Request:
    """One request for a resource. `resource` includes the subresource (`pods/status`); `name` is empty for lists.

    `allowed`: the authorizer's decision; admission may still have rejected the request (`code`).
    """

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    allowed: bool


def policy(users: Iterable[str]) -> str:
    """An audit policy for all requests of some users, without their bodies."""
    rules = [{"level": "Metadata", "users": list(users), "omitStages": ["RequestReceived"]}, {"level": "None"}]
    return json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})


def flags(data: Path) -> list[str]:
    """Flags of a kube-apiserver for an audit log with the policy in a cluster's data folder."""
    return [
        f"--audit-policy-file={data / POLICY_FILE}",
        f"--audit-log-path={data / 'log' / _LOG_FILE}",
        f"--audit-log-maxsize={_FILE_MEGABYTES}",
        f"--audit-log-maxbackup={_OLD_FILES}",
    ]


def requests(data: Path) -> Iterator[Request]:
    """The requests for resources in a cluster's audit log, including those still running (watches)."""
    for path in sorted((data / "log").glob("audit*.log")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                # The last line may be incomplete.
                if line.endswith("\n") and (found := _request(json.loads(line))) is not None:
                    yield found


def _request(event: dict[str, Any]) -> Request | None:
    about = event.get("objectRef")
    if not about or "responseStatus" not in event:
        return None
    resource = about["resource"] + (f"/{about['subresource']}" if about.get("subresource") else "")
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource=resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=event["responseStatus"].get("code", 0),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
    )

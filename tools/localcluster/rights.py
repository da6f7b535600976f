"""Compares the rights that an account has through its role bindings with the requests that it made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcluster.audit import Request

Object = Mapping[str, Any]
_CREATED = 201


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource. An empty `namespace` or `name` means all of them."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str = ""

    def covers(self, other: Right) -> bool:
        """True if this right includes the other one."""
        same = (self.group, self.resource, self.verb) == (other.group, other.resource, other.verb)
        return same and self.namespace in ("", other.namespace) and self.name in ("", other.name)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`used`: number of requests by the right that covers them; `unused` and `missing` should be empty."""

    used: Mapping[Right, int]
    unused: tuple[Right, ...]
    missing: tuple[Right, ...]


def granted(roles: Iterable[Object], bindings: Iterable[Object], account: str, home: str) -> set[Right]:
    """The rights of the ServiceAccount `account` of namespace `home`, from objects of all four RBAC kinds."""
    rules = {(role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]): role for role in roles}
    found: set[Right] = set()
    for binding in bindings:
        subjects = [(s["kind"], s.get("namespace", ""), s["name"]) for s in binding.get("subjects") or []]
        if ("ServiceAccount", home, account) in subjects:
            namespace, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
            owner = namespace if reference["kind"] == "Role" else ""
            for rule in rules[(reference["kind"], owner, reference["name"])].get("rules") or []:
                found.update(_rights(rule, namespace))
    return found


def compare(rights: Iterable[Right], requests: Iterable[Request]) -> Comparison:
    """The rights that the requests used, the unused ones, and the missing ones."""
    used = dict.fromkeys(sorted(rights), 0)
    missing: set[Right] = set()
    for request in requests:
        for needed in _needed(request):
            covering = [right for right in used if right.covers(needed)]
            for right in covering:
                used[right] += 1
            if not covering:
                missing.add(needed)
    unused = tuple(right for right, count in used.items() if not count)
    return Comparison(used, unused, tuple(sorted(missing)))


def table(comparison: Comparison, explained: Mapping[Right, str]) -> str:
    """A Markdown table: each right with its number of uses, or its explanation in `explained` if it has none."""
    lines = ["| API group | resource | verb | where | requests |", "|---|---|---|---|---|"]
    for right, count in comparison.used.items():
        lines.append(_row(right, str(count) if count else explained.get(right, "**none: granted, not used**")))
    lines += [_row(right, "**used, not granted**") for right in comparison.missing]
    return "\n".join(lines)


def _row(right: Right, text: str) -> str:
    where = right.namespace or "served namespaces"
    if right.name:
        where += f", only `{right.name}`"
    return f"| {right.group or 'core'} | {right.resource} | {right.verb} | {where} | {text} |"


def _rights(rule: Object, namespace: str) -> Iterator[Right]:
    for group in rule.get("apiGroups") or []:
        for resource in rule.get("resources") or []:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or [""]:
                    yield Right(group, resource, verb, namespace, name)


def _needed(request: Request) -> Sequence[Right]:
    right = Right(request.group, request.resource, request.verb, request.namespace, request.name)
    if request.verb == "patch" and request.code == _CREATED:
        # Server-side apply of a missing object needs both verbs.
        return right, Right(request.group, request.resource, "create", request.namespace)
    return (right,)

"""Shortens messages of containers and Kubernetes to one bounded line, without stack traces and random names."""

from __future__ import annotations

import json
import re

LIMIT = 700
_LAST_WORDS = 400
_LINES = 3
_TRACEBACK = "Traceback (most recent call last)"
# Identifiers that differ with each attempt are removed: a message must not change while its cause is the same.
_IDENTITIES = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# While it backs off, the kubelet puts one of these before the cause of a failed image pull.
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: )?(?:ErrImagePull: )?')
_POD_OF_SET = re.compile(r'^(?:Error creating: )?pods "[^"]*" is ')


def short(text: str, limit: int = LIMIT) -> str:
    """One line of printable characters, cut at `limit`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in _IDENTITIES.sub("…", text)).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def final_message(log: str) -> str:
    """The last lines of a container's log without traceback frames; the message of JSON lines."""
    lines = [line for line in map(_message, _without_frames(log.splitlines())) if line]
    text = short("; ".join(lines[-_LINES:]), 1 << 20)
    return text if len(text) <= _LAST_WORDS else f"…{text[1 - _LAST_WORDS :]}"


def pull_cause(message: str) -> str:
    """The cause of a failed image pull, without the kubelet's back-off prefix."""
    return _BACK_OFF.sub("", message) or "the kubelet waits before it tries again"


def creation_cause(message: str) -> str:
    """The cause of a failed pod creation, without the pod's random name."""
    return _POD_OF_SET.sub("a pod is ", message)


def _without_frames(lines: list[str]) -> list[str]:
    kept: list[str] = []
    inside = False
    for line in lines:
        if _TRACEBACK in line and not line.startswith("{"):
            inside = True
        elif inside and (line.startswith((" ", "\t")) or not line.strip()):
            continue
        else:
            inside = False
            kept.append(line)
    return kept


def _message(line: str) -> str:
    if line.startswith("{"):
        try:
            return str(json.loads(line)["message"]).partition(_TRACEBACK)[0].strip()
        except (ValueError, KeyError, TypeError):
            return line
    return line.strip()

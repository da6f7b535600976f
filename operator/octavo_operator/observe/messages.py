"""What containers and Kubernetes say, as one bounded line that a person reads: no stack traces, no random names."""

from __future__ import annotations

import json
import re

LIMIT = 700
_LAST_WORDS = 400
_LINES = 3
_TRACEBACK = "Traceback (most recent call last)"
# Identities that are other ones with every attempt: a message must not change while its cause stays.
_IDENTITIES = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# The kubelet says the cause of a failed pull alone, or behind one of these while it waits for the next attempt.
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: )?(?:ErrImagePull: )?')
_POD_OF_SET = re.compile(r'^(?:Error creating: )?pods "[^"]*" is ')


def short(text: str, limit: int = LIMIT) -> str:
    """One line of printable characters, cut at `limit`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in _IDENTITIES.sub("…", text)).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def last_words(log: str) -> str:
    """The end of a container's log without the frames of tracebacks; of JSON lines, the message."""
    said = [line for line in map(_message, _without_frames(log.splitlines())) if line]
    text = short("; ".join(said[-_LINES:]), 1 << 20)
    return text if len(text) <= _LAST_WORDS else f"…{text[1 - _LAST_WORDS :]}"


def pull_cause(message: str) -> str:
    """Why an image cannot be pulled, the same while the kubelet tries and while it waits."""
    return _BACK_OFF.sub("", message) or "the kubelet waits before it tries again"


def creation_cause(message: str) -> str:
    """Why a pod was not created, without the name it would have had."""
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

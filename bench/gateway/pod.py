"""`octavo-server` that accepts the fields which vllm-router adds to every request; Octavo refuses them by name.

They are switches of other servers at their neutral values. All proxies are measured with this server.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from octavo_inference.__main__ import main

ADDED = frozenset(
    {
        "no_stop_trim", "separate_reasoning", "stream_reasoning", "return_hidden_states", "include_reasoning",
        "continue_final_message", "skip_special_tokens",
    }
)  # fmt: skip


def accommodate() -> None:
    """Remove the fields before the server parses a body."""
    from octavo_inference.server import json_body  # noqa: PLC0415 (not in the engine's process, which runs this too)

    strict = json_body.decode

    def decode(data: bytes | bytearray, kind: Any) -> Any:
        body = msgspec.json.decode(data)
        return strict(msgspec.json.encode({name: body[name] for name in body if name not in ADDED}), kind)

    json_body.decode = decode


if __name__ == "__main__":
    accommodate()
    sys.exit(main())

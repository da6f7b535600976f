"""Log lines as JSON objects, one per line, on standard error."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime

import msgspec


class JsonFormatter(logging.Formatter):
    """One JSON object per record: control characters and line breaks of any text in it are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return msgspec.json.encode(line).decode()


def set_up(level: str) -> None:
    """Send all logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # One traceback per malformed request of a stranger; failures of the handlers are logged by the handlers.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)

"""Log lines: one per event, as text for people or as one JSON object each for machines. Never prompt or key text."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Literal


class JsonFormatter(logging.Formatter):
    """One JSON object per line; whatever a message contains, it cannot break the line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _fields(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)  # ASCII only, so control characters and U+2028 are escaped too


class TextFormatter(logging.Formatter):
    """`12:30:01 INFO message key=value`; control characters of a message are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback below it if there is one."""
        time = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.getMessage())
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname} {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def form() -> Literal["text", "json"]:
    """How this process logs."""
    return "json" if any(isinstance(h.formatter, JsonFormatter) for h in logging.root.handlers) else "text"


def configure(form: Literal["text", "json"]) -> None:
    """Send all logging of this process to stderr in the chosen form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.INFO)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    request_id = getattr(record, "request_id", None)
    found = dict(fields) if isinstance(fields, dict) else {}
    return found if request_id is None else found | {"request_id": request_id}

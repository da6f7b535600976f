"""Logging: one line per event, as a JSON object or as text. Lines never contain prompts or API keys.

Each attribute given by `extra=` is a field: `log.info("stream broken", extra={"request_id": id})`. So a request can be
followed by its `request_id` through gateway, API process and engine.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

Form = Literal["json", "text"]

# uvicorn's `color_message` duplicates its message.
_NO_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, fields, and the traceback as `exception`.

    Everything but ASCII is escaped, so a message cannot break the line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The JSON line of a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:30:01 INFO message key=value`, followed by a traceback if any; control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The text line of a record."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname} {_escaped(record.getMessage() + fields)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def form() -> Form:
    """The log format of this process."""
    return "json" if any(isinstance(h.formatter, JsonFormatter) for h in logging.root.handlers) else "text"


def configure(form: Form, level: str = "INFO") -> None:
    """Send all logs of this process to stderr; `level` is a name of `logging`, in any letter case."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _NO_FIELDS}

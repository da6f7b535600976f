"""Log lines: one each, whatever text is in them, with every `extra` as a field."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from octavo_common.json_logs import JsonFormatter, TextFormatter


@pytest.mark.parametrize("text", ["plain", 'a\r\n{"level": "error"}', "\x1b[31mred", "é…"])
def test_text_cannot_forge_a_line(text):
    record = logging.LogRecord("x", logging.INFO, "f", 1, "model %s", (text,), None)
    line = JsonFormatter().format(record)
    assert not set("\r\n\x1b") & set(line)
    assert json.loads(line)["message"] == f"model {text}"


def test_an_exception_is_one_line_too():
    try:
        int("two\nlines")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_every_extra_is_a_field() -> None:
    record = logging.makeLogRecord({"msg": "apply %s", "args": ("x",), "levelname": "INFO", "name": "n", "key": "a/b"})
    line = json.loads(JsonFormatter().format(record))
    assert {name: line[name] for name in line if name != "time"} == {
        "message": "apply x", "level": "info", "logger": "n", "key": "a/b",
    }  # fmt: skip
    assert TextFormatter().format(record).endswith(" INFO apply x key=a/b")


def test_neither_message_nor_field_breaks_a_line_of_text() -> None:
    record = logging.makeLogRecord({"msg": "a\r\nINFO fake\x1b[31m\u2028", "levelname": "INFO", "key": "x\ny"})
    assert not set("\r\n\x1b\u2028") & set(TextFormatter().format(record))

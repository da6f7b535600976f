"""Log lines stay one line of JSON, whatever text is in them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from octavo_gateway.app.logs import JsonFormatter


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

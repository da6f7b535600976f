"""Programs with an HTTP port that tests start as processes."""

from __future__ import annotations

import subprocess
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.waiting import eventually


def status_of(url: str) -> int:
    """HTTP status of a GET; 0 when no answer comes."""
    try:
        with urlopen(url, timeout=5) as response:  # noqa: S310 - tests' own addresses
            return int(response.status)
    except HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return 0


def until_ready(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 120.0) -> None:
    """Wait until `/readyz` at `url` answers 200. Raises AssertionError with the log when the process ends before."""
    eventually(lambda: process.poll() is not None or status_of(f"{url}/readyz") == 200, seconds)
    assert process.poll() is None, f"the process ended with {process.returncode}:\n{log.read_text()}"

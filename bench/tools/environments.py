"""Where the programs of the tools are."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.lib.processes import ROOT


def programs(environment: str) -> Path:
    """The folder of the programs in an environment of the client tests. RuntimeError if it cannot be made."""
    sys.path.append(str(ROOT / "tools"))  # the environments are in the cache of the toolbox
    from tests.clients.environments import NoIndexError, python_of  # noqa: PLC0415

    try:
        return python_of(environment).parent
    except NoIndexError as error:
        raise RuntimeError(str(error)) from error

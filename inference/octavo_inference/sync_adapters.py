"""`python -m octavo_inference.sync_adapters --wanted FILE --to FOLDER`: keep a pod's LoRA adapters as a list asks for.

Runs beside the server for as long as the pod does. Only this container has the credentials and the network access. It
writes FOLDER/list.json for the server. A failed download is tried again, and stops neither the others nor the server.
Credentials are files named as environment variables, which may change or come later.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from octavo_inference.download.adapter import fetch_adapter
from octavo_inference.download.adapter_sync import PARALLEL, AdapterSync
from octavo_inference.download.transfer import until_terminated

# The kubelet exchanges a ConfigMap's files and downloads end in threads: neither of them calls.
_SECONDS = 1.0


def take_credentials(folder: Path, known: AbstractSet[str]) -> set[str]:
    """Have the files of a mounted Secret in the environment, for the next download. Returns the variables' names.

    `known`: those of the last call. Variables of keys that are gone are removed.
    """
    found = {path.name: path.read_text().strip() for path in folder.glob("[A-Z]*")} if folder.is_dir() else {}
    for name in known - found.keys():
        os.environ.pop(name, None)
    for name, value in found.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    return set(found)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Follow the list until the process ends."""
    parser = argparse.ArgumentParser(prog="octavo_inference.sync_adapters", description="Download LoRA adapters.")
    parser.add_argument("--wanted", type=Path, required=True, help="file with the list of the operator")
    parser.add_argument("--to", type=Path, required=True, help="folder for the adapters and the server's list")
    parser.add_argument("--limit", type=int, default=0, metavar="BYTES", help="most bytes of adapters; 0: no limit")
    parser.add_argument("--credentials", type=Path, help="folder with a file for each variable that downloads need")
    arguments = parser.parse_args(argv)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def download(source: str, folder: Path) -> None:
        fetch_adapter(source, folder, say, time.monotonic)

    executor = ThreadPoolExecutor(PARALLEL)
    sync = AdapterSync(
        arguments.wanted,
        arguments.to,
        download,
        executor,
        say,
        room=lambda: shutil.disk_usage(arguments.to).free,
        limit=arguments.limit,
        started=time.monotonic(),
    )
    known: set[str] = set()
    while True:
        try:
            if arguments.credentials is not None:
                known = take_credentials(arguments.credentials, known)
            sync.step(time.monotonic())
        except Exception as error:  # noqa: BLE001 -- a full disk, or a bug: the server goes on with what it has
            say(f"{arguments.to}: {type(error).__name__}: {error}")
        time.sleep(_SECONDS)


if __name__ == "__main__":
    until_terminated(main)

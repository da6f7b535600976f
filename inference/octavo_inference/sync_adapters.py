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


def take_credentials(folder: Path, known: AbstractSet[str]) -> tuple[set[str], dict[str, str]]:
    """Have the files of a mounted Secret in the environment, for the next download. Returns the variables' names.

    `known`: those of the last call. Variables of keys that are gone are removed. The second result has the files that
    cannot be used, and why; their variables keep the values they had.
    """
    found: set[str] = set()
    skipped: dict[str, str] = {}
    for path in sorted(folder.glob("[A-Z]*")) if folder.is_dir() else ():
        try:
            value = path.read_text("utf-8").strip()
            if os.environ.get(path.name) != value:
                os.environ[path.name] = value
            found.add(path.name)
        except UnicodeError:  # its text has bytes of the file
            skipped[path.name] = "it is not UTF-8 text"
        except (OSError, ValueError) as error:
            skipped[path.name] = (error.strerror or "") if isinstance(error, OSError) else "it has a byte that is 0"
    kept = found | (known & skipped.keys())
    for name in known - kept:
        os.environ.pop(name, None)
    return kept, skipped


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
    skipped: dict[str, str] = {}
    while True:
        if arguments.credentials is not None:
            try:
                known, now_skipped = take_credentials(arguments.credentials, known)
                for name, why in now_skipped.items() - skipped.items():
                    say(f"{arguments.credentials / name}: {why}; correct this key of the Secret, the adapters go on")
                skipped = now_skipped
            except OSError as error:  # of the folder: adapters without credentials, and those that are there, go on
                say(f"{arguments.credentials}: {error.strerror}")
        try:
            sync.step(time.monotonic())
        except Exception as error:  # noqa: BLE001 -- a full disk, or a bug: the server goes on with what it has
            say(f"{arguments.to}: {type(error).__name__}: {error}")
        time.sleep(_SECONDS)


if __name__ == "__main__":
    until_terminated(main)

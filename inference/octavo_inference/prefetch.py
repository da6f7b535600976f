"""`python -m octavo_inference.prefetch TARGET --to FOLDER`: download and verify a model from a hub or bucket.

Runs as the init container of pods with a downloaded model. Only this container has the credentials and the network
access.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from octavo_inference.download.hub import connect, prefetch
from octavo_inference.download.transfer import PrefetchError, until_terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the model is complete, 1 after one line with the reason if the download fails."""
    parser = argparse.ArgumentParser(prog="octavo_inference.prefetch", description="Download a model.")
    parser.add_argument(
        "target", help="hf://ORGANISATION/REPOSITORY[@REVISION], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX"
    )
    parser.add_argument("--to", type=Path, required=True, help="folder for the files")
    arguments = parser.parse_args(argv)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        prefetch(*connect(arguments.target), arguments.to, say, time.monotonic)
    except PrefetchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    until_terminated(main)

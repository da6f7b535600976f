"""Builds images, pushes them where told, and prints their references as JSON on standard output."""

from __future__ import annotations

import argparse
import json
import sys

from images import catalog
from images.errors import ImageError
from images.produce import produce
from toolbox.progress import Progress


def main() -> int:
    """The command line; 0 when all images are there."""
    parser = argparse.ArgumentParser(
        prog="images",
        description=__doc__,
        epilog="BASE_IMAGE (BUILDER_IMAGE: for compiling) is what images start from; OCTAVO_CACHE keeps layers.",
    )
    default = " ".join(catalog.DEFAULT)
    parser.add_argument("name", nargs="*", help=f"{' | '.join(catalog.ALL)} (default: {default})")
    parser.add_argument("--all", action="store_true", help="every image; `server` brings torch: minutes, gigabytes")
    parser.add_argument("--push", metavar="REGISTRY", help="HOST[:PORT][/PREFIX] to push to, such as 10.245.255.1:5000")
    parser.add_argument(
        "--known-as", metavar="REGISTRY", help="the same registry as nodes name it, such as localhost:5000"
    )
    arguments = parser.parse_args()
    names = catalog.ALL if arguments.all else arguments.name or catalog.DEFAULT
    try:
        images = produce(names, Progress(), push=arguments.push, known_as=arguments.known_as)
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    described = {
        name: {"repository": i.repository, "tag": i.tag, "digest": i.digest, "reference": i.reference}
        for name, i in images.items()
    }
    print(json.dumps(described, indent=2))
    return 0

"""Builds images, pushes them with --push, and prints their references as JSON on standard output."""

from __future__ import annotations

import argparse
import json
import sys

from images import catalog
from images.errors import ImageError
from images.produce import produce
from toolbox.progress import Progress


def main() -> int:
    """Run the command line; 0 if all images exist."""
    parser = argparse.ArgumentParser(
        prog="images",
        description=__doc__,
        epilog="BASE_IMAGE sets the base image, BUILDER_IMAGE that for compiling; OCTAVO_CACHE is the cache folder.",
    )
    default = " ".join(catalog.DEFAULT)
    parser.add_argument("name", nargs="*", help=f"{' | '.join(catalog.NAMES)} (default: {default})")
    parser.add_argument(
        "--all", action="store_true", help="all but server-cuda12; `server` includes torch: minutes, gigabytes"
    )
    parser.add_argument("--push", metavar="REGISTRY", help="push to HOST[:PORT][/PREFIX], such as 10.245.255.1:5000")
    parser.add_argument(
        "--known-as", metavar="REGISTRY", help="name of the same registry on nodes, such as localhost:5000"
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

"""The command line of the toolbox."""

import argparse
import sys
from collections.abc import Sequence

from toolbox import build, deps, images
from toolbox.catalog import TOOLS
from toolbox.progress import Progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toolbox", description=build.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build the tools that are not in the cache yet")
    make.add_argument("tool", nargs="*", help=f"which ones (default: all): {', '.join(TOOLS)}")
    commands.add_parser("list", help="print the folder of each tool's programs, built or not")
    path = commands.add_parser("path", help="print the path of one program, built first if need be")
    path.add_argument("program")
    check = commands.add_parser("deps", help="name the missing Debian packages")
    check.add_argument("--install", action="store_true", help="install them with apt-get (Debian or Ubuntu, root)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when it worked, 1 when not, with the reason on stderr."""
    options = _parser().parse_args(arguments)
    progress = Progress()
    try:
        if options.command == "build":
            _build(options.tool, progress)
        elif options.command == "list":
            for tool in TOOLS.values():
                folder = build.bin_folder(tool)
                print(f"{tool.name}\t{folder}\t{'built' if folder.is_dir() else 'not built'}")
        elif options.command == "path":
            print(build.program(options.program, progress))
        else:
            deps.require_all(install=options.install, progress=progress)
    except build.ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _build(names: Sequence[str], progress: Progress) -> None:
    if unknown := [name for name in names if name not in TOOLS]:
        raise build.ToolError(f"unknown tool {unknown[0]!r}: known are {', '.join(TOOLS)}")
    for folder in build.ensure(names or TOOLS, progress):
        print(folder)
    if not names:
        for image in images.node_images(progress):
            print(image)

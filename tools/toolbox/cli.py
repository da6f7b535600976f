"""The command line of the toolbox."""

import argparse
import sys
from collections.abc import Sequence

from toolbox import build, deps, images
from toolbox.catalog import PROGRAMS
from toolbox.errors import ToolError
from toolbox.progress import Progress


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toolbox", description=build.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build the missing programs")
    make.add_argument("program", nargs="*", help=f"programs to build (default: all): {', '.join(PROGRAMS)}")
    commands.add_parser("list", help="print each program's version and path")
    path = commands.add_parser("path", help="print the path of one program; builds it if needed")
    path.add_argument("program")
    check = commands.add_parser("deps", help="list the missing Debian packages")
    check.add_argument("--install", action="store_true", help="install them with apt-get (Debian or Ubuntu, root)")
    check.add_argument(
        "--arm",
        choices=("compile", "run"),
        help="those of the tests for ARM, instead of those of all others: to compile them, or also to run them",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command: 0 on success, 1 on failure with the reason on stderr."""
    options = _parser().parse_args(arguments)
    progress = Progress()
    try:
        if options.command == "build":
            _build(options.program, progress)
        elif options.command == "list":
            for name, program in PROGRAMS.items():
                print(f"{name}\t{program.version()}\t{build.find(name, progress) or 'not built'}")
        elif options.command == "path":
            print(build.program(options.program, progress))
        else:
            _check_deps(options.arm, install=options.install, progress=progress)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _check_deps(for_arm: str | None, *, install: bool, progress: Progress) -> None:
    arm_needs = {"compile": deps.ARM, "run": deps.EMULATED_ARM}
    needs = (*deps.NODE, *deps.IMAGES) if for_arm is None else arm_needs[for_arm]
    # Tests are skipped without those for ARM.
    deps.require_all(needs, install=install, progress=progress, patient=for_arm is None)


def _build(names: Sequence[str], progress: Progress) -> None:
    for path in build.ensure(names or PROGRAMS, progress):
        print(path)
    if not names:
        for image in images.node_images(progress):
            print(image)

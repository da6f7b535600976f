"""`python -m octavo_operator.api.generate [--check]`: the files that follow from the API's types and the settings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from octavo_operator.api.reference import page, settings_page
from octavo_operator.api.schema import crd

_CRD = "llmdeployments.octavo.dev.yaml"
_HEADER = "# Generated from operator/octavo_operator/api/v1alpha1.py by `make generate`. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Block style, keys in the order they were written, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def files() -> dict[str, str]:
    """Path below the repository's root -> content."""
    definition = crd()
    text = _HEADER + yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return {
        f"crds/{_CRD}": text,
        f"charts/octavo/files/{_CRD}": text,
        "docs/reference/api.md": page(definition),
        "docs/reference/settings.md": settings_page(),
    }


def main(argv: list[str] | None = None) -> int:
    """Write the files, or with --check only compare; 1 when a file differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository's root")
    arguments = parser.parse_args(argv)
    stale = []
    for name, content in files().items():
        path: Path = arguments.root / name
        if path.exists() and path.read_text() == content:
            continue
        stale.append(name)
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    for name in stale:
        sys.stdout.write(f"{name} {'is out of date: run `make generate`' if arguments.check else 'written'}\n")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

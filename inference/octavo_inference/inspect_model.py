"""`python -m octavo_inference.inspect_model TARGET`: architecture and memory of a model, without loading it.

Runs as the Jobs that inspect a model before its pods are created, and its adapters. Prints one line of JSON
(octavo_protocol.model), also if it rejects the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo_inference.download.adapter import look_at_adapter
from octavo_inference.download.inspect import look, pinned
from octavo_inference.download.inspect_draft import look_at_draft
from octavo_inference.download.transfer import until_terminated
from octavo_protocol.model import ModelFailure, ModelReport, encode_inspection


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the model can be served, 1 if it cannot."""
    parser = argparse.ArgumentParser(prog="octavo_inference.inspect_model", description="Look at a model.")
    parser.add_argument("target", help="a file, a folder, or what octavo_inference.prefetch downloads")
    parser.add_argument("--cache", type=Path, help="folder to download the model into")
    parser.add_argument("--report", type=Path, help="where to write the result as well")
    parser.add_argument("--any-architecture", action="store_true", help="do not refuse what this version cannot serve")
    parser.add_argument("--transformers", action="store_true", help="the image that serves the model has transformers")
    parser.add_argument("--image", help="reference of the image that the target is in: resolve its tag to a digest")
    parser.add_argument("--adapter", action="store_true", help="the target is a LoRA adapter")
    parser.add_argument("--draft", metavar="TARGET", help="the draft model that guesses the answers of the model")
    parser.add_argument("--draft-image", metavar="IMAGE", help="as --image, for the draft model")
    parser.add_argument("--pull-secrets", type=Path, help="folder of Docker configurations, with credentials for it")
    arguments = parser.parse_args(argv)
    found = look_at_adapter(arguments.target) if arguments.adapter else _model(arguments)
    line = encode_inspection(found)
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()
    if arguments.report is not None:
        arguments.report.write_bytes(line)
    return isinstance(found, ModelFailure)


def _model(arguments: argparse.Namespace) -> ModelReport | ModelFailure:
    found = look(
        arguments.target,
        arguments.cache,
        any_architecture=arguments.any_architecture,
        transformers=arguments.transformers,
    )
    if arguments.draft and isinstance(found, ModelReport):
        found = _with_draft(found, arguments)
    if arguments.image and isinstance(found, ModelReport):
        found = pinned(found, arguments.image, arguments.pull_secrets)
    return found


def _with_draft(model: ModelReport, arguments: argparse.Namespace) -> ModelReport | ModelFailure:
    """The report on the model with that on its draft model, or why the draft model cannot be used."""
    draft = look_at_draft(
        arguments.draft, arguments.target, model, arguments.cache, any_architecture=arguments.any_architecture
    )
    if isinstance(draft, ModelFailure):
        return draft
    if arguments.draft_image:
        draft = pinned(draft, arguments.draft_image, arguments.pull_secrets)
    return msgspec.structs.replace(model, draft=draft)


if __name__ == "__main__":
    until_terminated(main)

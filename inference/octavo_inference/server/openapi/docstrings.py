"""Descriptions from docstrings: of a class, and of its fields."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator


def class_description(kind: type) -> str:
    """The docstring of a class, one line per paragraph."""
    return joined(kind.__doc__ or "")


def field_descriptions(kind: type) -> dict[str, str]:
    """The string literals that follow fields in the source of a class and its bases, by field.

    Empty where the source is missing.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


def joined(text: str) -> str:
    """A text without the line breaks within its paragraphs."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@functools.cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    if not name.startswith("octavo_"):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, KeyError):
        return {}
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, joined(words)

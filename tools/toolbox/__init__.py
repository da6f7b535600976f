"""Builds the programs of the local cluster from Go modules, once, into a cache outside the repository."""

from toolbox.build import ensure, program
from toolbox.errors import ToolError

__all__ = ["ToolError", "ensure", "program"]

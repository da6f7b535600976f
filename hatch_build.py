"""Build hook: compile the native kernels before a wheel or an editable install is made."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]  # hatchling leaves its parameter to its own builders
    """Compiles every variant beside its sources. Without a compiler the install has no kernels and says so."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are collected; `version` is "standard" or "editable"."""
        del version
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "inference" / "octavo_inference" / "backends" / "cpu" / "native"
        if not folder.exists():
            return  # an image of the operator or the gateway is built from a tree without the server
        native = _load(folder / "build.py")
        try:
            native.build(say=self.app.display_info)
        except native.CompilerMissingError as error:
            if any(folder.glob("*.so")):  # compiled before, elsewhere
                return
            self.app.display_warning(f"octavo-server will not run on CPU: {error}, then install octavo again")
            return
        except subprocess.CalledProcessError as error:
            self.app.display_error(error.stderr)
            raise
        # The wheel holds machine code, but no code that depends on the Python version.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    return next(tag.platform for tag in sys_tags() if "manylinux" not in tag.platform)


def _load(path: Path) -> ModuleType:
    # By path: the package itself is not installed yet, nor are its dependencies.
    spec = importlib.util.spec_from_file_location("octavo_native_build", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Command line flags from declared settings: one argparse argument per setting."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from octavo_inference.common.errors import SettingsError
from octavo_protocol.knobs import Setting


class FlagParser(argparse.ArgumentParser):
    """A parser that raises `SettingsError` with the flag, the value found and the fix."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
            allow_abbrev=False,
        )
        self._headings: dict[str, argparse._ArgumentGroup] = {}

    def add(self, settings: Iterable[Setting]) -> None:
        """Add a flag for each setting, under the heading of its group."""
        for setting in settings:
            self.heading(setting.knob.group).add_argument(f"--{setting.key}", dest=setting.name, **_argument(setting))

    def heading(self, title: str) -> argparse._ArgumentGroup:
        """The argument group of a help heading; created on first use."""
        if title not in self._headings:
            self._headings[title] = self.add_argument_group(title)
        return self._headings[title]

    def error(self, message: str) -> NoReturn:
        """Raise the error as `SettingsError`."""
        match = re.match(r"argument (--[a-z-]+)[^:]*: (.*)", message, re.DOTALL)
        field, text = (match[1], match[2]) if match else ("", message)
        unknown = re.match(r"unrecognized arguments: (--[a-z-]+)", message)
        if unknown:
            field = unknown[1]
            text = f"there is no such setting{self.suggestion(field)}"
        raise SettingsError(f"{field}: {text}" if field else text, field)

    def suggestion(self, flag: str) -> str:
        """A suggestion such as `; did you mean --port?`, or a pointer to --help."""
        near = difflib.get_close_matches(flag, [o for o in self._option_string_actions if o.startswith("--")], 1)
        return f"; did you mean {near[0]}?" if near else "; octavo-server --help lists all"


def _argument(setting: Setting) -> dict[str, Any]:
    """Arguments of `add_argument`. The default of a list is None, to distinguish it from a list in the file."""
    shared: dict[str, Any] = {"help": f"{setting.knob.help} (default: {setting.default_text})"}
    if setting.is_switch:
        return {**shared, "action": argparse.BooleanOptionalAction, "default": setting.default}
    metavar = setting.knob.metavar
    if setting.offered and metavar is None:
        metavar = f"{{{','.join(map(str, setting.offered))}}}"
    shared |= {"type": _parser(setting), "metavar": metavar}
    return {**shared, "action": "append"} if setting.is_list else {**shared, "default": setting.default}


def _parser(setting: Setting) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse

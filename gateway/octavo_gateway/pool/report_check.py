"""Checks whether a replica's load report is plausible."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import fields

from octavo_protocol.adapters import MAX_ADAPTERS, is_adapter_name
from octavo_protocol.load import LoadReport

# Upper bound of every number in a report.
MOST = 2**53
# Those of the server's list, and those that requests have loaded.
_MOST_ADAPTERS = 2 * MAX_ADAPTERS
_NUMBERS = tuple(each.name for each in fields(LoadReport) if each.type in (int, float))
_numbers = attrgetter(*_NUMBERS)


def implausible(report: LoadReport) -> str | None:
    """The first implausible value of a report, as text; None if all values are plausible."""
    for name, value in zip(_NUMBERS, _numbers(report), strict=True):
        if not 0 <= value <= MOST:
            return f"{name} is {value}"
    if not 0 < report.block_size <= 1 << 16:
        return f"block_size is {report.block_size}"
    if not report.blocks_total > 0:
        return f"blocks_total is {report.blocks_total}"
    if report.blocks_pinned + report.blocks_cached > report.blocks_total:
        held = report.blocks_pinned + report.blocks_cached
        return f"blocks_pinned and blocks_cached are {held}, more than blocks_total {report.blocks_total}"
    if not report.max_running:
        return "max_running is 0"
    if report.running > report.max_running:
        return f"running is {report.running}, more than max_running {report.max_running}"
    return None


def implausible_adapters(report: LoadReport) -> str | None:
    """What is wrong with the list of adapters in a report, as text; None if it is plausible."""
    names = [adapter.name for adapter in report.adapters]
    if len(names) > _MOST_ADAPTERS:
        return f"{len(names)} adapters; at most {_MOST_ADAPTERS} are possible"
    if len(set(names)) < len(names):
        return "two adapters have one name"
    invalid = next((name for name in names if not is_adapter_name(name)), None)
    return None if invalid is None else f"{invalid[:128]!r} is not the name of an adapter"

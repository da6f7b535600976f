"""Random JSON values at and around the bounds of a message type."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from msgspec import NODEFAULT, inspect

# Optional fields of a struct in one value; more of them make most values invalid, and slow.
MANY = 3
# Longer bounds than this are left out, as are their examples: they take megabytes.
LONG = 600


def values(kind: object, *, near: bool) -> st.SearchStrategy[Any]:
    """JSON values of a type; with `near`, also values just outside it: out of bounds, of another type, too many."""
    return _Values(near).of(inspect.type_info(kind))


class _Values:
    def __init__(self, near: bool) -> None:
        self._near = near

    def of(self, info: Any) -> st.SearchStrategy[Any]:
        while isinstance(info, inspect.Metadata):
            info = info.type
        exact = self._exact(info)
        # Whole numbers with a fraction of zero are left out: JSON Schema counts them as integers, the server does not.
        other = st.sampled_from([None, True, 0, "", "5", 0.5, [], {}, [[]], {"a": 1}])
        return _mostly(exact, other) if self._near else exact

    def _exact(self, info: Any) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911 -- one case for each type
        match info:
            case inspect.AnyType():
                return st.sampled_from([None, True, 1, "a", [], {"a": 1}])
            case inspect.NoneType():
                return st.none()
            case inspect.BoolType():
                return st.booleans()
            case inspect.IntType():
                return self._number(info, 1)
            case inspect.FloatType():
                return self._number(info, 0.25)
            case inspect.StrType(pattern=None):
                return self._sized(st.text(max_size=8), info, lambda text, size: (text or "é")[:1] * size)
            case inspect.StrType():
                exact = st.from_regex(re.compile(info.pattern, re.ASCII))
                return (
                    st.one_of(exact, exact.map(lambda text: text + "\n"), st.text(max_size=3)) if self._near else exact
                )
            case inspect.ListType():
                return self._sized(st.lists(self.of(info.item_type), max_size=3), info, _repeated)
            case inspect.DictType():
                entries = st.dictionaries(self._key(info.key_type), self.of(info.value_type), max_size=2)
                return self._sized(entries, info, _entries)
            case inspect.LiteralType():
                return st.sampled_from(info.values)
            case inspect.UnionType():
                return st.one_of(*map(self.of, info.types))
            case inspect.StructType():
                return self._struct(info)
        raise TypeError(f"no values for {info}")

    def _key(self, info: Any) -> st.SearchStrategy[str]:
        """Keys of an object. The bounds of whole numbers are not in a schema of keys, so none is near them."""
        while isinstance(info, inspect.Metadata):
            info = info.type
        if isinstance(info, inspect.IntType):
            return st.sampled_from(["0", "5", "x", ""] if self._near else ["0", "5"])
        return self.of(inspect.StrType()).filter(_is_text)

    def _number(self, info: Any, step: float) -> st.SearchStrategy[Any]:
        low = info.ge if info.ge is not None else -100 if info.gt is None else info.gt + step
        high = info.le if info.le is not None else 100 if info.lt is None else info.lt - step
        inside = st.sampled_from([low, high, low + step if low + step <= high else low])
        outside = [low - step, high + step, info.gt, info.lt]
        return (
            _mostly(inside, st.sampled_from([number for number in outside if number is not None]))
            if self._near
            else inside
        )

    def _sized(self, some: st.SearchStrategy[Any], info: Any, of_size: Any) -> st.SearchStrategy[Any]:
        low, high = info.min_length or 0, info.max_length
        bounds = [bound for bound in (info.min_length, high) if bound is not None and bound <= LONG]
        inside = some.filter(lambda value: low <= len(value) and (high is None or len(value) <= high))
        if not bounds:
            return inside
        sizes = [size for bound in bounds for size in ((bound - 1, bound, bound + 1) if self._near else (bound,))]
        at_bounds = st.tuples(inside, st.sampled_from([size for size in sizes if size >= 0]))
        return _mostly(inside, at_bounds.map(lambda pair: of_size(*pair)))

    def _struct(self, info: inspect.StructType) -> st.SearchStrategy[Any]:
        required = {field.encode_name: self.of(field.type) for field in info.fields if field.required}
        optional = {
            field.encode_name: self.of(field.type)
            for field in info.fields
            if not field.required and field.default is not NODEFAULT
        }
        if info.tag_field is not None:
            required = {info.tag_field: st.just(info.tag), **required}
        names = st.lists(st.sampled_from(sorted(optional)), max_size=MANY, unique=True) if optional else st.just([])
        exact = names.flatmap(
            lambda chosen: st.fixed_dictionaries(required | {name: optional[name] for name in chosen})
        )
        if not self._near:
            return exact
        unknown = exact.map(lambda value: {**value, "unknown": 1})
        missing = st.tuples(exact, st.integers(0, 9)).map(lambda pair: _without(*pair))
        return _mostly(exact, st.one_of(unknown, missing))


def _mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The usual value in 39 of 40 cases, so that a value with many parts can still be valid."""
    return st.sampled_from(range(40)).flatmap(lambda number: other if number == 39 else usual)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _repeated(items: list[Any], size: int) -> list[Any]:
    return ((items or [0]) * size)[:size]


def _entries(items: dict[str, Any], size: int) -> dict[str, Any]:
    value = next(iter(items.values()), "")
    return {f"k{number}": value for number in range(size)}


def _without(value: dict[str, Any], number: int) -> dict[str, Any]:
    names = list(value)
    return {name: value[name] for name in names if not names or name != names[number % len(names)]}

"""The sandbox of chat templates: nothing runs while one is compiled, and what it makes while it renders is bounded.

The time limit of a rendering cannot interrupt a single operation of Python. So what an operation will make is estimated
before it runs, and what all of them have made is counted.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, _PassArg
from markupsafe import Markup

MAX_CHARACTERS = 16 * 2**20
"""Of a prompt, and of each text that a template makes on the way."""
# Bytes of all texts and lists that a rendering makes, also of those that are gone.
_MOST_BYTES = 64 * MAX_CHARACTERS
_MOST_BITS = 4096
# An element of a list: a small object.
_ELEMENT = 32

_Sized = (str, bytes, list, tuple)
# Filters that look at no more than the elements of a list. The others may write out all that is in it.
_SHALLOW = frozenset(
    {
        *("abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items"),
        *("last", "length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "round"),
        *("select", "selectattr", "slice", "sort", "sum", "unique"),
    }
)
# Their numbers are widths, counts or digits.
_WIDTHS = frozenset({"center", "truncate", "wordwrap"})
_FEW = {"batch": 100_000, "slice": 100_000, "round": 100, "tojson": 100}
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_SPLITTING = frozenset({"rsplit", "split", "splitlines"})
_REFUSED = frozenset({"to_bytes", "translate"})
_STAR = re.compile(r"%(?:\([^%]*\))?[#0\- +\d.]*\*")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with bounds. Render in a thread after `begin`. What exceeds a bound raises `SecurityError`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=self._written, **options)
        self.code_generator_class = _CodeGenerator
        self._thread = threading.local()
        self.concat = self._joined  # type: ignore[method-assign]
        del self.globals["lipsum"]
        del self.filters["urlize"]
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Let templates use a function as a filter, with bounds."""
        self.filters[name] = _bounded(self, name, function)

    def begin(self) -> None:
        """A rendering begins in this thread."""
        self._thread.left = _MOST_BYTES

    def charged(self, value: Any, element: int = 0) -> Any:
        """`value`, counted among what this rendering has made."""
        if isinstance(value, _Sized):
            size = sys.getsizeof(value) + (0 if isinstance(value, str | bytes) else element * len(value))
            left = self._thread.left = getattr(self._thread, "left", _MOST_BYTES) - size
            if left < 0:
                raise SecurityError(f"a chat template may make {_MOST_BYTES} bytes of text")
        return value

    def concatenated(self, values: tuple[Any, ...], *, escapes: bool) -> str:
        """`values` one after the other, as text: Jinja's operator `~`."""
        _check(_size(values))
        result: str = self.charged(markup_join(values) if escapes else str_join(values))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Do arithmetic. Texts and lists do not grow by `*`, and there are no powers."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator == "*" and not numbers):
            raise SecurityError(f"{operator} of these operands is not allowed in a chat template")
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MOST_BITS:
                raise SecurityError("a number of a chat template is too large")
        elif operator == "+" and isinstance(left, _Sized) and isinstance(right, _Sized):
            _check(len(left) + len(right))
        elif operator == "%" and isinstance(left, str | bytes):
            _check_percent(left, right)
        return self.charged(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method."""
        if getattr(function, "__name__", "") == "join" and args and not isinstance(args[0], _Sized):
            args = (list(args[0]), *args[1:])
        self._check_call(function, args, kwargs)
        return self.charged(super().call(context, function, *args, **kwargs), _ELEMENT)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The method `format` of a text, with bounds; None for anything else."""
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        formatter = _EscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)

        def fill(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                args, kwargs = (), *args
            result: str = type(text)(self._filled(formatter, text, args, kwargs))
            return result

        return fill

    def _filled(self, formatter: SandboxedFormatter, text: str, args: Any, kwargs: Any) -> str:
        result: str = self.charged(formatter.vformat(text, args, kwargs))
        _check(len(result))
        return result

    def _check_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if not isinstance(owner, str | bytes | int):
            return
        if name in _REFUSED:
            raise SecurityError(f"{name} is not allowed in a chat template")
        if isinstance(owner, int):
            return
        numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
        if name == "expandtabs":
            tabs = owner.count("\t") if isinstance(owner, str) else owner.count(b"\t")
            _check((tabs + 1) * max(map(abs, numbers), default=8))
        elif name in _PADDING:
            _check(max(map(abs, numbers), default=0))
        elif name == "replace":
            _check_replace(owner, *args)
        elif name in _SPLITTING:
            self._check_elements(len(owner))
        elif name == "join" and args and isinstance(args[0], list | tuple | str):
            _check(_size(args[0]) + len(args[0]) * len(owner))
        elif isinstance(owner, Markup):
            _check(_size((owner, args)))

    def check_filter(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The `value` to give to a filter of this name, when what the filter makes is within the bounds."""
        given = (*args, *kwargs.values())
        if name in {"join", "list", "sum"} and isinstance(value, Iterator):
            value = list(value)
        size = 0 if name in _SHALLOW else _size((value, given))
        most = max((abs(number) for number in given if isinstance(number, int)), default=0)
        longest = max((len(text) for text in given if isinstance(text, str)), default=0)
        if name in _WIDTHS:
            _check(max(size, most))
        elif most > _FEW.get(name, most):
            raise SecurityError(f"{name} of {most} is not allowed in a chat template")
        _check(size)
        if name == "indent":
            # The width is a number or a text.
            _check(size + (str(value).count("\n") + 1) * max(4, most, longest))
        elif name == "wordwrap":
            _check(size * max(1, longest))
        elif name == "replace":
            named = dict(zip(("old", "new"), args, strict=False)) | dict(kwargs)
            _check_replace(str(value), str(named.get("old", "")), str(named.get("new", "")))
        elif name == "format":
            _check_percent(str(value), kwargs or args)
        elif name == "join":
            _check(size + _length(value) * longest)
        elif name == "list" and isinstance(value, str):
            self._check_elements(len(value))
        elif name == "sum":
            _check_sum(value, dict(zip(("attribute", "start"), args, strict=False)) | dict(kwargs))
        return value

    def _check_elements(self, count: int) -> None:
        if 2 * _ELEMENT * count > getattr(self._thread, "left", _MOST_BYTES):
            raise SecurityError(f"a chat template may make {_MOST_BYTES} bytes of text")

    def _joined(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        _check(sum(map(len, parts)))
        result: str = self.charged("".join(parts))
        return result

    @staticmethod
    def _written(value: Any) -> Any:
        """`value`, when its text is within the bounds: that of a nested list may be immense."""
        if not isinstance(value, str):
            _check(_size(value))
        return value


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Lets the environment do what makes texts."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self.write("environment.concatenated((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("), escapes=context.eval_ctx.autoescape)")

    def visit_Getitem(self, node: jinja2.nodes.Getitem, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        is_slice = isinstance(node.arg, jinja2.nodes.Slice)
        self.write("environment.charged(" if is_slice else "(")
        super().visit_Getitem(node, frame)
        self.write(")")


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        _check(_size(value) + _numbers(format_spec))
        return self._env.charged(super().format_field(value, format_spec))  # type: ignore[attr-defined]


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


def _bounded(sandbox: TemplateSandbox, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` within the bounds. That it takes a context keeps Jinja from calling it when it compiles."""
    kind = _PassArg.from_obj(function)

    @jinja2.pass_context
    def filter_(context: Any, value: Any = None, *args: Any, **kwargs: Any) -> Any:
        value = sandbox.check_filter(name, value, args, kwargs)
        first: tuple[Any, ...] = ()
        if kind is not None:
            passed = {"context": context, "eval_context": context.eval_ctx, "environment": sandbox}
            first = (passed[kind.name],)
        return sandbox.charged(function(*first, value, *args, **kwargs), _ELEMENT)

    # `map`, `select` and others are recognised by their names only.
    return functools.update_wrapper(filter_, function, assigned=("__name__", "__doc__"), updated=())


def _check(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise SecurityError(f"a text of a chat template grows beyond {MAX_CHARACTERS} characters")


def _check_replace(text: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    if isinstance(old, type(text) | str) and isinstance(new, type(text) | str):
        _check(len(text) + text.count(old) * len(new))


def _check_sum(value: Any, given: Mapping[str, Any]) -> None:
    if isinstance(given.get("start"), _Sized):
        if given.get("attribute") is not None:
            raise SecurityError("sum of the lists in an attribute is not allowed in a chat template")
        _check(sum(map(_length, value)))


def _check_percent(form: str | bytes, values: Any) -> None:
    text = form if isinstance(form, str) else form.decode("latin-1")
    if _STAR.search(text):
        raise SecurityError("a width of * is not allowed in a chat template")
    times = text.count("%") if isinstance(values, Mapping) else 1
    _check(len(text) + _numbers(text.partition("%")[2]) + times * _size(values))


def _numbers(form: str) -> int:
    """At least the sum of all widths and precisions in a format."""
    found = re.findall(r"\d+", form)
    return sum(int(digits) if len(digits) < 10 else MAX_CHARACTERS + 1 for digits in found)


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _size(value: Any) -> int:
    """At least about as many characters as the text of a value has; one above the bound is not counted to its end."""
    if isinstance(value, str | bytes):
        return len(value)
    size, waiting = 0, [iter((value,))]
    while waiting:
        each = next(waiting[-1], waiting)
        if each is waiting:
            waiting.pop()
            continue
        size += len(each) if isinstance(each, str | bytes) else 2
        if size > MAX_CHARACTERS or len(waiting) > 5000:
            return MAX_CHARACTERS + 1
        if isinstance(each, Mapping):
            waiting.append(iter([entry for pair in each.items() for entry in pair]))
        elif isinstance(each, Namespace):  # its text has its values
            waiting.append(iter((each._Namespace__attrs,)))  # noqa: SLF001
        elif isinstance(each, Collection) and not isinstance(each, str | bytes | range):
            waiting.append(iter(each))
    return size

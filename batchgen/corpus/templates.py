"""Prompt templates: sandboxed Jinja2, compiled once. Values of a row are data, rendered once.

A template that only puts columns between fixed words, as most do, becomes a format string and
costs a tenth of a Jinja call. A column that a row lacks, or whose value is null, is the
row's error before anything is rendered, because Jinja would print `None`. Only a column that the
template itself tests (`{% if title %}`, `{{ title or "untitled" }}`, `is none`) may be null;
what then prints a null after all is an error again.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import (
    StrictUndefined,
    TemplateAssertionError,
    TemplateError,
    TemplateSyntaxError,
    nodes,
)
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import JobFileError
from batchgen.records import MISSING, RowError

_SINGLE_BRACES = re.compile(r"(?<!\{)\{\s*([^\W\d]\w*)\s*\}")
_HALF_CLOSED = re.compile(r"\{\{\s*([^\W\d]\w*)\s*\}(?!\})")
_OTHER_FILES: tuple[type[nodes.Node], ...] = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
)
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What an expression of the user's may raise on the values of a row."""
_LONGEST_MESSAGE = 300


class RowRefused(Exception):
    """A row cannot become a prompt; `error` says why."""

    def __init__(self, error: RowError) -> None:
        super().__init__(error.message)
        self.error = error


class _NullPrinted(TemplateError):
    """A null was about to be printed."""


class Template:
    """A compiled template over the columns of a row."""

    def __init__(self, text: str, place: str) -> None:
        """Raises JobFileError, beginning with `place`, for a template that cannot be compiled."""
        environment = _environment()
        try:
            tree = environment.parse(text)
            self._compiled = environment.from_string(tree)
        except TemplateSyntaxError as exc:
            raise JobFileError(f"{place}: {_explain(exc, text, environment)}") from exc
        if any(True for kind in _OTHER_FILES for _ in tree.find_all(kind)):
            raise JobFileError(f"{place}: a template cannot include or import other files")
        names = find_undeclared_variables(tree) - environment.globals.keys()
        self.columns = tuple(
            dict.fromkeys(n.name for n in tree.find_all(nodes.Name) if n.name in names)
        )
        """Columns that it uses, in the order of their first use."""
        self._tested = _tested_names(tree)
        self.required = tuple(name for name in self.columns if name not in self._tested)
        """Columns that must not be null."""
        decoded = _decoded_names(tree)
        self._printed = tuple(name for name in self.columns if name not in decoded)
        """Columns that must not be binary."""
        self.format, self.slots = _as_format(tree)
        """Where the template is that simple: a %-format and the column of each `%s`, or None."""

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for a row. Raises RowRefused (missing_column, null_prompt, bad_type,
        template_error)."""
        for column in self.required:
            value = values[column]
            if value is None or value is MISSING or value != value:
                raise RowRefused(absent(column, value))
        for column in self._printed:
            if isinstance(values.get(column), bytes):
                raise RowRefused(binary(column))
        context = {name: value for name, value in values.items() if value is not MISSING}
        try:
            return self._compiled.render(context)
        except _FAILURES as exc:
            for column in self._tested:
                value = values.get(column, "")
                if value is None or value is MISSING:
                    raise RowRefused(absent(column, value)) from exc
            raise RowRefused(RowError("template_error", _shortened(exc))) from exc


def refusal(column: str, value: object) -> RowError | None:
    """Why a template cannot print this value of a column; None for one that it can."""
    if value is None or value is MISSING or value != value:
        return absent(column, value)
    return binary(column) if isinstance(value, bytes) else None


def binary(column: str) -> RowError:
    """The error of a row whose value is bytes, which would be printed in Python's notation."""
    return RowError("bad_type", f"column '{column}' is binary, not text")


def absent(column: str, value: object) -> RowError:
    """The error of a row that has no value (MISSING, None or NaN) in a column that it needs."""
    if value is MISSING:
        return RowError("missing_column", f"no column '{column}' in this row")
    reason = "null" if value is None else "not a number (NaN)"
    return RowError("null_prompt", f"column '{column}' is {reason}")


def _shortened(error: BaseException) -> str:
    message = (
        f"{type(error).__name__}: {error}" if not isinstance(error, TemplateError) else str(error)
    )
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


def single_braces_hint(texts: Sequence[str]) -> str:
    """What to say after "uses no column": the columns that stand in single braces, if any."""
    for text in texts:
        match = _SINGLE_BRACES.search(text)
        if match is not None:
            return f"; did you mean '{{{{ {match.group(1)} }}}}'?"
    return "; write '{{ name }}' where the value of the column 'name' belongs"


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, finalize=_refuse_null
    )
    environment.globals.pop("lipsum", None)
    return environment


def _refuse_null(value: Any) -> Any:
    if value is None or value != value:
        raise _NullPrinted("a null would be printed")
    return value


def _explain(
    error: TemplateSyntaxError, text: str, environment: ImmutableSandboxedEnvironment
) -> str:
    message = f"line {error.lineno} of the template: {error.message}"
    half_closed = _HALF_CLOSED.search(text)
    if half_closed is not None:
        return f"{message}; did you mean '{{{{ {half_closed.group(1)} }}}}'?"
    if isinstance(error, TemplateAssertionError):
        unknown = re.search(r"named '([^']*)'", error.message or "")
        known = [*environment.filters, *environment.tests]
        near = difflib.get_close_matches(unknown.group(1), known, n=1) if unknown else []
        return f"{message}; did you mean '{near[0]}'?" if near else message
    return message


def _tested_names(tree: nodes.Template) -> frozenset[str]:
    """Names that the template asks about, and so knows may be null."""
    asked: list[nodes.Node] = [node.test for node in tree.find_all(nodes.If)]
    asked += [node.test for node in tree.find_all(nodes.CondExpr)]
    asked += [node.left for node in tree.find_all((nodes.Or, nodes.And))]
    asked += [node.node for node in tree.find_all(nodes.Test)]
    asked += [
        node.node
        for node in tree.find_all(nodes.Filter)
        if node.name in ("default", "d") and node.node is not None
    ]
    names = {node.name for node in asked if isinstance(node, nodes.Name)}
    for node in asked:
        names |= {name.name for name in node.find_all(nodes.Name)}
    return frozenset(names)


def _decoded_names(tree: nodes.Template) -> frozenset[str]:
    """Names of binary columns: the template makes text of them itself, `{{ data.decode() }}`."""
    return frozenset(
        node.node.name
        for node in tree.find_all(nodes.Getattr)
        if node.attr == "decode" and isinstance(node.node, nodes.Name)
    )


def _as_format(tree: nodes.Template) -> tuple[str | None, tuple[str, ...]]:
    pieces: list[str] = []
    slots: list[str] = []
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None, ()
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                pieces.append(node.data.replace("%", "%%"))
            elif isinstance(node, nodes.Name):
                pieces.append("%s")
                slots.append(node.name)
            else:
                return None, ()
    return "".join(pieces), tuple(slots)


Where = Callable[[str], str]
"""A dotted key of the job file to its place, for messages."""

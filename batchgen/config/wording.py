"""Validation errors in the user's words.

pydantic's errors are translated once, here, by a table over their types: what the value must be,
what it is, and, where one can tell, what to write instead.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from batchgen.config.section import COLUMN_TAG, OWN_ERROR, ColumnRef, KeyPath, Problem, Section

_LONGEST_SHOWN = 60


def shown(value: Any) -> str:
    """A value as a message shows it: YAML's words, texts in quotes, nothing long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def nearest(word: str, known: Iterable[Any]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is close."""
    match = _close(word, [str(item) for item in known])
    return f"; did you mean '{match}'?" if match else ""


def _close(word: str, known: list[str]) -> str | None:
    by_lower = {name.lower().replace("-", "_"): name for name in known}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, 1, 0.7)
    return by_lower[matches[0]] if matches else None


def in_words(exc: ValidationError, root: type[Section]) -> list[Problem]:
    """Key path and message of every error; `root` is the section that was validated."""
    messages: dict[KeyPath, list[str]] = {}
    for error in exc.errors(include_url=False):
        path, in_union = _keys(root, error["loc"])
        message = _message(error, path, error["loc"], root)
        if path[-1:] == ("[key]",):
            path, message = path[:-1], f"the key {message}"
        alternatives = messages.setdefault(path, [])
        if in_union and alternatives:
            alternatives[0] = _either(alternatives[0], message)
        elif message not in alternatives:
            alternatives.append(message)
        if in_union:
            _drop_shallower(messages, path)
    return [(path, message) for path, found in messages.items() for message in found]


def _keys(annotation: Any, loc: KeyPath) -> tuple[KeyPath, bool]:
    """The location of an error without pydantic's names of union branches; whether it had any."""
    if not loc:
        return (), False
    head, members = loc[0], _members(annotation)
    if str(head).startswith("\0"):
        return _keys(annotation, loc[1:])
    for member in members:
        if isinstance(member, type) and issubclass(member, Section):
            field = _field(member, head)
            if field is not None:
                path, in_union = _keys(field.annotation, loc[1:])
                return (head, *path), in_union
    if len([member for member in members if member is not ColumnRef]) > 1 and isinstance(head, str):
        branches = [member for member in members if get_args(member)] or [object]
        path, _ = _keys(branches[0], loc[1:])
        return path, True
    inner = get_args(members[0])[-1] if members and get_args(members[0]) else object
    path, in_union = _keys(inner, loc[1:])
    return (head, *path), in_union


def _members(annotation: Any) -> list[Any]:
    """The alternatives of a type, None left out."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [] if annotation is type(None) else [annotation]


def _either(first: str, second: str) -> str:
    """`must be A or B, is V` of two messages about the same value."""
    head, comma, _ = first.partition(", is ")
    other, _, tail = second.partition(", is ")
    if not comma or not tail or other in head:
        return first
    return f"{head} or {other.removeprefix('must be ')}, is {tail}"


def _drop_shallower(messages: dict[KeyPath, list[str]], path: KeyPath) -> None:
    """Where one branch of a union was entered, the branches that did not fit at all say nothing."""
    for above in [path[:end] for end in range(1, len(path))]:
        messages.pop(above, None)
    if any(len(deeper) > len(path) and deeper[: len(path)] == path for deeper in messages):
        messages.pop(path)


def _message(error: Any, path: KeyPath, tagged: KeyPath, root: type[Section]) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == OWN_ERROR:
        return str(context["message"])
    if kind == "extra_forbidden":
        return _unknown_key(path, tagged, root)
    if kind == "literal_error":
        return _not_among(context["expected"], value)
    if kind in _SENTENCES:
        return _SENTENCES[kind](value, context)
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, is {shown(value)}"


def _unknown_key(path: KeyPath, tagged: KeyPath, root: type[Section]) -> str:
    key = str(path[-1])
    if COLUMN_TAG in tagged:
        return "no such key; a column is named as {column: name}"
    section = section_at(root, path[:-1]) or root
    if key in section.refused:
        return section.refused[key]
    if match := _close(key, field_keys(section)):
        return f"no such key; did you mean '{match}'?"
    elsewhere = _homes(root).get(key.lower().replace("-", "_"))
    return f"no such key; did you mean '{elsewhere}'?" if elsewhere else _listing(section)


def _listing(section: type[Section]) -> str:
    keys = field_keys(section)
    few = ", ".join(keys) if len(keys) <= 12 else f"{', '.join(keys[:12])} …"
    return f"no such key; there are {few}"


def _homes(root: type[Section]) -> dict[str, str]:
    homes: dict[str, str] = {}
    for name, field in root.model_fields.items():
        section = _section_in(field.annotation)
        for key in field_keys(section) if section else ():
            homes.setdefault(key, f"{name}.{key}")
    return homes


def field_keys(section: type[Section]) -> list[str]:
    """Keys of a section as the job file spells them."""
    return [field.alias or name for name, field in section.model_fields.items()]


def section_at(root: type[Section], path: KeyPath) -> type[Section] | None:
    """The section that a path of keys leads to; None where it leads to a plain value."""
    section: type[Section] | None = root
    for part in path:
        field = _field(section, part) if section else None
        if field is not None:
            section = _section_in(field.annotation)
    return section


def _field(section: type[Section], key: str | int) -> FieldInfo | None:
    for name, field in section.model_fields.items():
        if key == (field.alias or name):
            return field
    return None


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return None if annotation is ColumnRef else annotation
    for argument in get_args(annotation):
        if found := _section_in(argument):
            return found
    return None


def _not_among(expected: str, value: Any) -> str:
    nearby = nearest(value, re.findall(r"'([^']*)'", expected)) if isinstance(value, str) else ""
    return f"must be {expected}, is {shown(value)}{nearby}"


def _whole_number(value: Any, _: Mapping[str, Any]) -> str:
    return f"must be a whole number, is {shown(value)}{_number_hint(value, whole=True)}"


def _number(value: Any, _: Mapping[str, Any]) -> str:
    return f"must be a number, is {shown(value)}{_number_hint(value, whole=False)}"


def _number_hint(value: Any, *, whole: bool) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    plain = value.replace("_", "").replace(",", "").strip()
    if re.fullmatch(r"[-+]?\d+" if whole else r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", plain):
        return "; remove the quotes" if plain == value else f"; write {plain}"
    return ""


def _text(value: Any, _: Mapping[str, Any]) -> str:
    scalar = isinstance(value, bool | int | float)
    return f"must be text, is {shown(value)}{'; put it in quotes' if scalar else ''}"


def _truth(value: Any, _: Mapping[str, Any]) -> str:
    words = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
    word = str(value).lower()
    word = words.get(word, word if word in ("true", "false") else "")
    return f"must be true or false, is {shown(value)}{f'; write {word}' if word else ''}"


def _limit(words: str, name: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def sentence(value: Any, context: Mapping[str, Any]) -> str:
        limit = context[name]
        number = str(limit) if isinstance(limit, int) else f"{limit:g}"
        return f"must be {words} {number}, is {shown(value)}"

    return sentence


def _fixed(sentence: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda value, _: f"{sentence}, is {shown(value)}"


_SENTENCES: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "missing": lambda value, _: "is missing",
    "greater_than": _limit("greater than", "gt"),
    "greater_than_equal": _limit("at least", "ge"),
    "less_than": _limit("less than", "lt"),
    "less_than_equal": _limit("at most", "le"),
    "finite_number": _fixed("must be a finite number"),
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "int_parsing": _whole_number,
    "float_type": _number,
    "float_parsing": _number,
    "bool_type": _truth,
    "bool_parsing": _truth,
    "string_type": _text,
    "list_type": lambda value, _: (
        f"must be a list, is {shown(value)}{f'; write [{value}]' if isinstance(value, str) else ''}"
    ),
    "dict_type": _fixed("must be a mapping"),
    "model_type": _fixed("must be a mapping of keys and values"),
    "model_attributes_type": _fixed("must be a mapping of keys and values"),
    "invalid_key": lambda value, _: "a key must be text; put it in quotes",
    "string_too_short": lambda value, _: "must not be empty",
    "too_short": lambda value, _: "must not be empty",
    "too_long": lambda value, context: (
        f"must have at most {context['max_length']} entries, has {context['actual_length']}"
    ),
}

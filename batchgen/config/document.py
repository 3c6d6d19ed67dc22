"""YAML text to plain values, with the place of every key and all problems of its form.

Plain scalars follow YAML 1.2, not the 1.1 of PyYAML's own loaders: `NO`, `yes` and `2026-01-01`
are text, `1e-4` is a number, `010` is ten and `12:30` is not a count of minutes. Duplicate keys
are problems, where PyYAML would take the last one. Environment variables are filled in here,
because an unquoted `${N}` may become a number.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import Node, ScalarNode, SequenceNode

from batchgen.config.interpolation import interpolate
from batchgen.config.locate import KeyPlaces, Place
from batchgen.config.section import KeyPath

UNKNOWN = object()
"""Stands for a value whose environment variable is missing, so that it is reported once."""

_MOST_VALUES = 100_000
_INT = re.compile(r"[-+]?[0-9]{1,1000}|0o[0-7]{1,1000}|0x[0-9a-fA-F]{1,1000}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", ".INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar by YAML 1.2.

    >>> [plain_scalar(text) for text in ("1e-4", "NO", "0x10", "null", "10:30")]
    [0.0001, 'NO', 16, None, '10:30']
    """
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    return float(text) if _FLOAT.fullmatch(text) else text


@dataclass(slots=True)
class Document:
    """Plain values of a YAML text, places of their keys, and what is wrong with its form.

    `base` is the path of the whole text: not empty where the text is the value of an override.
    """

    source: str
    environment: Mapping[str, str]
    base: KeyPath = ()
    data: Any = None
    places: dict[KeyPath, KeyPlaces] = field(default_factory=dict)
    problems: list[tuple[Place, KeyPath, str]] = field(default_factory=list)
    _num_values: int = 0

    def read(self, text: str) -> "Document":
        """Parse the text; problems of syntax and form are added to `problems`."""
        self.places[self.base] = KeyPlaces(self._at(1, 1), self._at(1, 1))
        self.data = UNKNOWN
        try:
            node = yaml.BaseLoader(text).get_single_node()
            self.data = None if node is None else self._value(node, self.base, ())
        except yaml.YAMLError as exc:
            self._report_syntax(exc, text)
        except RecursionError:
            self._report(self._at(1, 1), self.base, "lists and mappings nest too deep")
        return self

    def _report(self, place: Place, path: KeyPath, message: str) -> None:
        self.problems.append((place, path, message))

    def _at(self, line: int, column: int) -> Place:
        return Place(self.source) if self.base else Place(self.source, line, column)

    def _place(self, node: Node) -> Place:
        return self._at(node.start_mark.line + 1, node.start_mark.column + 1)

    def _value(self, node: Node, path: KeyPath, above: tuple[int, ...]) -> Any:
        self._num_values += 1
        if id(node) in above or self._num_values > _MOST_VALUES:
            self._report(self._place(node), path, "its aliases (*name) expand without end")
            return UNKNOWN
        if node.tag not in _PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self._report(self._place(node), path, f"YAML tags such as {tag} are not supported")
            return UNKNOWN
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, SequenceNode):
            return [
                self._entry(item, item, (*path, index), (*above, id(node)))
                for index, item in enumerate(node.value)
            ]
        return self._mapping(node, path, (*above, id(node)))

    def _entry(self, key: Node, node: Node, path: KeyPath, above: tuple[int, ...]) -> Any:
        self.places[path] = KeyPlaces(self._place(key), self._place(node))
        return self._value(node, path, above)

    def _mapping(self, node: Node, path: KeyPath, above: tuple[int, ...]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        seen: dict[Any, Place] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, ScalarNode):
                self._report(
                    place, path, "a key must be text; a template such as '{{ text }}' needs quotes"
                )
                continue
            key = key_node.value if key_node.style else plain_scalar(key_node.value)
            if key == "<<" and not key_node.style:
                self._merge(value_node, values, path, above)
            elif key in seen:
                self._report(place, (*path, str(key)), f"stands here again; first at {seen[key]}")
            else:
                seen[key] = place
                values[key] = self._entry(key_node, value_node, (*path, key), above)
        return values

    def _merge(
        self, node: Node, values: dict[Any, Any], path: KeyPath, above: tuple[int, ...]
    ) -> None:
        own_places = dict(self.places)
        for source in node.value if isinstance(node, SequenceNode) else [node]:
            merged = self._value(source, path, above)
            if not isinstance(merged, dict):
                self._report(self._place(node), path, "'<<' needs a mapping (*name)")
                continue
            for key, value in merged.items():
                values.setdefault(key, value)
        self.places |= own_places

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text = node.value
        if path[:1] != ("prompt",):
            text, problems = interpolate(text, self.environment)
            for problem in problems:
                self._report(self._place(node), path, problem)
            if problems:
                return UNKNOWN
        return text if node.style else plain_scalar(text)

    def _report_syntax(self, exc: yaml.YAMLError, text: str) -> None:
        mark = getattr(exc, "problem_mark", None)
        if mark is None:
            position = int(getattr(exc, "position", 0))
            line = text.count("\n", 0, position) + 1
            place = self._at(line, position - text.rfind("\n", 0, position))
            code = f"U+{ord(text[position]):04X}" if position < len(text) else "at the end"
            self._report(place, self.base, f"the character {code} is not allowed in YAML")
            return
        lines = text.splitlines()
        line_text = lines[mark.line] if mark.line < len(lines) else ""
        what = str(getattr(exc, "problem", None) or exc)
        hint = _syntax_hint(f"{getattr(exc, 'context', '')} {what}", line_text)
        place = self._at(mark.line + 1, mark.column + 1)
        self._report(place, self.base, f"not valid YAML: {what}{hint}")


def _syntax_hint(what: str, line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    hints = (
        ("\\t" in what or "\t" in indent, "indent with spaces, not with tabs"),
        ("{{" in line, 'a template needs quotes: "{{ text }}"'),
        ("${" in line, 'within { } or [ ] a variable needs quotes: "${NAME}"'),
        ("mapping values" in what, "a text with ': ' in it needs quotes"),
        ("single document" in what, "keep one document, without '---' in the middle"),
    )
    return next((f"; {hint}" for applies, hint in hints if applies), "")

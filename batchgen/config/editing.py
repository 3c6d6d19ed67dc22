"""A few values changed in a job file, with all the rest of it, comments and layout, as it was.

YAML written anew from its values would lose comments, order and quotes. So the text itself is
edited: a value is replaced where it stands, and a key that is absent is put into its section in
the section's own style. What cannot be done in this way without guessing (a value that comes from
an anchor or from an environment variable) is refused, and every edit is proved by reading the
result: it has to hold the old values and the new ones, and nothing else.
"""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from batchgen.config.document import Document, plain_scalar
from batchgen.config.locate import dotted
from batchgen.config.section import KeyPath
from batchgen.errors import JobFileError

INDENT = "  "


def edit_job_text(text: str, source: str, changes: Mapping[str, Any]) -> str:
    """`text` in which each dotted key has its new value: a number, a truth value or a plain word.

    Raises JobFileError, with the place, where a value cannot be changed without guessing.

    >>> edit_job_text("model: {name: m}  # small\\n", "job.yaml", {"model.max_num_seqs": 48})
    'model: {name: m, max_num_seqs: 48}  # small\\n'
    """
    for key, value in changes.items():
        path = tuple(key.split("."))
        edited = _Text(text, source).with_value(path, value)
        _prove(text, edited, source, path, value)
        text = edited
    return text


def rewrite_job(path: Path, before: bytes, changes: Mapping[str, Any]) -> str:
    """Change these keys of the job file, which held `before` when it was read; its new text.

    The file is replaced as a whole and keeps its permissions; a link stays a link. Raises
    JobFileError where it has changed meanwhile, or cannot be edited or written; then it is as it
    was.
    """
    target = path.resolve()
    text = before.decode("utf-8-sig")
    mark = before[: len(before) - len(text.encode())]
    after = edit_job_text(text, str(path), changes)
    wanted = ", ".join(f"{key}: {_flow(value)}" for key, value in changes.items())
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.read_bytes() != before:
            raise JobFileError(
                f"{path}: has changed since it was read, so it is left as it is; write {wanted}"
                " there by hand"
            )
        temporary.write_bytes(mark + after.encode())
        temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise JobFileError(
            f"{path}: cannot be written: {exc.strerror}; write {wanted} there by hand"
        ) from exc
    return after


def check_rewritable(path: Path, before: bytes, changes: Mapping[str, Any]) -> None:
    """Raise the JobFileError that `rewrite_job` would raise by now; the file is not touched."""
    edit_job_text(before.decode("utf-8-sig"), str(path), changes)
    try:
        with TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as exc:
        raise JobFileError(
            f"{path}: cannot be written: its directory takes no file: {exc.strerror}; leave out"
            " --write, and change the file by hand"
        ) from exc


class _Text:
    """A job file's text and the nodes of its YAML."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def with_value(self, path: KeyPath, value: Any) -> str:
        node: Node | None = yaml.BaseLoader(self._text).get_single_node()
        if node is None:
            raise JobFileError(f"{self._source}: is empty")
        for depth, key in enumerate(path):
            if not isinstance(node, MappingNode):
                raise self._refusal(node, path, "the value above it is no mapping")
            found = _child(node, str(key))
            if found is None:
                return self._inserted(node, path, depth, value)
            key_node, node = found
            self._check_own(key_node, node, path)
            if _is_nothing(node) and depth + 1 < len(path):
                return self._filled(key_node, node, path[depth + 1 :], value)
        return self._replaced(node, path, value)

    def _check_own(self, key: Node, node: Node, path: KeyPath) -> None:
        """Whether this text belongs to this key alone."""
        first = self._text[node.start_mark.index : node.start_mark.index + 1]
        is_elsewhere = node.start_mark.index < key.end_mark.index
        if is_elsewhere or first in ("&", "!"):
            what = "an alias (*name)" if is_elsewhere else "an anchor or a tag"
            raise self._refusal(key, path, f"its value is written with {what}")

    def _replaced(self, node: Node, path: KeyPath, value: Any) -> str:
        if not isinstance(node, ScalarNode):
            raise self._refusal(node, path, "its value is a mapping or a list")
        if "${" in node.value:
            raise self._refusal(node, path, f"its value is {node.value!r}")
        start, end = node.start_mark.index, node.end_mark.index
        blank = " " if start == end and self._text[start - 1] == ":" else ""
        return f"{self._text[:start]}{blank}{_flow(value)}{self._text[end:]}"

    def _filled(self, key: Node, node: Node, rest: KeyPath, value: Any) -> str:
        """A section that is there but holds nothing gets its first key."""
        start, end = node.start_mark.index, node.end_mark.index
        if start != end:
            inner = _flow(_nested(rest, value))
            return f"{self._text[:start]}{inner}{self._text[end:]}"
        indent = " " * key.start_mark.column + INDENT
        return self._with_line(key.end_mark.index, f"{indent}{_entry(rest, value)}")

    def _inserted(self, section: MappingNode, path: KeyPath, depth: int, value: Any) -> str:
        entry = _entry(path[depth:], value)
        if section.flow_style:
            return self._into_flow(section, path[depth:], value)
        if depth == 0:
            return self._appended(section, path, value)
        indent = " " * section.value[0][0].start_mark.column
        for _, node in reversed(section.value):
            if _is_one_line(node) and node.start_mark.index > section.start_mark.index:
                return self._with_line(node.end_mark.index, f"{indent}{entry}")
        first = section.value[0][0].start_mark
        at = first.index - first.column
        return f"{self._text[:at]}{indent}{entry}{self._newline}{self._text[at:]}"

    def _into_flow(self, section: MappingNode, rest: KeyPath, value: Any) -> str:
        if not section.value:
            at, comma = section.start_mark.index + 1, ""
            quote = ""
        else:
            last_key, last = section.value[-1]
            at, comma = max(last.end_mark.index, last_key.end_mark.index), ", "
            quote = last_key.style or ""
        inner = _flow(value if len(rest) == 1 else _nested(rest[1:], value), quote=quote)
        return f"{self._text[:at]}{comma}{quote}{rest[0]}{quote}: {inner}{self._text[at:]}"

    def _appended(self, root: MappingNode, path: KeyPath, value: Any) -> str:
        """A new section at the end of the file."""
        text = self._text if self._text.endswith("\n") else self._text + self._newline
        indent = " " * root.start_mark.column
        if len(path) == 1:
            return f"{text}{indent}{_entry(path, value)}{self._newline}"
        inner = f"{indent}{INDENT}{_entry(path[1:], value)}"
        return f"{text}{indent}{path[0]}:{self._newline}{inner}{self._newline}"

    def _with_line(self, index: int, line: str) -> str:
        """A line of its own after the line in which `index` is."""
        end = self._text.find("\n", index)
        if end < 0:
            return f"{self._text}{self._newline}{line}{self._newline}"
        return f"{self._text[: end + 1]}{line}{self._newline}{self._text[end + 1 :]}"

    def _refusal(self, node: Node, path: KeyPath, why: str) -> JobFileError:
        mark = node.start_mark
        return JobFileError(
            f"{self._source}:{mark.line + 1}:{mark.column + 1}: {dotted(path)}: {why}, so it is not"
            " changed; change it by hand"
        )


def _child(section: MappingNode, key: str) -> tuple[ScalarNode, Node] | None:
    for key_node, node in section.value:
        if isinstance(key_node, ScalarNode) and key_node.value == key:
            return key_node, node
    return None


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style and plain_scalar(node.value) is None


def _is_one_line(node: Node) -> bool:
    """Whether a value begins and ends on one line (block texts end on a later one)."""
    return bool(node.start_mark.line == node.end_mark.line)


def _entry(path: KeyPath, value: Any) -> str:
    inner = value if len(path) == 1 else _nested(path[1:], value)
    return f"{path[0]}: {_flow(inner)}"


def _nested(path: KeyPath, value: Any) -> Any:
    for key in reversed(path):
        value = {str(key): value}
    return value


def _flow(value: Any, *, quote: str = "") -> str:
    """The value as YAML on one line; `quote` is put around keys, as in JSON."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{quote}{k}{quote}: {_flow(v, quote=quote)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{quote}{value}{quote}" if isinstance(value, str) else str(value)


def _prove(before: str, after: str, source: str, path: KeyPath, value: Any) -> None:
    """The edit has changed this value and no other. Raises JobFileError where it has not."""
    wanted = copy.deepcopy(Document(source, os.environ).read(before).data)
    section = wanted
    for key in path[:-1]:
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
    section[path[-1]] = value
    result = Document(source, os.environ).read(after)
    if result.problems or result.data != wanted:
        raise JobFileError(
            f"{source}: {dotted(path)}: the layout of this file does not allow to change it safely;"
            f" write {_flow(value)} there by hand"
        )


def changed_lines(before: str, after: str, source: str) -> Iterator[str]:
    """The edit as a unified diff, line by line."""
    import difflib

    yield from difflib.unified_diff(
        before.splitlines(), after.splitlines(), source, f"{source} (tuned)", lineterm="", n=1
    )

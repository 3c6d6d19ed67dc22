"""The JSON schema of `sampling.json_schema`: from a mapping, a file or text to compact JSON text.

A schema that cannot compile takes an engine's request down, so it is checked before any engine
sees it: JSON, a valid Draft 2020-12 schema, local references that lead somewhere, and no deeper
than vLLM accepts. The same check serves schemas that come from a column, one per distinct text.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchgen.config.section import refusal
from batchgen.config.wording import shown

MAX_NESTING = 64
"""vLLM refuses schemas that nest objects and arrays deeper than this."""


def resolve_schema(value: Any) -> str:
    """Compact JSON text of a schema given as a mapping, as JSON text or as the path of a file."""
    if isinstance(value, dict):
        text = _as_json(value)
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        text = value
    elif isinstance(value, str) and value.strip():
        text = _read(value)
    else:
        raise refusal(
            "must be a JSON schema (a mapping, JSON text, or the path of a .json file) or"
            f" {{column: name}}, is {shown(value)}"
        )
    problem = schema_problem(text)
    if problem is not None:
        raise refusal(problem)
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


def _as_json(value: dict[Any, Any]) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise refusal(f"cannot be written as JSON: {exc}") from exc


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise refusal(f"cannot read the schema file '{path}': {reason}") from exc


def schema_problem(text: str) -> str | None:
    """Why this text is not a usable JSON schema, or None if it is one."""
    try:
        schema = json.loads(text)
    except RecursionError:
        return _too_deep()
    except ValueError as exc:
        return f"is not JSON: {exc}" if text.strip() else "is empty; a JSON schema is needed"
    if not isinstance(schema, dict):
        return f"must be a JSON object, is {shown(schema)}"
    if _depth_exceeds(schema, MAX_NESTING):
        return _too_deep()
    return _draft_problem(schema) or _reference_problem(schema)


def _too_deep() -> str:
    return f"nests objects and arrays deeper than the {MAX_NESTING} levels that vLLM accepts"


def _depth_exceeds(schema: Any, limit: int) -> bool:
    level = [schema]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _draft_problem(schema: dict[str, Any]) -> str | None:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as exc:
        place = "/".join(str(part) for part in exc.absolute_path) or "the top level"
        return f"is not a valid JSON schema: at {place}: {exc.message}"
    return None


def _reference_problem(schema: dict[str, Any]) -> str | None:
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"refers to '{reference}'; only references within the schema ('#/…') can be used"
        if not _leads_somewhere(schema, reference):
            return f"refers to '{reference}', which the schema does not have"
    return None


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for key, value in node.items():
            if key not in ("const", "enum", "default", "examples"):
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _leads_somewhere(schema: dict[str, Any], reference: str) -> bool:
    if not reference.startswith("#/"):
        return reference == "#"
    node: Any = schema
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return False
    return True

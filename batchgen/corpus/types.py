"""What a column holds: Arrow types of JSONL values, and types that fit two shards.

Parquet says its types. CSV has text. JSONL says nothing, so its values are looked at: texts stay
texts (no guessing of dates or numbers), and what is nested or mixed becomes JSON text, marked
as such in the field's metadata, because there every value has to be written as JSON.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

_MARK = {b"batchgen": b"json"}
_INT64_END = 2**63
_EXACT_END = 2**53
"""Integers up to here are exact as floats; a column of floats and larger ones is JSON text."""


def value_kind(value: Any) -> str:
    """What a JSON value is, as far as a column's type goes."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if -_EXACT_END <= value <= _EXACT_END:
            return "int"
        return "big int" if -_INT64_END <= value < _INT64_END else "nested"
    return "float" if isinstance(value, float) else "nested"


def field_of_kinds(name: str, kinds: Iterable[str]) -> pa.Field:
    """The field for a column of a JSONL shard whose values are of these kinds."""
    match sorted(set(kinds) - {"null"}):
        case []:
            return pa.field(name, pa.null())
        case ["string"]:
            return pa.field(name, pa.string())
        case ["bool"]:
            return pa.field(name, pa.bool_())
        case ["int"] | ["big int"] | ["big int", "int"]:
            return pa.field(name, pa.int64())
        case ["float"] | ["float", "int"]:
            return pa.field(name, pa.float64())
        case _:
            return pa.field(name, pa.string(), metadata=_MARK)


def is_json_text(field: pa.Field) -> bool:
    """Whether the column holds JSON text, one JSON value in each row."""
    return bool(field.metadata) and field.metadata.get(b"batchgen") == b"json"


def widen(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """A field that holds the values of both without loss, or None."""
    if pa.types.is_null(one.type):
        return other
    if pa.types.is_null(other.type):
        return one
    if is_json_text(one) != is_json_text(other):
        text, own = (one, other) if is_json_text(one) else (other, one)
        return text if _is_plain(_decoded(own.type)) else None
    if one.type == other.type:
        return one
    plain = [pa.schema([pa.field(one.name, _decoded(field.type))]) for field in (one, other)]
    try:
        return pa.unify_schemas(plain, promote_options="permissive").field(0)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _is_plain(type: pa.DataType) -> bool:
    """Whether JSON has values of this type: texts, numbers, true and false."""
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
    )
    return any(is_kind(type) for is_kind in kinds)


def _decoded(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


def type_name(field: pa.Field) -> str:
    """The type as a user reads it."""
    return "JSON text" if is_json_text(field) else str(field.type)

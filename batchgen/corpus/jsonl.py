"""Rows of a JSONL shard: one JSON object a line, nothing guessed and nothing lost.

orjson parses; what it refuses gets a second look from the standard library, which knows NaN,
Infinity and lone surrogates, and says where a line breaks. A line that is no JSON object
becomes a RowError with its place, or is skipped, or ends the run, as the job wants it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from batchgen.corpus.limits import PartLimits, ReadCounts
from batchgen.corpus.lines import BOM, LineSource
from batchgen.corpus.places import shown_path
from batchgen.errors import DataError
from batchgen.records import RowError, Shard

Record = dict[str, Any]
_MAX_EXACT = float(2**63)
"""orjson turns integers beyond 64 bits into floats, all of which are at least this large."""


def json_rows(
    shard: Shard,
    source: LineSource,
    *,
    columns: Sequence[str] | None,
    limits: PartLimits,
    counts: ReadCounts,
) -> Iterator[Record | RowError]:
    """The shard's rows, one per line that is not blank; `source` stands just behind each.

    Values of `columns` (None: all) are exact, integers of any size among them. Raises DataError for
    a bad line with `on_bad_line: fail`.
    """
    loads = orjson.loads
    for line, num_bytes in source:
        if line is not None and source.offset == num_bytes and line.startswith(BOM):
            line = line[len(BOM) :]
        if line is not None and line[:1] != b"{" and not line.strip():
            counts.blank_lines += 1
            continue
        try:
            record: Record | str = loads(line) if line is not None else ""
            if type(record) is not dict or _has_rounded(record, columns):
                record = _second_look(line, limits.max_line_bytes)
        except orjson.JSONDecodeError:
            record = _second_look(line, limits.max_line_bytes)
        if isinstance(record, dict):
            yield record
        elif (error := bad_line(shard, source.line_number, record, limits, counts)) is not None:
            yield error


def bad_line(
    shard: Shard, line_number: int, reason: str, limits: PartLimits, counts: ReadCounts
) -> RowError | None:
    """The row that a line becomes which cannot be read; None if the job skips such lines."""
    message = f"{shard.name}:{line_number}: {reason}"
    if limits.on_bad_line == "fail":
        raise DataError(
            f"{shown_path(shard)}:{line_number}: {reason}; mend the line, or set"
            " input.on_bad_line to error_row or skip"
        )
    if limits.on_bad_line == "skip":
        counts.skipped_lines += 1
        return None
    return RowError("bad_json", message)


def _second_look(line: bytes | None, max_line_bytes: int) -> Record | str:
    """The object on this line, or why there is none."""
    if line is None:
        return f"the line is longer than input.max_line_bytes ({max_line_bytes})"
    try:
        value = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as exc:
        return f"not UTF-8: {exc.reason} at byte {exc.start + 1} of the line"
    except json.JSONDecodeError as exc:
        return f"not JSON: {exc.msg} at column {exc.colno}"
    except RecursionError:
        return "not readable: arrays and objects are nested too deeply"
    except ValueError:
        return "not readable: a number has too many digits"
    if not isinstance(value, dict):
        return f"a row is a JSON object, this is {_KINDS[type(value)]}"
    return value


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _has_rounded(record: Record, columns: Sequence[str] | None) -> bool:
    for column in record if columns is None else columns:
        value = record.get(column)
        kind = type(value)
        if kind is float:
            if not -_MAX_EXACT < value < _MAX_EXACT:  # type: ignore[operator]
                return True
        elif (kind is dict or kind is list) and _is_rounded(value):
            return True
    return False


def _is_rounded(value: Any) -> bool:
    """Whether a parsed value holds a float so large that it may have been an integer."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is float:
            if not -_MAX_EXACT < item < _MAX_EXACT:
                return True
        elif kind is dict:
            pending += item.values()
        elif kind is list:
            pending += item
    return False

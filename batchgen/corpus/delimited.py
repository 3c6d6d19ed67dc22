"""Rows of a CSV shard: a header, then one record a row; every value is text.

A record may span lines where a quoted value holds line feeds, so Python's csv module pulls lines
itself, and the line source tells afterwards how far it came. A record that breaks the rules
(number of fields, an open quote, no UTF-8, too long) is one bad row; reading goes on behind it.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence

from batchgen.corpus.jsonl import Record, bad_line
from batchgen.corpus.limits import PartLimits, ReadCounts
from batchgen.corpus.lines import BOM, LineSource
from batchgen.corpus.places import shown_path
from batchgen.errors import DataError
from batchgen.records import RowError, Shard


class _BadRecord(Exception):
    """Why the record that is being read cannot be one."""


class _Lines:
    """What the csv module pulls its lines from: text, within one record's limits."""

    def __init__(self, source: LineSource, max_bytes: int) -> None:
        self._source = source
        self._lines = iter(source)
        self._max_bytes = max_bytes
        self.is_at_end = False
        self.begin_record()

    def begin_record(self) -> None:
        """Count anew."""
        self.num_bytes = 0
        self.num_lines = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line, num_bytes = next(self._lines, (b"", 0))
        if not num_bytes:
            self.is_at_end = True
            raise StopIteration
        self.num_bytes += num_bytes
        self.num_lines += 1
        if line is None or self.num_bytes > self._max_bytes + 1:
            raise _BadRecord(f"the record is longer than input.max_line_bytes ({self._max_bytes})")
        if self._source.offset == num_bytes and line.startswith(BOM):
            line = line[len(BOM) :]
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise _BadRecord(
                f"not UTF-8: {exc.reason} at byte {exc.start + 1} of the line"
            ) from exc


class CsvRecords:
    """The records of a CSV line source, as fields; [] for a blank line, a text for a bad record."""

    def __init__(self, source: LineSource, max_line_bytes: int) -> None:
        self._source = source
        self._lines = _Lines(source, max_line_bytes)
        # The module's own limit (131,072 characters a field) is for the whole process; ours is
        # in bytes, and a record's.
        csv.field_size_limit(2**31 - 1)
        self._reader = csv.reader(self._lines)

    def __iter__(self) -> Iterator[list[str] | str]:
        return iter(self._next, None)

    @property
    def line_number(self) -> int:
        """Number of the line in which the last record begins."""
        return self._source.line_number - max(0, self._lines.num_lines - 1)

    def _next(self) -> list[str] | str | None:
        self._lines.begin_record()
        try:
            fields: list[str] | None = next(self._reader, None)
        except csv.Error as exc:
            return f"not CSV: {exc}"
        except _BadRecord as exc:
            return str(exc)
        if fields is not None and self._lines.is_at_end:
            return "not CSV: a quote is not closed before the end of the file"
        return fields


def take_header(shard: Shard, records: CsvRecords) -> list[str]:
    """The column names, from the first record; no names in an empty file.

    Raises DataError for a header that cannot be used.
    """
    for fields in records:
        if isinstance(fields, str):
            raise DataError(f"{shown_path(shard)}:{records.line_number}: header: {fields}")
        if fields:
            twice = [name for name, count in Counter(fields).items() if count > 1]
            if twice:
                raise DataError(
                    f"{shown_path(shard)}: the header has '{twice[0]}' more than once; rename one"
                )
            return fields
    return []


def csv_rows(
    shard: Shard,
    records: CsvRecords,
    *,
    header: Sequence[str],
    limits: PartLimits,
    counts: ReadCounts,
) -> Iterator[Record | RowError]:
    """The shard's rows behind the header. Raises DataError for a bad one under `fail`."""
    for fields in records:
        if not fields:
            counts.blank_lines += 1
            continue
        reason = fields if isinstance(fields, str) else None
        if reason is None and len(fields) != len(header):
            reason = f"the record has {len(fields)} fields, the header has {len(header)}"
        if reason is None:
            yield dict(zip(header, fields, strict=True))
        elif (error := bad_line(shard, records.line_number, reason, limits, counts)) is not None:
            yield error

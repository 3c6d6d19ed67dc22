"""Kept columns, read again from the shards when a part is published.

Rows that wait for the engine carry only what their prompt needs; everything that is merely carried
along is read a second time, a part at a time. Parts of a shard are mostly published in order, so
a cursor stays open behind the last one, and a compressed shard is decompressed once more, not
once a part.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from batchgen.corpus.limits import PartLimits, ReadCounts, ReadPoint
from batchgen.corpus.lines import unreadable
from batchgen.corpus.parquet import ParquetShard, python_values
from batchgen.corpus.places import shown_path, shrunk
from batchgen.corpus.readers import is_same_slice
from batchgen.corpus.text import TextRows
from batchgen.corpus.types import is_json_text
from batchgen.errors import DataError, ResumeMismatch
from batchgen.records import PartExtent, RowError, Shard

_OPEN_SHARDS = 4
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 8 << 20
_INT64_END = 2**63
_NO_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


class FileState(NamedTuple):
    """What tells cheaply that a file is the same as before."""

    num_bytes: int
    mtime_ns: int | None


def file_state(shard: Shard) -> FileState:
    """The state of a shard's file now. Raises DataError where it is gone."""
    try:
        status = Path(shard.path).stat()
    except OSError as exc:
        raise unreadable(shard, exc) from exc
    return FileState(status.st_size, status.st_mtime_ns)


class KeptReader:
    """Reads the kept columns of parts. One caller at a time; close it at the end.

    `misfits` counts, by column, JSONL values that became null because they do not fit the planned
    type, and holds the place of the first.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        kept_schema: pa.Schema,
        limits: PartLimits,
        *,
        known: Mapping[str, FileState] | None = None,
    ) -> None:
        """`known`: what the files were when rows of them were done; default: what they are now."""
        self._shards = {shard.name: shard for shard in shards}
        self._known = {shard.name: FileState(shard.num_bytes, shard.mtime_ns) for shard in shards}
        self._known |= known or {}
        self._schema = kept_schema
        self._limits = limits
        self._cursors: dict[str, _TextCursor | _ParquetCursor] = {}
        self.misfits: dict[str, tuple[int, str]] = {}

    def trust(self) -> None:
        """The files as they are now are the ones that finished rows were made of."""
        for shard in self._shards.values():
            self._known[shard.name] = FileState(shard.num_bytes, shard.mtime_ns)

    def read(
        self,
        shard: str,
        part_start: int,
        source_start: int | None,
        num_rows: int,
        extent: PartExtent | None = None,
    ) -> pa.Table:
        """Kept columns of `num_rows` rows from `part_start` on, with exactly the kept schema.

        `source_start` is the part's offset in the decompressed shard, if known. Rows that cannot be
        read are all null. A file that is not the one that rows were done of may still hold the same
        rows; their hash in `extent` tells. Raises ResumeMismatch where it does not, or where there
        is no hash, and DataError for a shard that is gone, damaged or shorter now.
        """
        if shard not in self._shards:
            raise DataError(
                f"{shard}: this shard is no longer in input.paths, and columns of rows that are"
                " done are still to be read from it; put it back, and run again"
            )
        if not self._schema.names:
            rows = pa.array([{}] * num_rows, pa.struct([]))
            return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
        self._check_content(self._shards[shard], extent)
        cursor = self._cursor(self._shards[shard], part_start, source_start)
        self._cursors[shard] = cursor
        return pa.Table.from_batches(list(cursor.take(num_rows)), self._schema)

    def close(self) -> None:
        """Let all files go."""
        while self._cursors:
            self._cursors.popitem()[1].close()

    def _check_content(self, shard: Shard, extent: PartExtent | None) -> None:
        if file_state(shard) == self._known[shard.name]:
            return
        cursor = self._cursors.pop(shard.name, None)
        if cursor is not None:
            cursor.close()
        if extent is None or not is_same_slice(shard, extent, self._limits):
            raise ResumeMismatch(
                f"{shown_path(shard)}: has changed since rows of it were done, so its columns would"
                " not fit their completions; restore the file and run again, start over with"
                " --fresh, or take it as it is now with --accept-change inputs"
            )

    def _cursor(
        self, shard: Shard, row: int, source_start: int | None
    ) -> "_TextCursor | _ParquetCursor":
        """A cursor at this row, and last in the order of use."""
        cursor = self._cursors.pop(shard.name, None)
        if cursor is not None and cursor.row != row:
            if isinstance(cursor, _TextCursor) and shard.compression and cursor.row < row:
                cursor.skip(row - cursor.row)
            else:
                cursor.close()
                cursor = None
        if cursor is not None:
            return cursor
        while len(self._cursors) >= _OPEN_SHARDS:
            self._cursors.pop(next(iter(self._cursors))).close()
        if shard.format == "parquet":
            return _ParquetCursor(shard, self._schema, row, self._count_misfit)
        point = ReadPoint(row, source_start)
        return _TextCursor(shard, self._schema, self._limits, point, self._count_misfit)

    def _count_misfit(self, column: str, place: str) -> None:
        count, first = self.misfits.get(column, (0, place))
        self.misfits[column] = count + 1, first


class _ParquetCursor:
    """Record batches of a Parquet shard from a row on, cut to measure."""

    def __init__(
        self, shard: Shard, schema: pa.Schema, row: int, count_misfit: Callable[[str, str], None]
    ) -> None:
        self._shard = shard
        self._schema = schema
        self._count_misfit = count_misfit
        self._file = ParquetShard(shard)
        self._columns = [name for name in schema.names if name in self._file.schema.names]
        self._batches = self._file.batches(self._columns, row, 4 * _CHUNK_ROWS)
        self._rest: Any = None
        self.row = row

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        """The next rows."""
        end = self.row + num_rows
        if end > self._file.num_rows:
            raise DataError(shrunk(self._shard, self._file.num_rows, end))
        while self.row < end:
            batch = self._next(end - self.row)
            taken = batch.slice(0, end - self.row)
            self._rest = batch.slice(taken.num_rows) if taken.num_rows < batch.num_rows else None
            self.row += taken.num_rows
            yield self._fitted(taken)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _next(self, num_rows: int) -> Any:
        if self._rest is not None:
            return self._rest
        if not self._columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
        batch = next(self._batches, None)
        if batch is None:
            raise DataError(shrunk(self._shard, self.row, self._file.num_rows))
        return batch

    def _fitted(self, batch: Any) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name not in self._columns:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = self._sound(field, batch.column(self._columns.index(field.name)))
            if is_json_text(field):
                array = self._json_texts(field, array)
            elif array.type != field.type:
                try:
                    array = array.cast(field.type, safe=False)
                except pa.ArrowException as exc:
                    raise unreadable(self._shard, exc) from exc
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _sound(self, field: pa.Field, array: pa.Array) -> pa.Array:
        """The array with nulls for values that are none of its type, such as text not in UTF-8.

        Parquet does not check them, and a reader of the output would stumble over them.
        """
        if _is_sound(array):
            return array
        # Taken out, since a slice of a nested array still has all the values below it.
        alone = (array.take(pa.array([index])) for index in range(len(array)))
        kept = [index if _is_sound(one) else None for index, one in enumerate(alone)]
        for index, place in enumerate(kept):
            if place is None:
                self._misfit(field, index - len(array))
        return array.take(pa.array(kept, pa.int64()))

    def _json_texts(self, field: pa.Field, array: pa.Array) -> pa.Array:
        errors: dict[int, RowError] = {}
        values = python_values(array, field.name, errors)
        texts = [None if value is None else _as_json(value) for value in values]
        for index, text in enumerate(texts):
            if text is None and (values[index] is not None or index in errors):
                self._misfit(field, index - len(array))
        return pa.array(texts, field.type)

    def _misfit(self, field: pa.Field, from_end: int) -> None:
        self._count_misfit(field.name, f"{self._shard.name} row {self.row + from_end}")


class _TextCursor:
    """Rows of a JSONL or CSV shard from a read point on, as record batches."""

    def __init__(
        self,
        shard: Shard,
        schema: pa.Schema,
        limits: PartLimits,
        point: ReadPoint,
        count_misfit: Callable[[str, str], None],
    ) -> None:
        self._shard = shard
        self._schema = schema
        self._count_misfit = count_misfit
        self._rows = TextRows(
            shard, columns=schema.names, limits=limits, start=point, counts=ReadCounts()
        )
        self.row = point.row

    def skip(self, num_rows: int) -> None:
        """Pass over rows."""
        self._rows.skip_rows(self._shard, num_rows)
        self.row += num_rows

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        """The next rows."""
        end = self.row + num_rows
        while self.row < end:
            records = self._chunk(end - self.row)
            arrays = [
                self._array(field, [record.get(field.name) for record in records])
                for field in self._schema
            ]
            self.row += len(records)
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        """Let the file go."""
        self._rows.source.close()

    def _chunk(self, num_rows: int) -> list[dict[str, Any]]:
        source = self._rows.source
        records: list[dict[str, Any]] = []
        last = source.offset + _CHUNK_BYTES
        for record in self._rows.records:
            records.append({} if isinstance(record, RowError) else record)
            if len(records) >= min(num_rows, _CHUNK_ROWS) or source.offset >= last:
                return records
        raise DataError(shrunk(self._shard, self.row + len(records), self.row + num_rows))

    def _array(self, field: pa.Field, values: list[Any]) -> pa.Array:
        if is_json_text(field):
            texts = [None if value is None else _as_json(value) for value in values]
            for index, text in enumerate(texts):
                if text is None and values[index] is not None:
                    self._misfit(field, index)
            return pa.array(texts, field.type)
        fit = _FITTING.get(field.type)
        if fit is not None:
            for index, value in enumerate(values):
                if value is not None and not fit(value):
                    self._misfit(field, index)
                    values[index] = None
        try:
            return pa.array(values, field.type)
        except _NO_ARROW:
            return pa.array(
                [self._single(field, index, value) for index, value in enumerate(values)],
                field.type,
            )

    def _single(self, field: pa.Field, index: int, value: Any) -> Any:
        try:
            pa.scalar(value, field.type)
        except _NO_ARROW:
            self._misfit(field, index)
            return None
        return value

    def _misfit(self, field: pa.Field, index: int) -> None:
        self._count_misfit(field.name, f"{self._shard.name} row {self.row + index}")


def _is_sound(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _as_json(value: Any) -> str | None:
    """Compact JSON text, integers of any size exact; None for what is nested too deeply.

    NaN and infinities, which JSON does not have, are null; types of Parquet alone are texts.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    try:
        text = json.dumps(value, separators=(",", ":"), default=str)
        finite = json.loads(text, parse_constant=lambda name: None)
        return json.dumps(finite, separators=(",", ":"))
    except RecursionError:
        return None


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_INT64_END <= value < _INT64_END


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**1023)


_FITTING: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.string(): _is_text,
    pa.large_string(): _is_text,
    pa.int64(): _is_int64,
    pa.float64(): _is_number,
    pa.bool_(): lambda value: type(value) is bool,
}

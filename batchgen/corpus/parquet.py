"""Rows of a Parquet shard: record batches of the wanted columns, never a whole row group at once.

Parts follow from the footer alone: a row weighs its row group's bytes divided by its rows. So the
cut costs nothing, and does not depend on where reading begins.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.corpus.limits import PartLimits, ReadPoint
from batchgen.corpus.lines import unreadable
from batchgen.corpus.places import shown_path, shrunk
from batchgen.errors import DataError
from batchgen.records import PartExtent, RowBlock, RowError, Shard

_STREAM_BYTES = 1 << 20
"""Column chunks are streamed in pieces of this size instead of being read whole."""
READ_ERRORS = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError)
_BLOCK_BYTES = 4 << 20
_FOOTER_TAIL = 8
"""Length of the footer in four bytes, then the magic number."""


class ParquetShard:
    """An open Parquet file. Raises DataError where it cannot be read or is damaged."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        try:
            self.file = pq.ParquetFile(shard.path, pre_buffer=False, buffer_size=_STREAM_BYTES)
            self.schema: pa.Schema = self.file.schema_arrow
            metadata = self.file.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            self._group_rows = [int(group.num_rows) for group in groups]
            self._group_bytes = [int(group.total_byte_size) for group in groups]
        except READ_ERRORS as exc:
            raise unreadable(shard, exc) from exc
        self._group_ends = list(accumulate(self._group_rows))
        self.num_rows = self._group_ends[-1] if self._group_ends else 0
        twice = [name for name, count in Counter(self.schema.names).items() if count > 1]
        if twice:
            raise DataError(
                f"{shown_path(shard)}: has the column '{twice[0]}' more than once; rename one"
            )

    def close(self) -> None:
        """Let the file go."""
        self.file.close()

    def footer_digest(self) -> str:
        """Hash of the file's footer, which describes every column chunk."""
        path = Path(self._shard.path)
        try:
            with path.open("rb") as stream:
                stream.seek(-_FOOTER_TAIL, 2)
                num_bytes = int.from_bytes(stream.read(4), "little")
                stream.seek(-(_FOOTER_TAIL + num_bytes), 2)
                return blake2b(stream.read(num_bytes), digest_size=16).hexdigest()
        except OSError as exc:
            raise unreadable(self._shard, exc) from exc

    def part_end(self, start: int, limits: PartLimits, num_rows: int) -> int:
        """The row behind the part that begins at `start`, in a shard of `num_rows` rows."""
        end, num_bytes = start, 0.0
        group = bisect_right(self._group_ends, start)
        most = min(num_rows, start + limits.max_rows)
        while end < most:
            weight = self._group_bytes[group] / self._group_rows[group]
            available = min(self._group_ends[group], most) - end
            for_limit = _rows_until(limits.max_bytes - num_bytes, weight, available)
            end += for_limit
            if for_limit < available or num_bytes + for_limit * weight >= limits.max_bytes:
                break
            num_bytes += for_limit * weight
            group = bisect_right(self._group_ends, end)
        return end

    def batches(self, columns: Sequence[str], start: int, batch_rows: int) -> Iterator[Any]:
        """Record batches of the rows from `start` to the end of the file, in order.

        Batches also end where their rows would weigh some MiB. Raises DataError at a damaged page.
        """
        group = bisect_right(self._group_ends, start)
        passed_over = start - (self._group_ends[group - 1] if group else 0)
        wanted = range(group, len(self._group_rows))
        heaviest = max((self._weight(index) for index in wanted), default=1.0)
        size = max(1, min(batch_rows, int(_BLOCK_BYTES / max(heaviest, 1.0))))
        row = start - passed_over
        try:
            for batch in self.file.iter_batches(
                batch_size=size, row_groups=list(wanted), columns=list(columns), use_threads=False
            ):
                row += batch.num_rows
                if passed_over >= batch.num_rows:
                    passed_over -= batch.num_rows
                    continue
                yield batch.slice(passed_over) if passed_over else batch
                passed_over = 0
        except READ_ERRORS as exc:
            raise unreadable(self._shard, exc) from exc
        if row < self.num_rows:
            raise DataError(
                f"{shown_path(self._shard)}: the file is damaged: its footer counts"
                f" {self.num_rows} rows, and it holds {row}; copy it again"
            )

    def _weight(self, group: int) -> float:
        return self._group_bytes[group] / max(1, self._group_rows[group])


def _rows_until(num_bytes: float, weight: float, available: int) -> int:
    """Rows of this weight that reach so many bytes, at least one, as many as there are at most."""
    if weight * available < num_bytes:
        return available
    return max(1, min(available, -int(-num_bytes // weight)))


def parquet_blocks(
    shard: Shard,
    *,
    columns: Sequence[str],
    limits: PartLimits,
    start: ReadPoint,
    block_rows: int,
    max_rows: int | None,
) -> Iterator[RowBlock]:
    """As `read_blocks`, for Parquet."""
    file = ParquetShard(shard)
    try:
        yield from _cut(file, shard, columns, limits, start.row, block_rows, max_rows)
    finally:
        file.close()


def _cut(
    file: ParquetShard,
    shard: Shard,
    columns: Sequence[str],
    limits: PartLimits,
    row: int,
    block_rows: int,
    max_rows: int | None,
) -> Iterator[RowBlock]:
    num_rows = file.num_rows if max_rows is None else min(file.num_rows, max_rows)
    if row > num_rows:
        raise DataError(shrunk(shard, num_rows, row))
    present = [column for column in columns if column in file.schema.names]
    digest = file.footer_digest()
    part, end = row, file.part_end(row, limits, num_rows)

    def extent() -> PartExtent:
        shard_rows = num_rows if end == num_rows else None
        return PartExtent(shard.name, part, end - part, None, None, digest, shard_rows)

    if row == num_rows:
        yield RowBlock(
            shard.name, part, row, 0, {column: [] for column in present}, {}, None, extent()
        )
    for batch in _slices(file, present, row, num_rows, block_rows):
        done = 0
        while done < batch.num_rows:
            taken = min(batch.num_rows - done, end - row)
            block = _block(shard, part, row, batch.slice(done, taken), present)
            row, done = row + taken, done + taken
            if row == end:
                block.extent = extent()
                part, end = row, file.part_end(row, limits, num_rows)
            yield block


def _slices(
    file: ParquetShard, columns: Sequence[str], start: int, end: int, batch_rows: int
) -> Iterator[Any]:
    """Batches of the rows from `start` to `end`, exactly; without columns nothing is read."""
    row = start
    if columns:
        for batch in file.batches(columns, start, batch_rows):
            yield batch.slice(0, end - row)
            row += batch.num_rows
            if row >= end:
                return
        return
    while row < end:
        length = min(batch_rows, end - row)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * length, pa.struct([])))
        row += length


def _block(shard: Shard, part: int, row: int, batch: Any, columns: Sequence[str]) -> RowBlock:
    errors: dict[int, RowError] = {}
    values = {
        column: python_values(batch.column(index), column, errors)
        for index, column in enumerate(columns)
    }
    return RowBlock(shard.name, part, row, batch.num_rows, values, errors, None)


def python_values(array: Any, column: str, errors: dict[int, RowError]) -> list[Any]:
    """The values of an array; one that Python cannot hold is None and the row's error."""
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        values: list[Any] = []
        for index, value in enumerate(array):
            try:
                values.append(value.as_py())
            except (ValueError, OverflowError, pa.ArrowException) as exc:
                values.append(None)
                errors[index] = RowError("bad_type", f"column '{column}': {exc}")
        return values

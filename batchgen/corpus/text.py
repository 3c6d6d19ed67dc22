"""Blocks of rows from text shards (JSONL and CSV), cut into parts.

A part is full with the row that reaches one of its limits. Lines that are no rows belong to the
part that is open when they are read, so parts follow each other without gaps, and where they
end depends on the bytes of the shard alone. One row is read ahead at the end of each part: the
shard's last part has to know that it is the last.
"""

import sys
from collections.abc import Iterator, Sequence

from batchgen.corpus.delimited import CsvRecords, csv_rows, take_header
from batchgen.corpus.jsonl import Record, json_rows
from batchgen.corpus.limits import PartLimits, ReadCounts, ReadPoint
from batchgen.corpus.lines import LineSource
from batchgen.corpus.places import shrunk
from batchgen.errors import DataError
from batchgen.records import MISSING, PartExtent, RowBlock, RowError, Shard

_BLOCK_BYTES = 4 << 20
"""A block also ends here, so that memory does not depend on how long rows are."""


class TextRows:
    """The rows of a text shard from a read point on, and where reading stands.

    `columns` are those asked for that the shard can have; asked for None, all that a CSV header
    names. Raises DataError as LineSource does, and where the shard has fewer rows than the read
    point says.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        columns: Sequence[str] | None,
        limits: PartLimits,
        start: ReadPoint,
        counts: ReadCounts,
    ) -> None:
        self.columns = list(columns or ())
        offset = start.source_offset or 0
        self.records: Iterator[Record | RowError]
        if shard.format == "csv":
            self._open_csv(shard, columns, offset, limits, counts)
        else:
            self.source = LineSource(shard, offset=offset, max_line_bytes=limits.max_line_bytes)
            self.records = json_rows(
                shard, self.source, columns=columns, limits=limits, counts=counts
            )
        if start.row and start.source_offset is None:
            self.skip_rows(shard, start.row)

    def _open_csv(
        self,
        shard: Shard,
        columns: Sequence[str] | None,
        offset: int,
        limits: PartLimits,
        counts: ReadCounts,
    ) -> None:
        self.source = LineSource(shard, offset=0, max_line_bytes=limits.max_line_bytes)
        records = CsvRecords(self.source, limits.max_line_bytes)
        header = take_header(shard, records)
        if offset > self.source.offset:
            self.source.close()
            self.source = LineSource(shard, offset=offset, max_line_bytes=limits.max_line_bytes)
            records = CsvRecords(self.source, limits.max_line_bytes)
        self.columns = header if columns is None else [c for c in columns if c in header]
        self.records = csv_rows(shard, records, header=header, limits=limits, counts=counts)

    def skip_rows(self, shard: Shard, num_rows: int) -> None:
        """Read rows and forget them."""
        for num_read in range(num_rows):
            if next(self.records, None) is None:
                raise DataError(shrunk(shard, num_read, num_rows))
        self.source.take_digest()


def text_blocks(
    shard: Shard,
    *,
    columns: Sequence[str],
    limits: PartLimits,
    start: ReadPoint,
    block_rows: int,
    max_rows: int | None,
    counts: ReadCounts,
) -> Iterator[RowBlock]:
    """As `read_blocks`, for JSONL and CSV."""
    rows = TextRows(shard, columns=columns, limits=limits, start=start, counts=counts)
    source = rows.source
    try:
        yield from _cut(shard, rows, limits, start.row, block_rows, max_rows)
    finally:
        source.close()


def _cut(
    shard: Shard,
    rows: TextRows,
    limits: PartLimits,
    row: int,
    block_rows: int,
    max_rows: int | None,
) -> Iterator[RowBlock]:
    source, records = rows.source, rows.records
    # The first part takes in what stands before its first row, such as a CSV header.
    part_row, part_offset = row, source.offset if row else 0
    stop = sys.maxsize if max_rows is None else max_rows
    block_offset = source.offset
    gathered: list[Record | RowError] = []

    def block(extent: PartExtent | None) -> RowBlock:
        start_row = row - len(gathered)
        made = _block(shard, rows.columns, part_row, part_offset, start_row, gathered)
        made.extent = extent
        return made

    def extent(end: int, digest: str, shard_rows: int | None) -> PartExtent:
        return PartExtent(
            shard.name, part_row, row - part_row, part_offset, end, digest, shard_rows
        )

    record = next(records, None) if row < stop else None
    while record is not None:
        gathered.append(record)
        row += 1
        offset = source.offset
        if (
            row - part_row >= limits.max_rows
            or offset - part_offset >= limits.max_bytes
            or row >= stop
        ):
            digest = source.take_digest()
            record = next(records, None) if row < stop else None
            yield block(extent(offset, digest, row if record is None else None))
            if record is None:
                return
            part_row, part_offset = row, offset
            gathered, block_offset = [], offset
            continue
        if len(gathered) >= block_rows or offset - block_offset >= _BLOCK_BYTES:
            yield block(None)
            gathered, block_offset = [], offset
        record = next(records, None)
    yield block(extent(source.offset, source.take_digest(), row))


def _block(
    shard: Shard,
    columns: Sequence[str],
    part_row: int,
    part_offset: int,
    start_row: int,
    gathered: list[Record | RowError],
) -> RowBlock:
    errors = {index: record for index, record in enumerate(gathered) if type(record) is RowError}
    records: list[Record] = (
        [{} if type(record) is RowError else record for record in gathered]  # type: ignore[misc]
        if errors
        else gathered  # type: ignore[assignment]
    )
    return RowBlock(
        shard=shard.name,
        part_start=part_row,
        start_row=start_row,
        num_rows=len(gathered),
        columns={column: [record.get(column, MISSING) for record in records] for column in columns},
        errors=errors,
        source_start=part_offset,
    )

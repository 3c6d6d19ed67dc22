"""Parts and journal of a run directory seen together, also while a run is writing.

The journal is read before the files: a row that is published in between is then seen twice, and
sequence numbers tell that it is one row. The other way round it could be missed. A reader stops at
the first bad frame of a segment and changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import DataError
from batchgen.output.batches import batch_files, batch_table
from batchgen.output.columns import PartColumns, load_schema
from batchgen.output.counts import Counts
from batchgen.output.journal import (
    JOURNALED,
    Frame,
    FrameRef,
    RowsFrame,
    SegmentReader,
    list_segments,
    read_frames,
)
from batchgen.output.layout import RunLayout
from batchgen.output.parts import NewRecords, PartInfo, PartKey, merge_rows
from batchgen.output.state import DirectoryState
from batchgen.output.unpublished import OpenPart, Unpublished
from batchgen.stats.batch import batch_schema

_PLACES = tuple(name in ("row", "batch_id") for name in JOURNALED)
_TRIES = 5
"""A run that goes on may delete a segment, or replace a part, under a reader's hands."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run directory holds: files, and what the journal has beyond them."""

    layout: RunLayout
    columns: PartColumns
    state: DirectoryState
    unpublished: Unpublished

    @classmethod
    def take(cls, layout: RunLayout) -> "Snapshot":
        """Look at a run directory. Raises DataError where none is, or a file is damaged."""
        frames = _read_journal(layout)
        schema = load_schema(layout)
        if schema is None:
            raise DataError(
                f"{layout.path}: no run is here; give the directory that is output.path of a job"
            )
        columns = PartColumns.recognize(schema)
        state = DirectoryState.scan(layout, columns.prefix)
        unpublished = Unpublished(state)
        for ref, frame in frames:
            unpublished.note(ref, frame)
        return cls(layout, columns, state, unpublished)

    def part_keys(self) -> list[PartKey]:
        """All parts, in input order."""
        changed = (key for key, part in self.unpublished.parts.items() if part.is_changed)
        return sorted({*self.state.parts, *changed})

    def info(self, key: PartKey) -> PartInfo | None:
        """Footer of a part's file; None where it is in the journal only."""
        return self.state.parts.get(key)

    def pending(self, key: PartKey) -> OpenPart | None:
        """What the journal has of a part beyond its file; None where that is nothing."""
        part = self.unpublished.parts.get(key)
        return part if part is not None and part.is_changed else None

    def totals(self) -> Counts:
        """Counts over all rows, the journal's included."""
        return sum((self._counts(key)[0] for key in self.part_keys()), Counts())

    def num_superseded(self) -> int:
        """Records that a later record of the same row replaced."""
        return sum(self._counts(key)[1] for key in self.part_keys())

    def batches(self) -> pa.Table:
        """The batch records by batch id, those in the journal alone included."""
        tables = [pq.ParquetFile(path).read() for path in batch_files(self.layout)]
        published = {i for table in tables for i in table.column("batch_id").to_pylist()}
        frames = self.unpublished.batches.items()
        new = [frame.record for i, frame in frames if i not in published]
        # Arrow loads pandas to make a table of Python values, which takes longer than all else.
        if new or not tables:
            tables.append(batch_table(new))
        return pa.concat_tables(_with_all_columns(table) for table in tables).sort_by("batch_id")

    def rows(
        self, key: PartKey, columns: Sequence[str], *, max_rows: int | None = None
    ) -> pa.Table:
        """Added columns of a part's (first) rows in row order, the journal's included.

        `columns` are names without prefix, and so are those of the table; names that this
        directory does not have are left out.
        """
        names = self.columns.added_schema.names
        wanted = [name for name in columns if self.columns.name(name) in names]
        in_file = [self.columns.name(name) for name in wanted]
        if self.pending(key) is None:
            with pq.ParquetFile(self.layout.part(*key)) as file:
                table = _first_rows(file, in_file, max_rows)
        else:
            table = self._merged(key)[0].slice(0, max_rows)
        return table.select(in_file).rename_columns(wanted)

    def _counts(self, key: PartKey) -> tuple[Counts, int]:
        info = self.info(key)
        if self.pending(key) is None:
            assert info is not None
            return info.counts, info.num_superseded
        rows, num_superseded = self._merged(key)
        before = 0 if info is None else info.num_superseded
        return Counts.of(rows, self.columns.prefix), before + num_superseded

    def _merged(self, key: PartKey) -> tuple[pa.Table, int]:
        """Added columns of a part that the journal has more of, and how many records gave way."""
        info, pending = self.info(key), self.pending(key)
        assert pending is not None
        old_rows = None
        if info is not None:
            with pq.ParquetFile(self.layout.part(*key)) as file:
                old_rows = file.read(columns=self.columns.added_schema.names)
        frames = read_frames(self.layout.journal, pending.refs)
        new = NewRecords(
            key,
            pending.source_start,
            pending.seq,
            [frame for frame in frames if isinstance(frame, RowsFrame)],
            pending.extent,
        )
        return merge_rows(self.columns, old_rows, new)


def _with_all_columns(table: pa.Table) -> pa.Table:
    """Batches as this version has them; columns that an older one did not write are null."""
    schema = batch_schema()
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _first_rows(file: pq.ParquetFile, columns: list[str], max_rows: int | None) -> pa.Table:
    if max_rows is None:
        return file.read(columns=columns)
    first = next(file.iter_batches(max_rows, columns=columns), None)
    return file.read(columns=columns) if first is None else pa.Table.from_batches([first])


def look(layout: RunLayout, question: Callable[[Snapshot], T]) -> T:
    """Answer a question about a run directory, asking again where a run moved files meanwhile."""
    for _ in range(_TRIES - 1):
        try:
            return question(Snapshot.take(layout))
        except FileNotFoundError:
            continue
    return question(Snapshot.take(layout))


def _read_journal(layout: RunLayout) -> list[tuple[FrameRef, Frame]]:
    """All whole frames, those of rows reduced to the places of the rows."""
    return [
        (ref, _places(frame) if isinstance(frame, RowsFrame) else frame)
        for segment in list_segments(layout.journal)
        for ref, frame in SegmentReader(layout.journal, segment)
    ]


def _places(frame: RowsFrame) -> RowsFrame:
    columns = zip(frame.columns, _PLACES, strict=True)
    return frame._replace(columns=[values if is_place else None for values, is_place in columns])

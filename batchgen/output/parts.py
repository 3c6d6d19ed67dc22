"""Publish: the one way in which an output file comes into being.

    the old part, if there is one      ┐
    newer journal records of its rows  ├→ temporary file → fsync → rename → fsync of the folder
    kept columns, read from the shard  ┘

What is newer is told by sequence numbers: the footer holds the highest one that is in the part.
So publish may be repeated, after a kill at any of its steps, and the outcome is the same; where
nothing is newer, the file is not touched at all. A part need not be complete: its footer says so,
and the rows that come later are merged in the same way.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.columns import PartColumns
from batchgen.output.counts import Counts
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import make_folder, write_atomically
from batchgen.output.journal import RowsFrame
from batchgen.output.layout import RunLayout
from batchgen.records import PartExtent

FOOTER_KEY: Final = b"batchgen"
"""Key of the part's description in the file's key-value metadata; its value is JSON."""
ROW_GROUP_BYTES: Final = 32 * 2**20
"""Arrow bytes per row group: what a reader has to hold at once."""
_DICTIONARY_BELOW_BYTES: Final = 64
"""Longer values hardly repeat; trying a dictionary for them costs a tenth of the writing."""


class PartKey(NamedTuple):
    """The identity of a part."""

    shard: str
    start_row: int


class KeptColumns(Protocol):
    """Reads the input columns that are carried along."""

    def read(
        self,
        shard: str,
        part_start: int,
        source_start: int | None,
        num_rows: int,
        extent: PartExtent | None,
    ) -> pa.Table:
        """Kept columns of the `num_rows` rows from `part_start` on, in order.

        `source_start` is the part's offset in the shard, None where it is not known; `extent` is
        the part as it was read, once its end is known. Raises DataError where the shard cannot be
        read any more, ResumeMismatch where it is not the one that the rows were made of.
        """
        ...


class ShardUnreadable(DataError):
    """The kept columns of finished rows cannot be read from their shard."""


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What the footer of a part says."""

    shard: str
    start_row: int
    num_rows: int
    """Rows in the file; fewer than the part will have while it is not complete."""
    complete: bool
    seq: int
    """Highest sequence number of the journal records that are in this file."""
    source_start: int | None
    extent: PartExtent | None
    """None while the part's end is not known."""
    counts: Counts = field(default_factory=Counts)
    num_superseded: int = 0
    """Records that a later record of the same row replaced, over the life of the part."""
    fingerprint: str = ""

    @property
    def key(self) -> PartKey:
        """The part's identity."""
        return PartKey(self.shard, self.start_row)

    def to_json(self) -> bytes:
        """The footer's value."""
        return orjson.dumps({"format": 1, **asdict(self)})

    @classmethod
    def from_json(cls, text: bytes) -> "PartInfo":
        """The part of a footer's value."""
        values = orjson.loads(text)
        values.pop("format")
        extent = values.pop("extent")
        return cls(
            **{**values, "counts": Counts.from_dict(values["counts"])},
            extent=None if extent is None else PartExtent(**extent),
        )


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What the journal holds of one part beyond its file."""

    key: PartKey
    source_start: int | None
    seq: int
    """Highest sequence number among these records."""
    frames: Sequence[RowsFrame]
    extent: PartExtent | None
    """The part's end as known now."""


def read_part_info(path: Path) -> PartInfo:
    """Read a part's footer. Raises DataError where the file is none of ours, or damaged."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{path}: cannot be read ({exc}); remove it, and the same command generates its rows "
            "again"
        ) from exc
    if FOOTER_KEY not in metadata:
        raise DataError(f"{path}: was not written by batchgen; move it out of the run's directory")
    return PartInfo.from_json(metadata[FOOTER_KEY])


def publish_part(
    layout: RunLayout,
    columns: PartColumns,
    kept: KeptColumns,
    old: PartInfo | None,
    new: NewRecords,
    *,
    fingerprint: str = "",
    crash: CrashPoints | None = None,
) -> PartInfo:
    """Merge `new` into the part's file and return its new footer; `old` is the present one.

    Raises ShardUnreadable where kept columns are needed and the shard does not give them, and
    DataError where the file cannot be written. The old file then still stands.
    """
    crash = crash or CrashPoints()
    if old is not None and new.seq <= old.seq:
        return old
    path = layout.part(*new.key)
    old_rows = None if old is None else _read_part(path)
    added, num_superseded = merge_rows(columns, old_rows, new)
    table = _with_kept(columns, kept, old_rows, added, new)
    rows = added.column(columns.name("row"))
    extent = _fitting_extent(new.extent, rows)
    info = PartInfo(
        shard=new.key.shard,
        start_row=new.key.start_row,
        num_rows=table.num_rows,
        complete=extent is not None and table.num_rows == extent.num_rows,
        seq=new.seq,
        source_start=new.source_start,
        extent=extent,
        counts=Counts.of(added, columns.prefix),
        num_superseded=num_superseded + (0 if old is None else old.num_superseded),
        fingerprint=fingerprint,
    )
    make_folder(path.parent)
    write_atomically(
        path,
        lambda file: _write_table(file, table, columns, info, crash),
        crash=crash,
        steps=("part_written", "part_renamed"),
    )
    crash.reach("part_published")
    return info


def merge_rows(
    columns: PartColumns, old_rows: pa.Table | None, new: NewRecords
) -> tuple[pa.Table, int]:
    """The added columns of a part in row order, each row once, and how many records gave way.

    The later record of a row is the truth (those of the file are older than those of the journal),
    but a failure never takes the place of a completion.
    """
    added = columns.added_table(new.key.shard, new.frames)
    if old_rows is not None:
        added = pa.concat_tables([old_rows.select(columns.added_schema.names), added])
    rows = added.column(columns.name("row")).to_numpy()
    if np.all(rows[1:] > rows[:-1]):
        return added, 0
    is_ok = pc.is_null(added.column(columns.name("error_type"))).to_numpy()
    order = np.lexsort((np.arange(len(rows)), is_ok, rows))
    in_order = rows[order]
    is_last = np.append(in_order[1:] != in_order[:-1], True)
    return added.take(pa.array(order[is_last])), int(len(rows) - is_last.sum())


def _with_kept(
    columns: PartColumns,
    kept: KeptColumns,
    old_rows: pa.Table | None,
    added: pa.Table,
    new: NewRecords,
) -> pa.Table:
    """Kept columns beside the added ones; the shard is read only for rows that are new."""
    if columns.num_kept == 0 or added.num_rows == 0:
        arrays = [pa.nulls(0, field.type) for field in columns.kept_schema]
    elif old_rows is not None and added.num_rows == old_rows.num_rows:
        arrays = old_rows.columns[: columns.num_kept]
    else:
        rows = added.column(columns.name("row")).to_numpy()
        arrays = _read_kept(columns, kept, new, rows).columns
    return pa.Table.from_arrays([*arrays, *added.columns], schema=columns.schema)


def _read_kept(
    columns: PartColumns, kept: KeptColumns, new: NewRecords, rows: np.ndarray
) -> pa.Table:
    shard, start = new.key
    num_rows = int(rows[-1]) - start + 1
    try:
        table = kept.read(shard, start, new.source_start, num_rows, new.extent)
    except ResumeMismatch:
        raise
    except (DataError, OSError, pa.ArrowException) as exc:
        raise ShardUnreadable(
            f"{shard}: its columns cannot be read again for the output ({exc}). Finished rows are "
            "kept; put the file back, and the same command continues"
        ) from exc
    if table.num_rows != num_rows:
        raise ShardUnreadable(
            f"{shard}: has fewer rows than when it was read first ({start + table.num_rows:,}, at "
            f"least {start + num_rows:,} then); put the file back as it was, or begin anew with "
            "--fresh"
        )
    table = table.cast(columns.kept_schema) if table.schema != columns.kept_schema else table
    return table if len(rows) == num_rows else table.take(pa.array(rows - start))


def _fitting_extent(extent: PartExtent | None, rows: pa.ChunkedArray) -> PartExtent | None:
    """The extent, unless there are rows beyond it: then the shard has grown since."""
    if extent is None or len(rows) == 0:
        return extent
    return extent if rows[-1].as_py() < extent.start_row + extent.num_rows else None


def _read_part(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{path}: cannot be read ({exc}); remove it, and the same command generates its rows "
            "again"
        ) from exc


def _write_table(
    file: BinaryIO, table: pa.Table, columns: PartColumns, info: PartInfo, crash: CrashPoints
) -> None:
    num_groups = table.nbytes // ROW_GROUP_BYTES + 1
    with pq.ParquetWriter(
        file,
        columns.schema,
        compression="zstd",
        use_dictionary=_dictionary_columns(table),
    ) as writer:
        writer.write_table(table, row_group_size=max(1, -(-table.num_rows // num_groups)))
        crash.reach("part_writing")
        writer.add_key_value_metadata({FOOTER_KEY: info.to_json()})


def _dictionary_columns(table: pa.Table) -> list[str]:
    """Flat columns of short values; nested ones do without."""
    if table.num_rows == 0:
        return []
    return [
        name
        for name, column in zip(table.column_names, table.columns, strict=True)
        if pa.types.is_string(column.type)
        and column.nbytes / table.num_rows < _DICTIONARY_BELOW_BYTES
    ]

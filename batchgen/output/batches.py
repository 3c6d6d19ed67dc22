"""`batches/`: one row per batch, written from the journal like the parts are.

A file holds the batches of one sitting, or of one journal segment of a long one, and is named
after its lowest batch id. Ids are never used twice in a directory, so a batch that is in a file
already is known by its id and never written again.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.errors import DataError
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import make_folder, write_atomically
from batchgen.output.journal import RowsFrame
from batchgen.output.layout import RunLayout
from batchgen.output.parts import FOOTER_KEY
from batchgen.stats.batch import BatchRecord, batch_schema


@dataclass(frozen=True, slots=True)
class BatchFileInfo:
    """What the footer of a file of batches says."""

    last_batch_id: int
    seq: int
    """Highest sequence number among the journal's records of these batches."""


def publish_batches(
    layout: RunLayout,
    records: Iterable[BatchRecord],
    *,
    seq: int,
    crash: CrashPoints | None = None,
) -> None:
    """Write one file with these batches; `seq`: the highest sequence number of their records."""
    ordered = sorted(records, key=lambda record: record.batch_id)
    if not ordered:
        return
    table = batch_table(ordered)
    info = BatchFileInfo(ordered[-1].batch_id, seq)

    def write(file: BinaryIO) -> None:
        with pq.ParquetWriter(file, table.schema, compression="zstd") as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({FOOTER_KEY: orjson.dumps(info)})

    make_folder(layout.batches)
    write_atomically(
        layout.batches / f"{ordered[0].batch_id:012d}.parquet",
        write,
        crash=crash,
        steps=("batches_written", "batches_renamed"),
    )


def batch_table(records: Sequence[BatchRecord]) -> pa.Table:
    """Records as a table."""
    rows = [
        {**record.to_dict(), "started_at": datetime.fromisoformat(record.started_at)}
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=batch_schema())


def batch_files(layout: RunLayout) -> list[Path]:
    """Files of `batches/`, oldest batch first."""
    return sorted(layout.batches.glob("*.parquet"))


def read_batch_file_info(path: Path) -> BatchFileInfo:
    """Read the footer of a file of batches."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return BatchFileInfo(**orjson.loads(metadata[FOOTER_KEY]))
    except (pa.ArrowException, OSError, KeyError) as exc:
        raise DataError(
            f"{path}: is no batches file that batchgen wrote, or damaged ({exc}); move it away"
        ) from exc


def published_batch_ids(layout: RunLayout) -> set[int]:
    """Ids of all batches in `batches/`."""
    ids: set[int] = set()
    for path in batch_files(layout):
        with pq.ParquetFile(path) as file:
            ids.update(file.read(columns=["batch_id"]).column(0).to_pylist())
    return ids


@dataclass(slots=True)
class _Tally:
    """The journaled rows of one batch."""

    run_id: str
    feed: str
    first_at: float
    last_at: float
    num_rows: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    num_output_tokens: int = 0

    def record(self, batch_id: int) -> BatchRecord:
        """What is known of the batch; rates and percentiles died with the run."""
        return BatchRecord(
            run_id=self.run_id,
            batch_id=batch_id,
            feed=self.feed,
            replica=0,
            started_at=datetime.fromtimestamp(self.first_at, UTC).isoformat(),
            wall_s=self.last_at - self.first_at,
            num_rows=self.num_rows,
            num_failed=self.num_failed,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            closed_by="crash",
        )


_TALLIED = (
    "batch_id",
    "run_id",
    "error_type",
    "duplicate_of",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
)


@dataclass(slots=True)
class CrashedBatches:
    """Closes the batches that a killed run left open, from the rows that it journaled."""

    _tallies: dict[int, _Tally] = field(default_factory=dict)

    def note(self, frame: RowsFrame) -> None:
        """Count the rows of a frame."""
        columns = [frame.column(name) for name in _TALLIED]
        for batch_id, run_id, error_type, duplicate_of, *tokens in zip(*columns, strict=True):
            tally = self._tallies.get(batch_id)
            if tally is None:
                tally = self._tallies[batch_id] = _Tally(run_id, frame.feed, frame.at, frame.at)
            tally.last_at = frame.at
            tally.num_rows += 1
            tally.num_failed += error_type is not None
            if error_type is None and duplicate_of is None:
                tally.num_prompt_tokens += tokens[0] or 0
                tally.num_output_tokens += tokens[1] or 0
                if tokens[2] is not None:
                    tally.num_cached_tokens = (tally.num_cached_tokens or 0) + tokens[2]

    def records(self, closed: Set[int]) -> list[BatchRecord]:
        """Records of the batches that are not among `closed`."""
        return [
            tally.record(batch_id)
            for batch_id, tally in self._tallies.items()
            if batch_id not in closed
        ]

"""A small input whose every value is known, and writers on a directory for its output."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

from batchgen.errors import DataError
from batchgen.output.columns import PartColumns, output_schema
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.layout import RunLayout
from batchgen.output.store import OutputStore
from batchgen.output.writer import Writer
from batchgen.records import FinishedRow, PartExtent
from batchgen.stats.batch import BatchRecord

KEPT = pa.schema([("id", pa.int64()), ("text", pa.string())])


class Shards:
    """Shards of known content: what the kept columns of an output are read from."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.num_rows: dict[str, int] = {}
        self.reads: list[tuple[str, int, int | None, int]] = []

    def read(
        self,
        shard: str,
        part_start: int,
        source_start: int | None,
        num_rows: int,
        extent: PartExtent | None = None,
    ) -> pa.Table:
        if shard in self.gone:
            raise DataError(f"{shard}: no such file")
        self.reads.append((shard, part_start, source_start, num_rows))
        end = min(part_start + num_rows, self.num_rows.get(shard, part_start + num_rows))
        rows = range(part_start, end)
        return pa.table({"id": list(rows), "text": [f"{shard} {row}" for row in rows]}, schema=KEPT)


class World:
    """One run directory and its input."""

    def __init__(self, path: Path, **schema: bool | str) -> None:
        self.layout = RunLayout(path)
        self.shards = Shards()
        self.columns = PartColumns.of(
            output_schema(KEPT, **schema),  # type: ignore[arg-type]
            str(schema.get("prefix", "")),
        )

    def writer(self, crash: CrashPoints | None = None, segment_bytes: int = 2**20) -> Writer:
        """A writer as a new process would make it."""
        return Writer(
            self.layout,
            self.columns,
            self.shards,
            fingerprint="print",
            feed="continuous",
            segment_bytes=segment_bytes,
            crash=crash,
            wall_clock=lambda: 1_700_000_000.0,
        )

    def started(self, **options: object) -> Writer:
        """A writer that has recovered and takes rows."""
        writer = self.writer(**options)  # type: ignore[arg-type]
        writer.recover()
        writer.start()
        return writer

    def store(self) -> OutputStore:
        """A store, not started."""
        return OutputStore(self.layout, self.columns, self.shards, fingerprint="print")

    def row(self, row: int, shard: str = "a.jsonl", part: int = 0, **values: object) -> FinishedRow:
        """A finished row whose text names it."""
        fields = {
            "output": f"reply to {shard} {row}",
            "finish_reason": "stop",
            "num_prompt_tokens": 10,
            "num_output_tokens": 5,
            "run_id": "run-1",
            **values,
        }
        return FinishedRow(shard, row, part, **fields)  # type: ignore[arg-type]

    def failed(self, row: int, error_type: str = "engine_error", **values: object) -> FinishedRow:
        """A failed row."""
        return self.row(
            row,
            output=None,
            finish_reason=None,
            num_output_tokens=None,
            error_type=error_type,
            error="it failed",
            **values,
        )

    def rows(self, start: int, end: int, **values: object) -> list[FinishedRow]:
        """Finished rows of one part."""
        return [self.row(row, **values) for row in range(start, end)]  # type: ignore[arg-type]

    def extent(
        self, num_rows: int, shard: str = "a.jsonl", part: int = 0, *, shard_rows: int | None = None
    ) -> PartExtent:
        """The end of a part, 100 bytes a row."""
        return PartExtent(
            shard, part, num_rows, part * 100, (part + num_rows) * 100, "digest", shard_rows
        )

    def batch(self, batch_id: int, num_rows: int) -> BatchRecord:
        """The record of a batch."""
        return BatchRecord(
            "run-1",
            batch_id,
            "continuous",
            0,
            "2026-01-31T00:00:00+00:00",
            1.0,
            num_rows,
            0,
            1,
            0,
            1,
        )

    def outputs(self) -> list[dict[str, object]]:
        """Every output row in the parts, in file order."""
        return [
            row
            for path in sorted(self.layout.outputs.rglob("*.parquet"))
            for row in pa.parquet.ParquetFile(path).read().to_pylist()
        ]

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Content and modification time of every file of the directory."""
        return {
            str(path.relative_to(self.layout.path)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(self.layout.path.rglob("*"))
            if path.is_file()
        }

    def journal_files(self) -> list[str]:
        """Segments that exist."""
        return sorted(path.name for path in self.layout.journal.glob("*"))


def in_memory() -> "TemporaryDirectory[str]":
    """A folder in memory where there is such a thing: a test makes hundreds of syncs."""
    return TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, unlike pytest's own."""
    with in_memory() as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def new_folder() -> "Callable[[], TemporaryDirectory[str]]":
    """Makes a folder for each example of a Hypothesis test."""
    return in_memory


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty run directory."""
    return World(tmp_path / "run")


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    """For tests that need several directories, or other columns."""
    return World

"""Rows and batches of parts and journal seen together."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from batchgen.output.batches import batch_files, publish_batches
from batchgen.output.parts import PartKey
from batchgen.output.snapshot import Snapshot
from batchgen.stats.batch import batch_schema


@pytest.fixture(params=["", "my_"])
def run(make_world: Any, tmp_path: Any, request: Any) -> Any:
    """One part in a file, one in the journal alone, and a retry of a row of the file in it."""
    world = make_world(tmp_path / "run", prefix=request.param)
    writer = world.started()
    writer.append([[world.failed(0), *world.rows(1, 3)], world.batch(0, 3), world.extent(3)])
    writer.publish_ripe()
    writer.append([world.rows(3, 5, part=3, batch_id=1)])
    writer.append([[world.row(0, batch_id=2)]])
    return world


@pytest.mark.parametrize(
    ("start", "rows", "errors"),
    [(0, [0, 1, 2], [None, None, None]), (3, [3, 4], [None, None])],
)
def test_rows_are_those_of_file_and_journal(run: Any, start: int, rows: Any, errors: Any) -> None:
    snapshot = Snapshot.take(run.layout)
    table = snapshot.rows(PartKey("a.jsonl", start), ["row", "error_type"])
    assert table.to_pydict() == {"row": rows, "error_type": errors}


def test_first_rows_are_the_first_ones(run: Any) -> None:
    snapshot = Snapshot.take(run.layout)
    for start, first in ((0, [0, 1]), (3, [3, 4])):
        table = snapshot.rows(PartKey("a.jsonl", start), ["row"], max_rows=2)
        assert table["row"].to_pylist() == first


def test_first_rows_of_an_empty_part_are_none(make_world: Any, tmp_path: Any) -> None:
    world = make_world(tmp_path / "run")
    writer = world.started()
    writer.append([world.extent(0)])
    writer.publish_ripe()
    table = Snapshot.take(world.layout).rows(PartKey("a.jsonl", 0), ["row"], max_rows=2)
    assert (table.num_rows, table.column_names) == (0, ["row"])


def test_columns_that_a_directory_does_not_have_are_left_out(run: Any) -> None:
    snapshot = Snapshot.take(run.layout)
    table = snapshot.rows(PartKey("a.jsonl", 0), ["row", "logprobs"])
    assert table.column_names == ["row"]


def test_batches_of_an_older_version_lack_columns_and_have_nulls(run: Any) -> None:
    publish_batches(run.layout, [run.batch(0, 3)], seq=3)
    (path,) = batch_files(run.layout)
    table = pq.ParquetFile(path).read().drop_columns(["rss_bytes", "drain_s"])
    pq.write_table(table.replace_schema_metadata(pq.read_metadata(path).metadata), path)
    batches = Snapshot.take(run.layout).batches()
    assert batches.schema == batch_schema()
    assert batches["rss_bytes"].null_count == batches.num_rows == 1

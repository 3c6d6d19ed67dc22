from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.output.parts import FOOTER_KEY
from batchgen.output.verify import verify


@pytest.fixture
def run(world: Any) -> Any:
    """Two complete parts of one shard, seven rows, one of them failed."""
    writer = world.started()
    writer.append([world.rows(0, 4), world.batch(0, 4), world.extent(4)])
    more = [*world.rows(4, 6, part=4, batch_id=1), world.failed(6, part=4, batch_id=1)]
    writer.append([more, world.batch(1, 3), world.extent(3, part=4, shard_rows=7)])
    writer.finish()
    return world


def rewrite(world: Any, part: int, change: Any) -> None:
    """Replace the rows of a part, its footer left as it is."""
    path = world.layout.part("a.jsonl", part)
    metadata = pq.read_metadata(path).metadata[FOOTER_KEY]
    table = change(pq.ParquetFile(path).read())
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FOOTER_KEY: metadata})


@pytest.mark.parametrize("num_rows", [7, None])
def test_a_whole_output_has_no_problem(run: Any, num_rows: int | None) -> None:
    counts = {"num_rows": 7, "num_failed": 1}
    assert verify(run.layout, {"a.jsonl": num_rows}, counts=counts) == []


def test_rows_in_the_journal_count(world: Any) -> None:
    world.started().append([world.rows(0, 4), world.extent(4, shard_rows=4)])
    assert verify(world.layout, {"a.jsonl": 4}) == []


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ({"a.jsonl": 9}, "a.jsonl: 2 rows have no output row: 7, 8"),
        ({"a.jsonl": 6}, "a.jsonl: has 6 rows, but there are output rows beyond: 6"),
        ({"a.jsonl": 7, "b.jsonl": 5}, "b.jsonl: 5 rows are missing from the output"),
        ({"a.jsonl": 7, "b.jsonl": None}, "b.jsonl: its rows are missing from the output"),
        ({}, "a.jsonl: has output rows, but is no shard of the input"),
    ],
)
def test_missing_and_extra_rows_are_named(run: Any, expected: Any, problem: str) -> None:
    (found,) = verify(run.layout, expected)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda table: table.take([0, 1, 1, 3]), "holds rows twice: 1"),
        (lambda table: table.take([1, 0, 2, 3]), "its rows are not in input order"),
        (lambda table: table.slice(0, 3), "its footer counts 4 rows, 0 of them failed"),
        (
            lambda table: table.set_column(2, "shard", pa.array(["b.jsonl"] * 4)),
            "holds rows of another shard than a.jsonl",
        ),
        (lambda table: table.drop_columns("ttft_s"), "other columns than the first part: 'ttft_s'"),
    ],
)
def test_a_damaged_part_is_named(run: Any, change: Any, problem: str) -> None:
    rewrite(run, 0, change)
    problems = verify(run.layout, {"a.jsonl": 7})
    assert any(problem in found and "a.jsonl+000000000000.parquet" in found for found in problems)


def test_a_renamed_part_is_named(run: Any) -> None:
    path = run.layout.part("a.jsonl", 4)
    path.rename(path.with_name("a.jsonl+000000000005.parquet"))
    problems = verify(run.layout, {"a.jsonl": 7})
    assert "is the part of a.jsonl from row 4, whose name is a.jsonl+000000000004" in problems[0]


def test_a_removed_part_is_missed(run: Any) -> None:
    run.layout.part("a.jsonl", 0).unlink()
    assert "a.jsonl: 4 rows have no output row: 0, 1, 2, 3" in verify(run.layout, {"a.jsonl": 7})


def test_an_unfinished_shard_is_named(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.batch(0, 3)])
    writer.finish()
    (problem,) = verify(world.layout, {"a.jsonl": None})
    assert problem == "a.jsonl: its end has not been reached; run the job again"


def test_counts_of_the_manifest_have_to_agree(run: Any) -> None:
    (problem,) = verify(run.layout, {"a.jsonl": 7}, counts={"num_rows": 8, "num_failed": 1})
    assert problem.endswith(
        "manifest.json: counts 8 rows, 1 of them failed; the parts hold 7 and 1"
    )


def test_rows_of_the_batches_have_to_agree(run: Any) -> None:
    (run.layout.batches / "000000000000.parquet").unlink()
    (problem,) = verify(run.layout, {"a.jsonl": 7})
    assert "its batches count 0 rows; the outputs were made of 7" in problem


def test_retries_are_counted_in_the_batches(run: Any) -> None:
    writer = run.started()
    writer.append([[run.row(6, part=4, batch_id=2)], run.batch(2, 1)])
    writer.finish()
    assert verify(run.layout, {"a.jsonl": 7}, counts={"num_rows": 7, "num_failed": 0}) == []

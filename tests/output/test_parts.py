from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.errors import DataError
from batchgen.output.parts import NewRecords as New
from batchgen.output.parts import PartKey, ShardUnreadable, publish_part, read_part_info

KEY = PartKey("a.jsonl", 0)


def finish(world: Any, *items: Any) -> Any:
    writer = world.started()
    writer.append(list(items))
    writer.finish()
    return writer


def test_a_part_holds_kept_and_added_columns_in_row_order(world: Any) -> None:
    rows = world.rows(0, 4)
    finish(world, [rows[2], rows[0]], [rows[3], rows[1]], world.extent(4))
    outputs = world.outputs()
    assert [row["row"] for row in outputs] == [0, 1, 2, 3]
    assert [row["text"] for row in outputs] == [f"a.jsonl {i}" for i in range(4)]
    assert [row["output"] for row in outputs] == [f"reply to a.jsonl {i}" for i in range(4)]
    assert {row["shard"] for row in outputs} == {"a.jsonl"}


def test_the_footer_tells_what_the_part_is(world: Any) -> None:
    extent = world.extent(3, shard_rows=3)
    finish(world, world.rows(0, 3), extent)
    info = read_part_info(world.layout.part(*KEY))
    assert (info.key, info.num_rows, info.complete) == (KEY, 3, True)
    assert (info.extent, info.seq, info.fingerprint) == (extent, 4, "print")


@pytest.mark.parametrize("rows", [(0, 1), (1, 2), (0, 2)])
def test_a_part_without_all_its_rows_is_not_complete(world: Any, rows: tuple[int, int]) -> None:
    finish(world, world.rows(*rows), world.extent(3))
    info = read_part_info(world.layout.part(*KEY))
    assert (info.complete, info.num_rows) == (False, rows[1] - rows[0])
    assert [row["id"] for row in world.outputs()] == list(range(*rows))


def test_a_part_of_unknown_extent_is_not_complete(world: Any) -> None:
    finish(world, world.rows(0, 3))
    info = read_part_info(world.layout.part(*KEY))
    assert (info.complete, info.extent) == (False, None)


def test_later_rows_complete_a_part(world: Any) -> None:
    rows = world.rows(0, 5)
    finish(world, [rows[1], rows[4]])
    finish(world, [rows[0], rows[2], rows[3]], world.extent(5))
    assert read_part_info(world.layout.part(*KEY)).complete
    assert [row["row"] for row in world.outputs()] == [0, 1, 2, 3, 4]


def test_an_extent_alone_completes_a_part_that_has_its_rows(world: Any) -> None:
    finish(world, world.rows(0, 3))
    finish(world, world.extent(3))
    assert read_part_info(world.layout.part(*KEY)).complete


def test_a_later_record_of_a_row_is_the_truth(world: Any) -> None:
    finish(world, [world.row(0), world.failed(1)], world.extent(2))
    finish(world, [world.row(1, output="second try")], [world.row(1, output="third try")])
    assert [row["output"] for row in world.outputs()] == ["reply to a.jsonl 0", "third try"]
    info = read_part_info(world.layout.part(*KEY))
    assert (info.num_rows, info.num_superseded, info.complete) == (2, 2, True)


def test_a_retry_takes_kept_columns_from_the_part(world: Any) -> None:
    finish(world, [world.row(0), world.failed(1)], world.extent(2))
    world.shards.gone.add("a.jsonl")
    finish(world, [world.row(1)])
    assert [row["text"] for row in world.outputs()] == ["a.jsonl 0", "a.jsonl 1"]


def test_an_empty_shard_has_an_empty_part(world: Any) -> None:
    finish(world, world.extent(0, shard_rows=0))
    info = read_part_info(world.layout.part(*KEY))
    assert (info.num_rows, info.complete) == (0, True)


def test_kept_columns_are_read_to_the_highest_row_only(world: Any) -> None:
    writer = world.started()
    writer.append([[world.row(20, part=10), world.row(15, part=10)]])
    writer.finish()
    assert world.shards.reads == [("a.jsonl", 10, None, 11)]


def test_a_shard_that_lost_rows_is_named(world: Any) -> None:
    world.shards.num_rows["a.jsonl"] = 3
    with pytest.raises(DataError, match=r"a\.jsonl: has fewer rows .* \(3, at least 5 then\)"):
        finish(world, world.rows(0, 5))


def test_publishing_what_is_in_the_part_touches_nothing(world: Any) -> None:
    finish(world, world.rows(0, 3), world.extent(3))
    path = world.layout.part(*KEY)
    info = read_part_info(path)
    before = world.files()
    new = New(KEY, None, info.seq, [], info.extent)
    assert publish_part(world.layout, world.columns, world.shards, info, new) is info
    assert world.files() == before


def test_a_job_without_kept_columns_does_not_read_the_shard(world: Any, make_world: Any) -> None:
    from batchgen.output.columns import PartColumns, output_schema

    world.columns = PartColumns.of(output_schema(pa.schema([])), "")
    world.shards.gone.add("a.jsonl")
    finish(world, world.rows(0, 3))
    assert "text" not in world.outputs()[0]


def test_an_unreadable_shard_is_told_apart(world: Any) -> None:
    world.shards.gone.add("a.jsonl")
    new = New(KEY, None, 5, [], world.extent(0))
    info = publish_part(world.layout, world.columns, world.shards, None, new)
    assert info.num_rows == 0
    writer = world.started()
    writer.append([world.rows(0, 2)])
    with pytest.raises(DataError, match="put the file back"):
        writer.finish()
    assert issubclass(ShardUnreadable, DataError)


def test_large_parts_have_several_row_groups(world: Any) -> None:
    rows = [world.row(i, output="x" * 2_000_000) for i in range(18)]
    finish(world, rows, world.extent(18))
    metadata = pq.read_metadata(world.layout.part(*KEY))
    assert metadata.num_row_groups == 2
    assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(("content", "message"), [(b"PAR1 no", "remove it"), (b"", "remove it")])
def test_a_damaged_part_is_named_with_a_remedy(world: Any, content: bytes, message: str) -> None:
    path = world.layout.part(*KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as refusal:
        read_part_info(path)
    assert str(path) in str(refusal.value)


def test_a_foreign_file_is_named(world: Any) -> None:
    path = world.layout.outputs / "mine.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DataError, match=r"mine\.parquet: was not written by batchgen"):
        world.writer()

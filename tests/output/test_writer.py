from typing import Any

import pytest

from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.columns import PartColumns, output_schema
from batchgen.output.parts import PartKey, read_part_info
from batchgen.output.reading import read_batches

KEY = PartKey("a.jsonl", 0)


def batches(world: Any) -> list[tuple[int, int, str]]:
    frame = read_batches(world.layout.path)
    return list(zip(frame["batch_id"], frame["num_rows"], frame["closed_by"], strict=True))


def test_recovering_an_unused_directory_creates_nothing(world: Any) -> None:
    assert world.writer().recover() == []
    assert not world.layout.path.exists()


def test_recovering_a_finished_directory_touches_nothing(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.batch(0, 3), world.extent(3)])
    writer.finish()
    before = world.files()
    assert world.writer().recover() == []
    assert world.files() == before


def test_an_orderly_end_empties_the_journal(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.batch(0, 3)])
    writer.finish()
    assert world.journal_files() == []
    assert len(world.outputs()) == 3


def test_a_part_is_published_as_soon_as_its_rows_are_there(world: Any) -> None:
    writer = world.started()
    writer.append([world.extent(3), world.rows(0, 2)])
    assert writer.num_ripe == 0
    writer.append([world.rows(2, 3)])
    assert writer.num_ripe == 1
    writer.publish_ripe()
    assert read_part_info(world.layout.part(*KEY)).complete
    assert writer.num_ripe == 0


def test_killed_rows_are_published_at_the_next_start(world: Any) -> None:
    world.started().append([world.rows(0, 3), world.rows(50, 52, part=50)])
    writer = world.writer()
    assert writer.recover() == []
    assert [row["row"] for row in world.outputs()] == [0, 1, 2, 50, 51]
    assert world.journal_files() == []
    assert list(writer.state.done_rows("a.jsonl", 50)) == [50, 51]


def test_the_open_batch_of_a_killed_run_is_closed_from_its_rows(world: Any) -> None:
    first = world.rows(0, 3, batch_id=0)
    second = [world.row(3, batch_id=1), world.failed(4, batch_id=1)]
    copy = world.row(5, batch_id=1, duplicate_of="a.jsonl:3")
    world.started().append([first, world.batch(0, 3), [*second, copy]])
    writer = world.writer()
    writer.recover()
    frame = read_batches(world.layout.path)
    assert batches(world) == [(0, 3, "size"), (1, 3, "crash")]
    crashed = frame.iloc[1]
    assert (crashed["num_failed"], crashed["num_output_tokens"]) == (1, 5)
    assert (crashed["run_id"], crashed["feed"]) == ("run-1", "continuous")
    assert writer.state.next_batch_id == 2


def test_batch_ids_and_sequence_numbers_go_on_over_runs(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.batch(0, 3)])
    writer.finish()
    writer = world.started()
    assert (writer.state.next_batch_id, writer.state.last_seq) == (1, 4)
    writer.append([world.rows(3, 5, batch_id=1), world.batch(1, 2), world.extent(5)])
    writer.finish()
    assert batches(world) == [(0, 3, "size"), (1, 2, "size")]
    assert read_part_info(world.layout.part(*KEY)).seq == 8


def test_a_second_sitting_leaves_finished_parts_alone(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.extent(3), world.batch(0, 3)])
    writer.finish()
    before = world.files()
    writer = world.started()
    writer.append([world.rows(3, 6, part=3, batch_id=1), world.extent(3, part=3)])
    writer.append([world.batch(1, 3)])
    writer.finish()
    after = world.files()
    assert len(after) == len(before) + 2
    assert {name: after[name] for name in before} == before


def test_a_segment_stays_while_a_batch_of_its_rows_is_open(world: Any) -> None:
    writer = world.started(segment_bytes=1)
    writer.append([world.rows(0, 3, batch_id=7), world.extent(3)])
    writer.publish_ripe()
    writer.append([world.rows(3, 4, part=3, batch_id=8)])
    assert world.journal_files() == ["00000001.log", "00000002.log"]
    writer.append([world.batch(7, 3)])
    writer.append([world.rows(4, 5, part=3, batch_id=8)])
    assert world.journal_files() == ["00000002.log", "00000004.log"]


def test_segments_go_while_a_run_goes_on(world: Any) -> None:
    writer = world.started(segment_bytes=2000)
    for part in range(0, 300, 10):
        writer.append([world.extent(10, part=part), world.rows(part, part + 10, part=part)])
        writer.append([world.batch(0, 10)])
        writer.publish_ripe()
        assert len(world.journal_files()) <= 3
    writer.finish()
    assert len(world.outputs()) == 300


def test_a_torn_record_is_named_and_the_rest_is_kept(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3)])
    writer.append([world.rows(3, 6)])
    segment = world.layout.journal / world.journal_files()[0]
    segment.write_bytes(segment.read_bytes()[:-1])
    (warning,) = world.writer().recover()
    assert str(segment) in warning
    assert [row["row"] for row in world.outputs()] == [0, 1, 2]


def test_records_of_a_vanished_shard_wait_for_it(world: Any) -> None:
    world.started().append([world.rows(0, 2), world.rows(0, 2, shard="b.jsonl")])
    world.shards.gone.add("a.jsonl")
    writer = world.writer()
    (warning,) = writer.recover()
    assert "a.jsonl" in warning
    assert {row["shard"] for row in world.outputs()} == {"b.jsonl"}
    writer.start()
    with pytest.raises(DataError, match=r"a\.jsonl"):
        writer.finish()
    world.shards.gone.clear()
    assert world.writer().recover() == []
    assert len(world.outputs()) == 4
    assert world.journal_files() == []


def test_announced_retries_are_published_when_the_last_has_come(world: Any) -> None:
    from batchgen.output.writer import PartOpening

    writer = world.started()
    writer.append([[world.failed(0), world.row(1), world.failed(2)], world.extent(3)])
    writer.finish()
    writer = world.started()
    writer.append([PartOpening("a.jsonl", 0, 0, [0, 2]), [world.row(2)]])
    assert writer.num_ripe == 0
    writer.append([[world.row(0)]])
    writer.publish_ripe()
    assert [row["error_type"] for row in world.outputs()] == [None, None, None]


def test_unannounced_retries_are_published_at_the_end(world: Any) -> None:
    writer = world.started()
    writer.append([[world.failed(0), world.failed(1)], world.extent(2)])
    writer.finish()
    writer = world.started()
    writer.append([[world.row(0)], world.extent(2), [world.row(1)]])
    assert writer.num_ripe == 0
    writer.finish()
    assert [row["error_type"] for row in world.outputs()] == [None, None]


def test_a_grown_shard_opens_its_last_part_for_good(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.extent(3, shard_rows=3)])
    writer.finish()
    writer = world.writer()
    writer.reopen("a.jsonl", 0)
    info = writer.state.parts[KEY]
    assert (info.complete, info.extent) == (False, None)
    assert list(writer.state.done_rows(*KEY)) == [0, 1, 2]
    again = world.writer()
    again.recover()
    assert not read_part_info(world.layout.part(*KEY)).complete


def test_a_grown_shard_is_continued_in_its_last_part(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.extent(3, shard_rows=3)])
    writer.finish()
    writer = world.writer()
    writer.reopen("a.jsonl", 0)
    writer.append([world.extent(5, shard_rows=5), world.rows(3, 5)])
    writer.publish_ripe()
    info = read_part_info(world.layout.part(*KEY))
    assert (info.num_rows, info.complete) == (5, True)
    assert [row["row"] for row in world.outputs()] == [0, 1, 2, 3, 4]


def test_rows_beyond_a_known_end_make_the_end_unknown(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3), world.extent(3, shard_rows=3)])
    writer.finish()
    writer = world.started()
    writer.append([world.rows(3, 4)])
    writer.finish()
    info = read_part_info(world.layout.part(*KEY))
    assert (info.num_rows, info.complete, info.extent) == (4, False, None)


def test_other_columns_than_before_are_refused(world: Any) -> None:
    writer = world.started()
    writer.append([world.rows(0, 3)])
    writer.finish()
    world.columns = PartColumns.of(output_schema(world.columns.kept_schema, with_prompt=True), "")
    with pytest.raises(ResumeMismatch, match="column 'prompt' is absent there"):
        world.writer().recover()


def test_the_footer_keeps_the_offset_of_a_part(world: Any) -> None:
    from batchgen.output.writer import PartOpening

    world.started().append([PartOpening("a.jsonl", 10, 1234), [world.row(10, part=10)]])
    world.writer().recover()
    assert world.shards.reads == [("a.jsonl", 10, 1234, 1)]
    assert read_part_info(world.layout.part("a.jsonl", 10)).source_start == 1234

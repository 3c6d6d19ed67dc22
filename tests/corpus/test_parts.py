"""The two promises of reading: parts depend on the shard alone, any part start gives the tail."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.corpus.readers import PartLimits, ReadPoint
from batchgen.errors import DataError

SAME_DIRECTORY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def extents(blocks):
    return [block.extent for block in blocks if block.extent is not None]


def rows(blocks):
    return [
        (block.part_start, block.start_row + index, value, block.errors.get(index))
        for block in blocks
        for index, value in enumerate(block.columns.get("a", [None] * block.num_rows))
    ]


LINES = st.lists(
    st.sampled_from(['{"a": "x"}', '{"a": "' + "y" * 40 + '"}', "bad", "", '{"b": 1}']), max_size=30
)


def write_any(write_shard, kind, lines):
    if kind == "parquet":
        values = [json.loads(line).get("a") for line in lines if line.startswith("{")]
        table = [{"a": value, "other": 1} for value in values]
        return write_shard("p.parquet", table or [{"a": "only"}], row_group_size=4)
    if kind == "csv":
        cells = [json.loads(line).get("a") for line in lines if line.startswith("{")]
        return write_shard("c.csv", ["a,b", *(f'"{cell}\n{cell}",1' for cell in cells), "ragged"])
    return write_shard(f"t.{kind}", lines)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
@SAME_DIRECTORY
@given(
    lines=LINES,
    max_rows=st.integers(1, 8),
    max_bytes=st.integers(1, 200),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    on_bad_line=st.sampled_from(["error_row", "skip"]),
    stop=st.none() | st.integers(1, 20),
)
def test_reading_from_any_part_gives_the_tail_of_the_whole(
    write_shard, read, kind, lines, max_rows, max_bytes, sizes, on_bad_line, stop
):
    shard = write_any(write_shard, kind, lines)
    limits = PartLimits(max_rows, max_bytes, 1000, on_bad_line)
    options = {"limits": limits, "max_rows": stop}
    whole = read(shard, "a", block_rows=sizes[0], **options)
    whole_extents = extents(whole)
    assert sum(extent.num_rows for extent in whole_extents) == len(rows(whole))
    for index, extent in enumerate(whole_extents):
        for offset in (extent.source_start, None):
            start = ReadPoint(extent.start_row, offset)
            tail = read(shard, "a", block_rows=sizes[1], start=start, **options)
            assert extents(tail) == whole_extents[index:]
            assert rows(tail) == [row for row in rows(whole) if row[1] >= extent.start_row]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
@SAME_DIRECTORY
@given(lines=LINES, max_rows=st.integers(1, 8))
def test_parts_follow_each_other_and_only_the_last_knows_the_shard_rows(
    write_shard, read, kind, lines, max_rows
):
    shard = write_any(write_shard, kind, lines)
    found = extents(read(shard, "a", limits=PartLimits(max_rows, 10**9, 1000, "error_row")))
    for one, other in pairwise(found):
        assert other.start_row == one.start_row + one.num_rows
        assert (one.source_end, one.shard_rows) == (other.source_start, None)
    assert found[-1].shard_rows == found[-1].start_row + found[-1].num_rows


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_shard_that_ends_with_a_full_part_has_no_empty_part(write_shard, read, limits, name):
    content = ["a", "1", "2", "3", "4"] if name == "a.csv" else [{"a": str(i)} for i in range(4)]
    blocks = read(write_shard(name, content), "a", limits=replace(limits, max_rows=2))
    assert [(e.num_rows, e.shard_rows) for e in extents(blocks)] == [(2, None), (2, 4)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_a_shard_without_rows_is_one_empty_block(write_shard, read, name):
    (block,) = read(write_shard(name, b""), "a")
    assert (block.num_rows, block.extent.num_rows, block.extent.shard_rows) == (0, 0, 0)


def test_a_parquet_shard_without_rows_is_one_empty_block(tmp_path, shard_at, read):
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "a.parquet")
    (block,) = read(shard_at(tmp_path / "a.parquet"), "a")
    assert (block.columns, block.extent.num_rows, block.extent.shard_rows) == ({"a": []}, 0, 0)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_limit_ends_the_shard_there(write_shard, read, name):
    shard = write_shard(name, [{"a": str(i)} for i in range(10)])
    (block,) = read(shard, "a", max_rows=3)
    assert (block.num_rows, block.extent.num_rows, block.extent.shard_rows) == (3, 3, 3)


def test_a_part_closes_with_the_row_that_reaches_its_bytes(write_shard, read, limits):
    shard = write_shard("a.jsonl", b'{"a":1}\n' * 7)
    found = extents(read(shard, "a", limits=replace(limits, max_bytes=20)))
    assert [extent.num_rows for extent in found] == [3, 3, 1]


def test_bytes_of_parquet_rows_are_those_of_their_row_group(write_shard, read, limits):
    rows = [{"a": f"{i:05d}" * 200} for i in range(100)]
    shard = write_shard("a.parquet", rows, row_group_size=100, use_dictionary=False)
    row_bytes = pq.read_metadata(shard.path).row_group(0).total_byte_size / 100
    found = extents(read(shard, "a", limits=replace(limits, max_bytes=40_000)))
    full = math.ceil(40_000 / row_bytes)
    assert [extent.num_rows for extent in found] == [full, full, 100 - 2 * full]


def test_changed_bytes_change_the_digest_of_their_part_alone(write_shard, read, limits):
    limits = replace(limits, max_rows=2)
    lines = [f'{{"a": {i}}}' for i in range(6)]
    before = extents(read(write_shard("a.jsonl", lines), "a", limits=limits))
    lines[3] = '{"a": 9}'
    after = extents(read(write_shard("a.jsonl", lines), "a", limits=limits))
    pairs = zip(before, after, strict=True)
    assert [one.source_digest == other.source_digest for one, other in pairs] == [True, False, True]


def test_a_grown_shard_goes_on_behind_its_last_row(write_shard, read, limits):
    (block,) = read(write_shard("a.jsonl", b'{"a":1}\n{"a":2}'), "a")
    grown = write_shard("a.jsonl", b'{"a":1}\n{"a":2}\n{"a":3}\n')
    (more,) = read(grown, "a", start=ReadPoint(2, block.extent.source_end))
    assert (more.columns["a"], more.start_row, more.extent.shard_rows) == ([3], 2, 3)


@pytest.mark.parametrize("offset", [None, 10_000])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv"])
def test_a_shrunk_text_shard_is_named(write_shard, read, name, offset):
    shard = write_shard(name, ["a", "1"] if name == "a.csv" else [{"a": 1}])
    with pytest.raises(DataError, match="has changed since the last run"):
        read(shard, "a", start=ReadPoint(500, offset))


def test_a_shrunk_parquet_shard_is_named(write_shard, read):
    with pytest.raises(DataError, match="has 1 rows, and 500 were read before"):
        read(write_shard("a.parquet", [{"a": 1}]), "a", start=ReadPoint(500))

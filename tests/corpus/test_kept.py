import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.corpus.kept import FileState, KeptReader
from batchgen.corpus.readers import PartLimits, read_blocks
from batchgen.corpus.schema import plan_columns
from batchgen.errors import DataError, ResumeMismatch
from batchgen.records import PartExtent, Shard


@pytest.fixture
def kept_reader(limits):
    readers = []

    def make(*shards, schema=None, limits=limits):
        if schema is None:
            options = {"needed": (), "generated": (), "prefix": "", "fixed": None}
            schema = plan_columns(shards, keep=None, **options).kept_schema
        readers.append(KeptReader(shards, schema, limits))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 2]])
def test_parts_can_be_read_in_any_order(write_shard, read, kept_reader, limits, name, order):
    content = [{"id": str(i), "text": f"t{i}"} for i in range(35)]
    if name == "a.csv":
        content = ["id,text", *(f"{i},t{i}" for i in range(35))]
    shard = write_shard(name, content)
    blocks = read(shard, limits=replace(limits, max_rows=10))
    extents = [block.extent for block in blocks if block.extent]
    reader = kept_reader(shard)
    for index in order:
        extent = extents[index]
        table = reader.read("a" + name[1:], extent.start_row, extent.source_start, extent.num_rows)
        rows = range(extent.start_row, extent.start_row + extent.num_rows)
        assert table.column("id").to_pylist() == [str(row) for row in rows]
        assert table.column("text").to_pylist() == [f"t{row}" for row in rows]


def test_a_part_begins_within_a_row_group_and_crosses_others(write_shard, kept_reader):
    shard = write_shard("a.parquet", [{"id": i} for i in range(100)], row_group_size=7)
    table = kept_reader(shard).read("a.parquet", 33, None, 50)
    assert table.column("id").to_pylist() == list(range(33, 83))


def test_an_unreadable_row_is_all_null(write_shard, kept_reader):
    shard = write_shard("a.jsonl", ['{"a": 1}', "bad", '{"a": 3}'])
    assert kept_reader(shard).read("a.jsonl", 0, 0, 3).column("a").to_pylist() == [1, None, 3]


def test_skipped_lines_are_no_rows(write_shard, kept_reader, limits):
    shard = write_shard("a.jsonl", ['{"a": 1}', "bad", '{"a": 3}'])
    reader = kept_reader(shard, limits=replace(limits, on_bad_line="skip"))
    assert reader.read("a.jsonl", 0, 0, 2).column("a").to_pylist() == [1, 3]


def test_json_text_holds_each_value_as_compact_json(write_shard, kept_reader):
    values = ["text", 1, {"b": [1, 2.5, "é"]}, None, 2**70, [2**70], "\ud800"]
    shard = write_shard("a.jsonl", [{"x": value} for value in values])
    assert kept_reader(shard).read("a.jsonl", 0, 0, 7).column("x").to_pylist() == [
        '"text"',
        "1",
        '{"b":[1,2.5,"é"]}',
        None,
        str(2**70),
        f"[{2**70}]",
        '"\\ud800"',
    ]


@pytest.mark.parametrize("value", [["\ud800", float("nan")], {"\ud800": [float("inf")]}])
def test_json_text_has_null_where_json_has_no_number(write_shard, kept_reader, value):
    shard = write_shard("a.jsonl", [{"x": value}])
    (text,) = kept_reader(shard).read("a.jsonl", 0, 0, 1).column("x").to_pylist()
    assert "null" in text
    assert "NaN" not in text
    assert "Infinity" not in text


def test_parquet_text_that_is_not_utf8_is_null_and_counted(tmp_path, write_shard, kept_reader):
    bad = pa.array([b"good", b"caf\xe9", None], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], bad)
    pq.write_table(pa.table({"x": bad, "y": lists}), tmp_path / "made.parquet")
    shard = write_shard("a.parquet", (tmp_path / "made.parquet").read_bytes())
    reader = kept_reader(shard)
    table = reader.read("a.parquet", 0, None, 3)
    assert table.column("x").to_pylist() == ["good", None, None]
    assert table.column("y").to_pylist() == [["good"], None, [None]]
    assert reader.misfits == {"x": (1, "a.parquet row 1"), "y": (1, "a.parquet row 1")}


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        (pa.int64(), [1, -5, None], ["1", 1.5, True, 2**63, [1]]),
        (pa.float64(), [1, 2.5, None], ["1", True, 10**400, {}]),
        (pa.string(), ["a", None], [1, {"a": 1}, False, "\ud800"]),
        (pa.bool_(), [True, None], [1, "true"]),
        (pa.int8(), [5, None], [1000, "x"]),
        (pa.list_(pa.int64()), [[1, 2], None], ["x", ["y"]]),
    ],
)
def test_a_value_that_does_not_fit_becomes_null_and_is_counted(
    write_shard, kept_reader, type, good, bad
):
    shard = write_shard("a.jsonl", [{"x": value} for value in [*good, *bad]])
    reader = kept_reader(shard, schema=pa.schema([("x", type)]))
    table = reader.read("a.jsonl", 0, 0, len(good) + len(bad))
    assert table.column("x").to_pylist() == good + [None] * len(bad)
    assert reader.misfits == {"x": (len(bad), f"a.jsonl row {len(good)}")}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_that_a_shard_lacks_is_null(write_shard, kept_reader, name):
    schema = pa.schema([("b", pa.string()), ("a", pa.int64())])
    reader = kept_reader(write_shard(name, [{"a": 1}, {"a": 2}]), schema=schema)
    table = reader.read(name, 0, None, 2)
    assert table.schema == schema
    assert table.to_pydict() == {"b": [None, None], "a": [1, 2]}


def test_narrower_parquet_types_are_widened(write_shard, kept_reader, tmp_path):
    schema = pa.schema([("a", pa.float64())])
    reader = kept_reader(write_shard("a.parquet", [{"a": 1}]), schema=schema)
    assert reader.read("a.parquet", 0, None, 1).column("a").to_pylist() == [1.0]


def test_without_kept_columns_rows_still_count(write_shard, kept_reader):
    reader = kept_reader(write_shard("a.jsonl", [{"a": 1}] * 3), schema=pa.schema([]))
    assert reader.read("a.jsonl", 0, 0, 3).num_rows == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_shard_that_has_shrunk_is_named(write_shard, kept_reader, name):
    reader = kept_reader(write_shard(name, [{"a": 1}] * 3))
    with pytest.raises(DataError, match="has 3 rows, and 5 were read before"):
        reader.read(name, 0, None, 5)


def test_a_shard_that_is_no_longer_an_input_is_named(write_shard, kept_reader):
    with pytest.raises(DataError, match=r"old\.jsonl: this shard is no longer in"):
        kept_reader(write_shard("a.jsonl", [{"a": 1}])).read("old.jsonl", 0, 0, 1)


def test_many_shards_leave_few_files_open(write_shard, kept_reader):
    shards = [write_shard(f"{i}.jsonl", [{"a": i}]) for i in range(20)]
    reader = kept_reader(*shards)
    for index in range(20):
        assert reader.read(f"{index}.jsonl", 0, 0, 1).column("a").to_pylist() == [index]
    assert len(reader._cursors) <= 4


def test_what_is_nested_too_deeply_becomes_null_and_is_counted(write_shard, kept_reader):
    shard = write_shard("a.jsonl", ['{"x": {}}', '{"x": ' + "[" * 1000 + "]" * 1000 + "}"])
    reader = kept_reader(shard)
    assert reader.read("a.jsonl", 0, 0, 2).column("x").to_pylist() == ["{}", None]
    assert reader.misfits == {"x": (1, "a.jsonl row 1")}


def one_part(path: Path, reader_limits: PartLimits) -> tuple[Shard, PartExtent]:
    shard = jsonl_shard(path)
    blocks = list(read_blocks(shard, columns=(), limits=reader_limits))
    extent = blocks[-1].extent
    assert extent is not None
    return shard, extent


def jsonl_shard(path: Path) -> Shard:
    status = path.stat()
    return Shard(path.name, str(path), "jsonl", None, status.st_size, status.st_mtime_ns)


LIMITS = PartLimits(100, 1 << 20, 1 << 20, "error_row")


def test_a_file_that_was_only_touched_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    shard, extent = one_part(path, LIMITS)
    os.utime(path, ns=(1, 1))
    reader = KeptReader([shard], pa.schema([("id", pa.int64())]), LIMITS)
    assert reader.read("a.jsonl", 0, 0, 2, extent).column("id").to_pylist() == [1, 2]
    reader.close()


@pytest.mark.parametrize("new", ['{"id": 1}\n{"id": 3}\n', '{"id": 9}\n{"id": 1}\n{"id": 2}\n'])
def test_a_file_that_was_rewritten_meanwhile_is_refused(tmp_path, new):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    shard, extent = one_part(path, LIMITS)
    path.write_text(new)
    os.utime(path, ns=(1, 1))
    reader = KeptReader([shard], pa.schema([("id", pa.int64())]), LIMITS)
    with pytest.raises(ResumeMismatch, match=r"a\.jsonl: has changed"):
        reader.read("a.jsonl", 0, 0, 2, extent)


def test_without_a_hash_a_touched_file_is_not_trusted_until_it_is_accepted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n')
    shard, _ = one_part(path, LIMITS)
    os.utime(path, ns=(1, 1))
    reader = KeptReader(
        [jsonl_shard(path)],
        pa.schema([("id", pa.int64())]),
        LIMITS,
        known={"a.jsonl": FileState(shard.num_bytes, shard.mtime_ns)},
    )
    with pytest.raises(ResumeMismatch):
        reader.read("a.jsonl", 0, 0, 1)
    reader.trust()
    assert reader.read("a.jsonl", 0, 0, 1).num_rows == 1
    reader.close()

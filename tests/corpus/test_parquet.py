import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.corpus.readers import ReadPoint
from batchgen.errors import DataError


@pytest.fixture
def write_table(tmp_path, shard_at):
    def write(columns, **options):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", **options)
        return shard_at(tmp_path / "a.parquet")

    return write


def test_a_block_has_the_wanted_columns_that_exist(write_shard, read):
    (block,) = read(write_shard("a.parquet", [{"a": "x", "b": 1}]), "a", "c")
    assert block.columns == {"a": ["x"]}


def test_rows_without_any_wanted_column_are_still_rows(write_shard, read):
    blocks = read(write_shard("a.parquet", [{"b": 1}] * 5), "a", block_rows=2)
    assert [(block.num_rows, block.columns) for block in blocks] == [(2, {}), (2, {}), (1, {})]


def test_reading_begins_within_a_row_group(write_shard, read):
    shard = write_shard("a.parquet", [{"a": i} for i in range(20)], row_group_size=8)
    blocks = read(shard, "a", start=ReadPoint(11), block_rows=4)
    assert [value for block in blocks for value in block.columns["a"]] == list(range(11, 20))


def test_a_text_that_is_not_utf8_is_the_error_of_its_row(write_table, read):
    array = pa.array([b"ok", b"\xff\xfe", None]).view(pa.string())
    (block,) = read(write_table({"a": array}), "a")
    assert block.columns["a"] == ["ok", None, None]
    assert block.errors[1].type == "bad_type"


def test_a_time_that_python_cannot_hold_is_the_error_of_its_row(write_table, read):
    array = pa.array([0, 2**62], pa.int64()).view(pa.timestamp("us"))
    (block,) = read(write_table({"a": array}), "a")
    assert block.columns["a"] == [datetime.datetime(1970, 1, 1), None]
    assert list(block.errors) == [1]


def test_two_columns_of_one_name_are_refused(tmp_path, shard_at, read):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has the column 'a' more than once"):
        read(shard_at(tmp_path / "a.parquet"), "a")


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1])
def test_a_truncated_file_is_named(write_shard, read, tmp_path, keep):
    shard = write_shard("a.parquet", [{"a": f"text {i}"} for i in range(1000)])
    content = (tmp_path / "a.parquet").read_bytes()
    end = int(len(content) * keep) if isinstance(keep, float) else keep
    (tmp_path / "a.parquet").write_bytes(content[:end])
    with pytest.raises(DataError, match=r"a\.parquet: the file is cut off or damaged"):
        read(shard, "a")


def test_a_damaged_page_is_a_data_error(write_shard, read, tmp_path):
    rows = [{"a": f"text {i}" * 20} for i in range(2000)]
    shard = write_shard("a.parquet", rows, compression="zstd", use_dictionary=False)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[200:400] = b"\xff" * 200
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        read(shard, "a")


def test_blocks_of_heavy_rows_are_small(write_shard, read):
    rows = [{"a": f"{i}" + "x" * 400_000} for i in range(40)]
    blocks = read(write_shard("a.parquet", rows, use_dictionary=False), "a")
    assert max(block.num_rows for block in blocks) <= 10

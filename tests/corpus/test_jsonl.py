import gzip
from dataclasses import replace

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.corpus.readers import PartLimits, ReadCounts, ReadPoint, read_blocks
from batchgen.errors import DataError
from batchgen.records import MISSING, Shard

SAME_DIRECTORY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def one_block(write_shard, read, content, *columns, name="a.jsonl", **options):
    (block,) = read(write_shard(name, content), *columns, **options)
    return block


def test_a_last_line_without_line_feed_is_a_row(write_shard, read):
    block = one_block(write_shard, read, b'{"a":1}\n{"a":2}', "a")
    assert block.columns == {"a": [1, 2]}


def test_a_byte_order_mark_is_not_part_of_the_first_key(write_shard, read):
    block = one_block(write_shard, read, b'\xef\xbb\xbf{"a":1}\n', "a")
    assert block.columns == {"a": [1]}


def test_blank_lines_are_no_rows_and_counted(write_shard, read):
    counts = ReadCounts()
    content = b'\n{"a":1}\n\r\n  \t\n{"a":2}\n\n'
    block = one_block(write_shard, read, content, "a", counts=counts)
    assert (block.columns["a"], counts.blank_lines) == ([1, 2], 4)


def test_null_and_a_missing_key_are_two_things(write_shard, read):
    block = one_block(write_shard, read, [{"a": None}, {"b": 1}], "a")
    assert block.columns["a"] == [None, MISSING]


def test_only_a_line_feed_ends_a_line(write_shard, read):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    content = orjson.dumps({"a": text}) + b"\r\n" + orjson.dumps({"a": "x\r\ny\rz"}) + b"\n"
    block = one_block(write_shard, read, content, "a")
    assert block.columns["a"] == [text, "x\r\ny\rz"]


@SAME_DIRECTORY
@given(texts=st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=20))
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
def test_any_text_survives_reading(write_shard, read, name, texts):
    content = b"".join(orjson.dumps({"a": text}) + b"\n" for text in texts)
    blocks = read(write_shard(name, content), "a", block_rows=3)
    assert [value for block in blocks for value in block.columns["a"]] == texts


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": "cut', "not JSON: Unterminated string"),
        (b'{"a":1} {"a":2}', "not JSON: Extra data"),
        (b"[1, 2]", "this is an array"),
        (b"null", "this is null"),
        (b'"text"', "this is a string"),
        (b"nonsense", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "too many digits"),
    ],
)
def test_a_bad_line_is_a_row_error_with_its_place(write_shard, read, line, reason):
    block = one_block(write_shard, read, b'{"a":1}\n\n' + line + b'\n{"a":2}\n', "a")
    error = block.errors[1]
    assert (block.num_rows, error.type) == (3, "bad_json")
    assert "a.jsonl:3: " in error.message
    assert reason in error.message


def test_the_line_number_counts_from_the_start_of_the_file_also_behind_an_offset(
    write_shard, read, limits
):
    lines = [b'{"a":1}\n'] * 10 + [b"bad\n"]
    for name in ("a.jsonl", "b.jsonl.gz"):
        shard = write_shard(name, b"".join(lines))
        limits = replace(limits, max_rows=4)
        whole = read(shard, "a", limits=limits)
        last = whole[-1]
        start = ReadPoint(last.part_start, last.source_start)
        (again,) = read(shard, "a", limits=limits, start=start)
        assert again.errors == last.errors
        assert ":11:" in last.errors[2].message


def test_a_line_longer_than_allowed_is_a_row_error(write_shard, read, limits):
    content = b'{"a":1}\n{"a":"' + b"x" * 2_500_000 + b'"}\n{"a":2}\n'
    limits = replace(limits, max_line_bytes=1000)
    block = one_block(write_shard, read, content, "a", limits=limits)
    assert block.columns["a"] == [1, MISSING, 2]
    assert "max_line_bytes (1000)" in block.errors[1].message


@pytest.mark.parametrize(("num_bytes", "num_errors"), [(100, 0), (101, 1)])
def test_the_line_limit_does_not_count_the_line_feed(
    write_shard, read, limits, num_bytes, num_errors
):
    line = b'{"a":"' + b"x" * (num_bytes - 8) + b'"}\n'
    limits = replace(limits, max_line_bytes=100)
    assert len(one_block(write_shard, read, line, "a", limits=limits).errors) == num_errors


def test_skipped_bad_lines_are_no_rows_and_counted(write_shard, read, limits):
    counts = ReadCounts()
    limits = replace(limits, on_bad_line="skip")
    block = one_block(
        write_shard, read, b'{"a":1}\nbad\n{"a":2}\n', "a", limits=limits, counts=counts
    )
    assert (block.columns["a"], counts.skipped_lines) == ([1, 2], 1)


def test_a_bad_line_ends_the_run_where_the_job_says_fail(write_shard, read, limits):
    shard = write_shard("a.jsonl", b'{"a":1}\nbad\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: not JSON.*on_bad_line"):
        read(shard, "a", limits=replace(limits, on_bad_line="fail"))


def test_nan_is_read_as_nan(write_shard, read):
    (value,) = one_block(write_shard, read, b'{"a": NaN}\n', "a").columns["a"]
    assert value != value


@pytest.mark.parametrize("value", [2**63, -(2**70), 10**30, [10**30], {"b": [10**30]}, 1e30])
def test_integers_of_any_size_are_exact(write_shard, read, value):
    (read_value,) = one_block(write_shard, read, [{"a": value}], "a").columns["a"]
    assert (read_value, type(read_value)) == (value, type(value))


@SAME_DIRECTORY
@given(
    content=st.binary(max_size=300)
    | st.lists(
        st.sampled_from(
            [
                b'{"a":"x"}',
                b"\n",
                b"\r",
                b"{",
                b"\xff",
                b'"',
                b"\xef\xbb\xbf",
                b"\\ud800",
                b"NaN",
                b"[",
            ]
        ),
        max_size=40,
    ).map(b"".join)
)
@pytest.mark.parametrize("name", ["f.jsonl", "f.csv"])
def test_fuzzed_bytes_give_rows_row_errors_or_a_data_error(write_shard, read, name, content):
    try:
        blocks = read(write_shard(name, content), "a", block_rows=2)
    except DataError:
        return
    assert all(error.type == "bad_json" for block in blocks for error in block.errors.values())
    assert blocks[-1].extent.shard_rows == sum(block.num_rows for block in blocks)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_truncated_compressed_shard_is_named(write_shard, read, shard_at, tmp_path, name, keep):
    write_shard(name, [{"a": f"text {i * 7919 % 1000}"} for i in range(3000)])
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataError, match=rf"{name}: the file is cut off or damaged.* -t'"):
        read(shard_at(tmp_path / name), "a")


def test_concatenated_members_are_one_shard(tmp_path, shard_at, read):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a":1}\n{"a"') + gzip.compress(b":2}\n"))
    (block,) = read(shard_at(path), "a")
    assert block.columns["a"] == [1, 2]


def test_a_vanished_shard_is_a_data_error(write_shard, read, tmp_path):
    shard = write_shard("a.jsonl", [{"a": 1}])
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(DataError, match="cannot read this file"):
        read(shard, "a")


def test_reading_holds_no_more_than_a_block_of_a_shard_with_long_rows(
    write_shard, limits: PartLimits
):
    shard: Shard = write_shard("a.jsonl", [{"a": "x" * 500_000}] * 40)
    sizes = [block.num_rows for block in read_blocks(shard, columns=["a"], limits=limits)]
    assert max(sizes) <= 9
    assert sum(sizes) == 40

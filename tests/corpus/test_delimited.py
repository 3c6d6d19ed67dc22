from dataclasses import replace

import pytest

from batchgen.corpus.readers import ReadCounts
from batchgen.errors import DataError


def test_values_are_texts_and_quotes_may_hold_line_feeds(write_shard, read):
    shard = write_shard("a.csv", b'id,text\n007,"one\ntwo ""three"""\n8,\n')
    (block,) = read(shard, "id", "text")
    assert block.columns == {"id": ["007", "8"], "text": ['one\ntwo "three"', ""]}


def test_columns_that_the_header_lacks_are_not_there(write_shard, read):
    (block,) = read(write_shard("a.csv", ["a", "1"]), "a", "b")
    assert block.columns == {"a": ["1"]}


def test_mark_line_ends_and_blank_lines_are_no_data(write_shard, read):
    counts = ReadCounts()
    shard = write_shard("a.csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4\r\n")
    (block,) = read(shard, "a", "b", counts=counts)
    assert (block.columns, counts.blank_lines) == ({"a": ["1", "3"], "b": ["2", "4"]}, 1)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"1,2,3", "has 3 fields, the header has 2"),
        (b"1", "has 1 fields, the header has 2"),
        (b"1,\xff", "not UTF-8"),
        (b"1," + b"x" * 200, "max_line_bytes (100)"),
        (b'1,"' + b"x\n" * 90 + b'"', "max_line_bytes (100)"),
    ],
)
def test_a_bad_record_is_a_row_error_with_its_line(write_shard, read, limits, record, reason):
    shard = write_shard("a.csv", b'a,b\n"1\n1",2\n' + record + b"\n")
    blocks = read(shard, "a", limits=replace(limits, max_line_bytes=100))
    error = blocks[0].errors[1]
    assert error.type == "bad_json"
    assert "a.csv:4: " in error.message
    assert reason in error.message


def test_a_quote_that_never_closes_is_a_row_error(write_shard, read):
    (block,) = read(write_shard("a.csv", b'a,b\n1,2\n3,"open\n5,6\n'), "a")
    assert block.num_rows == 2
    assert "a.csv:3: not CSV: a quote is not closed" in block.errors[1].message


def test_fields_may_be_longer_than_the_csv_module_allows_by_default(write_shard, read):
    (block,) = read(write_shard("a.csv", b"a\n" + b"x" * 200_000 + b"\n"), "a")
    assert len(block.columns["a"][0]) == 200_000


def test_a_header_with_a_name_twice_is_refused(write_shard, read):
    with pytest.raises(DataError, match="the header has 'a' more than once"):
        read(write_shard("a.csv", ["a,b,a", "1,2,3"]), "a")

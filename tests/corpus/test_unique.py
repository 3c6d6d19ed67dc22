import pytest

from batchgen.corpus.unique import check_unique
from batchgen.errors import DataError


def test_a_repeated_value_is_refused_with_both_places(write_shard, limits):
    shards = [
        write_shard("a.jsonl", [{"id": "x"}, {"id": "y"}]),
        write_shard("b.parquet", [{"id": "z"}, {"id": "y"}]),
    ]
    with pytest.raises(DataError, match=r"'id' has 'y' twice: a\.jsonl row 1 and b\.parquet row 1"):
        check_unique(shards, "id", limits)


def test_few_of_many_repeated_values_are_shown(write_shard, limits):
    shard = write_shard("a.jsonl", [{"id": i // 2} for i in range(40)])
    with pytest.raises(DataError) as caught:
        check_unique([shard], "id", limits)
    assert len(caught.value.problems) == 7
    assert "15 more rows" in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1}, {"id": "1"}, {"id": 1.5}],
        [{"id": None}, {"id": None}, {}, {}],
        ["bad", "worse"],
        [],
    ],
)
def test_different_and_absent_values_pass(write_shard, limits, rows):
    check_unique([write_shard("a.jsonl", rows)], "id", limits)


def test_a_column_of_lists_cannot_be_unique(write_shard, limits):
    with pytest.raises(DataError, match=r"a\.jsonl row 1 is no plain value"):
        check_unique([write_shard("a.jsonl", [{"id": 1}, {"id": [1]}])], "id", limits)

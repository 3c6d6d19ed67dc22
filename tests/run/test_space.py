"""A disk without room is refused before a model loads; a tight one is a warning."""

import pytest

from batchgen.errors import DataError
from batchgen.records import Shard
from batchgen.run.space import free_bytes, space_problem

GIB = 2**30


def shard(num_bytes: int) -> Shard:
    return Shard("a.jsonl", "/in/a.jsonl", "jsonl", None, num_bytes, 0)


def test_a_disk_that_is_nearly_full_is_refused_with_the_remedy():
    with pytest.raises(DataError, match=r"output\.path: only 10 MiB are free"):
        space_problem(10 * 2**20, [shard(1)], 1, 1)


def test_an_output_that_may_not_fit_is_a_warning():
    warning = space_problem(2 * GIB, [shard(GIB)], 1_000_000, 1000)
    assert warning is not None
    assert "2.0 GiB are free" in warning


def test_room_enough_is_no_news():
    assert space_problem(100 * GIB, [shard(GIB)], 1_000_000, 256) is None


def test_unknown_numbers_are_not_guessed():
    assert space_problem(2 * GIB, [shard(GIB)], None, None) is None


def test_free_space_is_that_of_the_directory(tmp_path):
    assert free_bytes(tmp_path) > 0

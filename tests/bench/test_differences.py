"""Texts that depend on the way are counted and located, never hidden."""

import pytest

from batchgen.bench.differences import compare_texts, is_repeatable
from batchgen.bench.trials import Finished
from batchgen.corpus.tokenizing import WordTokenizer
from batchgen.records import Completion, Prompt, RowError, Sample, Sampling

GREEDY = Sampling({"temperature": 0.0}, b"greedy")
RANDOM = Sampling({"temperature": 0.8}, b"random")


def row(number, *texts, sampling=GREEDY, seed=None):
    prompt = Prompt("s.jsonl", number, 0, [1, 2], "a b", sampling, seed)
    samples = tuple(Sample(text, len(text.split()), "length") for text in texts)
    error = None if texts else RowError("engine_error", "it failed")
    return Finished(prompt, Completion("", samples, error=error))


def compare(reference, *repeats):
    return compare_texts(reference, repeats, WordTokenizer())


def test_equal_texts_do_not_differ():
    found = compare([row(0, "one two"), row(1, "three")], [row(0, "one two"), row(1, "three")])
    assert (found.num_compared, found.num_different) == (2, 0)
    assert found.num_equal_tokens_median is None


def test_the_first_differing_token_is_found():
    found = compare([row(0, "one two three four")], [row(0, "one two five six")])
    (example,) = found.examples
    assert found.num_different == 1
    assert (example.shard, example.row, example.num_equal_tokens) == ("s.jsonl", 0, 2)
    assert (example.reference, example.text) == ("three four", "five six")


def test_a_row_counts_once_however_often_it_differs():
    found = compare([row(0, "one two")], [row(0, "one")], [row(0, "one two")], [row(0, "two")])
    assert (found.num_compared, found.num_different) == (1, 1)


def test_examples_begin_with_those_that_part_first():
    reference = [row(0, "a b c d"), row(1, "a b c d")]
    found = compare(reference, [row(0, "a b c x"), row(1, "a x c d")])
    assert [example.row for example in found.examples] == [1, 0]
    assert found.num_equal_tokens_median == 2


def test_any_of_several_completions_makes_a_row_differ():
    reference = [row(0, "a", "b", sampling=RANDOM, seed=3)]
    found = compare(reference, [row(0, "a", "c", sampling=RANDOM, seed=3)])
    assert found.num_different == 1


@pytest.mark.parametrize(
    ("sampling", "seed", "expected"), [(GREEDY, None, 1), (RANDOM, 7, 1), (RANDOM, None, 0)]
)
def test_only_rows_are_compared_that_should_repeat(sampling, seed, expected):
    rows = [row(0, "one", sampling=sampling, seed=seed)]
    assert is_repeatable(rows[0].prompt) == bool(expected)
    assert compare(rows, rows).num_compared == expected


def test_failed_rows_and_rows_of_one_side_are_not_compared():
    found = compare([row(0, "one"), row(1, "two"), row(2)], [row(0, "one"), row(1), row(2, "x")])
    assert (found.num_compared, found.num_different) == (1, 0)


def test_a_character_cut_at_the_end_is_no_difference():
    assert compare([row(0, "one\ufffd")], [row(0, "one")]).num_different == 0

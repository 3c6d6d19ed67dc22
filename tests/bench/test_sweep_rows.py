"""Every beginning of a sweep's rows is the same kind of work, however many rows there are."""

from hypothesis import given
from hypothesis import strategies as st

from batchgen.bench.sweep_rows import SweepRows, balanced, distinct, shared_starts
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.records import Prompt, Sampling

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 64}, b"greedy")
WARM = Sampling({"temperature": 1.0, "max_tokens": 64}, b"warm")
JSON = Sampling({"temperature": 0.0, "max_tokens": 64, "json_schema": "{}"}, b"json")


def prompt(row, ids, sampling=GREEDY):
    return Prompt("s", row, 0, list(ids), "text", sampling, None)


def prompts_of(lengths):
    return [prompt(row, [1000 + row, *range(length)]) for row, length in enumerate(lengths)]


def lengths(rows):
    return [len(row.token_ids) for row in rows]


def rows_of(prompts, order="input", dedupe=True):
    return SweepRows(prompts, order=order, dedupe=dedupe)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_a_balanced_order_holds_each_row_once(numbers):
    prompts = prompts_of(numbers)
    assert sorted(row.row for row in balanced(prompts)) == list(range(len(numbers)))


def test_each_beginning_has_the_mean_length_of_the_whole():
    rows = balanced(prompts_of(range(256)))
    means = [sum(lengths(rows[:size])) / size for size in (8, 16, 32, 64, 128)]
    assert all(abs(mean - 128.5) < 16 for mean in means)


def test_rows_enter_in_input_order_where_the_job_says_so():
    rows = rows_of(prompts_of([5, 1, 9, 3, 7, 2])).take(4)
    assert [row.row for row in rows] == sorted(row.row for row in rows)


def test_rows_enter_by_their_prompts_where_the_job_says_so():
    rows = rows_of(prompts_of([5, 1, 9, 3]), order="prefix").take(4)
    assert [list(row.token_ids) for row in rows] == sorted(list(row.token_ids) for row in rows)


def test_longest_first_does_not_sort_a_trial():
    assert lengths(rows_of(prompts_of(range(1, 9)), order="longest_first").take(8)) != sorted(
        range(2, 10), reverse=True
    )


def test_equal_prompts_are_left_out_as_in_a_run():
    equal = [prompt(0, [1, 2]), prompt(1, [1, 2]), prompt(2, [1, 3])]
    assert [row.row for row in distinct(equal)] == [0, 2]
    assert len(rows_of(equal, dedupe=False)) == 3


def test_equal_prompts_of_random_sampling_stay():
    assert len(distinct([prompt(0, [1, 2], WARM), prompt(1, [1, 2], WARM)])) == 2


def test_the_shared_start_of_a_row_is_the_longest_one():
    rows = [prompt(0, [1, 2, 3, 4]), prompt(1, [1, 2, 3, 9]), prompt(2, [1, 7])]
    assert [shared_starts(rows)[row.key] for row in rows] == [3, 3, 1]


def test_a_small_input_is_repeated_under_other_names():
    rows = rows_of(prompts_of([4, 6, 8])).take(20)
    assert len({row.key for row in rows}) == 20
    assert sorted(set(lengths(rows))) == [5, 7, 9]


def test_a_copy_finds_no_more_in_the_prefix_cache_than_its_row():
    start = list(range(32))
    originals = [prompt(n, [*start, *range(100 * n + 100, 100 * n + 164)]) for n in range(5)]
    rows = rows_of(originals).take(100)
    cache = PrefixCache(16, None)
    cached = [cache.take_in(list(row.token_ids)) for row in rows]
    assert cached == [0, *[32] * 99]


def test_a_copy_gets_as_many_output_tokens_as_its_row_had():
    rows = rows_of(prompts_of([4, 6]))
    rows.learn({row.key: 7 + row.row for row in rows.take(2)})
    copies = rows.take(6)[2:]
    assert {row.sampling.max_tokens for row in copies} == {7, 8}
    assert all(row.sampling.values["ignore_eos"] for row in copies)


def test_a_grammar_ends_copies_where_it_ends_rows():
    rows = rows_of([prompt(0, [1, 2], JSON), prompt(1, [3, 4], JSON)])
    rows.learn({row.key: 7 for row in rows.take(2)})
    assert all(row.sampling is JSON for row in rows.take(6))


def test_tokens_per_row_is_the_mean_over_rows_and_not_over_trials():
    rows = rows_of(prompts_of([4, 6]))
    assert rows.tokens_per_row is None
    short, long = rows.take(2)
    rows.learn({short.key: 10, long.key: 20})
    rows.learn({short.key: 10})
    assert rows.tokens_per_row == 15


def test_a_row_takes_a_slot_for_each_of_its_completions():
    several = Sampling({"temperature": 1.0, "n": 4}, b"four")
    assert rows_of([prompt(0, [1]), prompt(1, [2], several)]).sequences_per_row == 4

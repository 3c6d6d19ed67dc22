"""Orders change places inside a block only, and lose nothing."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.records import Prompt, Refusal, RowError, Sampling
from batchgen.schedule.ordering import (
    FILL_SLOTS,
    FILL_WINDOW,
    NOTHING_ELSE,
    LengthEstimate,
    RowQueue,
    order_block,
)

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 100}, b"greedy")


def prompt(row: int, token_ids: list[int], sampling: Sampling = GREEDY) -> Prompt:
    return Prompt("a.jsonl", row, 0, token_ids, "text", sampling, None)


def refusal(row: int) -> Refusal:
    return Refusal("a.jsonl", row, 0, RowError("empty_prompt", "is empty"))


def queue(blocks, *, order="input", look_ahead=4, estimate=None) -> RowQueue:
    waiting = deque(blocks)

    def fetch(wait: bool):
        if not waiting:
            return None
        if waiting[0] is None:
            waiting.popleft()
            return fetch(wait) if wait else []
        return waiting.popleft()

    estimate = estimate or LengthEstimate()
    return RowQueue(fetch, order=order, look_ahead=look_ahead, estimate=estimate)


def drain(rows: RowQueue) -> list[int]:
    taken = []
    while (item := rows.next(NOTHING_ELSE)) is not None:
        taken.append(item.row)
    return taken


def test_longest_first_puts_long_prompts_first_while_nothing_is_known():
    block = [prompt(0, [1]), prompt(1, [1] * 9), prompt(2, [1] * 5)]
    ordered = order_block(block, "longest_first", LengthEstimate())
    assert [item.row for item in ordered] == [1, 2, 0]


def test_longest_first_prefers_the_row_that_is_expected_to_write_more():
    estimate = LengthEstimate()
    estimate.observe(4, 90)
    estimate.observe(40, 5)
    block = [prompt(0, [1] * 40), prompt(1, [1] * 4)]
    assert [item.row for item in order_block(block, "longest_first", estimate)] == [1, 0]


def test_a_rows_own_max_tokens_caps_its_estimate():
    short = Sampling({"temperature": 0.0, "max_tokens": 3}, b"short")
    block = [prompt(0, [1] * 9, short), prompt(1, [1] * 5)]
    ordered = order_block(block, "longest_first", LengthEstimate())
    assert [item.row for item in ordered] == [1, 0]


def test_prefix_order_brings_shared_starts_together():
    block = [prompt(0, [7, 1, 1]), prompt(1, [5, 2, 2]), prompt(2, [7, 1, 2]), prompt(3, [5, 2])]
    ordered = order_block(block, "prefix", LengthEstimate())
    assert [item.row for item in ordered] == [3, 1, 0, 2]


def test_refused_rows_do_not_wait_behind_prompts():
    block = [prompt(0, [1]), refusal(1)]
    ordered = order_block(block, "longest_first", LengthEstimate())
    assert [item.row for item in ordered] == [1, 0]


@given(
    lengths=st.lists(st.integers(1, 30), max_size=40),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    order=st.sampled_from(["input", "longest_first", "prefix"]),
    look_ahead=st.integers(1, 12),
)
def test_every_row_comes_out_once_and_no_row_leaves_its_block(lengths, cuts, order, look_ahead):
    rows = [prompt(row, list(range(length))) for row, length in enumerate(lengths)]
    blocks, start = [], 0
    while start < len(rows):
        size = cuts[len(blocks) % len(cuts)]
        blocks.append(rows[start : start + size])
        start += size
    taken = drain(queue(blocks, order=order, look_ahead=look_ahead))
    assert sorted(taken) == list(range(len(rows)))
    furthest = max((abs(place - row) for place, row in enumerate(taken)), default=0)
    assert furthest < look_ahead + max(cuts)


def test_an_incomplete_block_waits_while_only_the_window_has_room():
    rows = queue([[prompt(0, [1])], None, [prompt(1, [1])]], order="longest_first")
    assert rows.next(FILL_WINDOW) is None


def test_an_incomplete_block_is_used_for_a_free_slot():
    rows = queue([[prompt(0, [1])], None, [prompt(1, [1])]], order="longest_first")
    taken = rows.next(FILL_SLOTS)
    assert taken is not None
    assert taken.row == 0


def test_rows_that_come_back_go_out_first_in_their_order():
    rows = queue([[prompt(0, [1]), prompt(1, [1]), prompt(2, [1])]])
    lost = [rows.next(NOTHING_ELSE), rows.next(NOTHING_ELSE)]
    rows.push_back(lost)
    assert drain(rows) == [0, 1, 2]


def test_a_queue_is_exhausted_only_when_nothing_is_left():
    rows = queue([[prompt(0, [1])]])
    assert not rows.is_exhausted
    assert drain(rows) == [0]
    assert rows.is_exhausted


@pytest.mark.parametrize(("max_tokens", "expected"), [(10, 10.0), (None, float("inf"))])
def test_an_estimate_without_rows_is_the_limit(max_tokens, expected):
    assert LengthEstimate().expect(5, max_tokens) == expected

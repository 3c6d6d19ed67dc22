"""Counters of engines that follow each other add up, and gauges tell who had to wait."""

import pytest

from batchgen.records import EngineStats
from batchgen.stats.steps import StepTotals, StepWatch


def stats(output=0, prompt=0, cached=0, running=0, waiting=0):
    return EngineStats(
        num_running=running,
        num_waiting=waiting,
        num_output_tokens=output,
        num_prompt_tokens=prompt,
        num_cached_tokens=cached,
    )


def test_growth_is_counted_from_the_beginning_of_the_watch():
    watch = StepWatch(10, stats(output=100, prompt=50))
    watch.follow(14, stats(output=164, prompt=90, cached=30))
    assert watch.totals == StepTotals(4, 64, 10)
    assert watch.totals.num_running_mean == 16


def test_a_new_engine_begins_at_zero_and_the_sums_stay():
    watch = StepWatch(0, stats())
    watch.follow(5, stats(output=50))
    watch.restart(0, stats())
    watch.follow(2, stats(output=8))
    assert watch.totals == StepTotals(7, 58, 0)


def test_without_steps_there_is_no_mean():
    assert StepTotals().num_running_mean is None


def test_an_engine_that_tells_nothing_adds_nothing():
    watch = StepWatch(0, EngineStats())
    watch.follow(3, EngineStats())
    assert watch.totals == StepTotals(3, 0, 0)


def test_only_a_risen_counter_is_a_step():
    watch = StepWatch(3, stats())
    assert not watch.has_stepped(3)
    assert watch.has_stepped(4)


@pytest.mark.parametrize(
    ("running", "waiting", "in_use"),
    [(8, 5, (8, False)), (3, 5, (3, True)), (3, 0, (8, False)), (0, 5, (8, False))],
    ids=["full", "no cache for more", "nobody waits", "tells nothing"],
)
def test_slots_are_free_beside_waiting_rows_only_where_the_engine_says_so(running, waiting, in_use):
    watch = StepWatch(0, stats())
    watch.follow(1, stats(running=running, waiting=waiting))
    assert watch.in_use(8, slots=8) == in_use

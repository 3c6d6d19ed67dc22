"""Slots in use and drain follow from who ran when."""

import pytest

from batchgen.stats.occupancy import Occupancy


def test_a_full_engine_never_drains():
    occupancy = Occupancy(slots=4)
    occupancy.add(2.0, num_running=4, num_waiting=0)
    assert occupancy.drain_s == 0
    assert occupancy.num_running_mean == 4


def test_free_slots_with_rows_waiting_are_no_drain():
    occupancy = Occupancy(slots=4)
    occupancy.add(2.0, num_running=3, num_waiting=5)
    assert occupancy.drain_s == 0


def test_free_slots_with_nothing_waiting_are_drain():
    occupancy = Occupancy(slots=4)
    occupancy.add(1.0, num_running=4, num_waiting=0)
    occupancy.add(3.0, num_running=2, num_waiting=0)
    assert occupancy.drain_s == 3
    assert occupancy.num_running_mean == pytest.approx(2.5)


def test_a_call_drains_from_the_moment_its_last_row_was_scheduled_and_one_ended():
    occupancy = Occupancy(slots=2)
    occupancy.add_call([(0.0, 2.0), (0.0, 4.0), (2.0, 10.0)])
    assert occupancy.observed_s == 10
    assert occupancy.drain_s == 6
    assert occupancy.slot_seconds == 14


def test_nothing_observed_is_unknown_and_not_zero():
    assert Occupancy(slots=2).num_running_mean is None


def test_the_tail_is_the_drain_after_the_last_row_has_entered():
    occupancy = Occupancy(slots=4)
    occupancy.add(1.0, num_running=2, num_waiting=0)
    occupancy.add(3.0, num_running=1, num_waiting=0, is_tail=True)
    occupancy.add(5.0, num_running=4, num_waiting=0, is_tail=True)
    assert occupancy.drain_s == 4
    assert occupancy.tail_s == 3


def test_rows_that_wait_beside_free_slots_are_blocked():
    occupancy = Occupancy(slots=4)
    occupancy.add(2.0, num_running=3, num_waiting=5)
    occupancy.add(3.0, num_running=4, num_waiting=5)
    assert occupancy.blocked_s == 2


def test_the_last_call_of_a_run_ends_in_its_tail():
    occupancy = Occupancy(slots=2)
    occupancy.add_call([(0.0, 2.0), (0.0, 4.0)])
    occupancy.add_call([(5.0, 6.0), (5.0, 9.0)], is_tail=True)
    assert occupancy.drain_s == 5
    assert occupancy.tail_s == 3

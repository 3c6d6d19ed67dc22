"""The simulated clock is exact; the real one calls from a thread."""

import threading

import pytest

from batchgen.engine.clock import RealClock, SimulatedClock


def test_sleeping_moves_the_simulated_clock_and_nothing_else_does() -> None:
    clock = SimulatedClock()
    assert clock.now() == 0.0
    clock.sleep(2.5)
    assert clock.now() == clock.now() == 2.5


def test_periodic_calls_happen_at_their_moments_within_one_sleep() -> None:
    clock = SimulatedClock()
    moments: list[float] = []
    clock.every(60, lambda: moments.append(clock.now()))
    clock.sleep(200)
    assert moments == [60, 120, 180]


def test_calls_of_several_periods_are_in_order_of_time() -> None:
    clock = SimulatedClock()
    calls: list[tuple[str, float]] = []
    clock.every(3, lambda: calls.append(("three", clock.now())))
    clock.every(2, lambda: calls.append(("two", clock.now())))
    clock.sleep(5)
    assert calls == [("two", 2), ("three", 3), ("two", 4)]


def test_a_stopped_call_is_made_no_more() -> None:
    clock = SimulatedClock()
    moments: list[float] = []
    stop = clock.every(1, lambda: moments.append(clock.now()))
    clock.sleep(2)
    stop()
    stop()
    clock.sleep(5)
    assert moments == [1, 2]


def test_a_call_may_stop_itself() -> None:
    clock = SimulatedClock()
    moments: list[float] = []

    def once() -> None:
        moments.append(clock.now())
        stop()

    stop = clock.every(1, once)
    clock.sleep(5)
    assert moments == [1]


def test_an_exception_of_a_call_ends_the_sleep() -> None:
    clock = SimulatedClock()

    def give_up() -> None:
        raise TimeoutError("deadline")

    clock.every(10, give_up)
    with pytest.raises(TimeoutError, match="deadline"):
        clock.sleep(1000)
    assert clock.now() == 10


def test_time_never_goes_back() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        SimulatedClock().sleep(-1)


def test_the_real_clock_calls_until_it_is_stopped() -> None:
    clock = RealClock()
    called = threading.Event()
    stop = clock.every(0.001, called.set)
    assert called.wait(10)
    stop()
    called.clear()
    assert not called.wait(0.02)


def test_the_real_clock_goes_on() -> None:
    clock = RealClock()
    before = clock.now()
    clock.sleep(0.001)
    assert clock.now() > before

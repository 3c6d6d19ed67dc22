"""SIGKILL from outside at moments that nobody chose, several times in a job."""

import random
import signal
import time

import pytest

WINDOW = 16
ROWS_PER_S = 8 / (14 * 0.04)
"""Eight slots, and 14 steps of 40 ms for a row."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("seed", "feed"), [(1, "continuous"), (2, "generate"), (3, "continuous"), (4, "generate")]
)
def test_a_run_killed_again_and_again_loses_nothing(
    seed, feed, make_desk, check_finished, undisturbed
):
    moments = random.Random(seed)
    desk = make_desk(batch={"feed": feed})
    durable: set[tuple[str, int]] = set()
    for _ in range(4):
        before = len(desk.received())
        run = desk.start()
        time.sleep(moments.uniform(0.0, 0.45))
        run.kill()
        assert run.wait() in (-signal.SIGKILL, 0)
        assert [row for row in desk.received()[before:] if row in durable] == []
        assert desk.durable() >= durable
        durable = desk.durable()
    desk.finish()
    check_finished(desk, undisturbed)


def test_what_finished_two_seconds_before_a_kill_is_durable(make_desk, slower):
    desk = make_desk(model=slower(0.04, faults={"kill_process_after_rows": 56}))
    assert desk.run().wait() == -signal.SIGKILL
    repeated = set(desk.received()) - desk.durable()
    assert len(repeated) <= WINDOW + 2 * ROWS_PER_S
    assert len(set(desk.received())) >= 56


def test_a_kill_in_a_generate_call_costs_no_more_than_that_call(make_desk, slower):
    desk = make_desk(
        model=slower(0.01, faults={"kill_process_after_rows": 50}),
        batch={"feed": "generate", "size": 24},
    )
    assert desk.run().wait() == -signal.SIGKILL
    received = desk.received()
    assert set(received) - desk.durable() <= set(received[-24:])

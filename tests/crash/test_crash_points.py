"""A run that is killed at any named step, once or again and again, leaves nothing to mend.

What counts is the directory after the same command has been given again: the same rows in the same
files as if nothing had happened, and no row that was durable at the kill went to the engine twice.
"""

import signal

import pytest

from batchgen.output.crashpoints import STEPS

MANY_TIMES = (
    "journal_torn",
    "journal_append",
    "journal_synced",
    "part_writing",
    "part_written",
    "part_renamed",
    "part_published",
)
TWICE = ("manifest_written", "manifest_renamed")
"""At the start of a run, and at its end."""
SYNC_S = {"journal_synced:2": 0.008, "journal_synced:3": 0.016}
"""Steps of the engine long enough that the journal is synced so often by its age alone."""
POINTS = [
    *((point, feed) for point in STEPS for feed in ("continuous", "generate")),
    *((f"{point}:2", "generate") for point in (*MANY_TIMES, *TWICE)),
    *((f"{point}:3", "continuous") for point in MANY_TIMES),
]
RETRY_POINTS = (*STEPS, *(f"{step}:2" for step in (*MANY_TIMES[3:], *TWICE)))

pytestmark = pytest.mark.slow


def finish_without_repeats(desk, *args):
    """The next run; of the rows that were durable before it none reaches the engine."""
    durable, before = desk.durable(), len(desk.received())
    desk.finish(*args)
    assert [row for row in desk.received()[before:] if row in durable] == []


@pytest.mark.parametrize(("point", "feed"), POINTS)
def test_a_run_killed_at_any_step_ends_as_if_nothing_had_been(
    point, feed, make_desk, slower, check_finished, undisturbed
):
    desk = make_desk(batch={"feed": feed}, model=slower(SYNC_S.get(point, 0.002)))
    desk.crash(point)
    finish_without_repeats(desk)
    check_finished(desk, undisturbed)


@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_while_it_recovers_ends_as_if_nothing_had_been(
    step, make_desk, check_finished, undisturbed
):
    desk = make_desk()
    desk.crash("journal_append:3")
    for _ in range(2):
        desk.run(crash=step)
    assert -signal.SIGKILL in [run.code for run in desk.attempts[1:]]
    finish_without_repeats(desk)
    check_finished(desk, undisturbed)


@pytest.mark.parametrize("step", RETRY_POINTS)
def test_a_retry_killed_at_any_step_ends_as_if_nothing_had_been(
    step, make_finished_desk, retried, check_finished, undisturbed_retry
):
    desk = make_finished_desk()
    desk.crash(step, *retried)
    desk.finish(*retried)
    check_finished(desk, undisturbed_retry)


@pytest.mark.parametrize(
    "step", ["manifest_renamed", "journal_append", "part_renamed", "segment_deleted"]
)
def test_a_plain_run_after_a_killed_retry_finds_everything_in_place(
    step, make_finished_desk, retried
):
    desk = make_finished_desk()
    desk.crash(step, *retried)
    before = len(desk.received())
    desk.finish()
    assert len(desk.received()) == before
    desk.verify()


@pytest.mark.parametrize(
    "point",
    [
        "journal_rotated:2",
        "batches_renamed",
        "segment_deleted",
        "segment_deleted:2",
    ],
)
def test_a_run_killed_around_a_new_journal_segment_loses_nothing(
    point, make_large_desk, undisturbed_large, check_finished
):
    desk = make_large_desk()
    desk.crash(point)
    finish_without_repeats(desk)
    check_finished(desk, undisturbed_large)

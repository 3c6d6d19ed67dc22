"""A run that is killed at any named step, once or again and again, leaves nothing to mend."""

import signal
from collections.abc import Callable

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
"""At the start of a run and at its end."""
POINTS = [
    *STEPS,
    *(f"{step}:2" for step in (*MANY_TIMES, *TWICE)),
    *(f"{step}:3" for step in MANY_TIMES),
]
FEEDS = ("continuous", "generate")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_any_step_ends_as_if_nothing_had_been(
    point, feed, make_desk, check_finished, undisturbed
):
    desk = make_desk(batch={"feed": feed})
    desk.crash(point)
    check_second_run_repeats_nothing_durable(desk)
    check_finished(desk, undisturbed)


def check_second_run_repeats_nothing_durable(desk, *args):
    durable, before = desk.durable(), desk.received()
    desk.finish(*args)
    repeated = [row for row in desk.received()[len(before) :] if row in durable]
    assert repeated == []

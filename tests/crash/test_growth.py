"""A JSONL shard that has grown is continued, whenever the continuing run is killed."""

import json

import pytest

POINTS = (
    *("manifest_written", "manifest_renamed"),
    *("journal_torn", "journal_append", "journal_synced"),
    *("manifest_written:2", "manifest_renamed:2"),
    *("journal_append:2", "part_renamed:2"),
    *("manifest_written:3", "manifest_renamed:3"),
)
"""In the order in which a run that finds a grown shard passes them."""

pytestmark = pytest.mark.slow


def grow(desk):
    """30 rows more at the end of the JSONL shard."""
    lines = [json.dumps({"id": 500 + number, "text": f"late {number}"}) for number in range(30)]
    with (desk.path / "data" / "b.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def undisturbed_grown(make_reference, dataset_of):
    """The dataset of a run that saw the grown shard from the start."""
    desk = make_reference()
    grow(desk)
    desk.finish()
    return dataset_of(desk.layout)


@pytest.mark.parametrize("point", POINTS)
def test_a_grown_shard_is_continued_after_a_kill(
    point, make_finished_desk, check_finished, undisturbed_grown
):
    desk = make_finished_desk()
    grow(desk)
    desk.crash(point)
    desk.finish()
    check_finished(desk, undisturbed_grown)


def test_a_retry_without_work_leaves_a_grown_shard_to_the_next_run(
    make_finished_desk, check_finished, undisturbed_grown
):
    desk = make_finished_desk()
    grow(desk)
    desk.crash("manifest_renamed")
    desk.finish("--where", "row < 0")
    desk.finish()
    check_finished(desk, undisturbed_grown)

"""A JSONL shard that has grown is continued, whenever the continuing run is killed."""

import json

import pytest

from batchgen.output.crashpoints import STEPS

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


@pytest.mark.parametrize(
    "point", [*STEPS, "journal_append:2", "journal_synced:2", "part_renamed:2"]
)
def test_a_grown_shard_is_continued_after_a_kill(
    point, make_desk, check_finished, undisturbed_grown
):
    desk = make_desk()
    desk.finish()
    grow(desk)
    desk.crash(point)
    desk.finish()
    check_finished(desk, undisturbed_grown)

from typing import Any

import pandas as pd
import pytest

from batchgen.errors import DataError
from batchgen.output.reading import read_batches, read_outputs, read_totals
from batchgen.output.snapshot import look


@pytest.fixture
def run(world: Any) -> Any:
    """A run that goes on: one part published, one in the journal, a retry in it, too."""
    writer = world.started()
    writer.append([[world.failed(0), *world.rows(1, 3)], world.batch(0, 3), world.extent(3)])
    writer.publish_ripe()
    writer.append([world.rows(3, 5, part=3, batch_id=1), world.batch(1, 2)])
    writer.append([[world.row(0, batch_id=2)]])
    return world


def test_outputs_are_read_in_input_order(run: Any) -> None:
    frame = read_outputs(run.layout.path)
    assert list(frame["row"]) == [0, 1, 2]
    assert list(frame.columns) == run.columns.schema.names
    pd.testing.assert_frame_equal(frame, pd.read_parquet(run.layout.outputs))


def test_batches_in_the_journal_are_read_too(run: Any) -> None:
    frame = read_batches(str(run.layout.path))
    assert list(frame["batch_id"]) == [0, 1]
    assert str(frame["started_at"].dtype) == "datetime64[us, UTC]"


def test_totals_see_parts_and_journal_as_one(run: Any) -> None:
    totals = read_totals(run.layout.path)
    assert (totals.num_rows, totals.num_failed) == (5, 0)


def test_a_reader_changes_nothing(run: Any) -> None:
    segment = run.layout.journal / run.journal_files()[0]
    segment.write_bytes(segment.read_bytes()[:-2])
    before = run.files()
    assert read_totals(run.layout.path).num_failed == 1
    assert run.files() == before


@pytest.mark.parametrize("read", [read_outputs, read_batches, read_totals])
def test_a_directory_without_a_run_is_named(world: Any, read: Any) -> None:
    with pytest.raises(DataError, match=r"output\.path of a job"):
        read(world.layout.path)


def test_a_question_is_asked_again_when_a_segment_went(run: Any) -> None:
    answers = iter([FileNotFoundError(), None])

    def question(_: object) -> str:
        problem = next(answers)
        if problem is not None:
            raise problem
        return "answer"

    assert look(run.layout, question) == "answer"

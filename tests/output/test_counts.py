from pathlib import Path
from typing import Any

import pytest

from batchgen.output.counts import Counts


@pytest.fixture
def counts(world: Any) -> Counts:
    """Of six rows in one part."""
    rows = [
        world.row(0, num_cached_tokens=4),
        world.row(1, finish_reason="length", batch_id=3),
        world.row(2, duplicate_of="a.jsonl:0"),
        world.failed(3, "prompt_too_long"),
        world.failed(4, "engine_error", run_id="run-2"),
        world.failed(5, "engine_error", run_id="run-2"),
    ]
    writer = world.started()
    writer.append([rows, world.extent(6)])
    writer.finish()
    totals: Counts = writer.state.totals()
    return totals


def test_rows_are_counted_by_fate(counts: Counts) -> None:
    assert (counts.num_rows, counts.num_ok, counts.num_failed) == (6, 3, 3)
    assert counts.failed_by_type == {"prompt_too_long": 1, "engine_error": 2}
    assert counts.finish_reasons == {"stop": 2, "length": 1}
    assert counts.num_duplicates == 1


def test_tokens_of_copies_and_of_failed_rows_are_left_out(counts: Counts) -> None:
    assert (counts.num_prompt_tokens, counts.num_output_tokens) == (20, 10)
    assert counts.num_cached_tokens == 4


def test_what_nobody_told_is_none(counts: Counts, tmp_path: Path, make_world: Any) -> None:
    assert counts.num_invalid_json is None
    writer = make_world(tmp_path / "other").started()
    writer.append([make_world(tmp_path / "other").rows(0, 2)])
    writer.finish()
    assert writer.state.totals().num_cached_tokens is None


def test_rows_are_counted_by_run_and_the_last_batch_is_known(counts: Counts) -> None:
    assert counts.rows_by_run == {"run-1": 4, "run-2": 2}
    assert counts.last_batch_id == 3


def test_completions_are_counted_one_by_one(tmp_path: Path, make_world: Any) -> None:
    world = make_world(tmp_path, n_many=True, with_json=True)
    row = world.row(0, output=["a", "b"], finish_reason=["stop", "stop"], json_valid=[True, False])
    writer = world.started()
    writer.append([[row]])
    writer.finish()
    totals = writer.state.totals()
    assert totals.finish_reasons == {"stop": 2}
    assert totals.num_invalid_json == 1


def test_counts_survive_the_footer_and_add_up(counts: Counts) -> None:
    assert Counts.from_dict(counts.to_dict()) == counts
    double = counts + counts
    assert double.num_rows == 12
    assert double.failed_by_type == {"prompt_too_long": 2, "engine_error": 4}
    assert Counts() + counts == counts

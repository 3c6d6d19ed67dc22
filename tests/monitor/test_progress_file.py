"""The last word of a run says how it ended, and never loses what another run has said."""

import json

import pytest

from batchgen.monitor.progress_file import close_progress, replace_text, run_identity

END = {"phase": "failed", "exit_code": 4, "reason": "no input"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "progress.json"


def closed(path, run_id, rows=None):
    close_progress(path, run_identity(run_id), **END, rows=rows)
    return json.loads(path.read_text())


def test_the_end_is_added_to_the_progress_of_the_run(path):
    path.write_text(json.dumps({"run_id": "r1", "rows_done": 5, "num_output_tokens": 9}))
    document = closed(path, "r1")
    assert END.items() <= document.items()
    assert (document["rows_done"], document["num_output_tokens"]) == (5, 9)


def test_a_run_without_progress_takes_the_rows_over_and_nothing_else(path):
    path.write_text(json.dumps({"run_id": "r1", "rows_done": 5, "num_output_tokens": 9}))
    document = closed(path, "r2")
    assert (document["run_id"], document["rows_done"]) == ("r2", 5)
    assert "num_output_tokens" not in document


def test_a_run_without_progress_that_knows_its_rows_says_them(path):
    path.write_text(json.dumps({"run_id": "r1", "rows_done": 5}))
    assert closed(path, "r2", rows={"rows_done": 7, "phase": "x"})["rows_done"] == 7


def test_a_run_that_changes_nothing_leaves_the_file_as_it_is(path):
    rows = {"rows_done": 5, "rows_total": 5, "failed_by_type": {"timeout": 1}}
    path.write_text(json.dumps({"run_id": "r1", "num_output_tokens": 9} | END | rows))
    before = path.read_text()
    assert closed(path, "r2", rows)["run_id"] == "r1"
    assert path.read_text() == before


@pytest.mark.parametrize("text", [None, "", "[]", "{", "\x00"])
def test_a_missing_or_broken_file_is_replaced(path, text):
    if text is not None:
        path.write_text(text)
    assert closed(path, "r1")["run_id"] == "r1"


def test_replacing_leaves_the_old_file_where_it_fails(path):
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\ud800")
    assert path.read_text() == "old"

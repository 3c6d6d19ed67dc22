"""Results of compare and tune: read where they are sound, named where they are not."""

import json

import pytest

from batchgen.report.sweeps import read_sweeps


def test_results_are_read_as_they_are(tmp_path):
    compare = {
        "kind": "compare",
        "ways": [{"name": "generate", "batch_size": 16, "rows_per_s": 2.5, "trials": [1]}],
        "steps": [{"num_running": 1, "step_s": 0.1}],
        "step_law": {"a_s": 0.1, "b_s": 0.01, "max_error": 0.2},
        "facts": [{"kind": "limit", "text": "A fact."}],
        "notes": ["A note."],
    }
    tune = {
        "kind": "tune",
        "points": [{"num_running": 8, "output_tokens_per_s": 100}],
        "recommended": {"num_running": 8, "limits": []},
        "overrides": ["model.max_num_seqs=8"],
    }
    (tmp_path / "compare.json").write_text(json.dumps(compare))
    (tmp_path / "tune.json").write_text(json.dumps(tune))
    (found, tuned), notes = read_sweeps(tmp_path)
    assert notes == ()
    assert found.points == ({"name": "generate", "batch_size": 16, "rows_per_s": 2.5},)
    assert found.step_law == {"a_s": 0.1, "b_s": 0.01}
    assert found.remarks == ("A fact.", "A note.")
    assert tuned.recommended == {"num_running": 8}
    assert tuned.overrides == ("model.max_num_seqs=8",)


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "{}", '{"ways": 3}', '{"ways": []}', '{"ways": [1]}', "\x00", '{"ways": null}'],
)
def test_what_is_no_result_is_a_note(tmp_path, content):
    (tmp_path / "compare.json").write_text(content)
    sweeps, (note,) = read_sweeps(tmp_path)
    assert sweeps == ()
    assert str(tmp_path / "compare.json") in note


@pytest.mark.parametrize("law", [None, 3, {}, {"a_s": 1}, {"a_s": "1", "b_s": 2}])
def test_a_law_without_both_numbers_is_none(tmp_path, law):
    ways = {"ways": [{"name": "x"}], "step_law": law, "facts": [{"text": 3}], "notes": 7}
    (tmp_path / "compare.json").write_text(json.dumps(ways))
    (found,), _ = read_sweeps(tmp_path)
    assert found.step_law is None
    assert found.remarks == ()


def test_without_results_there_is_nothing_to_say(tmp_path):
    assert read_sweeps(tmp_path) == ((), ())

"""What a comparison leaves on the disk: two files, and outputs as they were."""

import json
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from batchgen.bench.compare import compare_job
from batchgen.bench.comparison import WayResult
from batchgen.bench.measured import CompareOptions
from batchgen.bench.saving import result_folder, save_comparison, trial_schema
from batchgen.bench.trials import Trial
from batchgen.config.models import JobConfig
from batchgen.errors import DataError
from batchgen.monitor.console import SilentConsole
from batchgen.run.job import run_job


@pytest.fixture
def job(tmp_path, write_jsonl):
    shard = write_jsonl("docs.jsonl", [{"text": f"document number {i}"} for i in range(8)])
    return JobConfig.model_validate(
        {
            "input": {"paths": [str(shard)]},
            "prompt": {"template": "{{ text }}"},
            "model": {"engine": "simulated", "extra": {"clock": "simulated"}},
            "sampling": {"temperature": 0},
            "output": {"path": str(tmp_path / "out")},
        }
    )


@pytest.fixture
def comparison(job):
    options = CompareOptions(num_rows=8, num_repeats=2, sizes=(4,), arrival_rows_per_s=100)
    return compare_job(job, options, output_path="out", console=SilentConsole())


def test_every_trial_is_a_row_of_the_table(job, comparison, tmp_path):
    _, path = save_comparison(comparison, tmp_path / "results", job)
    table = pq.read_table(path)
    assert table.schema == trial_schema()
    assert table.num_rows == sum(len(trials) for trials in comparison.trials.values()) == 10
    assert set(table.column("repeat").to_pylist()) == {1, 2}
    assert table.column("num_output_tokens").null_count == 0


def test_the_table_has_every_number_of_a_trial():
    numbers = {field.name for field in fields(Trial)} - {"rows"}
    assert set(trial_schema().names) == numbers | {"arrival_rows_per_s", "repeat"}


def test_the_json_file_is_the_answer(job, comparison, tmp_path):
    path, _ = save_comparison(comparison, tmp_path / "results", job)
    saved = json.loads(path.read_text())
    assert saved == json.loads(json.dumps(comparison.to_json()))
    assert saved["kind"] == "compare"
    assert [set(way) for way in saved["ways"]] == [{f.name for f in fields(WayResult)}] * 5


def test_a_run_takes_the_folder_for_its_own(job, comparison, tmp_path):
    save_comparison(comparison, tmp_path / "out", job)
    assert run_job(job).num_ok == 8
    assert (tmp_path / "out/compare.json").exists()


def test_a_comparison_leaves_a_run_as_it_is(job, comparison, tmp_path):
    run_job(job)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    save_comparison(comparison, tmp_path / "out", job)
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_of_other_files_is_refused_before_anything_is_measured(job, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    for asked_for in (None, tmp_path / "out", tmp_path / "elsewhere/../out"):
        with pytest.raises(DataError, match="no run directory"):
            result_folder(job, asked_for)
    assert result_folder(job, tmp_path / "elsewhere") == tmp_path / "elsewhere"


def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(job, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    for folder in (Path("/proc/nowhere"), tmp_path / "letter.txt", tmp_path / "letter.txt/below"):
        with pytest.raises(DataError) as refusal:
            result_folder(job, folder)
        assert str(folder) in str(refusal.value)
        assert "Finished rows" not in str(refusal.value)


def test_asking_for_a_folder_leaves_no_trace(job, tmp_path):
    before = set(tmp_path.rglob("*"))
    result_folder(job, tmp_path / "one/two")
    result_folder(job, tmp_path)
    assert set(tmp_path.rglob("*")) == before


def test_results_elsewhere_do_not_ask_what_lives_in_the_output_of_the_job(
    job, comparison, tmp_path
):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    paths = save_comparison(comparison, result_folder(job, tmp_path / "elsewhere"), job)
    assert all(path.exists() for path in paths)
    assert not (tmp_path / "elsewhere/.batchgen").exists()

"""The textfile is what Prometheus' own parser reads, and no run fails because of it."""

import doctest
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchgen.engine.clock import SimulatedClock
from batchgen.monitor import metrics
from batchgen.monitor.console import SilentConsole
from batchgen.monitor.metrics import HELP, PHASES, MetricsFile
from batchgen.monitor.progress import Progress, ProgressReporter, Snapshot

INFO = {"job_name": "nightly", "run_id": "r1"}
WORKING = Snapshot(
    "generate",
    rows_done=5,
    rows_total=20,
    rows_failed=3,
    failed_by_type={"timeout": 1, "empty_prompt": 2},
    num_prompt_tokens=700,
    num_output_tokens=50,
    last_completion_age_s=4.0,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "nightly.prom"


class Metrics:
    """A textfile at a moment that the test sets; what it says by Prometheus' parser."""

    def __init__(self, path, **info):
        self.path = path
        self.warnings = []
        self.moment = 1000.0
        self.file = MetricsFile(
            path, INFO | info, warn=self.warnings.append, now=lambda: self.moment
        )

    def families(self):
        text = self.path.read_text(encoding="utf-8")
        return {family.name: family for family in text_string_to_metric_families(text)}

    def values(self):
        return {
            sample.name: sample.value
            for family in self.families().values()
            for sample in family.samples
            if set(sample.labels) == {"job_name"}
        }


def progress(snapshot=WORKING, rates=(2.0, 20.5, 7.5)):
    return Progress(snapshot, 60.0, *rates)


def test_a_working_run_shows_its_numbers(path):
    file = Metrics(path)
    file.file.begin()
    file.moment = 1100.0
    file.file.update(progress())
    assert file.values() == {
        "batchgen_run_start_timestamp_seconds": 1000,
        "batchgen_rows_done": 5,
        "batchgen_rows_expected": 20,
        "batchgen_rows_expected_is_estimate": 0,
        "batchgen_rows_failed": 3,
        "batchgen_prompt_tokens_total": 700,
        "batchgen_output_tokens_total": 50,
        "batchgen_rows_per_second": 2,
        "batchgen_output_tokens_per_second": 20.5,
        "batchgen_eta_seconds": 7.5,
        "batchgen_last_completion_timestamp_seconds": 1096,
    }


def test_failed_rows_are_labelled_by_type(path):
    file = Metrics(path)
    file.file.update(progress())
    samples = file.families()["batchgen_rows_failed_by_type"].samples
    assert {sample.labels["error_type"]: sample.value for sample in samples} == {
        "empty_prompt": 2,
        "timeout": 1,
    }


def test_one_phase_is_1_and_the_others_are_0(path):
    file = Metrics(path)
    file.file.update(progress())
    samples = file.families()["batchgen_run_phase"].samples
    phases = {sample.labels["phase"]: sample.value for sample in samples}
    assert phases == {name: float(name == "generate") for name in PHASES}


def test_what_is_not_known_has_no_sample(path):
    file = Metrics(path)
    file.file.update(progress(Snapshot("engine start"), (None, None, None)))
    assert set(file.values()) == {
        "batchgen_run_start_timestamp_seconds",
        "batchgen_rows_done",
        "batchgen_rows_failed",
        "batchgen_prompt_tokens_total",
        "batchgen_output_tokens_total",
    }


def test_an_end_shows_the_exit_code_and_no_rates(path):
    file = Metrics(path)
    file.file.update(progress())
    file.moment = 1200.0
    file.file.end("done", 0, Snapshot("done", rows_done=20, rows_total=20))
    values = file.values()
    assert values["batchgen_last_exit_code"] == 0
    assert values["batchgen_last_end_timestamp_seconds"] == 1200
    assert values["batchgen_last_success_timestamp_seconds"] == 1200
    assert values["batchgen_rows_done"] == 20
    assert not {name for name in values if "per_second" in name or "eta" in name}


def test_an_end_without_totals_keeps_the_last_progress(path):
    file = Metrics(path)
    file.file.update(progress())
    file.file.end("stopped", 143, None)
    assert file.values()["batchgen_rows_done"] == 5
    assert "batchgen_last_success_timestamp_seconds" not in file.values()


def test_the_next_run_remembers_how_the_last_one_ended(path):
    first = Metrics(path, job_name='night "ly"\\\n')
    first.file.end("done", 0, WORKING)
    second = Metrics(path, job_name='night "ly"\\\n', run_id="r2")
    second.moment = 2000.0
    second.file.begin()
    assert second.values()["batchgen_last_success_timestamp_seconds"] == 1000
    second.file.end("failed", 5, None)
    values = second.values()
    assert values["batchgen_last_success_timestamp_seconds"] == 1000
    assert values["batchgen_last_end_timestamp_seconds"] == 2000
    assert values["batchgen_last_exit_code"] == 5


def test_nothing_is_remembered_of_another_job(path):
    Metrics(path, job_name="other").file.end("done", 0, None)
    file = Metrics(path)
    file.file.begin()
    assert "batchgen_last_exit_code" not in file.values()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"batchgen_last_exit_code{"])
def test_a_damaged_file_is_replaced(path, content):
    path.write_bytes(content)
    file = Metrics(path)
    file.file.begin()
    assert file.values()["batchgen_run_start_timestamp_seconds"] == 1000
    assert file.warnings == []


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "two\nlines", "Ü 日本", "{}="])
def test_any_label_survives_the_parser(path, name):
    file = Metrics(path, job_name=name)
    file.file.update(progress())
    (sample,) = file.families()["batchgen_run_info"].samples
    assert sample.labels == {"job_name": name, "run_id": "r1"}


def test_half_a_character_is_replaced(path):
    file = Metrics(path, job_name="\ud800")
    file.file.begin()
    (sample,) = file.families()["batchgen_run_info"].samples
    assert sample.labels["job_name"] == "?"


def test_names_follow_the_conventions(path):
    file = Metrics(path)
    file.file.update(progress())
    file.file.end("done", 0, WORKING)
    for family in file.families().values():
        assert family.type in ("counter", "gauge")
        assert family.documentation.endswith(".")
        assert all(
            sample.name.endswith("_total") is (family.type == "counter")
            for sample in family.samples
        )
    assert all(re.fullmatch(r"batchgen_[a-z_]+", name) for name in HELP)
    assert not [name for name in HELP if re.search(r"_(count|sum|bucket|ms|seconds_total)$", name)]


def test_no_temporary_file_is_left_and_none_is_taken_for_metrics(path):
    Metrics(path).file.begin()
    assert [file.name for file in path.parent.iterdir()] == ["nightly.prom"]


def test_a_file_that_cannot_be_written_is_one_warning(path):
    file = Metrics(path.parent / "missing" / "nightly.prom")
    file.file.begin()
    file.file.update(progress())
    file.file.end("done", 0, None)
    (warning,) = file.warnings
    assert warning.endswith("nightly.prom: cannot be written: No such file or directory")


def test_the_file_follows_the_clock_of_the_progress(path):
    clock, file = SimulatedClock(), Metrics(path)
    reporter = ProgressReporter(
        clock,
        lambda: WORKING,
        console=SilentConsole(),
        progress_path=None,
        run_id="r1",
        on_sample=file.file.update,
    )
    with reporter:
        path.unlink()
        clock.sleep(1.0)
        assert file.values()["batchgen_rows_done"] == 5


def test_every_metric_is_documented():
    page = (Path(__file__).parents[2] / "docs/outputs.md").read_text()
    assert set(HELP) == set(re.findall(r"`(batchgen_[a-z_]+)`", page))


def test_examples_in_docstrings_hold():
    results = doctest.testmod(metrics)
    assert results.attempted
    assert not results.failed

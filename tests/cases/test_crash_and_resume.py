"""Crash and resume: whatever ends a run, the next one does what is left, and only that."""

import shutil
import signal
from collections import Counter
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pytest
from cases import inputs
from cases.harness import Case, Key, shared_job

from batchgen.output.crashpoints import STEPS
from batchgen.output.journal import RowsFrame, SegmentReader, list_segments
from batchgen.output.layout import RunLayout
from batchgen.output.reading import read_totals

VOLATILE = ["run_id", "batch_id", "ttft_s", "latency_s", "num_cached_tokens"]
"""Columns that may differ between two runs of the same job."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """C13 in one go."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("undisturbed")
        monkeypatch.chdir(folder)
        case = Case(folder, shared_job("generate"))
        c13_job(case)
        assert case.run().exit_code == 0
    return case


def c13_job(case: Case) -> None:
    inputs.c13(case.input)
    case.job["batch"]["size"] = 100


def under_way(case: Case) -> int:
    """Rows that a kill may cost: one batch, or one window."""
    return 100 if case.job["batch"]["feed"] == "generate" else 512


def assert_as_undisturbed(case: Case, undisturbed: Case) -> None:
    ours, theirs = case.outputs(), undisturbed.outputs()
    pd.testing.assert_frame_equal(ours.drop(columns=VOLATILE), theirs.drop(columns=VOLATILE))
    schemas = [ds.dataset(each.output / "outputs").schema for each in (case, undisturbed)]
    assert schemas[0].equals(schemas[1])
    case.assert_sound()
    batches = case.batches()
    assert batches["batch_id"].is_unique
    assert batches["num_rows"].sum() == 4000
    assert list(case.output.rglob("*.tmp")) == []
    assert list_segments(RunLayout(case.output).journal) == []


C13_MOMENTS = {
    "in the middle of a batch": "",
    "part written, not renamed": "part_written",
    "right after the rename": "part_renamed",
    "after the last row, before the manifest": "batches_renamed",
    "while the first manifest is written": "manifest_written",
    "while the last manifest is written": "manifest_written:2",
}


@pytest.mark.parametrize("moment", C13_MOMENTS)
def test_c13_a_killed_run_is_continued(case: Case, undisturbed: Case, moment: str) -> None:
    c13_job(case)
    step = C13_MOMENTS[moment]
    case.extra["faults"] = {} if step else {"kill_process_after_rows": 1450}
    assert case.process(BATCHGEN_CRASH_AT=step).exit_code == -signal.SIGKILL
    case.extra["faults"] = {}
    result = case.run()
    assert result.exit_code == 0, result.stderr
    assert_as_undisturbed(case, undisturbed)
    sent = case.received(1, 2)
    assert set(sent) == set(case.input_rows())
    assert len(sent) <= 4000 + under_way(case)
    assert case.run().created_engine is False


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_c13_a_kill_at_any_step_changes_nothing(case: Case, undisturbed: Case, step: str) -> None:
    c13_job(case)
    for count in (1, 2, 3):
        case.process(BATCHGEN_CRASH_AT=f"{step}:{count}")
    assert case.run().exit_code == 0
    assert_as_undisturbed(case, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 99, 100, 999, 1000, 1001, 2718, 3999, 4000])
def test_c13_a_kill_after_any_row_changes_nothing(
    case: Case, undisturbed: Case, num_rows: int
) -> None:
    c13_job(case)
    case.extra["faults"] = {"kill_process_after_rows": num_rows}
    assert case.process().exit_code == -signal.SIGKILL
    case.extra["faults"] = {}
    assert case.run().exit_code == 0
    assert_as_undisturbed(case, undisturbed)


class Torn:
    """C14: a run that was killed half-way, and its journal cut at any byte."""

    def __init__(self, case: Case) -> None:
        inputs.c14(case.input)
        case.job["batch"]["size"] = 4
        case.extra.update(clock="real", step_s=0.002, faults={"kill_process_after_rows": 24})
        case.job["model"]["max_num_seqs"] = 4
        case.job["batch"]["window"] = 4
        assert case.process().exit_code == -signal.SIGKILL
        case.extra.update(clock="simulated", faults={})
        self.case = case
        self.saved = case.folder / "killed"
        shutil.copytree(case.output, self.saved)
        layout = RunLayout(self.saved)
        (self.segment,) = list_segments(layout.journal)
        reader = SegmentReader(layout.journal, self.segment)
        self.frames = list(reader)
        self.num_bytes = reader.good_bytes
        assert reader.torn_bytes == 0

    @property
    def record(self) -> int:
        """Bytes from the start of the last record that holds rows to the end of the journal."""
        return self.num_bytes - max(
            ref.offset for ref, frame in self.frames if isinstance(frame, RowsFrame)
        )

    def rows_within(self, num_bytes: int) -> set[Key]:
        """Rows of the records that are whole in so many bytes."""
        ends = [ref.offset for ref, _ in self.frames[1:]] + [self.num_bytes]
        return {
            (frame.shard, row)
            for (_, frame), end in zip(self.frames, ends, strict=True)
            if isinstance(frame, RowsFrame) and end <= num_bytes
            for row in frame.rows
        }

    def is_boundary(self, num_bytes: int) -> bool:
        return num_bytes in [*(ref.offset for ref, _ in self.frames), self.num_bytes]

    def assert_survives(self, cut: int) -> None:
        """Cut so many bytes off the journal, resume, and look."""
        case, left = self.case, self.num_bytes - cut
        shutil.rmtree(case.output)
        shutil.copytree(self.saved, case.output)
        journal = RunLayout(case.output).journal / f"{self.segment:08d}.log"
        with journal.open("r+b") as file:
            file.truncate(left)
        result = case.run()
        assert result.exit_code == 0, result.stderr
        warnings = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
        assert len(warnings) == (0 if self.is_boundary(left) else 1)
        assert all(str(journal.relative_to(case.folder)) in line for line in warnings)
        assert all(f" {left - self.last_whole(left)} bytes" in line for line in warnings)
        outputs = case.assert_sound()
        assert outputs.index[-1] == ("rows.jsonl", 39)
        assert set(result.received) == set(case.input_rows()) - self.rows_within(left)
        assert len(result.received) == len(set(result.received))
        assert result.summary["num_rows"] == 40

    def last_whole(self, num_bytes: int) -> int:
        """Where the last whole record ends."""
        ends = [*(ref.offset for ref, _ in self.frames), self.num_bytes]
        return max(end for end in ends if end <= num_bytes)


def test_c14_a_torn_record_costs_its_own_rows_alone(case: Case) -> None:
    torn = Torn(case)
    assert 4 <= len(torn.rows_within(torn.num_bytes)) < 40
    last = torn.record
    assert torn.rows_within(torn.num_bytes - last) < torn.rows_within(torn.num_bytes)
    for cut in (1, 2, last // 2, last - 12, last - 1, last):
        torn.assert_survives(cut)


@pytest.mark.slow
def test_c14_the_journal_may_be_cut_anywhere(case: Case) -> None:
    torn = Torn(case)
    for cut in range(1, torn.record + 1, 11):
        torn.assert_survives(cut)


def test_c15_equal_texts_are_different_rows_after_a_kill(case: Case) -> None:
    inputs.c15(case.input)
    case.job["batch"] |= {"size": 1, "window": 1}
    case.extra.update(clock="real", step_s=0.02, faults={"kill_process_after_rows": 3})
    assert case.process().exit_code == -signal.SIGKILL
    assert read_totals(case.output).num_rows == 2
    case.extra.update(clock="simulated", faults={})
    result = case.run()
    outputs = case.assert_finished(result, 0)
    assert len(outputs) == 5
    assert outputs["duplicate_of"].isna().all()
    assert len(result.received) == len(set(result.received)) == 3


def test_c15_dedupe_generates_equal_prompts_once(case: Case) -> None:
    inputs.c15(case.input)
    case.job["batch"]["dedupe"] = True
    result = case.run()
    outputs = case.assert_finished(result, 0)
    assert sorted(result.received) == [("rows.jsonl", 0), ("rows.jsonl", 1), ("rows.jsonl", 4)]
    copies = outputs["duplicate_of"].dropna().to_dict()
    assert copies == {("rows.jsonl", 2): "rows.jsonl:0", ("rows.jsonl", 3): "rows.jsonl:0"}
    assert outputs["output"].iloc[[0, 2, 3]].nunique() == 1
    own = outputs[outputs["duplicate_of"].isna()]
    counts = case.manifest()["counts"]
    for name in ("num_prompt_tokens", "num_output_tokens"):
        assert result.summary[name] == counts[name] == own[name].sum()
        assert case.batches()[name].sum() == own[name].sum()
    assert result.summary["num_duplicates"] == 2


def test_c15_several_samples_are_never_copies(case: Case) -> None:
    inputs.c15(case.input)
    case.job["batch"]["dedupe"] = True
    case.job["sampling"] |= {"n": 4, "temperature": 0.8, "seed": 7}
    result = case.run()
    outputs = case.assert_finished(result, 0)
    assert len(result.received) == 5
    assert outputs["duplicate_of"].isna().all()
    assert outputs["output"].map(len).tolist() == [4] * 5
    samples = [text for texts in outputs["output"].iloc[[0, 2, 3]] for text in texts]
    assert len(set(samples)) == 12


def c19_half_way(case: Case) -> None:
    """C19 up to the change: ten rows done."""
    inputs.c19(case.input)
    case.job["batch"] |= {"size": 5, "window": 5}
    is_generate = case.job["batch"]["feed"] == "generate"
    # A signal breaks a running call off, so there it comes with the first row of the next one.
    case.extra["faults"] = {"terminate_after_rows": 11 if is_generate else 10}
    result = case.run()
    case.extra["faults"] = {}
    assert result.exit_code == 143, result.stderr
    assert len(case.outputs()) == 10


C19_REFUSED = {
    "template text": (
        {"prompt": {"template": "Say {{ prompt }}"}},
        {"prompt": {"template": "Tell {{ prompt }}"}},
        ["prompt.template", "Say {{ prompt }}", "Tell {{ prompt }}"],
    ),
    "max_tokens": (
        {},
        {"sampling": {"max_tokens": 17, "temperature": 0.0}},
        ["sampling.max_tokens", "16", "17"],
    ),
    "model revision": (
        {"model": {"revision": "spring"}},
        {"model": {"revision": "autumn"}},
        ["model.revision", "spring", "autumn"],
    ),
    "chat template": (
        {"prompt": {"column": "prompt", "chat_template": "one {{ messages }}"}},
        {"prompt": {"column": "prompt", "chat_template": "two {{ messages }}"}},
        ["prompt.chat_template", "one {{ messages }}", "two {{ messages }}"],
    ),
}


def change(case: Case, sections: dict[str, dict[str, Any]]) -> None:
    """Replace a section of the job; of the model only the keys that are given."""
    for name, values in sections.items():
        case.job[name] = {**case.job[name], **values} if name == "model" else values


@pytest.mark.parametrize("what", C19_REFUSED)
def test_c19_a_change_of_the_outputs_stops_the_resume(case: Case, what: str) -> None:
    before, after, words = C19_REFUSED[what]
    change(case, before)
    c19_half_way(case)
    files = case.written()
    change(case, after)
    result = case.run()
    assert (result.exit_code, result.created_engine) == (4, False)
    assert all(word in result.stderr for word in words), result.stderr
    assert case.written() == files


C19_FREE = {
    "gpu_memory_utilization": ("model.extra.gpu_memory_utilization=0.8",),
    "batch size": ("batch.size=8",),
    "log level": ("model.extra.log_level=DEBUG",),
}


@pytest.mark.parametrize("what", C19_FREE)
def test_c19_a_change_that_cannot_matter_resumes(case: Case, what: str) -> None:
    c19_half_way(case)
    overrides = [arg for override in C19_FREE[what] for arg in ("-s", override)]
    result = case.run(*overrides)
    assert result.exit_code == 0, result.stderr
    assert len(result.received) == 10
    case.assert_sound()
    assert len(set(case.received(1, 2))) == 20


def test_c19_the_form_of_the_log_may_change(case: Case) -> None:
    c19_half_way(case)
    result = case.run("--log-format", "json")
    assert (result.exit_code, len(result.received)) == (0, 10)


def test_c19_rows_that_were_cut_are_redone_with_more_tokens(case: Case) -> None:
    inputs.c19(case.input)
    case.job["batch"]["size"] = 5
    assert case.run().exit_code == 0
    before = case.assert_sound()
    long = [("rows.jsonl", number) for number in (3, 8, 15)]
    assert list(before.index[before["finish_reason"] == "length"]) == long
    query = "finish_reason == 'length'"
    result = case.run("--where", query, "-s", "sampling.max_tokens=48")
    after = case.assert_finished(result, 0)
    assert sorted(result.received) == long
    assert after.loc[long, "finish_reason"].tolist() == ["stop"] * 3
    assert after.loc[long, "num_output_tokens"].tolist() == [30] * 3
    pd.testing.assert_frame_equal(after.drop(index=long), before.drop(index=long))


def test_c19_a_redo_with_other_sampling_leaves_untried_rows_alone(case: Case) -> None:
    c19_half_way(case)
    chosen = case.outputs()["row"].tolist()[:3]
    redo = case.run("--where", f"row in {chosen}", "-s", "sampling.max_tokens=48")
    assert sorted(row for _, row in redo.received) == chosen
    rest = case.run()
    assert (rest.exit_code, len(rest.received)) == (0, 10)
    case.assert_sound()


def c20_job(case: Case) -> None:
    inputs.c20(case.input)
    case.job["errors"]["max_failed"] = "30%"


def only_lasting_faults(case: Case) -> None:
    """What was to fail once has failed; the engine of a new process would not remember."""
    script = inputs.directions(case.input)
    case.script = lambda: {
        key: told for key, told in script.items() if told.get("fault") != "row_error_once"
    }


C20_FIRST = {"ok": 75, "empty_prompt": 10, "null_prompt": 10, "engine_error": 5}
C20_LAST = {"ok": 80, "empty_prompt": 10, "null_prompt": 10}


def test_c20_a_rerun_sends_nothing_and_a_retry_what_may_work(case: Case) -> None:
    c20_job(case)
    first = case.run()
    assert first.exit_code == 0, first.stderr
    assert Counter(case.assert_sound()["error_type"].fillna("ok")) == C20_FIRST
    assert first.summary["failed_by_type"] == {k: n for k, n in C20_FIRST.items() if k != "ok"}
    second = case.run()
    assert (second.exit_code, second.received, second.created_engine) == (0, [], False)
    only_lasting_faults(case)
    third = case.run("--retry-failed")
    outputs = case.assert_finished(third, 0)
    assert len(third.received) == 5
    assert Counter(outputs["error_type"].fillna("ok")) == C20_LAST


def test_c20_a_retry_of_all_tries_refused_rows_as_well(case: Case) -> None:
    c20_job(case)
    case.run()
    before = case.assert_sound()
    failed = before[before["error_type"].notna()]
    only_lasting_faults(case)
    retry = case.run("--retry-failed=all")
    after = case.assert_finished(retry, 0)
    assert len(retry.received) == 5
    assert retry.summary["rows_this_run"] == 25
    assert Counter(after["error_type"].fillna("ok")) == C20_LAST
    again = after[after["run_id"] == retry.summary["run_id"]]
    assert list(again.index) == list(failed.index)
    refused = again[again["error_type"].notna()]
    assert refused["error_type"].tolist() == before.loc[refused.index, "error_type"].tolist()


def test_c21_the_second_sitting_goes_on_where_the_first_ended(case: Case) -> None:
    inputs.c21(case.input)
    case.job["batch"]["size"] = 25
    case.job["model"]["max_num_seqs"] = 25
    is_generate = case.job["batch"]["feed"] == "generate"
    case.extra["reply_sigma"] = 0
    case.extra["faults"] = {"terminate_after_rows": 51 if is_generate else 50}
    first = case.process()
    assert first.exit_code == 143, first.stderr
    assert case.outputs()["shard"].value_counts().to_dict() == {
        "autumn.jsonl": 25,
        "spring.jsonl": 25,
    }
    parts = {path: path.read_bytes() for path in (case.output / "outputs").iterdir()}
    case.extra["faults"] = {}
    second = case.run()
    assert second.exit_code == 0, second.stderr
    assert len(case.assert_sound()) == 100
    names = sorted(path.name for path in (case.output / "outputs").iterdir())
    assert [name.split("+")[0] for name in names] == [f"{name}.jsonl" for name in inputs.SEASONS]
    assert {path: path.read_bytes() for path in parts} == parts
    assert (second.summary["num_rows"], second.summary["rows_this_run"]) == (100, 50)
    manifest = case.manifest()
    assert manifest["counts"]["num_rows"] == 100
    assert [run["num_rows"] for run in manifest["runs"]] == [50, 50]
    assert (case.output / "_SUCCESS").exists()
    assert case.run().created_engine is False

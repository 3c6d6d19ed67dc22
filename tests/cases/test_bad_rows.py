"""Bad rows: each gets its output row and its reason, and its neighbors never notice."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from cases import inputs
from cases.harness import SCRIPT, Case, types_of

import batchgen
from batchgen.config.json_schema import schema_problem
from batchgen.records import Completion, Request


def test_c01_an_overlong_row_fails_alone(case: Case) -> None:
    inputs.c01(case.input)
    case.job["batch"]["size"] = 3
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert outputs["error_type"].fillna("ok").tolist() == ["ok", "prompt_too_long", "ok"]
    assert outputs["num_prompt_tokens"].tolist() == [5, inputs.LONG, 5]
    assert sorted(result.received) == [("rows.jsonl", 0), ("rows.jsonl", 2)]
    good = outputs[outputs["error_type"].isna()]
    assert good["output"].tolist() == case.completions_alone(good["prompt"].tolist())


def test_c01_one_failed_row_is_within_a_budget_of_one(case: Case) -> None:
    inputs.c01(case.input)
    case.job["batch"]["size"] = 3
    case.job["errors"]["max_failed"] = 1
    case.assert_finished(case.run(), 0)


@pytest.mark.parametrize("feed", ["continuous"])
def test_c01_the_exit_code_is_that_of_the_process(case: Case) -> None:
    inputs.c01(case.input)
    assert case.process().exit_code == 6
    case.job["errors"]["max_failed"] = 1
    assert case.process().exit_code == 0


def test_c03_every_prompt_is_measured_not_only_the_first(case: Case) -> None:
    inputs.c03(case.input)
    case.job["batch"]["size"] = 4
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert types_of(outputs) == {
        ("a.jsonl", 0): "ok",
        ("a.jsonl", 1): "prompt_too_long",
        ("b.jsonl", 0): "prompt_too_long",
        ("b.jsonl", 1): "ok",
    }
    assert sorted(result.received) == [("a.jsonl", 0), ("b.jsonl", 1)]
    good = outputs[outputs["error_type"].isna()]
    assert good["output"].tolist() == case.completions_alone(good["prompt"].tolist())


C04_TYPES = [
    "ok", "empty_prompt", "empty_prompt", "ok", "null_prompt", "bad_type", "ok", "bad_type",
    "bad_type", "null_prompt",
]  # fmt: skip


def test_c04_what_is_no_text_is_judged_before_any_rendering(case: Case) -> None:
    inputs.c04(case.input)
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert outputs["error_type"].fillna("ok").tolist() == C04_TYPES
    assert sorted(result.received) == [("a.jsonl", 0), ("a.jsonl", 3), ("a.jsonl", 6)]
    texts = [row["prompt"] for row in inputs.read_rows(case.input / "a.jsonl")]
    good = outputs[outputs["error_type"].isna()]
    assert good["output"].tolist() == case.completions_alone([texts[n] for n in (0, 3, 6)])


def test_c04_allowing_blank_prompts_changes_the_row_of_blanks_alone(case: Case) -> None:
    inputs.c04(case.input)
    case.job["prompt"]["allow_blank"] = True
    case.job["prompt"]["column"] = "prompt"
    outputs = case.assert_finished(case.run(), 6)
    assert outputs["error_type"].fillna("ok").tolist() == [*C04_TYPES[:2], "ok", *C04_TYPES[3:]]


def test_c05_a_row_without_the_column_fails_alone(case: Case) -> None:
    inputs.c05_one_row(case.input)
    case.job["prompt"] = {"template": "{{ title }}: {{ body }}"}
    outputs = case.assert_finished(case.run(), 6)
    assert Counter(outputs["error_type"].fillna("ok")) == {"ok": 9, "missing_column": 1}
    assert outputs.loc[("one_row.jsonl", 7), "error_type"] == "missing_column"
    assert "body" in outputs.loc[("one_row.jsonl", 7), "error"]


def test_c05_a_column_that_no_row_has_ends_the_run_before_the_engine(case: Case) -> None:
    inputs.c05_all_rows(case.input)
    case.job["prompt"] = {"template": "{{ title }}: {{ body }}"}
    result = case.run()
    assert (result.exit_code, result.created_engine) == (4, False)
    assert "no column 'body'" in result.stderr
    assert "it has 'Body', 'title'" in result.stderr
    assert "did you mean 'Body'?" in result.stderr
    assert case.written() == {}


def test_c06_a_conversation_without_messages_costs_one_row(case: Case) -> None:
    inputs.c06(case.input)
    case.job["prompt"] = {"column": "messages"}
    first = case.run()
    assert first.exit_code == 6, first.stderr
    outputs = case.assert_sound()
    assert Counter(outputs["error_type"].fillna("ok")) == {"ok": 99, "no_messages": 1}
    assert outputs.loc[("rows.jsonl", 50), "error_type"] == "no_messages"
    assert len(first.received) == 99
    parts = {name: data for name, data in case.written().items() if name.startswith("outputs")}
    second = case.run()
    assert (second.exit_code, second.received, second.created_engine) == (6, [], False)
    assert parts.items() <= case.written().items()


def test_c07_a_broken_line_is_one_failed_row(case: Case) -> None:
    inputs.c07(case.input)
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert len(outputs) == 999
    assert Counter(outputs["error_type"].fillna("ok")) == {"ok": 998, "bad_json": 1}
    (message,) = outputs["error"].dropna()
    assert "rows.jsonl" in message
    assert "501" in message
    assert outputs.loc[("rows.jsonl", 500), "error"] == message
    assert outputs.loc[("rows.jsonl", 0), "prompt"] == "line 1"
    assert outputs.loc[("rows.jsonl", 698), "prompt"] == "line 699"
    assert outputs.loc[("rows.jsonl", 699), "prompt"] == "line 701"
    assert "\ufeff" not in "".join(outputs.reset_index().columns)
    assert (result.summary["blank_lines"], result.summary["skipped_lines"]) == (1, 0)


def test_c07_a_broken_line_can_be_skipped(case: Case) -> None:
    inputs.c07(case.input)
    case.job["input"]["on_bad_line"] = "skip"
    result = case.run()
    assert result.exit_code == 0, result.stderr
    outputs = case.assert_sound([("rows.jsonl", number) for number in range(998)])
    assert outputs["error_type"].isna().all()
    assert outputs["prompt"].iloc[[499, 500]].tolist() == ["line 500", "line 502"]
    assert (result.summary["blank_lines"], result.summary["skipped_lines"]) == (1, 1)
    assert case.run().exit_code == 0


@pytest.mark.parametrize("feed", ["continuous"])
def test_c07_the_counts_of_lines_are_said_to_people_too(case: Case) -> None:
    inputs.c07(case.input)
    path = case.write_job()
    done = subprocess.run([SCRIPT, "run", path], capture_output=True, text=True)
    assert "1 blank, 0 bad and skipped" in done.stdout


def test_c08_a_line_feed_alone_ends_a_line(case: Case) -> None:
    inputs.c08(case.input)
    outputs = case.assert_finished(case.run(), 0)
    assert outputs["error_type"].isna().all()
    texts = [f"before{mark}after" for mark in inputs.LINE_LIKE]
    assert outputs.loc["a.jsonl", "prompt"].tolist() == texts
    assert outputs.loc["b.parquet", "prompt"].tolist() == texts
    assert outputs.loc["a.jsonl", "output"].tolist() == outputs.loc["b.parquet", "output"].tolist()


C09_TEMPLATE = 'Return JSON {"a": 1} for '


def test_c09_braces_of_template_and_data_stay(case: Case) -> None:
    inputs.c09(case.input)
    case.job["prompt"] = {"template": C09_TEMPLATE + "{{ text }}"}
    case.job["output"]["prompt"] = True
    case.job["output"]["keep"] = ["text"]
    outputs = case.assert_finished(case.run(), 0)
    assert outputs["prompt"].tolist() == [C09_TEMPLATE + text for text in inputs.BRACES]
    assert outputs["text"].tolist() == list(inputs.BRACES)
    texts = "".join(outputs["prompt"] + outputs["output"])
    assert "EXPANDED" not in texts
    assert "49" not in texts


def test_c09_a_template_without_column_is_a_mistake_in_the_job_file(case: Case) -> None:
    inputs.c09(case.input)
    case.job["prompt"] = {"template": C09_TEMPLATE + "{text}"}
    result = case.run()
    assert (result.exit_code, result.created_engine) == (3, False)
    assert "no column" in result.stderr
    assert "did you mean '{{ text }}'?" in result.stderr
    assert case.written() == {}


def test_c09_a_brace_that_is_missing_is_found_with_its_line(case: Case) -> None:
    inputs.c09(case.input)
    case.job["prompt"] = {"template": C09_TEMPLATE + "{{ text }"}
    result = case.run()
    assert (result.exit_code, result.created_engine) == (3, False)
    lines = (case.folder / "job.yaml").read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if "template:" in line)
    assert f"job.yaml:{number}:" in result.stderr
    assert case.written() == {}


def c10_job(case: Case) -> None:
    inputs.c10(case.input)
    case.job["sampling"]["json_schema"] = {"column": "schema"}


def test_c10_a_bad_schema_fails_its_row_alone(case: Case) -> None:
    c10_job(case)
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert outputs["error_type"].fillna("ok").tolist() == ["ok", "bad_schema", "bad_schema", "ok"]
    assert sorted(result.received) == [("rows.jsonl", 0), ("rows.jsonl", 3)]
    assert result.summary["engine_restarts"] == 0
    assert json.loads(outputs["output"].iloc[0]).keys() == {"city"}


def test_c10_each_schema_compiles_once_before_generation(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10_job(case)
    compiled: list[str] = []

    def compile_counted(schema: str) -> str | None:
        assert case.received() == []
        compiled.append(schema)
        return schema_problem(schema)

    monkeypatch.setattr("batchgen.corpus.sampling.schema_problem", compile_counted)
    assert case.run().exit_code == 6
    schemas = {row["schema"] for row in case.input_rows().values()}
    assert sorted(compiled) == sorted(schemas)


def test_c10_a_null_schema_means_free_text(case: Case) -> None:
    c10_job(case)
    with (case.input / "rows.jsonl").open("a") as file:
        file.write('{"prompt": "write freely", "schema": null}\n')
    outputs = case.assert_finished(case.run(), 6)
    assert outputs.loc[("rows.jsonl", 4), "output"].startswith("Reply to: write freely")


class Borrowed:
    """The engine of the test session, for one run: not closed, and its requests counted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.received: list[Request] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: Request) -> Completion | None:
        self.received.append(request)
        answer: Completion | None = self._engine.add(request)
        return answer

    def generate(self, requests: list[Request]) -> list[Completion]:
        self.received += requests
        answers: list[Completion] = self._engine.generate(requests)
        return answers

    def close(self) -> None:
        pass


@pytest.mark.cpu
def test_c10_a_real_engine_survives_bad_schemas(
    case: Case, tiny_vllm: Any, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10_job(case)
    case.job["model"] = {"name": str(tiny_model_dir), "engine": "vllm", "max_model_len": 64}
    engine = Borrowed(tiny_vllm)
    monkeypatch.setattr("batchgen.run.execution.create_engine", lambda *_, **__: engine)
    result = case.run()
    assert result.exit_code == 6, result.stderr
    outputs = case.assert_sound()
    assert outputs["error_type"].fillna("ok").tolist() == ["ok", "bad_schema", "bad_schema", "ok"]
    assert sorted(request.row.row for request in engine.received) == [0, 3]
    first = engine.received[0]
    again = tiny_vllm.generate([first._replace(id="still-alive")])
    assert [completion.error for completion in again] == [None]


def test_c11_a_job_in_which_nothing_worked_says_so(case: Case) -> None:
    inputs.c11(case.input)
    result = case.run()
    outputs = case.assert_finished(result, 6)
    assert outputs["error_type"].tolist() == ["prompt_too_long"] * 9
    (part,) = (case.output / "outputs").iterdir()
    assert ds.dataset(part).to_table().num_rows == 9
    assert (result.summary["num_failed"], result.summary["num_rows"]) == (9, 9)
    assert result.summary["failed_by_type"] == {"prompt_too_long": 9}


@pytest.mark.parametrize("feed", ["continuous"])
def test_c11_the_summary_for_people_counts_by_type(case: Case) -> None:
    inputs.c11(case.input)
    path = case.write_job()
    done = subprocess.run([SCRIPT, "run", path], capture_output=True, text=True)
    assert done.returncode == 6
    assert "9: 0 ok, 9 of 9 failed (prompt_too_long 9)" in done.stdout
    assert "9 of 9 rows failed" in done.stderr


def c12_stop(case: Case) -> None:
    inputs.c12(case.input)
    case.job["errors"]["stop_at"] = "5%"


@pytest.mark.parametrize("feed", ["generate"])
def test_c12_the_budget_ends_the_run_at_200_rows(case: Case) -> None:
    c12_stop(case)
    result = case.run()
    outputs = case.outputs()
    assert result.exit_code == 6
    assert outputs["error_type"].fillna("ok").tolist() == ["ok"] * 100 + ["engine_error"] * 100
    assert outputs["row"].tolist() == list(range(200))
    assert len(result.received) == 200
    assert "errors.stop_at (5%)" in result.stderr
    assert "50.0%" in result.stderr
    assert "engine_error" in result.stderr


@pytest.mark.parametrize("feed", ["continuous"])
@pytest.mark.parametrize("window", [8, "auto"])
def test_c12_with_continuous_the_run_ends_at_most_one_window_later(
    case: Case, window: int | str
) -> None:
    c12_stop(case)
    case.job["batch"]["window"] = window
    num_in_flight = 512 if window == "auto" else window
    result = case.run()
    outputs = case.outputs()
    assert result.exit_code == 6
    assert 200 <= len(outputs) <= 200 + num_in_flight
    assert Counter(outputs["error_type"].fillna("ok")) == {
        "ok": 100,
        "engine_error": len(outputs) - 100,
    }
    assert len(result.received) <= 200 + num_in_flight
    assert "errors.stop_at (5%)" in result.stderr
    assert "engine_error" in result.stderr


def test_c12_a_retry_without_faults_does_all_that_is_left(case: Case) -> None:
    c12_stop(case)
    case.job["batch"]["window"] = 8
    first = case.run()
    assert first.exit_code == 6
    assert not (case.output / "_SUCCESS").exists()
    num_ok = int(batchgen.read_outputs("out")["error_type"].isna().sum())
    case.script = dict
    retry = case.run("--retry-failed")
    outputs = case.assert_finished(retry, 0)
    assert num_ok == 100
    assert len(retry.received) == len(set(retry.received)) == 900
    assert outputs["error_type"].isna().sum() == 1000


def test_c12_an_early_stop_looks_at_the_current_run_only(case: Case) -> None:
    c12_stop(case)
    case.job["batch"]["window"] = 8
    case.run()
    case.script = dict
    result = case.run()
    assert result.summary["stopped"] is None
    assert result.exit_code == 6
    assert result.summary["num_failed"] >= 100
    assert case.assert_sound()["error_type"].notna().sum() == result.summary["num_failed"]


def test_c12_a_stretch_of_refused_rows_ends_the_run_as_well(case: Case) -> None:
    inputs.jsonl(case.input / "rows.jsonl", [{"prompt": None}] * 5000)
    case.job["errors"]["stop_at"] = "5%"
    result = case.run()
    assert result.exit_code == 6
    assert 200 <= len(case.outputs()) < 200 + case.job["batch"]["size"]
    assert "null_prompt" in result.stderr

"""What engines do at night: they die, return late, finish unevenly, and cut texts off."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import inputs
from cases.harness import Case, Key

from batchgen.engine.factory import create_engine
from batchgen.output.reading import read_totals
from batchgen.records import Completion, Request


def c22_job(case: Case) -> None:
    inputs.c22(case.input)
    case.job["batch"]["size"] = 25
    case.job["errors"]["engine_restarts"] = 2
    # Replies of equal length, so that rows finish in their order.
    case.extra["reply_sigma"] = 0


def test_c22_a_dead_engine_ends_the_run_and_blames_no_row(case: Case) -> None:
    c22_job(case)
    case.extra["faults"] = {"die_after_rows": 100, "die_on_start": "always"}
    dead = case.process()
    assert dead.exit_code == 5, dead.stderr
    outputs = case.outputs()
    assert outputs["row"].tolist() == list(range(100))
    assert outputs["error_type"].isna().all()
    pauses = [float(text) for text in re.findall(r"restarting it in ([\d.]+) s", dead.stderr)]
    assert len(pauses) == 2
    assert pauses[1] > pauses[0] > 0
    assert "errors.engine_restarts" in dead.stderr
    case.extra["faults"] = {}
    healthy = case.run()
    assert sorted(healthy.received) == [("rows.parquet", number) for number in range(100, 300)]
    assert len(case.assert_finished(healthy, 0)) == 300


@pytest.mark.parametrize("feed", ["generate"])
def test_c24_completions_of_an_earlier_call_go_to_nobody(case: Case) -> None:
    inputs.c24(case.input)
    case.job["batch"]["size"] = 32
    case.extra["faults"] = {"raise_in_call": {"call": 3, "after_rows": 10}}
    result = case.run()
    outputs = case.assert_finished(result, 0)
    assert len(outputs) == 128
    assert outputs["output"].tolist() == outputs["sim_reply"].tolist()
    assert result.summary["num_stale"] == 22
    assert case.manifest()["runs"][0]["num_stale"] == 22


class Watched:
    """The simulated engine, and how many requests it ever held at once."""

    def __init__(self, engine: Any, output: Path) -> None:
        self._engine = engine
        self._output = output
        self.most_in_flight = 0
        self.num_finished = 0
        self.num_finished_at_long_rows: list[int] = []
        self.unsaved_at_long_rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: Request) -> Completion | None:
        answer: Completion | None = self._engine.add(request)
        self.most_in_flight = max(self.most_in_flight, self._engine.num_unfinished)
        return answer

    def step(self) -> list[Completion]:
        completions: list[Completion] = self._engine.step()
        if _any_long(completions) and len(self.unsaved_at_long_rows) < 5:
            self.num_finished_at_long_rows.append(self.num_finished)
            self.unsaved_at_long_rows.append(self.num_finished - self._num_saved())
        self.num_finished += len(completions)
        return completions

    def _num_saved(self) -> int:
        """Rows in journal and parts, as any other process would see them."""
        return read_totals(self._output).num_rows


def _any_long(completions: Sequence[Completion]) -> bool:
    return any(sample.num_tokens > 20 for c in completions for sample in c.samples)


def c25_job(case: Case) -> None:
    inputs.c25(case.input)
    case.job["model"] |= {"max_model_len": 4096, "max_num_seqs": 128}
    case.job["sampling"]["max_tokens"] = 2000


def c25_generate_s(case: Case, size: int) -> float:
    """Simulated seconds of the `generate` feed; every batch has to drain."""
    case.job["batch"] |= {"feed": "generate", "size": size}
    case.job["output"]["path"] = f"out-{size}"
    result = case.run()
    assert result.exit_code == 0, result.stderr
    assert len(case.outputs()) == 2048
    batches = case.batches()
    assert len(batches) == 2048 // size
    assert (batches["drain_s"] > 0).all()
    seconds: float = result.summary["generate_s"]
    assert batches["wall_s"].sum() == pytest.approx(seconds)
    return seconds


@pytest.mark.parametrize("feed", ["continuous"])
def test_c25_no_batch_waits_for_its_longest_row(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    c25_job(case)
    seconds = [c25_generate_s(case, size) for size in (64, 512, 2048)]
    assert seconds[0] > seconds[1] > seconds[2]

    engines: list[Watched] = []

    def create_watched(*args: Any, **options: Any) -> Watched:
        engines.append(Watched(create_engine(*args, **options), case.output))
        return engines[-1]

    monkeypatch.setattr("batchgen.run.execution.create_engine", create_watched)
    case.job["batch"] |= {"feed": "continuous", "size": 64, "window": 256}
    case.job["output"]["path"] = "out-continuous"
    result = case.run()
    assert result.exit_code == 0, result.stderr
    assert len(case.assert_sound(c25_keys())) == 2048
    (engine,) = engines
    assert engine.most_in_flight <= 256
    assert result.summary["generate_s"] <= 1.05 * seconds[2]
    assert engine.num_finished_at_long_rows[0] > 1500
    assert max(engine.unsaved_at_long_rows) <= 256


def c25_keys() -> list[Key]:
    return [("rows.parquet", number) for number in range(2048)]


def test_c26_a_text_that_was_cut_off_stays_as_it_is(case: Case) -> None:
    inputs.c26(case.input)
    case.job["output"]["json"] = True
    result = case.run()
    outputs = case.assert_finished(result, 0)
    assert outputs["output"].tolist() == [text for text, _ in inputs.REPLIES]
    assert outputs["finish_reason"].tolist() == ["stop", "length", "length", "length"]
    assert outputs["json_valid"].tolist() == [True, False, False, True]
    assert (result.summary["num_cut"], result.summary["num_invalid_json"]) == (3, 2)
    assert len(result.received) == 4


def c27_job(case: Case) -> None:
    inputs.c27_tokenizer(case.folder / "tokenizer")
    case.job["model"]["tokenizer"] = "tokenizer"


def c27_ids(case: Case) -> list[int]:
    """Token ids of the only prompt, as `check` shows them, without an engine."""
    checked = case.check()
    assert (checked.exit_code, checked.created_engine) == (0, False), checked.stderr
    (prompt,) = checked.summary["prompts"]
    ids: list[int] = prompt["token_ids"]
    return ids


def c27_received(case: Case, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Token ids of the only prompt, as they reach the engine."""
    requests: list[Request] = []

    def create_listening(*args: Any, **options: Any) -> Any:
        engine: Any = create_engine(*args, **options)
        add = engine.add
        engine.add = lambda request: requests.append(request) or add(request)
        return engine

    monkeypatch.setattr("batchgen.run.execution.create_engine", create_listening)
    result = case.run()
    case.assert_finished(result, 0)
    (request,) = requests
    return np.asarray(request.token_ids).tolist()


def test_c27_a_text_gets_one_bos(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    c27_job(case)
    inputs.c27_rows(case.input)
    assert c27_ids(case) == c27_received(case, monkeypatch) == [1, 5, 6, 7]


def test_c27_a_template_with_bos_gets_one_and_a_warning(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    c27_job(case)
    inputs.c27_rows(case.input)
    case.job["prompt"] = {"template": "<s>{{ prompt }}"}
    assert c27_ids(case) == c27_received(case, monkeypatch) == [1, 5, 6, 7]
    (warning,) = case.check().summary["warnings"]
    assert "BOS" in warning
    assert "prompt.template" in warning


def test_c27_a_conversation_gets_one_bos(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    c27_job(case)
    inputs.c27_chat(case.input)
    case.job["prompt"] = {"column": "messages"}
    assert c27_ids(case) == c27_received(case, monkeypatch) == [1, 3, 5, 6, 7, 4]


def test_c27_check_shows_the_ids_to_people_and_warns(case: Case) -> None:
    c27_job(case)
    inputs.c27_rows(case.input)
    case.job["prompt"] = {"template": "<s>{{ prompt }}"}
    shown = case.check_for_people()
    assert "1 5 6 7" in shown.stdout
    assert "warning:" in shown.stderr
